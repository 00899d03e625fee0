package confirm

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var all = Rules{Within: 120 * time.Second, Peers: []string{"r-a", "r-b"}, Edged: true, SSH: []string{"192.0.2.1:22"}}

// mine is a change by somebody who is known, two by one of two people.
var (
	mine = Rules{Within: 120 * time.Second, Logins: []string{"203.0.113.9:50000 192.0.2.1:22"}}
	two  = Rules{Within: 120 * time.Second, Logins: []string{"203.0.113.9:50000 192.0.2.1:22", "203.0.113.10:50000 192.0.2.1:22"}}
)

func fine() Facts {
	return Facts{Pending: true, Edged: true, Established: []string{"r-a", "r-b"}, SSH: []string{"192.0.2.1:22"}}
}

// TestWatch plays the two minutes after a change, second by second.
func TestWatch(t *testing.T) {
	s := time.Second
	for name, c := range map[string]struct {
		rules Rules
		at    func(since time.Duration, f *Facts)
		want  Verdict
		why   string
		when  time.Duration
	}{
		"nobody confirms":          {all, func(time.Duration, *Facts) {}, Revert, "within 2m0s", 120 * s},
		"confirmed":                {all, func(d time.Duration, f *Facts) { f.Pending = d < 50*s }, Over, "", 50 * s},
		"confirmed, and lost then": {all, func(d time.Duration, f *Facts) { f.Pending, f.SSH = d < 50*s, nil }, Revert, "sshd", 10 * s},
		"session lost for good": {all, func(d time.Duration, f *Facts) {
			if d >= 5*s {
				f.Established = []string{"r-a"}
			}
		}, Revert, "with r-b was lost", 35 * s},
		"session back in time": {all, func(d time.Duration, f *Facts) {
			if d >= 5*s && d < 34*s {
				f.Established = nil
			}
		}, Revert, "nobody", 120 * s},
		"a peer that was not there before": {Rules{Within: 60 * s, Edged: true}, func(_ time.Duration, f *Facts) { f.Established = nil }, Revert, "nobody", 60 * s},
		"edged restarts": {all, func(d time.Duration, f *Facts) {
			if d < 20*s {
				f.Edged, f.Established = false, nil
			}
		}, Revert, "nobody", 120 * s},
		"edged crashes": {all, func(d time.Duration, f *Facts) { f.Edged, f.Established = false, nil }, Revert, "edged has not answered", 30 * s},
		"no edged before": {Rules{Within: 60 * s}, func(_ time.Duration, f *Facts) {
			f.Edged, f.Established = false, nil
		}, Revert, "nobody", 60 * s},
		"sshd hiccups": {all, func(d time.Duration, f *Facts) {
			if d%(10*s) < 9*s {
				f.SSH = nil
			}
		}, Revert, "nobody", 120 * s},
		"another address of sshd": {all, func(_ time.Duration, f *Facts) { f.SSH = []string{"192.0.2.2:22"} }, Revert, "on 192.0.2.1:22", 10 * s},
		"the login hangs": {mine, func(d time.Duration, f *Facts) {
			f.Open = mine.Logins
			if d >= 5*s {
				f.Stuck = mine.Logins
			}
		}, Revert, "for 30s nothing has arrived at whoever is logged in: 203.0.113.9:50000", 35 * s},
		"the login hangs for a while": {mine, func(d time.Duration, f *Facts) {
			f.Open = mine.Logins
			if d >= 5*s && d < 34*s {
				f.Stuck = mine.Logins
			}
		}, Revert, "nobody", 120 * s},
		"it hangs, and somebody comes in anew": {mine, func(d time.Duration, f *Facts) {
			f.Open, f.Stuck, f.Fresh = mine.Logins, mine.Logins, d >= 20*s
		}, Revert, "nobody", 120 * s},
		"it has ended": {mine, func(time.Duration, *Facts) {}, Revert, "nobody", 120 * s},
		"one of two hangs": {two, func(_ time.Duration, f *Facts) {
			f.Open, f.Stuck = two.Logins, two.Logins[:1]
		}, Revert, "nobody", 120 * s},
		"one of two has ended, the other hangs": {two, func(_ time.Duration, f *Facts) {
			f.Open, f.Stuck = two.Logins[:1], two.Logins[:1]
		}, Revert, "203.0.113.9:50000", 30 * s},
		"no route any more": {mine, func(d time.Duration, f *Facts) {
			if d >= 5*s {
				f.NoRoute = mine.Logins
			}
		}, Revert, "for 10s there has been no route to whoever was logged in: 203.0.113.9:50000", 15 * s},
		"a route to one of two": {two, func(_ time.Duration, f *Facts) { f.NoRoute = two.Logins[:1] }, Revert, "nobody", 120 * s},
		"both at once": {all, func(d time.Duration, f *Facts) {
			if d >= 20*s {
				f.SSH = nil
			}
			f.Established = nil
		}, Revert, "r-a", 30 * s},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				d := Watch(t.Context(), c.rules, func(context.Context) Facts {
					f := fine()
					c.at(time.Since(start), &f)
					return f
				})
				if d.Verdict != c.want || !strings.Contains(d.Reason, c.why) || time.Since(start) != c.when {
					t.Errorf("%+v after %s, want %s %q after %s", d, time.Since(start), c.want, c.why, c.when)
				}
			})
		})
	}
}

// TestWatchEnds: a service that is stopped has decided nothing.
func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if d := Watch(ctx, all, func(context.Context) Facts { return fine() }); d.Verdict != Wait {
			t.Errorf("%+v, want %s", d, Wait)
		}
	})
}

// TestSlowLook: a look that hangs does not stop the clock.
func TestSlowLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		d := Watch(t.Context(), Rules{Within: 60 * time.Second, SSH: []string{"a"}}, func(ctx context.Context) Facts {
			<-ctx.Done()
			return Facts{Pending: true}
		})
		if d.Verdict != Revert || time.Since(start) > 13*time.Second {
			t.Errorf("%+v after %s", d, time.Since(start))
		}
	})
}

// TestJudgeProperties: whatever happens, nothing is waited for longer than
// Within, nothing is reverted without a reason or after a confirmation, and
// nothing that is never away for its grace reverts before.
func TestJudgeProperties(t *testing.T) {
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		start := time.Unix(1e9, 0)
		j, now := NewJudge(all, start), start
		calm := seed%2 == 0 // nothing is away twice in a row
		away := map[string]bool{}
		for {
			f := fine()
			miss := func(what string) bool {
				is := rnd.IntN(3) == 0 && (!calm || !away[what])
				away[what] = is
				return is
			}
			if miss("ssh") {
				f.SSH = nil
			}
			if miss("edged") {
				f.Edged, f.Established = false, nil
			}
			if miss("bgp") {
				f.Established = []string{"r-b"}
			}
			f.Pending = rnd.IntN(200) > 0
			d := j.Step(now, f)
			switch {
			case d.Verdict == Over && f.Pending, d.Verdict != Over && !f.Pending:
				t.Fatalf("seed %d: %+v for %+v", seed, d, f)
			case d.Verdict == Revert && d.Reason == "":
				t.Fatalf("seed %d: no reason", seed)
			case calm && d.Verdict == Revert && now.Sub(start) < all.Within:
				t.Fatalf("seed %d: %+v after %s", seed, d, now.Sub(start))
			case d.Verdict == Wait && now.Sub(start) >= all.Within:
				t.Fatalf("seed %d: it waits after %s", seed, now.Sub(start))
			}
			if d.Verdict != Wait {
				break
			}
			now = now.Add(time.Duration(1+rnd.IntN(4)) * time.Second)
		}
	}
}
