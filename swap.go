package edge

import (
	"fmt"
	"net/netip"
	"time"
)

// Worse is another site that is sick, and worse, and is kept on the air by the
// guard. Its zero value is none.
type Worse struct {
	Site     SiteID
	Severity int
}

func (w Worse) back() Reason {
	return Reason(fmt.Sprintf("back so that %s, which is worse and may not leave, can go", w.Site))
}

// SwapWait is how long a site that could come back for a worse one waits for each
// site that had better do it.
const SwapWait = 10 * time.Second

// Swap is how a site waits to come back for a worse one. The zero value has not begun.
type Swap struct {
	due    time.Time
	better int
}

// Next is the wait at now, with so many sites that had better come back: SwapWait for
// each. If they have become fewer, one has come back, most likely: it is given its time
// too, since it promises nobody at first.
func (s Swap) Next(now time.Time, better int) Swap {
	switch {
	case s.due.IsZero():
		s.due = now.Add(time.Duration(better) * SwapWait)
	case better > s.better:
		s.due = s.due.Add(time.Duration(better-s.better) * SwapWait)
	case better < s.better:
		s.due = now.Add(time.Duration(max(better, 1)) * SwapWait)
	}
	s.better = better
	return s
}

// Over says whether the site may come back.
func (s Swap) Over(now time.Time) bool { return !now.Before(s.due) }

// WorseElsewhere finds the worst other site that is kept on the air with p, sick as
// it is, by what the members say that were heard of within fresh; and how many
// withdrawn sites had better come back for it than one of this site and severity
// that is withdrawn itself: those that are less sick, then by name.
func WorseElsewhere(p netip.Prefix, site SiteID, severity int, members []MemberState, fresh time.Duration) (worst Worse, better int) {
	first := map[SiteID]bool{}
	for _, m := range members {
		if m.Site == site || !m.Alive || m.Age < 0 || m.Age > fresh {
			continue
		}
		for _, c := range m.Report.Says {
			switch {
			case c.Prefix != p || c.Drained:
			case c.Blocked && c.Announcing && c.Severity > max(worst.Severity, SeverityDrain):
				worst = Worse{m.Site, c.Severity}
			case c.Rung == Withdrawn && !c.Unserved && (c.Severity < severity || c.Severity == severity && m.Site < site):
				first[m.Site] = true
			}
		}
	}
	return worst, len(first)
}
