package guard

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard/promise"
)

// Wish is whether this node wants to withdraw a prefix, how much (higher is
// worse), and why. The zero value wants to stay.
type Wish = promise.Wish

// Wish says whether this node wants to withdraw prefix p. It is declarative:
// saying the same again costs next to nothing. While the wish stands the guard
// asks, round after round; its end gives all promises back.
func (g *Guard) Wish(p netip.Prefix, w Wish) {
	w.Reason = edge.Reason(clean(string(w.Reason), maxText))
	g.do(func(now time.Time) []promise.Message { return g.core.Wish(now, p, w) })
}

// Permit answers whether this node may withdraw prefix p now, through Leave.
func (g *Guard) Permit(p netip.Prefix) edge.Permit {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.Permit(time.Now(), p)
}

// Leave withdraws prefix p under the permit: do is called only if the permit
// still holds, with a deadline at its end, and must not let the withdrawal
// take effect after that. While it runs this node promises nobody to stay. An
// error says why do was not called, or wraps what it returned: then this node
// counts as still announcing, and the round is over.
func (g *Guard) Leave(ctx context.Context, p netip.Prefix, do func(context.Context) error) error {
	var until time.Time
	var err error
	g.do(func(now time.Time) []promise.Message {
		until, err = g.core.Begin(now, p)
		return nil
	})
	if err != nil {
		return fmt.Errorf("withdraw %s: no permit: %w", p, err)
	}
	done := false // also if do panics and somebody recovers
	defer func() {
		g.do(func(now time.Time) []promise.Message { return g.core.End(now, p, done) })
	}()
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if err := do(ctx); err != nil {
		g.log.Error("withdrawal failed", "prefix", p, "err", err)
		return fmt.Errorf("withdraw %s: %w", p, err)
	}
	done = true
	g.log.Info("withdrew under a permit", "prefix", p)
	return nil
}

// Settings are what Update replaces.
type Settings struct {
	Roster   []edge.Node
	Sites    []edge.Site
	Prefixes []edge.Prefix
	Policy   edge.Guard
	// NodeKey signs from now on; nil: as before.
	NodeKey ed25519.PrivateKey
}

// Update takes a new configuration. A lower floor and a larger roster count
// for new rounds only; another key of a node counts at once. One that cannot
// work is logged and changes nothing.
func (g *Guard) Update(s Settings) {
	g.mu.Lock()
	key := g.key
	g.mu.Unlock()
	if s.NodeKey != nil {
		key = s.NodeKey
	}
	r, err := newRoster(g.self, s.Roster)
	if err == nil {
		err = CheckNodeKey(key, g.self, s.Roster)
	}
	if err == nil {
		g.do(func(now time.Time) []promise.Message {
			var out []promise.Message
			out, err = g.core.Update(now, promise.Settings{Roster: s.Roster, Sites: s.Sites, Prefixes: s.Prefixes, Policy: s.Policy})
			if err == nil {
				g.adopt(r, key)
			}
			return out
		})
	}
	if err != nil {
		g.log.Error("guard keeps its configuration", "err", err)
	}
}

// adopt goes by a new roster. The lock is held.
func (g *Guard) adopt(r *roster, key ed25519.PrivateKey) {
	was := g.roster.Swap(r)
	g.forget(was, r)
	another := !key.Equal(g.key)
	resign := another || r.self.Site != was.self.Site
	g.key = key
	if another { // its numbers begin anew: who had the old one may have used them up
		g.boot = time.Now().UnixNano()
		g.core.Reboot(g.boot)
	}
	if resign && g.seq > 0 {
		again := g.own.report
		again.Site = r.self.Site
		g.publish(again)
	}
}

// State is what the guard shows of itself. The caller may keep it.
func (g *Guard) State() edge.GuardState {
	s := edge.GuardState{Members: g.Members(), Keys: g.keys.names(), Dropped: g.drops.all()}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	s.Fresh, s.Isolated = g.fresh(), g.isolated(now)
	s.Bound, s.Asking = g.core.Bound(now), g.core.Asking(now)
	s.Past = g.core.Past()
	s.Past = s.Past[max(0, len(s.Past)-shownPast):]
	return s
}

// tell logs the permits whose answer has changed. The lock is held.
func (g *Guard) tell(now time.Time) {
	asking := g.core.Asking(now)
	for p := range g.shown {
		if _, ok := asking[p]; !ok {
			delete(g.shown, p)
		}
	}
	for p, pm := range asking {
		if old, ok := g.shown[p]; ok && old.OK == pm.OK && old.Refused == pm.Refused {
			continue
		}
		g.shown[p] = pm
		switch {
		case pm.OK:
			g.log.Info("permit to withdraw", "prefix", p, "promised", pm.Promised, "needed", pm.Needed, "until", pm.Until)
		case pm.Refused:
			g.log.Warn("may not withdraw", "prefix", p, "needed", pm.Needed, "reason", pm.Reason)
		default:
			g.log.Info("asks for leave", "prefix", p, "needed", pm.Needed)
		}
	}
}
