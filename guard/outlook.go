package guard

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard/promise"
)

// shownPast is how many of the last rounds a State has.
const shownPast = 10

// outlook is how the fleet stands with each prefix, by the reports that are
// known to stand of late, in the order of the configuration's prefixes. The
// lock is held.
func (g *Guard) outlook(now time.Time, prefixes []netip.Prefix) []edge.GuardedPrefix {
	at := g.standings(now)
	var out []edge.GuardedPrefix
	for _, p := range prefixes {
		if o, ok := g.core.Outlook(now, p, at(p)); ok {
			out = append(out, o)
		}
	}
	return out
}

// standings says, for a prefix, how each site stands with it. The lock is held.
func (g *Guard) standings(now time.Time) func(netip.Prefix) map[edge.SiteID]promise.Standing {
	r, fresh := g.roster.Load(), g.fresh()
	heard := map[edge.SiteID]bool{r.self.Site: true}
	type place struct {
		site   edge.SiteID
		prefix netip.Prefix
	}
	said := map[place]promise.Standing{}
	hear := func(site edge.SiteID, says []edge.Claim) {
		for _, c := range says {
			s := said[place{site, c.Prefix}]
			s.Announces = s.Announces || c.Announcing
			s.Well = s.Well || c.Announcing && (c.Health == edge.Healthy || c.Health == edge.HealthFull)
			said[place{site, c.Prefix}] = s
		}
	}
	hear(r.self.Site, g.own.report.Says)
	for id, h := range g.heard {
		if n, ok := r.byID[id]; ok && now.Sub(h.at) <= fresh {
			heard[n.Site] = true
			hear(n.Site, h.report.Says)
		}
	}
	return func(p netip.Prefix) map[edge.SiteID]promise.Standing {
		out := make(map[edge.SiteID]promise.Standing, len(r.byID))
		for _, n := range r.byID {
			s := said[place{n.Site, p}]
			s.Silent = !heard[n.Site]
			out[n.Site] = s
		}
		return out
	}
}

// Outlook is how the fleet stands with the prefixes, as far as this node has heard:
// to be read by a person. No permit depends on it.
func (g *Guard) Outlook(prefixes []netip.Prefix) []edge.GuardedPrefix {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.outlook(time.Now(), prefixes)
}

// WhatIf says, for each of the prefixes, whether these sites could leave it now, one
// after the other. It asks nobody: it goes by what was heard.
func (g *Guard) WhatIf(prefixes []netip.Prefix, leave []edge.SiteID) []edge.GuardOutcome {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	at := g.standings(now)
	var out []edge.GuardOutcome
	for _, p := range prefixes {
		out = append(out, g.core.WhatIf(now, p, leave, at(p))...)
	}
	return out
}

// Past are the last rounds of this node that are over, oldest first.
func (g *Guard) Past() []edge.GuardDecision {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.Past()
}

// Force withdraws p without a permit, by an operator's order, and says whom it had
// promised to stay. do is as with Leave, but for a deadline of its own. A node forces
// at most edge.FreeLeaves prefixes out within edge.ForceWindow.
func (g *Guard) Force(ctx context.Context, p netip.Prefix, reason string, do func(context.Context) error) ([]edge.NodeID, error) {
	var broken []edge.NodeID
	var err error
	g.do(func(now time.Time) (out []promise.Message) {
		broken, out, err = g.core.Force(now, p)
		return out
	})
	if err != nil {
		return nil, fmt.Errorf("force %s out: %w", p, err)
	}
	done, why := false, edge.Reason(clean(reason, maxText))
	defer func() {
		g.do(func(now time.Time) []promise.Message {
			g.core.Forced(now, p, why, done)
			return nil
		})
	}()
	g.log.Warn("a prefix is forced out without a permit", "prefix", p, "reason", why, "promised_to", broken)
	if err := do(ctx); err != nil {
		g.log.Error("forced withdrawal failed", "prefix", p, "err", err)
		return nil, fmt.Errorf("force %s out: %w", p, err)
	}
	done = true
	return broken, nil
}

// Recall tells of the prefixes that an earlier process of this node has forced out,
// so that a restart is no way around the limit.
func (g *Guard) Recall(forced []edge.Forced) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range forced {
		g.core.Recall(f.At)
	}
}

// RecallLeft tells when an earlier process of this node has withdrawn prefixes, so that
// a restart is no way around max_leaves either.
func (g *Guard) RecallLeft(at map[netip.Prefix]time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p, t := range at {
		g.core.RecallLeft(p, t)
	}
}

// Bounds of what a report says beside claims and load.
const (
	maxFailing = 256
	maxForced  = 64
	maxBroken  = 64
	// maxFails is how long a check fails at most: others add to it.
	maxFails = 10 * 365 * 24 * time.Hour
)

// tidyMore is tidyReport for what fails, what is trusted and what was forced.
func tidyMore(r *edge.Report) {
	r.Failing = slices.DeleteFunc(r.Failing, func(f edge.Failure) bool { return !f.Cause.Valid() || f.Age < 0 })
	r.Failing = r.Failing[:min(len(r.Failing), maxFailing)]
	for i := range r.Failing {
		r.Failing[i].Age = min(r.Failing[i].Age, maxFails)
	}
	r.Trust = slices.DeleteFunc(r.Trust, func(t edge.Trust) bool { return t.Validate() != nil })
	r.Trust = r.Trust[:min(len(r.Trust), edge.MaxTrusts)]
	for i := range r.Trust {
		r.Trust[i].Reason = clean(r.Trust[i].Reason, maxText)
	}
	r.Forced = slices.DeleteFunc(r.Forced, func(f edge.Forced) bool {
		return !f.Prefix.IsValid() || f.Prefix != f.Prefix.Masked() || slices.ContainsFunc(f.Broken, func(n edge.NodeID) bool { return !isName(string(n)) })
	})
	r.Forced = r.Forced[:min(len(r.Forced), maxForced)]
	for i := range r.Forced {
		f := &r.Forced[i]
		f.Reason, f.Broken = clean(f.Reason, maxText), f.Broken[:min(len(f.Broken), maxBroken)]
	}
}

// cloneMore has r share nothing of what tidyMore changes with the caller's.
func cloneMore(r *edge.Report) {
	r.Failing, r.Trust, r.Forced = slices.Clone(r.Failing), slices.Clone(r.Trust), slices.Clone(r.Forced)
}

// sameMore says whether b tells what a does of what tidyMore tidies; how long a check
// has failed is no news.
func sameMore(a, b edge.Report) bool {
	return slices.EqualFunc(a.Failing, b.Failing, func(x, y edge.Failure) bool { return x.Cause == y.Cause }) &&
		slices.EqualFunc(a.Trust, b.Trust, edge.Trust.Equal) && slices.EqualFunc(a.Forced, b.Forced, edge.Forced.Equal)
}
