package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
)

const (
	// patience bounds every wait: the machine may be slow.
	patience = 60 * time.Second
	// rate is of the client's requests, a second, each on a connection of its own
	// and given up after answerLimit.
	rate        = 100
	answerLimit = time.Second
	// afterwards is how long after the route has moved requests are counted.
	afterwards = 5 * time.Second
	// warmUp is how long the client asks before the fault.
	warmUp = 500 * time.Millisecond
	// promiseLease is that of the lab's edge.yaml: so long after its start edged
	// does not leave.
	promiseLease = 10 * time.Second
)

// rig is a lab with what is measured on it: the site a with one box, a1, at the
// router r-a; the client and the region at the transit router r-t; and the site
// b, which is farther from it and takes over.
type rig struct {
	lab    *lab.Lab
	box    *lab.Box
	router *lab.Router
	client *lab.Client
	// after is for how long after the route has moved requests are counted.
	after time.Duration
}

// topology is that of rig.
func topology(kind lab.RouterKind, in setup) lab.Topology {
	return lab.Topology{
		Routers: []lab.RouterSpec{{Name: "r-a", Kind: kind}, {Name: "r-t", Kind: lab.BIRD}, {Name: "r-b", Kind: lab.BIRD}},
		Cores:   []lab.CoreSpec{{A: "r-a", B: "r-t", Delay: time.Millisecond}, {A: "r-t", B: "r-b", Delay: 3 * time.Millisecond}},
		Sites: []lab.SiteSpec{
			{Name: "a", Router: "r-a", Boxes: []lab.BoxSpec{{Name: "a1", MD5: true}}},
			{Name: "b", Router: "r-b", Boxes: []lab.BoxSpec{{Name: "b1", MD5: true}}},
		},
		Regions: []lab.RegionSpec{{Name: "east", Router: "r-t", Origins: 2, Capacity: 20 * rate}},
		Clients: []lab.ClientSpec{{Name: "client", Router: "r-t"}},
		BFD:     in.bfd, ProbeEvery: in.probes,
	}
}

func newRig(ctx context.Context, bin string, kind lab.RouterKind, in setup) (*rig, error) {
	l, err := lab.New(ctx, topology(kind, in))
	if err != nil {
		return nil, err
	}
	if err := l.Start(bin); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &rig{lab: l, box: l.Boxes["a1"], router: l.Routers["r-a"], client: l.Clients["client"], after: afterwards}, nil
}

func (r *rig) close() error { return r.lab.Close() }

// until waits for a condition; what is named in the error.
func until(ctx context.Context, what string, holds func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return lab.Until(ctx, what, holds)
}

// settle waits until both sites announce, everything that detects is up, and the
// client is served by site a.
func (r *rig) settle(ctx context.Context) error {
	for _, b := range r.lab.Boxes {
		if err := until(ctx, b.Name()+" announces", func() error { return announces(ctx, b, r.lab.Topology.BFD) }); err != nil {
			return err
		}
	}
	for _, at := range []struct{ router, via string }{{"r-a", "a1"}, {"r-b", "b1"}, {"r-t", "r-a"}} {
		for _, p := range []netip.Prefix{lab.Prefix4, lab.Prefix6} {
			wait, cancel := context.WithTimeout(ctx, patience)
			err := r.lab.Routers[at.router].Await(wait, p, at.via)
			cancel()
			if err != nil {
				return err
			}
		}
	}
	return until(ctx, "the client is served by site a", func() error {
		ask, cancel := context.WithTimeout(ctx, answerLimit)
		defer cancel()
		a, err := r.client.Get(ask, url, lab.Way{})
		if err == nil && a.Site != "a" {
			err = fmt.Errorf("it was served by site %s", a.Site)
		}
		return err
	})
}

const url = "https://www.example.net/"

// announces is an error unless a box is at its best.
func announces(ctx context.Context, b *lab.Box, bfd bool) error {
	st, err := b.Status(ctx)
	if err != nil {
		return err
	}
	if len(st.Decisions) != 2 {
		return fmt.Errorf("%d prefixes are decided, alarms %v", len(st.Decisions), st.Alarms)
	}
	for _, d := range st.Decisions {
		if d.Rung != edge.Announced {
			return fmt.Errorf("%s is %s: %s", d.Prefix, d.Rung, d.Reason)
		}
	}
	p, err := peer(ctx, b)
	switch {
	case err != nil:
		return err
	case p.Session != "established":
		return fmt.Errorf("the session is %s: %s", p.Session, p.LastErr)
	case bfd && (p.BFD == nil || p.BFD.State != "up" || p.BFD.Remote != "up"):
		return fmt.Errorf("BFD is not up: %+v", p.BFD)
	}
	return nil
}

// peer is how a box's speaker sees its router.
func peer(ctx context.Context, b *lab.Box) (edge.PeerState, error) {
	var st edge.SpeakerState
	if err := b.Ask(ctx, lab.Speaker, "/v1/state", &st); err != nil {
		return edge.PeerState{}, err
	}
	if len(st.Peers) != 1 {
		return edge.PeerState{}, fmt.Errorf("the speaker of %s has %d peers", b.Name(), len(st.Peers))
	}
	return st.Peers[0], nil
}

// mayLeave waits until the guard of a may permit to leave: for a while after
// its start it does not.
func (r *rig) mayLeave(ctx context.Context) error {
	for _, b := range r.lab.Boxes {
		st, err := b.Status(ctx)
		if err != nil {
			return err
		}
		if err := lab.Pause(ctx, time.Until(st.Started.Add(promiseLease+time.Second))); err != nil {
			return err
		}
	}
	return nil
}

// neverWithdrawn is an error unless the router still has the path, degraded, and
// was never told that it is gone. The speaker has been the same all the time.
func neverWithdrawn(ctx context.Context, r *rig) error {
	p, err := peer(ctx, r.box)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(p.Held, func(h edge.HeldPrefix) bool { return h.Net == lab.Prefix4 })
	if i < 0 || !slices.Contains(p.Held[i].Communities, edge.GracefulShutdown) {
		return fmt.Errorf("the router holds %+v, which is not degraded", p.Held)
	}
	holds, err := r.router.Holds(ctx, lab.Prefix4, r.box.Name())
	if err == nil && !holds {
		err = errors.New("the router has no path from the box any more")
	}
	return err
}
