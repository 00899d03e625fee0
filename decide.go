package edge

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Rung is where a prefix stands on the ladder.
type Rung string

// The rungs. Only Withheld and Withdrawn are not announced.
const (
	// Withheld: not announced yet; nothing has been decided since the start.
	Withheld Rung = "withheld"
	// Announced: at its best.
	Announced Rung = "announced"
	// Degraded: announced, made less attractive; a soft dependency failed.
	Degraded Rung = "degraded"
	// Draining: announced at its least attractive ahead of a withdrawal, so that the
	// traffic moves first; the guard is not asked yet.
	Draining Rung = "draining"
	// Leaving: announced at its least attractive, and the guard is being asked.
	Leaving Rung = "leaving"
	// LastResort: the guard has refused; announced at its least attractive.
	LastResort Rung = "last-resort"
	// Withdrawn: gone, with the guard's permit.
	Withdrawn Rung = "withdrawn"
)

// OnAir says whether a prefix on this rung is announced.
func (r Rung) OnAir() bool {
	return r == Announced || r == Degraded || r == Draining || r == Leaving || r == LastResort
}

// WantsOut says whether a prefix on this rung is asking the guard for leave.
func (r Rung) WantsOut() bool { return r == Leaving || r == LastResort }

// Decision is where one prefix stands and why.
type Decision struct {
	Prefix netip.Prefix `json:"prefix"`
	Rung   Rung         `json:"rung"`
	Since  time.Time    `json:"since"`
	Reason Reason       `json:"reason,omitempty"`
	// WellSince is since when the prefix could be served without a break, be it
	// healthy or degraded; zero while it is sick or nothing is known.
	WellSince time.Time `json:"well_since,omitzero"`
	// PlainSince is since when it could be announced at its best, likewise.
	PlainSince time.Time `json:"plain_since,omitzero"`
	// Severity ranks the wish to leave, for the guard: higher is worse.
	Severity int `json:"severity,omitempty"`
	// Unserved says that it is off the air and nothing of it is served any more: the
	// box may be switched off.
	Unserved bool `json:"unserved,omitempty"`
}

// Severities of a wish to leave: whoever is worse may go first.
const (
	SeverityDrain = 1  // planned: can serve, and need not go now
	SeveritySick  = 2  // the least of those that cannot serve, or not all
	SeverityDown  = 10 // nothing of the prefix can be served
)

// SeverityOf is how sick a prefix is of whose services so many cannot be served. A
// failed need of the prefix itself is one of all.
func SeverityOf(down, of int) int {
	if of <= 0 || down >= of {
		return SeverityDown
	}
	return SeveritySick + (SeverityDown-SeveritySick)*max(0, down)/of
}

// Facts are all that a decision depends on, for one prefix.
type Facts struct {
	// Now is the time of the decision.
	Now time.Time
	// Last is the decision before; its zero value is that of a fresh start.
	Last Decision
	// Settled says that the first full round of probes is over.
	Settled bool
	// OnAir says that the speaker announces the prefix already: this process
	// has been restarted, or has just withdrawn it.
	OnAir bool
	// SentDegraded says that the speaker was told to announce it degraded.
	SentDegraded bool
	// Condition is what the dependency graph says.
	Condition Condition
	// Drain is an operator's order to leave; nil: none.
	Drain *Drain
	// Permit is the guard's last answer.
	Permit Permit
	// Floor is how many sites must announce the prefix; Others how many other
	// sites are known to, or -1 while this node has not had the time to hear. Any
	// number that is large enough says that another node of this site does.
	Floor, Others int
	// NotReady says why a prefix that is not on the air cannot be announced yet,
	// whatever its health; empty: it can.
	NotReady Reason
	// Hold is how long a prefix must be healthy again before it comes back, and
	// how long one that is announced degraded before it is announced at its best.
	Hold time.Duration
	// DrainTime is how long a planned withdrawal is announced degraded before the
	// guard is asked, SickDrainTime one for sickness; Quiet says that the traffic of
	// a drain has gone, which ends that early.
	DrainTime, SickDrainTime time.Duration
	Quiet                    bool
	// TooOften says why the prefix may not be withdrawn for sickness again so
	// soon (an operator knows what he does, and is not kept from it), Restless why it may not be announced at its best; empty: it may.
	TooOften, Restless Reason
	// Worse is a site that is sick and may not leave: see WorseElsewhere. Its zero
	// value is none.
	Worse Worse
	// WhenFull says what a full site does.
	WhenFull FullPolicy
	// Unconditional says that the prefix is announced here whatever its health;
	// Elsewhere that only other sites announce it, and why.
	Unconditional bool
	Elsewhere     Reason
}

// Decide says where prefix p stands now. It is pure. It never returns
// Withdrawn for a prefix that is on the air: withdrawing is an act, done under
// the guard's permit, after which OnAir is false.
func Decide(p netip.Prefix, f Facts) Decision {
	d := Decision{Prefix: p, WellSince: wellSince(f), PlainSince: plainSince(f)}
	d.Rung, d.Reason, d.Severity = rung(f, d)
	d.Since = f.Last.Since
	if d.Rung != f.Last.Rung || d.Since.IsZero() {
		d.Since = f.Now
	}
	return d
}

// wellSince carries the time over changes between healthy and degraded, so that
// a soft dependency that flaps does not keep a site from coming back.
func wellSince(f Facts) time.Time {
	switch f.Condition.Health {
	case Sick:
		return time.Time{}
	case HealthDegraded:
		if f.Condition.Doubtful {
			return time.Time{}
		}
		fallthrough
	case Healthy, HealthFull:
		if f.Last.WellSince.IsZero() {
			return f.Condition.Since
		}
	}
	return f.Last.WellSince
}

// plainSince is broken by any failure, but not by what is not known.
func plainSince(f Facts) time.Time {
	switch {
	case f.Condition.Health == HealthUnknown:
		return f.Last.PlainSince
	case !plain(f):
		return time.Time{}
	case f.Last.PlainSince.IsZero():
		return f.Now
	}
	return f.Last.PlainSince
}

// plain says whether the condition asks for nothing but the best announcement.
func plain(f Facts) bool {
	h := f.Condition.Health
	return h == Healthy || h == HealthFull && f.WhenFull != DegradeFull
}

func rung(f Facts, d Decision) (Rung, Reason, int) {
	switch {
	case f.Elsewhere != "" && !f.OnAir:
		return Withheld, f.Elsewhere, 0
	case f.Elsewhere != "" && f.Settled:
		return leave(f, f.Elsewhere, SeverityDrain)
	case f.Unconditional && f.Drain != nil:
		return leave(f, Reason("drained: "+f.Drain.Reason), SeverityDrain)
	case f.Unconditional && !f.OnAir && f.NotReady != "":
		return Withheld, f.NotReady, 0
	case f.Unconditional:
		return Announced, "unconditional: announced whatever its health", 0
	}
	return byHealth(f, d)
}

func byHealth(f Facts, d Decision) (Rung, Reason, int) {
	// An operator's order holds whatever is known of the health: a probe that
	// can never run must not make a node undrainable.
	if f.Settled && f.Drain != nil && f.Condition.Health != Sick {
		return leave(f, Reason("drained: "+f.Drain.Reason), SeverityDrain)
	}
	if !f.Settled || f.Condition.Health == HealthUnknown {
		return unsettled(f)
	}
	if f.Condition.Health == Sick || f.Condition.Doubtful && !f.OnAir {
		return leave(f, f.Condition.Reason, max(SeveritySick, f.Condition.Severity))
	}
	if !f.OnAir {
		if wait, why := mustHold(f, d.WellSince); wait && (f.Worse.Severity < SeveritySick || f.NotReady != "") {
			return Withdrawn, why, 0
		} else if wait {
			return Degraded, why + "; " + f.Worse.back(), 0
		}
		switch {
		case f.NotReady != "" && f.Last.Rung == Withdrawn: // stays one: its hold is not over by that
			return Withdrawn, f.NotReady, 0
		case f.NotReady != "":
			return Withheld, f.NotReady, 0
		}
	}
	if !plain(f) {
		return Degraded, f.Condition.Reason, 0
	}
	if why := stayDegraded(f, d.PlainSince); why != "" {
		return Degraded, why, 0
	}
	if f.Condition.Health == HealthFull {
		return Announced, f.Condition.Reason + "; it stays, and what it cannot take is spread to other regions", 0
	}
	return Announced, "", 0
}

// stayDegraded says why a prefix that could be announced at its best is not yet:
// a dependency that flaps must not make routes flap.
func stayDegraded(f Facts, plain time.Time) Reason {
	switch was := f.Last.Rung; {
	case !was.OnAir() || was == Announced:
		return ""
	case f.Restless != "":
		return f.Restless
	case f.Now.Sub(plain) < f.Hold:
		return Reason(fmt.Sprintf("well again since %s; announced at its best after %s", plain.UTC().Format(time.TimeOnly), f.Hold))
	}
	return ""
}

// unsettled is for the time before the probes can be believed, and for unknown
// health: whatever is, stays. A wish to leave is not kept up on what is not
// known, but the prefix stays degraded.
func unsettled(f Facts) (Rung, Reason, int) {
	switch {
	case f.OnAir && (f.Last.Rung.WantsOut() || f.Last.Rung == Draining):
		return Degraded, "kept degraded: " + unknownReason(f.Condition), 0
	case f.OnAir && f.Last.Rung.OnAir() && f.Settled:
		return f.Last.Rung, "kept as it was: " + unknownReason(f.Condition), 0
	case f.OnAir && f.Last.Rung.OnAir():
		return f.Last.Rung, f.Last.Reason, 0
	case f.OnAir && f.SentDegraded:
		return Degraded, "kept degraded as it was before edged started; the first round of probes is not over", 0
	case f.OnAir:
		return Announced, "kept as it was before edged started; the first round of probes is not over", 0
	case f.Last.Rung == Withdrawn && f.Settled:
		return Withdrawn, "kept as it was: " + unknownReason(f.Condition), 0
	case f.Last.Rung == Withdrawn:
		return Withdrawn, f.Last.Reason, 0
	case !f.Settled:
		return Withheld, "the first round of probes is not over", 0
	}
	return Withheld, unknownReason(f.Condition), 0
}

func unknownReason(c Condition) Reason {
	if c.Reason != "" {
		return "health is not known: " + c.Reason
	}
	return "health is not known"
}

// hearsay is how much older than the promises what is heard of other sites may be: one
// that has come back a moment ago for this one to leave must not look gone.
const hearsay = 2 * time.Second

// leftNow says that the prefix has been withdrawn a moment ago.
func leftNow(f Facts) bool {
	return f.Last.Rung.OnAir() || f.Last.Rung == Withdrawn && f.Now.Sub(f.Last.Since) < hearsay
}

// leave is for a prefix that wants off the air, or must not come on. Sickness
// outranks an operator's order, which can wait.
//
// A sick prefix that is off the air comes back as a last resort when fewer sites
// than the floor announce it: those that promised to stay have died since, and a
// service that is perhaps broken is better than none. Who was drained stays
// out: somebody may have his hands in the box.
func leave(f Facts, why Reason, severity int) (Rung, Reason, int) {
	sick := severity >= SeveritySick
	switch {
	case !f.OnAir && sick && f.Others >= 0 && f.Others < f.Floor && f.Drain == nil && f.NotReady == "" && !leftNow(f):
		return LastResort, why + Reason(fmt.Sprintf("; announced all the same: %d other sites announce it, and %d must", f.Others, f.Floor)), severity
	case !f.OnAir && sick && f.Last.Rung == Withdrawn && f.Worse.Severity > severity && f.Drain == nil && f.NotReady == "" && !leftNow(f):
		return LastResort, why + "; " + f.Worse.back(), severity
	case !f.OnAir && f.Last.Rung == Withheld || !f.OnAir && f.Last.Rung == "":
		return Withheld, why, 0
	case !f.OnAir && sick:
		return Withdrawn, why, severity
	case !f.OnAir:
		return Withdrawn, why, 0
	case sick && f.TooOften != "" && f.Drain == nil && !f.Last.Rung.WantsOut():
		return Degraded, why + "; " + f.TooOften, severity
	case mustDrain(f, severity):
		return Draining, why, severity
	case f.Permit.Refused && !f.Permit.OK:
		return LastResort, why + mayNot + f.Permit.Reason, severity
	}
	return Leaving, why, severity
}

const mayNot = "; may not withdraw: "

// Wish is the reason without why the wish is not granted: for those who are asked.
func (d Decision) Wish() Reason {
	why, _, _ := strings.Cut(string(d.Reason), mayNot)
	return Reason(why)
}

// mustDrain says whether the traffic is to be given time to move. A prefix that
// has asked the guard already has had it.
func mustDrain(f Facts, severity int) bool {
	length := f.DrainTime
	if severity >= SeveritySick {
		length = f.SickDrainTime
	}
	if f.Quiet || length <= 0 || f.Last.Rung.WantsOut() {
		return false
	}
	return f.Last.Rung != Draining || f.Now.Sub(f.Last.Since) < length
}

// mustHold keeps a prefix that was withdrawn off the air until it has been
// healthy for the hold time: longer to come back than to leave.
func mustHold(f Facts, well time.Time) (bool, Reason) {
	left := f.Hold - f.Now.Sub(well)
	if f.Last.Rung != Withdrawn || left <= 0 {
		return false, ""
	}
	return true, Reason(fmt.Sprintf("can serve again since %s; comes back after %s", well.UTC().Format(time.TimeOnly), f.Hold))
}
