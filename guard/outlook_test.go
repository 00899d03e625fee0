package guard

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// more is a report with what is told beside claims and load.
func more(now time.Time) edge.Report {
	return edge.Report{
		Says:    claim("x"),
		Failing: []edge.Failure{{Cause: "web-vip#5f3a09c1@serving", Age: time.Second}},
		Trust:   []edge.Trust{{Check: "web-vip", By: "a", Reason: "it is right", Since: now, Until: now.Add(time.Hour)}},
		Forced:  []edge.Forced{{Prefix: prefix1, At: now, Reason: "fire", Broken: []edge.NodeID{"b"}}},
	}
}

// TestMoreIsTold: failing checks, orders to trust one and forced withdrawals reach all,
// and at once; only how long a check has failed is no news.
func TestMoreIsTold(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 1)
	f.startAll()
	now := time.Now().UTC().Round(0)
	r := more(now)
	a, c := f.nodes[0], f.nodes[2]
	a.Publish(r)
	f.until("c has heard all", func() bool {
		got := c.report("a").Report
		return len(got.Failing) == 1 && got.Failing[0] == r.Failing[0] && len(got.Trust) == 1 && got.Trust[0].Equal(r.Trust[0]) &&
			len(got.Forced) == 1 && got.Forced[0].Equal(r.Forced[0])
	})
	older := r
	older.Failing = []edge.Failure{{Cause: r.Failing[0].Cause, Age: time.Minute}}
	other := r
	other.Failing = []edge.Failure{{Cause: "dns#00000000@dns", Age: time.Minute}}
	if !sameNews(r, older) || sameNews(r, other) || sameNews(r, edge.Report{Says: r.Says}) {
		t.Error("what is news is not as it should be")
	}
}

// TestTidyMore: what makes no sense is left out, and the rest is bounded; what the
// caller has stays as it is.
func TestTidyMore(t *testing.T) {
	now := time.Now()
	good := more(now)
	r := more(now)
	r.Failing = append(r.Failing, edge.Failure{Cause: "Evil\x1b[2J", Age: 1}, edge.Failure{Cause: "x", Age: -1})
	long := edge.Report{Failing: []edge.Failure{{Cause: good.Failing[0].Cause, Age: 1<<63 - 1}}}
	if tidyReport(&long); long.Failing[0].Age+time.Hour < time.Hour {
		t.Errorf("it fails for %s", long.Failing[0].Age)
	}
	r.Trust = append(r.Trust, edge.Trust{Check: "a b"}, edge.Trust{Check: "x", Since: now, Until: now.Add(100 * time.Hour)})
	r.Forced = append(r.Forced, edge.Forced{}, edge.Forced{Prefix: netip.MustParsePrefix("192.0.2.1/24")}, edge.Forced{Prefix: prefix1, Broken: []edge.NodeID{"Evil!"}})
	r.Forced[0].Reason = "fi\x1b[2Jre" + strings.Repeat("x", 2*maxText)
	mine := r
	cloneMore(&r)
	tidyReport(&r)
	if len(r.Failing) != 1 || len(r.Trust) != 1 || len(r.Forced) != 1 || r.Failing[0] != good.Failing[0] ||
		strings.Contains(r.Forced[0].Reason, "\x1b") || len(r.Forced[0].Reason) > maxText {
		t.Errorf("%+v", r)
	}
	if len(mine.Failing) != 3 || mine.Failing[1].Cause != "Evil\x1b[2J" || !strings.Contains(mine.Forced[0].Reason, "\x1b") {
		t.Error("the caller's was changed")
	}
	for range 1000 {
		r.Failing, r.Trust, r.Forced = append(r.Failing, good.Failing[0]), append(r.Trust, good.Trust[0]), append(r.Forced, good.Forced[0])
	}
	tidyReport(&r)
	if len(r.Failing) != maxFailing || len(r.Trust) != edge.MaxTrusts || len(r.Forced) != maxForced {
		t.Errorf("%d, %d, %d", len(r.Failing), len(r.Trust), len(r.Forced))
	}
}

// TestOutlookOfFleet: what is heard is what is shown, and silence is not taken for
// being there; what-if goes by the same.
func TestOutlookOfFleet(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 4, 2)
	f.startAll()
	publish := func() { // as edged does with each turn
		for _, n := range f.nodes {
			n.Publish(edge.Report{Says: claim("x")})
		}
	}
	a := f.nodes[0]
	prefixes := []netip.Prefix{prefix1, netip.MustParsePrefix("203.0.113.0/24")}
	f.until("a knows that one more may leave than two", func() bool {
		publish()
		o := a.Outlook(prefixes)
		return len(o) == 1 && o[0].MayLeave == 2 && fmt.Sprint(o[0].Sites) == "[a b c d]" && o[0].Lacks == "1 other sites would stay, and 2 must"
	})
	got := a.WhatIf(prefixes, []edge.SiteID{"b", "c", "d"})
	if len(got) != 3 || !got[0].OK || !got[1].OK || got[2].OK || !strings.Contains(string(got[2].Reason), "1 other sites would stay, and 2 must") {
		t.Errorf("what if: %+v", got)
	}
	f.nodes[3].stop()
	f.until("d is silent", func() bool {
		publish()
		o := a.Outlook(prefixes)[0]
		return o.MayLeave == 1 && fmt.Sprint(o.Silent) == "[d]"
	})
	if got := a.WhatIf(prefixes, []edge.SiteID{"d"}); got[0].OK {
		t.Errorf("a silent site could leave: %+v", got)
	}
}

// TestForceAnyway: a node that nobody promises anything leaves by force, says so to its
// past, and is not believed to have left if it has not.
func TestForceAnyway(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, 1)
	a := f.start(0)
	broken := errors.New("a peer holds it")
	if _, err := a.Force(t.Context(), prefix1, "fire", func(context.Context) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("one that fails: %v", err)
	}
	done := 0
	to, err := a.Force(t.Context(), prefix1, "fi\x1bre", func(context.Context) error {
		done++
		a.held.Store(false)
		return nil
	})
	if err != nil || done != 1 || len(to) != 0 {
		t.Errorf("force: %v, %v, done %d times", to, err, done)
	}
	past := a.Past()
	if len(past) != 2 || past[0].Left || !past[1].Left || !past[1].Forced || past[1].Reason != "forced: fi re" {
		t.Errorf("past: %+v", past)
	}
	if s := a.State(); !slices.EqualFunc(s.Past, past, func(x, y edge.GuardDecision) bool { return x.Reason == y.Reason }) {
		t.Errorf("state: %+v", s.Past)
	}
	a.Recall(make([]edge.Forced, 3)) // of long ago
	for range edge.FreeLeaves {
		_, err = a.Force(t.Context(), prefix1, "again", func(context.Context) error { return nil })
	}
	if err == nil || !strings.Contains(err.Error(), "all that may") {
		t.Errorf("without end: %v", err)
	}
}
