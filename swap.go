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
