package story

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
)

// home is where each client belongs: the site and the region at its router.
var home = []struct{ client, site, region string }{
	{"client-a", "a", "east"},
	{"client-b", "b", "west"},
	{"client-c", "c", "south"},
}

func clients() []string { return []string{home[0].client, home[1].client, home[2].client} }

func nearest(ctx context.Context, t *Teller) error {
	for _, h := range home {
		for _, w := range []struct {
			name string
			way  lab.Way
		}{
			{"IPv4, HTTP/1.1", lab.Way{}},
			{"IPv4, HTTP/2", lab.Way{HTTP2: true}},
			{"IPv6, HTTP/2", lab.Way{IPv6: true, HTTP2: true}},
		} {
			start := time.Now()
			a, err := t.Lab.Clients[h.client].Get(ctx, URL, w.way)
			if err != nil {
				return err
			}
			t.Say("%s, %s: site %s, box %s, region %s, upstream %s, %s", h.client, w.name, a.Site, a.Box, a.Region, a.Upstream, since(start))
			if a.Site != h.site || a.Region != h.region || a.Proto != "https" || a.RequestID == "" || a.ForwardedFor == "" {
				return fmt.Errorf("%s over %s got %+v, want site %s and region %s", h.client, w.name, a, h.site, h.region)
			}
		}
		box, err := t.Lab.Clients[h.client].Echo(ctx)
		if err != nil {
			return err
		}
		t.Say("%s, UDP through IPIP: echo from %s", h.client, box)
		if !strings.HasPrefix(box, h.site) {
			return fmt.Errorf("%s's UDP was answered by %s, want a box of site %s", h.client, box, h.site)
		}
	}
	return spread(ctx, t)
}

// spread asks often enough that both boxes of site a must have answered: the
// forwarder of one encapsulates to the other.
func spread(ctx context.Context, t *Teller) error {
	s, err := t.Lab.Clients["client-a"].Send(ctx, lab.Load{URL: URL, Rate: 20, For: 2 * time.Second, Timeout: 20 * time.Second})
	if err != nil {
		return err
	}
	t.Say("client-a: %s, by box %v", s, s.Boxes())
	if boxes := s.Boxes(); len(s.Failed()) > 0 || boxes["a1"] == 0 || boxes["a2"] == 0 {
		return fmt.Errorf("%s; served by %v, want both boxes of site a and no failure", s, boxes)
	}
	st, err := t.Lab.Boxes["a1"].Status(ctx)
	if err != nil {
		return err
	}
	t.Say("a1's forwarder: received %d, %s", st.Forwarder.Received, verdicts(st.Forwarder))
	return nil
}

// verdicts sums the verdicts by action.
func verdicts(f edge.ForwarderStats) string {
	sums := map[string]uint64{}
	for _, v := range f.Verdicts {
		sums[v.Action] += v.Count
	}
	return fmt.Sprintf("passed %d, sent %d, redirected %d, dropped %d", sums["pass"], sums["tx"], sums["redirect"], sums["drop"])
}

func regionOverflows(ctx context.Context, t *Teller) error {
	capacity := t.Lab.Topology.Regions[0].Capacity
	rate := 2 * capacity
	// The first seconds, in which the nodes learn of the demand, are not counted.
	const settle, counted = 6 * time.Second, 6 * time.Second
	var shares error
	for range 3 { // on a busy machine the client may not ask as often as it is to
		t.Say("client-a asks %d times a second; region east can serve %d", rate, capacity)
		s, err := t.Lab.Clients["client-a"].Send(ctx, lab.Load{URL: URL, Rate: rate, For: settle + counted, Timeout: 20 * time.Second, Way: lab.Way{KeepAlive: true, HTTP2: true}})
		if err != nil {
			return err
		}
		t.Say("client-a: %s", s)
		if n := len(s.Failed()); n > 0 {
			return fmt.Errorf("%d requests failed", n)
		}
		if shares = t.shared(s, settle, counted); shares == nil {
			return nil
		}
	}
	return shares
}

// shared checks which regions have served a load that is twice what the nearest can.
func (t *Teller) shared(s lab.Samples, settle, counted time.Duration) error {
	if len(s) == 0 {
		return errors.New("no request was sent")
	}
	perSecond := map[string]float64{}
	late := s.Between(s[0].At.Add(settle), s[0].At.Add(settle+counted))
	for region, n := range late.Regions() {
		perSecond[region] = float64(n) / counted.Seconds()
	}
	t.Say("requests per second once the demand is known: east %.1f, west %.1f, south %.1f", perSecond["east"], perSecond["west"], perSecond["south"])
	capacity := t.Lab.Topology.Regions[0].Capacity
	full := float64(capacity)
	if perSecond["east"] > 1.05*full {
		return fmt.Errorf("region east got %.1f requests per second, more than its capacity of %d", perSecond["east"], capacity)
	}
	if perSecond["east"] < 0.9*full || perSecond["west"] <= 2*perSecond["south"] {
		return fmt.Errorf("the nearest region was not filled first, then the next nearest: %v", perSecond)
	}
	return nil
}

func edgedDies(ctx context.Context, t *Teller) error {
	w, err := t.watch()
	if err != nil {
		return err
	}
	defer w.close()
	results, err := t.during(ctx, lab.Load{URL: URL, Rate: 20, For: 5 * time.Minute}, clients(), func(ctx context.Context) error {
		start := time.Now()
		if err := t.all(func(b *lab.Box) error { return b.Daemon(lab.Control).Kill(ctx) }); err != nil {
			return err
		}
		t.Say("edged killed with -9 on all boxes at once; the supervisor starts it again after a second")
		if err := t.all(func(b *lab.Box) error { return t.restarted(ctx, b, start) }); err != nil {
			return err
		}
		return t.Settle(ctx)
	})
	if err != nil {
		return err
	}
	if err := errors.Join(unharmed(results, clients()...), w.quiet()); err != nil {
		return err
	}
	t.Say("routers: no change of the route on any of them")
	return nil
}

// restarted waits for a new edged that has taken everything over.
func (t *Teller) restarted(ctx context.Context, b *lab.Box, after time.Time) error {
	var st edge.SystemStatus
	err := Until(ctx, b.Name()+"'s new edged has settled", func() (err error) {
		if st, err = b.Status(ctx); err != nil {
			return err
		}
		if !st.Started.After(after) || len(st.Decisions) != 2 {
			return errors.New("it has not")
		}
		for _, d := range st.Decisions {
			if d.Rung != edge.Announced || d.Reason != "" {
				return fmt.Errorf("%s is %s: %s", d.Prefix, d.Rung, d.Reason)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.Say("%s: new edged, started after %.2f s, settled after %s, forwarder adopted with %d packets counted", b.Name(), st.Started.Sub(after).Seconds(), since(after), st.Forwarder.Received)
	return nil
}

func boxDies(ctx context.Context, t *Teller) error {
	b := t.Lab.Boxes["c1"]
	_, err := t.during(ctx, lab.Load{URL: URL, Rate: 20, For: 5 * time.Minute, Timeout: 2 * time.Second}, []string{"client-c"}, func(ctx context.Context) error {
		start := time.Now()
		if err := b.Isolate(); err != nil {
			return err
		}
		t.Say("c1: its link is cut")
		if err := t.Lab.Routers["r-c"].Await(ctx, lab.Prefix4, "r-b"); err != nil {
			return errors.Join(err, b.Rejoin())
		}
		t.Say("r-c: %s leads to r-b after %s", lab.Prefix4, since(start))
		a, err := t.servedBy(ctx, "client-c", "b", lab.Way{})
		if err != nil {
			return errors.Join(err, b.Rejoin())
		}
		t.Say("client-c: served by site %s, region %s, after %s", a.Site, a.Region, since(start))
		return errors.Join(isolatedStays(ctx, t, b), b.Rejoin())
	})
	if err != nil {
		return err
	}
	t.Say("c1: its link is whole again")
	if _, err := t.servedBy(ctx, "client-c", "c", lab.Way{}); err != nil {
		return err
	}
	t.Say("client-c: served by site c again")
	return t.Settle(ctx)
}

// isolatedStays: a box that sees nobody must not take itself off the air; it
// says that it is alone.
func isolatedStays(ctx context.Context, t *Teller, b *lab.Box) error {
	return Until(ctx, b.Name()+" says that it is alone", func() error {
		st, err := b.Status(ctx)
		if err != nil {
			return err
		}
		for _, d := range st.Decisions {
			if d.Rung == edge.Withdrawn {
				return fmt.Errorf("%s has withdrawn %s by itself", b.Name(), d.Prefix)
			}
		}
		for _, a := range st.Alarms {
			if strings.Contains(a, "gossip") {
				t.Say("c1: alarm: %s", a)
				return nil
			}
		}
		return fmt.Errorf("its alarms are %v", st.Alarms)
	})
}
