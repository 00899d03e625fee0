package bgp

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/catchment-dev/edge"
)

// aim is what a peer is to be and to be sent. It is not changed: a newer one takes
// its place, half done or not.
type aim struct {
	w     *wish
	peer  edge.Peer
	class *class
	// gone is why the peer is to be removed; empty: it is not, and else only that
	// matters.
	gone string
}

// alike says that what was done for a need not be done for b.
func (a *aim) alike(b *aim) bool {
	return a.gone == b.gone && a.class == b.class && a.w.key == b.w.key && a.w.link == b.w.link && reflect.DeepEqual(a.peer, b.peer)
}

// order is to withdraw one prefix, from all peers. It goes before any aim.
type order struct {
	edge.Withdrawal
	asn     uint32
	now     func() time.Time
	replies chan reply // has room for all
	// void: the answer is not waited for any more, and the prefix stays.
	void atomic.Bool
}

// reply is what one worker says to an order.
type reply struct {
	from *peering
	err  error
}

// errLate is of an order whose permit has ended before the server could be told.
var errLate = errors.New("the permit has ended")

// give hands an aim to the worker of g.
func (e *engine) give(ctx context.Context, g *peering, a *aim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = a
	if !g.busy && g.err == nil && g.refusal == "" && !g.silent && g.reached != nil && g.reached.alike(a) {
		g.reached = a
		return
	}
	if g.aim != nil && g.aim.alike(a) {
		g.last = g.aim
		return // it is at it
	}
	g.aim = a
	g.rev++
	e.start(ctx, g)
}

// start makes a worker see to g. The caller has g.mu.
func (e *engine) start(ctx context.Context, g *peering) {
	if g.busy {
		return
	}
	g.busy = true
	e.workers.Go(func() {
		e.slots <- struct{}{}
		defer func() { <-e.slots }()
		for e.step(ctx, g) {
		}
		select {
		case e.calm <- struct{}{}:
		default:
		}
	})
}

// step does the next job of g; false: there is none, and the worker ends.
func (e *engine) step(ctx context.Context, g *peering) bool {
	g.mu.Lock()
	o, a := g.order, g.aim
	if ctx.Err() != nil || o == nil && a == nil && !g.tired {
		g.busy = false
		g.mu.Unlock()
		return false
	}
	g.order = nil
	if o == nil && a == nil {
		g.tired = false
	}
	g.mu.Unlock()
	g.hung = false
	switch {
	case o != nil:
		o.replies <- reply{g, g.obey(ctx, o)}
	case a != nil:
		e.pursue(ctx, g, a)
	default:
		if err := g.revive(ctx); err != nil && ctx.Err() == nil {
			e.log.Error("revive BGP server", "address", g.addr, "err", err)
			e.kick()
		}
	}
	return true
}

// obey carries out an order. One that is too late is left: the prefix is announced
// again at the peers that it was taken from.
func (g *peering) obey(ctx context.Context, o *order) error {
	if o.void.Load() || !o.now().Before(o.Until) {
		return errLate
	}
	return g.withdraw(ctx, o.asn, o.Net)
}

func (g *peering) revive(ctx context.Context) error {
	if g.server == nil {
		return nil
	}
	return g.call(ctx, "revive BGP server", func(ctx context.Context, s *server) error { return s.revive(ctx) })
}

// pursue brings about an aim, as far as it goes.
func (e *engine) pursue(ctx context.Context, g *peering, a *aim) {
	var err error
	if a.gone != "" {
		e.remove(ctx, g, a.gone)
	} else {
		err = e.setPeer(ctx, g, a)
	}
	if errors.Is(err, errLater) {
		return
	}
	if err != nil {
		err = fmt.Errorf("peer %s: %w", a.peer.ID, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rev++
	if err != nil && (g.err == nil || g.err.Error() != err.Error()) && ctx.Err() == nil {
		e.log.Error("apply intent", "err", err)
	}
	g.err = err
	g.removed = a.gone != ""
	if err == nil && g.refusal == "" && !g.silent {
		g.reached = a
	}
	if g.aim == a {
		g.aim = nil
	}
	if err != nil || g.refusal != "" || g.removed {
		e.kick() // it has to be tried again, or forgotten
	}
}

// later says whether g has something else to do than a.
func (g *peering) later(ctx context.Context, a *aim) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return ctx.Err() != nil || g.order != nil || g.aim != a
}
