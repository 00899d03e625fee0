// Package confirm decides when a change of configuration that nobody has
// confirmed is taken back: when its time is over, or earlier, when it has cut
// the box off.
//
// It owns the decision and the waiting, and never touches the configuration, a
// socket or a file: those are its caller's. edge-confirm.service runs it, a
// process of its own, so that it outlives the login of who made the change.
package confirm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// How long something may be lost. A session of BGP that the change resets needs
// time to come back; sshd and an address on a link do not.
const (
	BGPGrace = 30 * time.Second
	SSHGrace = 10 * time.Second
	// LoginGrace is longer than two of the pauses in which TCP sends again what was not
	// acknowledged: after a path was away for less than 12 s, the next try but one
	// arrives within it (RFC 6298 section 5: each pause is twice the one before).
	LoginGrace = 30 * time.Second
)

// Every is how often a Watch looks.
const Every = time.Second

// Rules are what is watched for one change.
type Rules struct {
	// Within is how long after the start the change is taken back.
	Within time.Duration
	// Peers are those whose sessions were established before the change and that
	// are still configured. Edged says that edged answered before it.
	Peers []string
	Edged bool
	// SSH are the addresses on which sshd answered.
	SSH []string
	// Logins are the connections of people, Others those that were there besides.
	Logins, Others []string
}

// Facts are what is seen at one moment.
type Facts struct {
	// Pending is false once somebody has confirmed the change, or has taken it back.
	Pending bool
	// Edged says that edged answers. Established are then the peers with a session.
	Edged       bool
	Established []string
	// SSH are the addresses on which sshd answers.
	SSH []string
	// Open are the Logins that have not ended, Stuck those of them to which nothing
	// arrives any more, NoRoute those to whose client there is no route.
	Open, Stuck, NoRoute []string
	// Fresh says that there is a login that is neither one of Logins nor of Others, and
	// not stuck: somebody has come in since.
	Fresh bool
}

// Verdict is what is to be done.
type Verdict string

// The verdicts. Over needs nothing more of the caller.
const (
	Wait   Verdict = "wait"
	Revert Verdict = "revert"
	Over   Verdict = "over"
)

// Decision is a verdict and, for Revert, its reason for people.
type Decision struct {
	Verdict Verdict
	Reason  string
}

// Judge decides about one change. It has no clock: times are passed in. One
// goroutine uses it.
type Judge struct {
	rules Rules
	start time.Time
	lost  map[string]time.Time // since when, by what it is
}

// NewJudge begins with a change that was, or is about to be, applied at start.
func NewJudge(r Rules, start time.Time) *Judge {
	return &Judge{rules: r, start: start, lost: map[string]time.Time{}}
}

// Step judges what is seen at now, which never goes back. What is over is over
// even if something is lost, and a loss is named before the end of the time.
func (j *Judge) Step(now time.Time, f Facts) Decision {
	if !f.Pending {
		return Decision{Verdict: Over}
	}
	var why []string
	if j.rules.Edged && j.lostFor(now, "edged", f.Edged, BGPGrace) {
		why = append(why, fmt.Sprintf("edged has not answered for %s", BGPGrace))
	}
	for _, p := range j.rules.Peers {
		// Of an edged that is silent nothing is known: the line above is for that.
		if f.Edged && j.lostFor(now, "peer "+p, slices.Contains(f.Established, p), BGPGrace) {
			why = append(why, fmt.Sprintf("the BGP session with %s was lost and has not come back in %s", p, BGPGrace))
		}
	}
	for _, a := range j.rules.SSH {
		if j.lostFor(now, "ssh "+a, slices.Contains(f.SSH, a), SSHGrace) {
			why = append(why, fmt.Sprintf("sshd has not answered on %s for %s", a, SSHGrace))
		}
	}
	why = append(why, j.logins(now, f)...)
	if len(why) == 0 && now.Sub(j.start) >= j.rules.Within {
		why = append(why, fmt.Sprintf("nobody has confirmed it within %s", j.rules.Within))
	}
	if len(why) > 0 {
		return Decision{Revert, strings.Join(why, "; ")}
	}
	return Decision{Verdict: Wait}
}

// logins judges those of people. Of several each may hang for a reason of its own, such
// as a laptop that sleeps: only if all do, and nobody has come in anew, it is the box.
func (j *Judge) logins(now time.Time, f Facts) (why []string) {
	all := len(j.rules.Logins)
	if j.lostFor(now, "route", all == 0 || len(f.NoRoute) < all || f.Fresh, SSHGrace) {
		why = append(why, fmt.Sprintf("for %s there has been no route to whoever was logged in: %s", SSHGrace, clients(f.NoRoute)))
	}
	stuck := len(f.Open) > 0 && len(f.Stuck) == len(f.Open) && !f.Fresh
	if j.lostFor(now, "logins", !stuck, LoginGrace) {
		why = append(why, fmt.Sprintf("for %s nothing has arrived at whoever is logged in: %s", LoginGrace, clients(f.Stuck)))
	}
	return why
}

func clients(logins []string) string {
	var out []string
	for _, l := range logins {
		client, _, _ := strings.Cut(l, " ")
		out = append(out, client)
	}
	return strings.Join(out, ", ")
}

// lostFor notes whether something is there, and says whether it has been away
// for as long as grace.
func (j *Judge) lostFor(now time.Time, what string, there bool, grace time.Duration) bool {
	if there {
		delete(j.lost, what)
		return false
	}
	since, was := j.lost[what]
	if !was {
		j.lost[what] = now
		return false
	}
	return now.Sub(since) >= grace
}

// Watch looks every second until the decision is not to wait. look must return
// soon after its context has ended, which is before the next look is due. When
// ctx ends the decision is Wait: whoever comes next goes on.
func Watch(ctx context.Context, r Rules, look func(context.Context) Facts) Decision {
	j := NewJudge(r, time.Now())
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		within, cancel := context.WithTimeout(ctx, Every)
		facts := look(within)
		cancel()
		if ctx.Err() != nil {
			return Decision{Verdict: Wait}
		}
		if d := j.Step(time.Now(), facts); d.Verdict != Wait {
			return d
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}
