package e2e

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

func newGossipKey() []byte {
	key := make([]byte, 32)
	rand.Read(key) // never fails
	return key
}

// boxes are those of the lab, in their order.
func (s *siege) boxes() []*lab.Box {
	return []*lab.Box{s.Lab.Boxes["a1"], s.Lab.Boxes["b1"], s.Lab.Boxes["c1"]}
}

// rotateTries is how often the key is changed at most until no request was lost and
// nobody dead meanwhile: a machine that is busy with other things loses some too.
const rotateTries = 3

// rotate changes the gossip key under load. The clients of the sites that stay never
// notice, nor does any guard: all that is sent can be read by all.
func (s *siege) rotate(ctx context.Context) error {
	var noticed error
	for range rotateTries {
		stopLoad := s.quietLoad(ctx, "client-a", "client-c")
		stopWatch := s.watchMembers(ctx)
		err := s.changeKey(ctx)
		noticed = errors.Join(stopLoad(), stopWatch())
		for _, b := range s.boxes() {
			n, asked := dropped(ctx, b, "wrong_key")
			if err = errors.Join(err, asked); n > 0 {
				err = errors.Join(err, fmt.Errorf("%s could not read %d letters", b.Name(), n))
			}
		}
		if err != nil {
			return errors.Join(err, noticed)
		}
		if noticed == nil {
			break
		}
		s.Say("noticed: %v", noticed)
	}
	return noticed
}

// changeKey goes the three steps that the manual has, box by box. In the middle of
// each, when the boxes differ, a site falls sick and gets its permit.
func (s *siege) changeKey(ctx context.Context) error {
	boxes := s.boxes()
	leaver := boxes[1]
	old, next := s.key, newGossipKey()
	for _, step := range []struct {
		name string
		keys [][]byte
	}{{"install", [][]byte{old, next}}, {"use", [][]byte{next, old}}, {"remove", [][]byte{next}}} {
		for i, b := range boxes {
			if err := s.rekey(ctx, b, step.keys...); err != nil {
				return fmt.Errorf("%s at %s: %w", step.name, b.Name(), err)
			}
			if i > 0 {
				continue
			}
			if _, err := s.leaves(ctx, leaver); err != nil {
				return fmt.Errorf("%s at %s alone: %w", step.name, b.Name(), err)
			}
			if err := s.well(leaver); err != nil {
				return err
			}
		}
		if err := s.announces(ctx, leaver); err != nil {
			return fmt.Errorf("after %s: %w", step.name, err)
		}
	}
	s.key, s.old = next, old
	return nil
}

// watchMembers looks at every box again and again: none is ever dead to another.
func (s *siege) watchMembers(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	found := make(chan error, len(s.Lab.Boxes))
	for _, b := range s.boxes() {
		go func() { found <- s.neverDead(ctx, b) }()
	}
	return func() error {
		cancel()
		return errors.Join(<-found, <-found, <-found)
	}
}

// neverDead looks at a box ten times a second until ctx ends; an error says who was
// dead to it.
func (s *siege) neverDead(ctx context.Context, b *lab.Box) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	looks := 0
	for ; ctx.Err() == nil; looks++ {
		st, err := b.Status(ctx)
		if ctx.Err() != nil {
			break
		}
		if err = errors.Join(err, allAlive(st)); err != nil || isolatedAlarm(st) {
			return fmt.Errorf("%s: %w; alarms %v", b.Name(), err, st.Alarms)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	if looks == 0 {
		return fmt.Errorf("%s was never looked at", b.Name())
	}
	return nil
}

// leftBehind puts a box back to the old key, as if it had missed the rotation: it
// hears nobody and nobody hears it, and all count that. Sick or not, it stays where
// it is, and leaves as soon as it has the key.
func (s *siege) leftBehind(ctx context.Context) error {
	box := s.Lab.Boxes["c1"]
	before, err := s.session(ctx, box)
	if err != nil {
		return err
	}
	if err := s.rekey(ctx, box, s.old); err != nil {
		return err
	}
	if err := s.sick(box); err != nil {
		return err
	}
	for _, b := range s.boxes() {
		if err := s.counts(ctx, b, "wrong_key", 1); err != nil {
			return err
		}
	}
	err = story.Until(ctx, "c1 is alone, and knows it", func() error {
		for _, b := range s.boxes() {
			st, err := b.Status(ctx)
			if err != nil {
				return err
			}
			if b == box && !isolatedAlarm(st) {
				return fmt.Errorf("the alarms of c1 are %v", st.Alarms)
			}
			for _, m := range st.Guard.Members {
				if m.Alive == (b == box || m.Node == "c1") {
					return fmt.Errorf("to %s %s is alive: %t", b.Name(), m.Node, m.Alive)
				}
			}
			for _, d := range st.Decisions {
				if b == box && (d.Rung == edge.Announced || !d.Rung.OnAir()) {
					return fmt.Errorf("c1 is %s with %s", d.Rung, d.Prefix)
				}
			}
		}
		return nil
	})
	if err = errors.Join(err, s.stays(ctx, box, before)); err != nil {
		return err
	}
	d, err := s.decided(ctx, box)
	if err != nil {
		return err
	}
	s.Say("c1, sick and alone: %s, %s", d.Rung, d.Reason)
	if err := s.rekey(ctx, box, s.key); err != nil {
		return err
	}
	if err := s.holds(ctx, box, 0); err != nil {
		return err
	}
	if err := s.returns(ctx, box); err != nil {
		return err
	}
	return s.together(ctx)
}

// decided is where a box stands with the IPv4 prefix.
func (s *siege) decided(ctx context.Context, b *lab.Box) (edge.Decision, error) {
	st, err := b.Status(ctx)
	for _, d := range st.Decisions {
		if d.Prefix == lab.Prefix4 {
			return d, nil
		}
	}
	return edge.Decision{}, errors.Join(err, fmt.Errorf("%s has decided nothing on %s", b.Name(), lab.Prefix4))
}

// together waits until all are alive to all.
func (s *siege) together(ctx context.Context) error {
	return story.Until(ctx, "all are alive to all", func() error {
		for _, b := range s.boxes() {
			st, err := b.Status(ctx)
			if err = errors.Join(err, allAlive(st)); err != nil {
				return err
			}
		}
		return nil
	})
}

// wrongKey sends what another fleet with the same label would, whose key is another
// one: 200 packets a second and some streams. All that comes of it is a count.
func (s *siege) wrongKey(ctx context.Context) error {
	box := s.Lab.Boxes["a1"]
	was, err := box.Status(ctx)
	if err != nil {
		return err
	}
	const packets, streams = 400, 20
	other := seal{newGossipKey()}
	at := netip.AddrPortFrom(netip.MustParseAddr(box.Addr4), gossipPort)
	start := time.Now()
	sent, err := s.send(ctx, at, 200, 2*time.Second, func(int) []byte { return other.packet(make([]byte, 200)) })
	if err != nil {
		return err
	}
	for range streams {
		if err := s.stream(ctx, at, other.stream(make([]byte, 200))); err != nil {
			return err
		}
	}
	s.Say("sent %d packets and %d streams in %.1f s", sent, streams, time.Since(start).Seconds())
	const reason = "wrong_key"
	if err := s.counts(ctx, box, reason, was.Guard.Dropped[reason]+packets*9/10+streams); err != nil {
		return err
	}
	is, err := box.Status(ctx)
	if err != nil {
		return err
	}
	value, err := metric(ctx, box, `edge_guard_dropped_total{reason="wrong_key"}`)
	if err != nil || value == "0" || value == fmt.Sprint(was.Guard.Dropped[reason]) {
		return fmt.Errorf("the metric says %q, %w", value, err)
	}
	s.Say("a1 has dropped %v before, %v now, the metric of %s is %s", was.Guard.Dropped, is.Guard.Dropped, reason, value)
	for _, r := range []string{"malformed", "not_encrypted", "wrong_label", "bad_signature", "unknown_sender", "replayed"} {
		if is.Guard.Dropped[r] != was.Guard.Dropped[r] {
			return fmt.Errorf("%s went from %d to %d", r, was.Guard.Dropped[r], is.Guard.Dropped[r])
		}
	}
	if !is.Started.Equal(was.Started) || is.Decisions[0] != was.Decisions[0] || is.Decisions[1] != was.Decisions[1] {
		return fmt.Errorf("started %s, decisions %v; before %s, %v", is.Started, is.Decisions, was.Started, was.Decisions)
	}
	if len(is.Alarms) > len(was.Alarms) {
		return fmt.Errorf("new alarms: %s", strings.Join(is.Alarms, "; "))
	}
	return allAlive(is)
}
