package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// gossipPort is that of every box of the lab.
const gossipPort = 7946

// siege is a small fleet of three sites with a floor of two: whoever leaves needs
// both others. Somebody is at r-a who is no box.
type siege struct {
	world
	t *testing.T
	// key is the gossip key that is in use, old the one before.
	key, old []byte
	// promise is the stream in which c1 has promised b1 to stay, letters the datagrams
	// that each box has got, usual how many those are in a second.
	promise []byte
	letters map[*lab.Box][][]byte
	usual   map[*lab.Box]float64
}

// TestGuard has the guard do its work on real boxes while keys change, and while
// somebody works against it: with garbage, with other keys, with what was
// recorded, at a hundred times the usual rate. Each part goes on where the one before
// has ended.
func TestGuard(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each edgectl waits for a second before it ends
	bin := t.TempDir()
	if err := lab.Build(ctx, bin, true); err != nil {
		t.Fatal(err)
	}
	s := &siege{t: t}
	l, err := lab.New(ctx, patient(siegeTopology()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	s.world = world{&story.Teller{Lab: l, Say: t.Logf}}
	if err := s.begin(ctx, bin); err != nil {
		t.Fatalf("%v\n%s", err, l.Logs(40))
	}
	for _, p := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"the gossip key is changed under load", s.rotate},
		{"a box that was left behind freezes", s.leftBehind},
		{"a wrong gossip key is counted, and that is all", s.wrongKey},
		{"a promise signed by another key is none", s.wrongNodeKey},
		{"a site leaves in a flood", s.flood},
		{"a recorded promise is none", s.replayed},
		{"the operator waits, is refused, and forces", s.force},
		{"nor is one that was for an earlier process", s.replayedLater},
	} {
		s.part(ctx, t, p.name, func(ctx context.Context, t *testing.T) error { s.t = t; return p.run(ctx) })
	}
	s.noRaces(t)
}

func siegeTopology() lab.Topology {
	box := func(name string) []lab.BoxSpec { return []lab.BoxSpec{{Name: name}} }
	return lab.Topology{
		Routers: []lab.RouterSpec{{Name: "r-a", Kind: lab.BIRD}, {Name: "r-b", Kind: lab.FRR}, {Name: "r-c", Kind: lab.BIRD}},
		Cores: []lab.CoreSpec{
			{A: "r-a", B: "r-b", Delay: time.Millisecond}, {A: "r-b", B: "r-c", Delay: time.Millisecond}, {A: "r-a", B: "r-c", Delay: time.Millisecond},
		},
		Sites:   []lab.SiteSpec{{Name: "a", Router: "r-a", Boxes: box("a1")}, {Name: "b", Router: "r-b", Boxes: box("b1")}, {Name: "c", Router: "r-c", Boxes: box("c1")}},
		Regions: []lab.RegionSpec{{Name: "east", Router: "r-a", Origins: 1, Capacity: 500}},
		Clients: []lab.ClientSpec{{Name: "client-a", Router: "r-a"}, {Name: "client-b", Router: "r-b"}, {Name: "client-c", Router: "r-c"}, {Name: "intruder", Router: "r-a"}},
		Edit:    siegeConfig,
	}
}

var sharedKey = regexp.MustCompile(`key_file: (\S+)/secrets/gossip\.key`)

// siegeConfig gives a box a gossip key of its own file, a hard need of its own that
// a test can break without a request noticing, and a floor that needs all others.
func siegeConfig(box, yaml string) string {
	probe := fmt.Sprintf("    probes:\n      - {name: own-%s, kind: process, pid_file: RUN/own.pid, interval: 200ms, timeout: 200ms, rise: 2, fall: 2}\n", box)
	run := regexp.MustCompile(`run_dir: (\S+)`).FindStringSubmatch(yaml)[1]
	yaml = sharedKey.ReplaceAllString(yaml, "key_file: ${1}/"+box+"/gossip.key")
	return strings.NewReplacer(
		"min_sites: 1", "min_sites: 2",
		"promise_lease: 10s", "promise_lease: 5s",
		// A busy machine shall not be taken for a slow guard, nor for a sick site.
		"ask_timeout: 1s", "ask_timeout: 1s\n    sick_drain_time: 500ms",
		"rise: 2, fall: 3", "rise: 2, fall: 10",
		"drain_timeout: 4s", "drain_timeout: 1s",
		"hold: 3s", "hold: 1s", "hold_max: 3s", "hold_max: 1s",
		"- {on: proxy, class: hard}", fmt.Sprintf("- {on: proxy, class: hard}\n      - {on: own-%s, class: hard}", box),
		"    probes:\n", strings.Replace(probe, "RUN", run, 1),
	).Replace(yaml)
}

// begin has the fleet up, and its guards over the time after a start in which they
// permit nothing.
func (s *siege) begin(ctx context.Context, bin string) error {
	text, err := os.ReadFile(filepath.Join(s.Lab.Dir(), "secrets", "gossip.key"))
	if err != nil {
		return err
	}
	if s.key, err = base64.StdEncoding.DecodeString(strings.TrimSpace(string(text))); err != nil {
		return err
	}
	for _, b := range s.Lab.Boxes {
		if err := errors.Join(s.writeKeys(b, s.key), s.well(b)); err != nil {
			return err
		}
	}
	if err := errors.Join(s.Lab.Routers["r-b"].Count(ctx), s.Lab.Start(bin), s.Settle(ctx)); err != nil {
		return err
	}
	return story.Until(ctx, "the guards permit to leave", func() error {
		for _, b := range s.Lab.Boxes {
			st, err := b.Status(ctx)
			if err == nil && st.Time.Sub(st.Started) < 6*time.Second {
				err = errors.New("the lease of a promise has not passed since the start")
			}
			if err = errors.Join(err, allAlive(st)); err != nil {
				return fmt.Errorf("%s: %w", b.Name(), err)
			}
		}
		return nil
	})
}

// allAlive says who is not.
func allAlive(st edge.SystemStatus) error {
	if len(st.Guard.Members) != 2 {
		return fmt.Errorf("%d members", len(st.Guard.Members))
	}
	for _, m := range st.Guard.Members {
		if !m.Alive {
			return fmt.Errorf("%s is dead to %s", m.Node, st.Node)
		}
	}
	return nil
}

func isolatedAlarm(st edge.SystemStatus) bool {
	return slices.ContainsFunc(st.Alarms, func(a string) bool { return strings.HasPrefix(a, "isolated") })
}

// writeKeys replaces a box's file of gossip keys.
func (s *siege) writeKeys(b *lab.Box, keys ...[]byte) error {
	var text strings.Builder
	for _, k := range keys {
		fmt.Fprintln(&text, base64.StdEncoding.EncodeToString(k))
	}
	return os.WriteFile(filepath.Join(s.Lab.Dir(), b.Name(), "gossip.key"), []byte(text.String()), 0o600)
}

// rekey also reloads, and looks at what edgectl guard shows.
func (s *siege) rekey(ctx context.Context, b *lab.Box, keys ...[]byte) error {
	if err := s.writeKeys(b, keys...); err != nil {
		return err
	}
	if out, err := b.Ctl(ctx, "reload"); err != nil {
		return fmt.Errorf("reload %s: %w: %s", b.Name(), err, out)
	}
	out, err := b.Ctl(ctx, "guard")
	if err != nil {
		return err
	}
	var want []string
	for i, k := range keys {
		use := "is accepted"
		if i == 0 {
			use = "encrypts, and is accepted"
		}
		want = append(want, fmt.Sprintf("gossip key %s %s\n", guard.KeyName(k), use))
	}
	if !strings.Contains(out, strings.Join(want, "")) || strings.Count(out, "gossip key") != len(keys) {
		return fmt.Errorf("edgectl guard of %s does not show just these: %q: %s", b.Name(), want, out)
	}
	return nil
}

// sick breaks what a box alone depends on; nothing that a client needs.
func (s *siege) sick(b *lab.Box) error { return os.Remove(filepath.Join(b.RunDir(), "own.pid")) }

// well mends that.
func (s *siege) well(b *lab.Box) error {
	return os.WriteFile(filepath.Join(b.RunDir(), "own.pid"), fmt.Appendln(nil, os.Getpid()), 0o644)
}

// session is that of a box, as its router has it.
func (s *siege) session(ctx context.Context, b *lab.Box) (lab.Session, error) {
	return s.Lab.Routers[b.Router].Session(ctx, netip.MustParseAddr(b.Addr4))
}

// holds waits until the router of a box holds so many of its prefixes.
func (s *siege) holds(ctx context.Context, b *lab.Box, paths int) error {
	return story.Until(ctx, fmt.Sprintf("%s holds %d prefixes of %s", b.Router, paths, b.Name()), func() error {
		now, err := s.session(ctx, b)
		if err == nil && (!now.Established || now.Paths != paths) {
			err = fmt.Errorf("its session is %+v", now)
		}
		return err
	})
}

// leaves has a box fall sick and waits until its router has nothing of it any more.
// It returns how long that took since the box knew that it is sick.
func (s *siege) leaves(ctx context.Context, b *lab.Box) (time.Duration, error) {
	fell := time.Now()
	if err := s.sick(b); err != nil {
		return 0, err
	}
	if err := s.holds(ctx, b, 0); err != nil {
		st, _ := b.Status(ctx)
		return 0, fmt.Errorf("%w: it asks %+v, alarms %v", err, st.Guard.Asking, st.Alarms)
	}
	gone := time.Now()
	known, err := s.knewAt(ctx, b, fell)
	if err != nil {
		return 0, err
	}
	s.Say("%s is sick: it knows after %.1f s, and is off the router %.1f s later", b.Name(), known.Sub(fell).Seconds(), gone.Sub(known).Seconds())
	return gone.Sub(known), nil
}

// knewAt is when a prefix was first said not to be at its best, since a time.
func (s *siege) knewAt(ctx context.Context, b *lab.Box, since time.Time) (at time.Time, err error) {
	err = story.Until(ctx, b.Name()+" says since when it is sick", func() error {
		var past edge.Events
		if err := b.Ask(ctx, lab.Control, "/v1/history", &past); err != nil {
			return err
		}
		for _, e := range past.Events {
			if e.Kind == "prefix" && e.From == string(edge.Announced) && e.Time.After(since) && (at.IsZero() || e.Time.Before(at)) {
				at = e.Time
			}
		}
		if at.IsZero() {
			return errors.New("its history does not")
		}
		return nil
	})
	return at, err
}

// returns has a box be well again and waits until it announces.
func (s *siege) returns(ctx context.Context, b *lab.Box) error {
	if err := s.well(b); err != nil {
		return err
	}
	return s.announces(ctx, b)
}

func (s *siege) announces(ctx context.Context, b *lab.Box) error {
	for _, p := range []netip.Prefix{lab.Prefix4, lab.Prefix6} {
		if err := s.rung(ctx, b.Name(), p.String(), edge.Announced); err != nil {
			return err
		}
	}
	return s.holds(ctx, b, 2)
}

// stays wants a router to have been sent no withdrawal by a box since before.
func (s *siege) stays(ctx context.Context, b *lab.Box, before lab.Session) error {
	now, err := s.session(ctx, b)
	// FRR says for how long it has been, and the answer may be late.
	if err == nil && (now.Paths != 2 || now.Withdraws != before.Withdraws || now.Since.Sub(before.Since).Abs() > 5*time.Second) {
		err = fmt.Errorf("%s has left %s: its session is %+v, and was %+v", b.Name(), b.Router, now, before)
	}
	return err
}

// dropped is what a box has thrown away for a reason.
func dropped(ctx context.Context, b *lab.Box, reason string) (uint64, error) {
	st, err := b.Status(ctx)
	return st.Guard.Dropped[reason], err
}

// counts waits until a box has thrown away more for a reason than before.
func (s *siege) counts(ctx context.Context, b *lab.Box, reason string, more uint64) error {
	return story.Until(ctx, fmt.Sprintf("%s counts %s", b.Name(), reason), func() error {
		n, err := dropped(ctx, b, reason)
		if err == nil && n < more {
			err = fmt.Errorf("it has counted %d, want %d", n, more)
		}
		return err
	})
}

// metric reads a value of edged's metrics.
func metric(ctx context.Context, b *lab.Box, name string) (string, error) {
	tr := &http.Transport{DisableKeepAlives: true, DialContext: b.Dial}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", lab.ManagementPort), nil)
	if err != nil {
		return "", err
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("%s has no metric %s", b.Name(), name)
}

// quietLoad sends requests from clients until it is stopped, and wants all answered.
func (s *siege) quietLoad(ctx context.Context, clients ...string) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var g errgroup.Group
	for _, name := range clients {
		g.Go(func() error {
			sent, err := s.Lab.Clients[name].Send(ctx, lab.Load{URL: story.URL, Rate: 20, For: 5 * time.Minute, Timeout: 10 * time.Second})
			s.Say("%s meanwhile: %s", name, sent)
			if n := len(sent.Failed()); err == nil && (n > 0 || len(sent) == 0) {
				err = fmt.Errorf("%s: %d of %d requests failed", name, n, len(sent))
			}
			return err
		})
	}
	return func() error {
		cancel()
		return g.Wait()
	}
}
