package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// loss is one of the two boxes that is lost.
type loss struct {
	what       string
	how        func() error
	box, other *lab.Box
	// lost are the downloads that will break, by source; all others must not.
	lost map[netip.AddrPort]bool
}

// lose loses a box and says what came of the downloads.
func (p *pair) lose(ctx context.Context, l loss) error {
	home, err := p.homes(ctx)
	if err != nil {
		return err
	}
	before, err := byRing(ctx, l.other)
	if err != nil {
		return err
	}
	p.forgetStalls()
	start := time.Now()
	if err := l.how(); err != nil {
		return err
	}
	for _, prefix := range []netip.Prefix{lab.Prefix4, lab.Prefix6} {
		if err := p.Lab.Routers["r-a"].Await(ctx, prefix, l.other.Name()); err != nil {
			return err
		}
	}
	took := time.Since(start)
	if err := p.goOn(ctx, l.lost); err != nil {
		return err
	}
	foretold := p.asForetold(l)
	if foretold == nil {
		foretold = p.arrived(ctx, home, l)
	}
	after, err := byRing(ctx, l.other)
	if err != nil {
		return err
	}
	var moved, stayed []*lab.Download
	for _, d := range p.downloads {
		if home[d.Source] == l.box {
			moved = append(moved, d)
		} else {
			stayed = append(stayed, d)
		}
	}
	m, s := p.count(moved), p.count(stayed)
	p.Say("%s: the router leads to %s alone after %.0f ms; moved there: %s; there before: %s; %s's rings chose for %d packets more",
		l.what, l.other.Name(), 1000*took.Seconds(), m, s, l.other.Name(), after-before)
	if m.flows == 0 || s.flows == 0 {
		return errors.New("want some that move, and some that do not")
	}
	if s.stall = max(s.stall, m.stall); s.stall > patience {
		return fmt.Errorf("a download stood still for %s", s.stall)
	}
	return foretold
}

// arrived wants the downloads of the box that was lost at the other one, with the
// server that they have.
func (p *pair) arrived(ctx context.Context, home map[netip.AddrPort]*lab.Box, l loss) error {
	return story.Until(ctx, "all downloads have come to "+l.other.Name(), func() error {
		flows, err := flowsOf(ctx, l.other)
		if err != nil {
			return err
		}
		for _, d := range p.downloads {
			f, ok := flows[d.Source]
			switch {
			case home[d.Source] != l.box || l.lost[d.Source]:
			case !ok:
				return fmt.Errorf("%s has not", d.Source)
			case string(f.Backend) != d.Server:
				return fmt.Errorf("%s has %s there, but %s sends", d.Source, f.Backend, d.Server)
			}
		}
		return nil
	})
}

// asForetold compares who broke with who was to break.
func (p *pair) asForetold(l loss) error {
	var errs []error
	for _, d := range p.downloads {
		switch {
		case ended(d) && !l.lost[d.Source]:
			errs = append(errs, fmt.Errorf("the download of %s from %s broke: %w", d.Source, d.Server, d.Err()))
		case !ended(d) && l.lost[d.Source]:
			errs = append(errs, fmt.Errorf("the download of %s from %s goes on, though %s sends it elsewhere", d.Source, d.Server, l.other.Name()))
		}
	}
	return errors.Join(errs...)
}

// byRing counts the packets of the downloads for which a box had no flow.
func byRing(ctx context.Context, b *lab.Box) (n uint64, err error) {
	st, err := b.Status(ctx)
	for _, s := range st.Forwarder.Services {
		if s.Service == edge.ServiceID("download") || s.Service == edge.ServiceID("download6") {
			n += s.By["ring"]
		}
	}
	return n, err
}

// counted is what came of some downloads.
type counted struct {
	flows, broke int
	stall        time.Duration
}

func (c counted) String() string {
	return fmt.Sprintf("%d downloads, %d broke, longest stall %.0f ms", c.flows, c.broke, 1000*c.stall.Seconds())
}

// unharmed is an error if one broke, or stood still for long.
func (c counted) unharmed() error {
	if c.broke > 0 || c.stall > patience {
		return fmt.Errorf("%s", c)
	}
	return nil
}

// count looks at those that go on for their longest stall.
func (p *pair) count(some []*lab.Download) counted {
	c := counted{flows: len(some)}
	for _, d := range some {
		if stall := d.Stall(); ended(d) {
			c.broke++
		} else {
			c.stall = max(c.stall, stall)
		}
	}
	return c
}

// forgetStalls begins to measure anew.
func (p *pair) forgetStalls() {
	for _, d := range p.downloads {
		d.Stall()
	}
}
