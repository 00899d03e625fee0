package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// make reload-storm has 1,000.
var reloads = flag.Int("reloads", 120, "how often TestReloadStorm reloads")

// TestReloadStorm reloads the configuration of a box many times, as an operator
// does, each time with another file. Both routers, BIRD on the link and FRR a hop
// behind it, keep their sessions. They receive one update for each prefix where
// their policy has changed, and otherwise nothing; never is anything withdrawn or
// a request lost.
func TestReloadStorm(t *testing.T) {
	quietRaces(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute+time.Duration(*reloads)*time.Second)
	defer cancel()
	bin := t.TempDir()
	if err := lab.Build(ctx, bin, true); err != nil {
		t.Fatal(err)
	}
	l, err := lab.New(ctx, patient(lab.Uplinks()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &storm{world: world{&story.Teller{Lab: l, Say: t.Logf}}, t: t, box: l.Boxes["a1"], took: map[string][]time.Duration{}}
	if err := s.begin(ctx, bin); err != nil {
		t.Fatalf("%v\n%s", err, l.Logs(40))
	}
	if err := s.run(ctx, *reloads); err != nil {
		t.Fatalf("%v\n%s", err, l.Logs(25))
	}
	s.report()
	s.noRaces(t)
}

// quietRaces sets up the race detector of the daemons for this test.
func quietRaces(t *testing.T) {
	t.Helper()
	// Each peer has a GoBGP server of its own, and each start of one writes two
	// variables of the package that all of them read. The values are always the
	// same: see listen in bgp/server.go. Here are several peers, as nowhere else.
	const known = "race:github.com/osrg/gobgp/v3/pkg/server.(*BgpServer).StartBgp\n"
	file := filepath.Join(t.TempDir(), "known-races")
	if err := os.WriteFile(file, []byte(known), 0o644); err != nil {
		t.Fatal(err)
	}
	// Without the first setting each edgectl waits for a second before it ends.
	t.Setenv("GORACE", "atexit_sleep_ms=0 suppressions="+file)
}

// storm is the lab, what its box is configured with, and what the routers have
// to say by then.
type storm struct {
	world
	t     *testing.T
	box   *lab.Box
	base  string
	is    shape
	peers []*far
	third *far // configured for a while, and then not
	// generation is that of edged; refused counts the files that were.
	generation uint64
	refused    int
	// took is how long reloads of each kind took, late how long after one a router
	// had what had changed.
	took map[string][]time.Duration
	late []time.Duration
}

// far is one of the sessions of the box, from its router's side.
type far struct {
	id     string
	router *lab.Router
	// at is the address of the router, from that of the box.
	at, from netip.Addr
	// first is the session as it was before the storm, updates what must have been
	// received since.
	first   lab.Session
	updates int
}

// begin has the box up with both sessions, and counted.
func (s *storm) begin(ctx context.Context, bin string) error {
	frr := s.Lab.Routers["r-b"]
	at4, at6, err := frr.CoreAddrs("r-a")
	if err != nil {
		return err
	}
	own4, own6 := netip.MustParseAddr(s.box.Addr4), netip.MustParseAddr(s.box.Addr6)
	s.peers = []*far{{id: "r-a", router: s.Lab.Routers["r-a"], from: own4}, {id: "r-b", router: frr, at: at4, from: own4}}
	s.third = &far{id: "r-b6", router: frr, at: at6, from: own6}
	if err := errors.Join(frr.AddPeer(ctx, own4, own6), frr.Count(ctx)); err != nil {
		return err
	}
	if s.base, err = s.box.Config(); err != nil {
		return err
	}
	text, err := s.text()
	if err = errors.Join(err, s.box.Configure(text), s.Lab.Start(bin), s.Settle(ctx)); err != nil {
		return err
	}
	for _, p := range s.peers {
		if err := p.hasBoth(ctx); err != nil {
			return err
		}
		if p.first, err = p.router.Session(ctx, p.from); err != nil {
			return err
		}
	}
	// Right after a start edged refuses: the first round of probes is not over.
	err = story.Until(ctx, "edged reloads", func() error {
		_, err := s.box.Ctl(ctx, "reload")
		return err
	})
	if err != nil {
		return err
	}
	st, err := s.box.Status(ctx)
	s.generation = st.Generation
	return err
}

// hasBoth waits until the router holds both prefixes of the box.
func (p *far) hasBoth(ctx context.Context) error {
	return story.Until(ctx, fmt.Sprintf("%s holds both prefixes of %s", p.router.Name(), p.from), func() error {
		now, err := p.router.Session(ctx, p.from)
		if err == nil && (!now.Established || now.Paths != 2) {
			err = fmt.Errorf("its session is %+v", now)
		}
		return err
	})
}

// run reloads n times with traffic under way, and looks at both ends of both
// sessions afterwards.
func (s *storm) run(ctx context.Context, n int) error {
	before, err := speaker(ctx, s.box)
	if err != nil {
		return err
	}
	small, err := s.footprints()
	if err != nil {
		return err
	}
	watches, err := s.watch()
	if err != nil {
		return err
	}
	defer func() {
		for _, w := range watches {
			w.Close()
		}
	}()
	loads, stop := context.WithCancel(ctx)
	defer stop()
	results, wait := s.send(loads)
	start := time.Now()
	if err := s.reloads(ctx, n); err != nil {
		return err
	}
	ended := time.Now()
	s.Say("%d reloads in %.1f s, %d of them refused", n, ended.Sub(start).Seconds(), s.refused)
	// Two renewals of the lease later whatever a reload has set off is over.
	err = story.Until(ctx, "edged has gone on", func() error {
		st, err := s.box.Status(ctx)
		if err == nil && st.Time.Before(ended.Add(2*time.Second)) {
			err = fmt.Errorf("its status is of %s", st.Time)
		}
		return err
	})
	if err != nil {
		return err
	}
	stop()
	errs := []error{wait(), s.sessions(ctx), s.speaker(ctx, before), s.daemons(ctx, small)}
	for _, w := range watches {
		errs = append(errs, s.neverGone(w))
	}
	for name, samples := range *results {
		s.Say("%s: %s", name, samples)
		if len(samples.Failed()) > 0 || len(samples) == 0 || samples[len(samples)-1].At.Before(ended) {
			errs = append(errs, fmt.Errorf("%s: %s; want all answered, and some to the end", name, samples))
		}
	}
	return errors.Join(errs...)
}

// reloads plays the moves, each deck in another order, which is the same in
// every run.
func (s *storm) reloads(ctx context.Context, n int) error {
	order := rand.New(rand.NewPCG(4, 1000))
	var deck []move
	for i := range n {
		if len(deck) == 0 {
			deck = moves()
			order.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		m := deck[0]
		deck = deck[1:]
		if err := s.play(ctx, m); err != nil {
			return fmt.Errorf("reload %d, %s: %w", i+1, m.name, err)
		}
	}
	return nil
}

// play makes one move: writes the file, reloads, and looks at what came of it.
func (s *storm) play(ctx context.Context, m move) error {
	if m.broken {
		return s.refuses(ctx)
	}
	told, err := m.change(ctx, s)
	if err != nil {
		return err
	}
	text, err := s.text()
	if err = errors.Join(err, s.box.Configure(text)); err != nil {
		return err
	}
	start := time.Now()
	out, err := s.box.Ctl(ctx, "reload", "-o", "json")
	s.took[m.name] = append(s.took[m.name], time.Since(start))
	if err != nil {
		return err
	}
	var answer struct {
		Generation uint64
		Changes    []string
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return fmt.Errorf("read %q: %w", out, err)
	}
	s.generation++
	said := func(c string) bool { return strings.Contains(c, m.says) }
	if answer.Generation != s.generation || m.says == "" && len(answer.Changes) > 0 || m.says != "" && !slices.ContainsFunc(answer.Changes, said) {
		return fmt.Errorf("edgectl says %+v; want generation %d, and changes that say %q", answer, s.generation, m.says)
	}
	ended := time.Now()
	for _, p := range told {
		if err := s.readvertised(ctx, p, ended); err != nil {
			return err
		}
	}
	return nil
}

// refuses reloads the next of the files that are wrong: edgectl says where and
// what, and edged goes on as it was.
func (s *storm) refuses(ctx context.Context) error {
	list := wrongs()
	w := list[s.refused%len(list)]
	good, err := s.text()
	if err != nil {
		return err
	}
	bad := w.spoil(good)
	if bad == good {
		return fmt.Errorf("%s: the file is as before", w.name)
	}
	if err := s.box.Configure(bad); err != nil {
		return err
	}
	start := time.Now()
	out, err := s.box.Ctl(ctx, "reload")
	s.took["a wrong file"] = append(s.took["a wrong file"], time.Since(start))
	if err == nil {
		return fmt.Errorf("%s was taken: %s", w.name, out)
	}
	if s.refused++; s.refused <= len(list) {
		s.Say("refused, %s: %s", w.name, strings.ReplaceAll(err.Error(), s.Lab.Dir(), ""))
	}
	for _, must := range w.says {
		if !strings.Contains(err.Error(), must) {
			return fmt.Errorf("%s: the refusal does not say %q: %w", w.name, must, err)
		}
	}
	st, err := s.box.Status(ctx)
	if err == nil && (st.Generation != s.generation || st.ConfigErr == "") {
		err = fmt.Errorf("%s: generation %d with the error %q, want %d and an error", w.name, st.Generation, st.ConfigErr, s.generation)
	}
	return err
}

// readvertised waits until the router has received an update of each prefix, and
// no more than that, and holds the path that the policy makes.
func (s *storm) readvertised(ctx context.Context, p *far, since time.Time) error {
	var wrong error
	err := story.Until(ctx, fmt.Sprintf("%s has received %d updates", p.router.Name(), p.updates), func() error {
		now, err := p.router.Session(ctx, p.from)
		got := now.Updates - p.first.Updates
		switch {
		case err != nil:
			return err
		case got > p.updates || !now.Established:
			wrong = fmt.Errorf("%s has received %d updates, want %d; its session is %+v", p.router.Name(), got, p.updates, now)
			return nil
		case got < p.updates:
			return fmt.Errorf("it has received %d", got)
		}
		return nil
	})
	if err = errors.Join(err, wrong); err != nil {
		return err
	}
	s.late = append(s.late, time.Since(since))
	want := s.is.policy[p.id].path()
	for _, prefix := range []netip.Prefix{lab.Prefix4, lab.Prefix6} {
		got, err := p.router.Path(ctx, prefix, p.from)
		if err != nil {
			return err
		}
		if !slices.Equal(got.ASPath, want.ASPath) || got.MED != want.MED || !slices.Equal(got.Communities, want.Communities) {
			return fmt.Errorf("%s holds %s as %+v, want %+v", p.router.Name(), prefix, got, want)
		}
	}
	return nil
}

// send starts the traffic. What came of it is there when wait returns.
func (s *storm) send(ctx context.Context) (results *map[string]lab.Samples, wait func() error) {
	// A connection for each request: a packet that is refused anywhere is a request
	// that fails.
	way := map[string]struct {
		client string
		way    lab.Way
		rate   int
	}{
		"client-a, IPv4": {"client-a", lab.Way{}, 10},
		"client-a, IPv6": {"client-a", lab.Way{IPv6: true}, 5},
		"client-b, IPv4": {"client-b", lab.Way{}, 10},
	}
	var g errgroup.Group
	all := make(chan map[string]lab.Samples, len(way))
	for name, w := range way {
		g.Go(func() (err error) {
			var samples, more lab.Samples
			for err == nil && ctx.Err() == nil {
				more, err = s.Lab.Clients[w.client].Send(ctx, lab.Load{URL: story.URL, Way: w.way, Rate: w.rate, For: time.Minute, Timeout: 10 * time.Second})
				samples = append(samples, more...)
			}
			all <- map[string]lab.Samples{name: samples}
			return err
		})
	}
	out := map[string]lab.Samples{}
	return &out, func() error {
		err := g.Wait()
		for range way {
			for name, samples := range <-all {
				out[name] = samples
			}
		}
		return err
	}
}
