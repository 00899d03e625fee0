package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

const (
	// downloads is how many are under way at once, half over each family.
	downloads = 50
	// progress is what each must read after a change to have gone on, in bytes:
	// more than what may still be in a buffer.
	progress = 30_000
	// patience is how long no download may stand still.
	patience = 20 * time.Second
)

// TestECMP loses one of two boxes among which a router spreads connections, with
// long downloads under way: the other box sends each connection, of which it has
// never seen a packet, to the backend that it has. The router is BIRD, then FRR.
func TestECMP(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	bin := t.TempDir()
	if err := lab.Build(ctx, bin, true); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []lab.RouterKind{lab.BIRD, lab.FRR} {
		t.Run(string(kind), func(t *testing.T) {
			p := newPair(ctx, t, kind, bin)
			if err := p.loseBoxes(ctx, bin); err != nil {
				t.Fatalf("%v\n%s", err, p.Lab.Logs(25))
			}
			p.accounts(ctx, p.Lab.Boxes["a2"])
			world{&p.Teller}.noRaces(t)
		})
	}
}

// newPair has the lab up, with every backend in the ring of both boxes.
func newPair(ctx context.Context, t *testing.T, kind lab.RouterKind, bin string) *pair {
	t.Helper()
	l, err := lab.New(ctx, patient(lab.Pair(kind)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	p := &pair{Teller: story.Teller{Lab: l, Say: t.Logf}, t: t}
	err = l.Start(bin)
	if err == nil {
		err = p.ready(ctx)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, l.Logs(40))
	}
	return p
}

// ready waits until both boxes are on the air and all servers in their rings.
func (p *pair) ready(ctx context.Context) error {
	if err := p.Settle(ctx); err != nil {
		return err
	}
	for name := range p.Lab.Servers {
		if err := p.inRing(ctx, name, true); err != nil {
			return err
		}
	}
	return nil
}

// loseBoxes loses one box, has it back, and loses the other one, with the same
// downloads under way all the time; then one more time with new ones.
func (p *pair) loseBoxes(ctx context.Context, bin string) error {
	a1, a2 := p.Lab.Boxes["a1"], p.Lab.Boxes["a2"]
	if err := p.begin(ctx); err != nil {
		return err
	}
	speaker := a1.Daemon(lab.Speaker)
	speaker.RestartNever()
	err := p.lose(ctx, loss{what: "a1's edgebgp is killed with -9", box: a1, other: a2, how: func() error { return speaker.Kill(ctx) }})
	if err != nil {
		return err
	}
	if err := p.comesBack(ctx, "a1's edgebgp", func() error { speaker.RestartAfter(0); return nil }); err != nil {
		return err
	}
	err = p.lose(ctx, loss{what: "a2 is switched off", box: a2, other: a1, how: func() error {
		return errors.Join(a2.Isolate(), a2.KillAll())
	}})
	if err != nil {
		return err
	}
	if err := p.comesBack(ctx, "a2", func() error { return errors.Join(a2.Rejoin(), a2.Start(bin)) }); err != nil {
		return err
	}
	if err := p.end(); err != nil {
		return err
	}
	return p.loseAfterChange(ctx)
}

// comesBack: downloads move once more, to where they were or not.
func (p *pair) comesBack(ctx context.Context, what string, how func() error) error {
	p.forgetStalls()
	start := time.Now()
	if err := how(); err != nil {
		return err
	}
	if err := p.ready(ctx); err != nil {
		return err
	}
	took := time.Since(start)
	if err := p.goOn(ctx, nil); err != nil {
		return err
	}
	c := p.count(p.downloads)
	p.Say("%s comes back, on the air after %.1f s: %s", what, took.Seconds(), c)
	return c.unharmed()
}

// loseAfterChange gives a server the weight 0 at both boxes, and loses a box
// before that server's downloads have ended. The other box has not seen those
// that come to it now, and its ring names another server: they break. The rest of
// the ring has hardly moved, so that hardly any other does, and none of those
// that the other box knows. Which ones break is what that box said before.
func (p *pair) loseAfterChange(ctx context.Context) error {
	a1, a2 := p.Lab.Boxes["a1"], p.Lab.Boxes["a2"]
	if err := p.begin(ctx); err != nil {
		return err
	}
	home, err := p.homes(ctx)
	if err != nil {
		return err
	}
	weightless := p.busiest(home, a1)
	if err := p.unweigh(ctx, weightless); err != nil {
		return err
	}
	if err := p.goOn(ctx, nil); err != nil {
		return err
	}
	lost, err := p.foretell(ctx, home, a1, a2)
	if err != nil {
		return err
	}
	err = p.lose(ctx, loss{
		what: fmt.Sprintf("%s gets weight 0, then a1 is switched off", weightless), box: a1, other: a2, lost: lost,
		how: func() error { return errors.Join(a1.Isolate(), a1.KillAll()) },
	})
	if err != nil {
		return err
	}
	var its, others counted
	for _, d := range p.downloads {
		c := &others
		if d.Server == weightless {
			c = &its
		}
		if home[d.Source] == a1 {
			c.flows++
			if lost[d.Source] {
				c.broke++
			}
		}
	}
	p.Say("of those that moved, misrouted: %d of %d of %s, %d of %d of the other servers; of all downloads: %.0f %%",
		its.broke, its.flows, weightless, others.broke, others.flows, 100*float64(len(lost))/downloads)
	if its.broke != its.flows || its.flows == 0 {
		return fmt.Errorf("the ring of a2 still had %s", weightless)
	}
	if others.broke > others.flows/4 {
		return fmt.Errorf("without %s the ring of a2 is quite another", weightless)
	}
	return p.end()
}

// foretell asks which downloads box to would send to another server than they
// have, of those that go through box from.
func (p *pair) foretell(ctx context.Context, home map[netip.AddrPort]*lab.Box, from, to *lab.Box) (map[netip.AddrPort]bool, error) {
	lost := map[netip.AddrPort]bool{}
	for _, d := range p.downloads {
		backend, err := p.backendOf(ctx, to, d)
		if err != nil {
			return nil, err
		}
		if home[d.Source] == from && backend != d.Server {
			lost[d.Source] = true
		}
	}
	return lost, nil
}

// unweigh gives a server the weight 0 at both boxes.
func (p *pair) unweigh(ctx context.Context, server string) error {
	line := regexp.MustCompile(`(\{name: ` + server + `, .*weight: )\d+`)
	for _, b := range p.Lab.Boxes {
		text, err := b.Config()
		if err != nil {
			return err
		}
		if found := len(line.FindAllString(text, -1)); found != 2 {
			return fmt.Errorf("%s is the backend of %d services, want 2", server, found)
		}
		if err := b.Configure(line.ReplaceAllString(text, "${1}0")); err != nil {
			return err
		}
		if out, err := b.Ctl(ctx, "reload"); err != nil {
			return fmt.Errorf("reload: %w: %s", err, out)
		}
	}
	return p.inRing(ctx, server, false)
}
