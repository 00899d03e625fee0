package e2e

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// wrongNodeKey gives c1 another key of its own than the fleet has for it. It has the
// gossip key, so it is a member; it gets the question and answers with a promise.
// But nothing that it says is believed, so b1, which needs it, cannot leave. All is
// recorded on the way once c1 has its key back and is believed.
func (s *siege) wrongNodeKey(ctx context.Context) error {
	asker, liar := s.Lab.Boxes["b1"], s.Lab.Boxes["c1"]
	before, err := s.session(ctx, asker)
	if err != nil {
		return err
	}
	count, err := dropped(ctx, asker, "bad_signature")
	if err != nil {
		return err
	}
	restore, err := s.swapNodeKey(ctx, liar)
	if err != nil {
		return err
	}
	if err := s.sick(asker); err != nil {
		return err
	}
	err = story.Until(ctx, "c1 has promised b1 to stay", func() error {
		st, err := liar.Status(ctx)
		if err == nil && !slices.ContainsFunc(st.Guard.Bound, func(b edge.Binding) bool { return b.To == "b1" }) {
			err = fmt.Errorf("it has promised %v", st.Guard.Bound)
		}
		return err
	})
	if err != nil {
		return err
	}
	err = s.refusedTwice(ctx, asker, time.Now(), func(d edge.GuardDecision) bool { return slices.Contains(d.Silent, "c1") })
	if err != nil {
		return err
	}
	if err := errors.Join(s.counts(ctx, asker, "bad_signature", count+2), s.stays(ctx, asker, before)); err != nil {
		return err
	}
	s.Say("b1, to which c1 has promised with another key: %s", reasonOf(ctx, s, asker))
	tapped, err := s.listen()
	if err != nil {
		return err
	}
	defer tapped.close()
	if err := restore(); err != nil {
		return err
	}
	if err := s.holds(ctx, asker, 0); err != nil {
		return err
	}
	if err := s.returns(ctx, asker); err != nil {
		return err
	}
	return s.keepLetters(ctx, tapped)
}

// refusedTwice waits until a box has opened two rounds since a time that are over,
// with a1's promise alone, as the last one must be too. In none has it left, nor
// counted on c1.
func (s *siege) refusedTwice(ctx context.Context, b *lab.Box, since time.Time, ended func(edge.GuardDecision) bool) error {
	var wrong error
	err := story.Until(ctx, b.Name()+" has been refused twice", func() error {
		var past []edge.GuardDecision
		if err := b.Ask(ctx, lab.Control, "/v1/guard/decisions", &past); err != nil {
			return err
		}
		past = slices.DeleteFunc(past, func(d edge.GuardDecision) bool { return d.Opened.Before(since) || d.Prefix != lab.Prefix4 })
		i := slices.IndexFunc(past, func(d edge.GuardDecision) bool { return d.Left || slices.Contains(d.Promised, "c1") })
		if i >= 0 {
			wrong = fmt.Errorf("%s counts on c1: %+v", b.Name(), past[i])
			return nil
		}
		d, err := s.decided(ctx, b)
		if err != nil {
			return err
		}
		if !d.Rung.OnAir() {
			wrong = fmt.Errorf("%s is %s", b.Name(), d.Rung)
			return nil
		}
		if n := len(past); n < 2 || !slices.Equal(past[n-1].Promised, []edge.NodeID{"a1"}) || !ended(past[n-1]) {
			return fmt.Errorf("its rounds were %+v", past)
		}
		return nil
	})
	return errors.Join(err, wrong)
}

func reasonOf(ctx context.Context, s *siege, b *lab.Box) string {
	d, err := s.decided(ctx, b)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s, %s", d.Rung, d.Reason)
}

// swapNodeKey has a box sign with a new key, of which the others do not know.
func (s *siege) swapNodeKey(ctx context.Context, b *lab.Box) (restore func() error, err error) {
	path := filepath.Join(s.Lab.Dir(), "secrets", "node-"+b.Name()+".key")
	old, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	good, err := b.Config()
	if err != nil {
		return nil, err
	}
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	line := regexp.MustCompile(`(\{name: ` + b.Name() + `, .*public_key: )[^}]*\}`)
	bad := line.ReplaceAllString(good, "${1}"+guard.PublicKey(private).String()+"}")
	if bad == good {
		return nil, errors.New("the public key is as before")
	}
	use := func(key []byte, yaml string) error {
		if err := errors.Join(os.WriteFile(path, key, 0o600), b.Configure(yaml)); err != nil {
			return err
		}
		out, err := b.Ctl(ctx, "reload")
		if err != nil {
			return fmt.Errorf("reload %s: %w: %s", b.Name(), err, out)
		}
		return nil
	}
	return func() error { return use(old, good) }, use(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), bad)
}

// replayed has c1 drained, so that b1, which is sick, lacks its promise: and then
// sends b1 the one that c1 gave before, byte by byte, over and over, until b1 has been
// refused twice. Each is counted, and b1 stays.
func (s *siege) replayed(ctx context.Context) error {
	asker := s.Lab.Boxes["b1"]
	if err := s.drainAndWait(ctx, s.Lab.Boxes["c1"]); err != nil {
		return err
	}
	before, err := s.session(ctx, asker)
	if err != nil {
		return err
	}
	count, err := dropped(ctx, asker, "replayed")
	if err != nil {
		return err
	}
	if err := s.sick(asker); err != nil {
		return err
	}
	replay, stop := context.WithCancel(ctx)
	defer stop()
	sending := make(chan error, 1)
	var sent uint64
	go func() { sending <- s.streams(replay, spot(asker), s.promise, &sent) }()
	err = s.refusedTwice(ctx, asker, time.Now(), func(d edge.GuardDecision) bool { return d.Nacked["c1"] != "" })
	stop()
	if err = errors.Join(err, <-sending); err != nil {
		return err
	}
	if sent == 0 {
		return errors.New("no promise was sent again")
	}
	if err := s.counts(ctx, asker, "replayed", count+sent); err != nil {
		return err
	}
	s.Say("the recorded promise was sent to b1 %d times; it is %s", sent, reasonOf(ctx, s, asker))
	if err := s.stays(ctx, asker, before); err != nil {
		return err
	}
	return s.returns(ctx, asker)
}

// replayedLater starts edged of b1 anew, which remembers nothing, and sends it the
// same promise: it is for another process.
func (s *siege) replayedLater(ctx context.Context) error {
	asker := s.Lab.Boxes["b1"]
	killed := time.Now()
	if err := asker.Daemon(lab.Control).Kill(ctx); err != nil {
		return err
	}
	return story.Until(ctx, "the new edged of b1 counts the old promise", func() error {
		st, err := asker.Status(ctx)
		if err == nil && !st.Started.After(killed) {
			err = errors.New("it is the old one")
		}
		if err != nil {
			return err
		}
		if err := s.stream(ctx, spot(asker), s.promise); err != nil {
			return err
		}
		if st.Guard.Dropped["other_boot"] == 0 {
			return fmt.Errorf("it has dropped %v", st.Guard.Dropped)
		}
		s.Say("the new edged of b1 has dropped %v", st.Guard.Dropped)
		return nil
	})
}
