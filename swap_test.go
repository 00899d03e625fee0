package edge

import (
	"testing"
	"time"
)

func member(site SiteID, age time.Duration, c Claim) MemberState {
	c.Prefix = testPrefix
	return MemberState{Node: NodeID(site) + "1", Site: site, Alive: true, Age: age, Report: Report{Says: []Claim{c}}}
}

// TestWorseElsewhere: who is kept on the air though it is sick, and who had better
// come back for it.
func TestWorseElsewhere(t *testing.T) {
	const fresh = 10 * time.Second
	blocked := Claim{Blocked: true, Announcing: true, Severity: 6, Rung: LastResort}
	off := Claim{Rung: Withdrawn, Severity: 3}
	with := func(c Claim, f func(*Claim)) Claim {
		f(&c)
		return c
	}
	for name, tt := range map[string]struct {
		members []MemberState
		want    Worse
		better  int
	}{
		"nobody":             {nil, Worse{}, 0},
		"one":                {[]MemberState{member("b", 0, blocked)}, Worse{"b", 6}, 0},
		"the worst":          {[]MemberState{member("b", 0, blocked), member("c", 0, with(blocked, func(c *Claim) { c.Severity = 9 }))}, Worse{"c", 9}, 0},
		"of this site":       {[]MemberState{member("m", 0, blocked)}, Worse{}, 0},
		"of long ago":        {[]MemberState{member("b", fresh+1, blocked)}, Worse{}, 0},
		"never heard":        {[]MemberState{member("b", -1, blocked)}, Worse{}, 0},
		"not on the air":     {[]MemberState{member("b", 0, with(blocked, func(c *Claim) { c.Announcing = false }))}, Worse{}, 0},
		"drained":            {[]MemberState{member("b", 0, with(blocked, func(c *Claim) { c.Drained = true }))}, Worse{}, 0},
		"ordered out":        {[]MemberState{member("b", 0, with(blocked, func(c *Claim) { c.Severity = SeverityDrain }))}, Worse{}, 0},
		"asking still":       {[]MemberState{member("b", 0, with(blocked, func(c *Claim) { c.Blocked = false }))}, Worse{}, 0},
		"less sick is first": {[]MemberState{member("b", 0, blocked), member("c", 0, off)}, Worse{"b", 6}, 1},
		"sicker is not":      {[]MemberState{member("b", 0, blocked), member("c", 0, with(off, func(c *Claim) { c.Severity = 5 }))}, Worse{"b", 6}, 0},
		"by name":            {[]MemberState{member("c", 0, with(off, func(c *Claim) { c.Severity = 4 })), member("z", 0, with(off, func(c *Claim) { c.Severity = 4 }))}, Worse{}, 1},
		"two nodes are one":  {[]MemberState{member("c", 0, off), member("c", 0, off)}, Worse{}, 1},
		"drained stays out":  {[]MemberState{member("c", 0, with(off, func(c *Claim) { c.Drained = true }))}, Worse{}, 0},
	} {
		if got, better := WorseElsewhere(testPrefix, "m", 4, tt.members, fresh); got != tt.want || better != tt.better {
			t.Errorf("%s: %+v and %d, want %+v and %d", name, got, better, tt.want, tt.better)
		}
	}
}

// TestMergeTrusts: the last word about each check counts, whoever tells it first.
func TestMergeTrusts(t *testing.T) {
	at := func(d time.Duration) time.Time { return testNow.Add(d) }
	order := func(check ProbeID, by NodeID, since, length time.Duration) Trust {
		return Trust{Check: check, Reason: "x", By: by, Since: at(since), Until: at(since + length)}
	}
	old, back := order("web", "a1", -time.Hour, 2*time.Hour), order("web", "b1", -time.Minute, 0)
	lists := [][]Trust{{old}, {back}, {
		order("other/backends", "a1", -time.Hour, time.Hour+time.Second), order("Bad Name", "a1", 0, time.Hour), order("future", "a1", time.Hour, time.Hour),
		order("long", "a1", 0, 2*MaxTrust), order("gone", "a1", -2*MaxTrust, time.Hour), order("web#1", "a1", 0, time.Hour),
	}}
	for range 2 {
		got := MergeTrusts(testNow, lists...)
		if len(got) != 2 || got[0].Check != "other/backends" || !got[0].Holds(testNow) || !got[1].Equal(back) || got[1].Holds(testNow) || !old.Holds(testNow) {
			t.Errorf("%+v", got)
		}
		lists[0], lists[1] = lists[1], lists[0]
	}
}

func TestCause(t *testing.T) {
	c := MakeCause("web-vip", "5f3a09c1", "serving")
	if c != "web-vip#5f3a09c1@serving" || c.Check() != "web-vip" || !c.Valid() {
		t.Errorf("%s: check %s, valid %t", c, c.Check(), c.Valid())
	}
	for _, bad := range []Cause{"", "Web", "a b", "\x1b[2J", Cause(make([]byte, maxCause+1))} {
		if bad.Valid() {
			t.Errorf("%q is taken for a cause", bad)
		}
	}
	s := Suspect{Cause: c, Sites: []SiteID{"a", "b", "c"}, Silent: []SiteID{"d", "e"}, Of: 6}
	if got := s.String(); got != "common cause: web-vip at 5 of 6 sites, 2 of them not heard of" {
		t.Errorf("%q", got)
	}
}

// TestSwapWaits: for each site that had better come back, and for one that has just done
// so.
func TestSwapWaits(t *testing.T) {
	now := time.Now()
	var s Swap
	for i, c := range []struct {
		after  time.Duration // since the one before
		better int
		over   bool
	}{
		{0, 2, false}, {2*SwapWait - 1, 2, false}, {1, 2, true},
		{0, 3, false}, {SwapWait, 3, true},
		{0, 2, false}, {2 * SwapWait, 2, true},
		{0, 1, false}, {1, 0, false}, {SwapWait - 1, 0, false}, {1, 0, true}, {0, 0, true},
	} {
		now = now.Add(c.after)
		if s = s.Next(now, c.better); s.Over(now) != c.over {
			t.Errorf("step %d: %d had better come back: over %t, want %t", i, c.better, s.Over(now), c.over)
		}
	}
	if !(Swap{}).Next(now, 0).Over(now) {
		t.Error("with nobody before it a site waits")
	}
}
