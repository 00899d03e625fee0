package ansible

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// fleet is two sites with a floor of one: when one has left the other may not.
type fleet struct {
	*controller
	story.Teller
	t *testing.T
}

// TestModules has the modules look at real boxes, and move them.
func TestModules(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	bin := t.TempDir()
	if err := lab.Build(ctx, bin, false); err != nil {
		t.Fatal(err)
	}
	l, err := lab.New(ctx, lab.Topology{
		Routers: []lab.RouterSpec{{Name: "r-a", Kind: lab.BIRD}, {Name: "r-b", Kind: lab.BIRD}},
		Cores:   []lab.CoreSpec{{A: "r-a", B: "r-b", Delay: time.Millisecond}},
		Sites:   []lab.SiteSpec{{Name: "a", Router: "r-a", Boxes: []lab.BoxSpec{{Name: "a1"}}}, {Name: "b", Router: "r-b", Boxes: []lab.BoxSpec{{Name: "b1"}}}},
		Regions: []lab.RegionSpec{{Name: "east", Router: "r-a", Origins: 1, Capacity: 500}},
		Edit: func(_, yaml string) string {
			return strings.NewReplacer("promise_lease: 10s", "promise_lease: 5s", " lease: 5s", " lease: 30s", "drain_timeout: 4s", "drain_timeout: 1s", "hold: 3s", "hold: 1s", "hold_max: 3s", "hold_max: 1s").Replace(yaml)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	f := &fleet{controller: newController(t, t.TempDir()), Teller: story.Teller{Lab: l, Say: t.Logf}, t: t}
	if err := errors.Join(f.describe(l), l.Start(bin), f.Settle(ctx)); err != nil {
		t.Fatalf("%v\n%s", err, l.Logs(40))
	}
	goes(ctx, t, l, func(t *testing.T) { f.t, f.Say = t, t.Logf }, []part{
		{"a node is ready", f.ready},
		{"a lock is refused, renewed, and ends", f.lock},
		{"a drain waits until the router has lost the path", f.drains},
		{"a permit that is not given names who is in the way", f.permit},
		{"a drain that is refused is taken back", f.refused},
		{"the drain of another owner is left alone", f.others},
		{"an unhealthy node stays drained", f.unhealthy},
		{"an undrain waits until the router has the path", f.undrains},
		{"the playbook drains and undrains", f.drainBook},
		{"verify names what is broken, and changes nothing", f.verify},
	})
}

func (f *fleet) a1() *lab.Box { return f.Lab.Boxes["a1"] }
func (f *fleet) b1() *lab.Box { return f.Lab.Boxes["b1"] }

// on are the arguments of a module on a box.
func on(b *lab.Box, more map[string]any) map[string]any {
	out := map[string]any{"socket": filepath.Join(b.RunDir(), "edged.sock")}
	for k, v := range more {
		out[k] = v
	}
	return out
}

// does runs a module that is to succeed, and says whether it changed something.
func (f *fleet) does(ctx context.Context, changes bool, b *lab.Box, name string, args map[string]any, more ...string) (answer, error) {
	out, err := f.module(ctx, b, name, args, more...)
	switch {
	case err != nil:
		return out, err
	case out.Failed:
		return out, fmt.Errorf("%s failed: %s", name, out.Msg)
	case out.Changed != changes:
		return out, fmt.Errorf("%s: changed is %t, want %t: %+v", name, out.Changed, changes, out)
	}
	return out, nil
}

// fails runs a module that is to fail with all these words.
func (f *fleet) fails(ctx context.Context, b *lab.Box, name string, args map[string]any, words ...string) (answer, error) {
	out, err := f.module(ctx, b, name, args)
	if err != nil {
		return out, err
	}
	if !out.Failed {
		return out, fmt.Errorf("%s has not failed: %+v", name, out)
	}
	for _, w := range words {
		if !strings.Contains(out.Msg, w) {
			return out, fmt.Errorf("%s does not say %q: %s", name, w, out.Msg)
		}
	}
	f.t.Logf("%s: %s", name, out.Msg)
	return out, nil
}

func (f *fleet) ready(ctx context.Context) error {
	for _, b := range f.Lab.Boxes {
		out, err := f.does(ctx, false, b, "edge_status", on(b, map[string]any{"wait": "60s", "times": 2, "interval": "300ms", "config": b.ConfigPath()}))
		if err != nil {
			return err
		}
		if !out.Healthy || !out.Ready || len(out.WhyNot) > 0 {
			return fmt.Errorf("%s is not ready: %+v", b.Name(), out)
		}
	}
	out, err := f.does(ctx, false, f.a1(), "edge_status", map[string]any{"socket": "/nowhere/edged.sock"})
	if err != nil {
		return err
	}
	if out.Ready || out.Healthy || !strings.Contains(strings.Join(out.WhyNot, " "), "edged does not answer on /nowhere/edged.sock") {
		return fmt.Errorf("an edged that is not there: %+v", out)
	}
	_, err = f.fails(ctx, f.a1(), "edge_status", map[string]any{"socket": "/nowhere/edged.sock", "wait": "1s"}, "is not ready within 1s", "is it running?")
	return err
}

func (f *fleet) lock(ctx context.Context) error {
	at := filepath.Join(f.dir, "rollout", "lock.json")
	take := func(owner string, more map[string]any) map[string]any {
		out := map[string]any{"path": at, "owner": owner, "what": "rollout of 2.0", "for": "10m"}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	b := f.a1()
	if _, err := f.does(ctx, true, b, "edge_lock", take("one", nil), "--check"); err != nil {
		return err
	}
	if _, err := os.Stat(at); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("check mode has taken the lock: %w", err)
	}
	if out, err := f.does(ctx, true, b, "edge_lock", take("one", map[string]any{"for": "1m"})); err != nil || out.Renewed {
		return fmt.Errorf("the first has not got it: %+v, %w", out, err)
	}
	if _, err := f.fails(ctx, b, "edge_lock", take("two", nil), "one holds the lock for rollout of 2.0", "force: true"); err != nil {
		return err
	}
	if _, err := f.fails(ctx, b, "edge_lock", take("two", map[string]any{"state": "released"}), "one holds the lock"); err != nil {
		return err
	}
	out, err := f.does(ctx, true, b, "edge_lock", take("one", nil))
	if err != nil || !out.Renewed || out.Lock.Left < 500 {
		return fmt.Errorf("it is not renewed: %+v, %w", out, err)
	}
	if _, err := f.does(ctx, true, b, "edge_lock", take("one", map[string]any{"for": "300ms"})); err != nil {
		return err
	}
	// The end is that of the box's clock: the next owner waits for it, and gets it.
	err = story.Until(ctx, "the lock has ended", func() error {
		_, err := f.does(ctx, true, b, "edge_lock", take("two", nil))
		return err
	})
	if err != nil {
		return err
	}
	if _, err := f.does(ctx, true, b, "edge_lock", take("three", map[string]any{"force": true})); err != nil {
		return err
	}
	if _, err := f.does(ctx, true, b, "edge_lock", take("three", map[string]any{"state": "released"})); err != nil {
		return err
	}
	if _, err := f.does(ctx, false, b, "edge_lock", take("three", map[string]any{"state": "released"})); err != nil {
		return err
	}
	if err := os.WriteFile(at, []byte("{"), 0o644); err != nil {
		return err
	}
	_, err = f.fails(ctx, b, "edge_lock", take("one", nil), "is no lock of ours", "it is not JSON")
	return err
}

// order are the arguments of a drain of rollout one.
func order(b *lab.Box, more map[string]any) map[string]any {
	out := on(b, map[string]any{"owner": "one", "reason": "to 2.0", "for": "30m", "wait": "90s", "image_dir": "/nowhere"})
	for k, v := range more {
		out[k] = v
	}
	return out
}

func (f *fleet) holds(ctx context.Context, router, box string, want bool) error {
	for _, p := range []netip.Prefix{lab.Prefix4, lab.Prefix6} {
		has, err := f.Lab.Routers[router].Holds(ctx, p, box)
		if err != nil {
			return err
		}
		if has != want {
			return fmt.Errorf("%s has the path to %s by %s: %t, want %t", router, p, box, has, want)
		}
	}
	return nil
}

func (f *fleet) drains(ctx context.Context) error {
	b := f.b1()
	out, err := f.does(ctx, true, b, "edge_drain", order(b, nil), "--check", "--diff")
	if err != nil || !strings.Contains(out.Ours, "rollout one: to 2.0") {
		return fmt.Errorf("check mode says %+v, %w", out, err)
	}
	if st, err := b.Status(ctx); err != nil || len(st.Drains) > 0 {
		return fmt.Errorf("check mode has drained: %v, %w", st.Drains, err)
	}
	if _, err := f.does(ctx, false, b, "edge_permit", on(b, map[string]any{"wait": "60s"})); err != nil {
		return err
	}
	out, err = f.does(ctx, false, b, "edge_routes", on(b, map[string]any{"until": "full"}))
	if err != nil || len(out.Routes) != 2 || !out.Routes[0].Sent || out.Routes[0].Marked || out.Routes[0].Peer != "r-b" {
		return fmt.Errorf("the routes are %+v, %w", out.Routes, err)
	}
	if _, err := f.fails(ctx, b, "edge_routes", on(b, map[string]any{"until": "leaving"}), "r-b holds "+lab.Prefix4.String()+" without 65535:0"); err != nil {
		return err
	}
	if out, err = f.does(ctx, true, b, "edge_drain", order(b, nil)); err != nil {
		return err
	}
	if len(out.Marked) != 1 || !out.Marked["r-b"] {
		return fmt.Errorf("r-b was not told before the withdrawal: %v", out.Marked)
	}
	// No waiting here: that is what the module is for.
	if err := f.holds(ctx, "r-b", "b1", false); err != nil {
		return err
	}
	st, err := b.Status(ctx)
	if err != nil {
		return err
	}
	if len(st.Drains) != 1 || st.Drains[0].Reason != "rollout one: to 2.0" || time.Until(st.Drains[0].Until) < 25*time.Minute {
		return fmt.Errorf("the drains are %+v", st.Drains)
	}
	for _, d := range st.Decisions {
		if !d.Unserved {
			return fmt.Errorf("the module has returned before nothing is served any more: %+v", d)
		}
	}
	if _, err := f.does(ctx, false, b, "edge_drain", order(b, map[string]any{"reason": "again"})); err != nil {
		return err
	}
	if _, err := f.does(ctx, false, b, "edge_routes", on(b, map[string]any{"until": "gone"})); err != nil {
		return err
	}
	if _, err := f.fails(ctx, b, "edge_routes", on(b, map[string]any{"until": "full"}), lab.Prefix4.String(), "rollout one: to 2.0"); err != nil {
		return err
	}
	out, err = f.does(ctx, false, b, "edge_status", on(b, map[string]any{"wait": "30s", "until": "healthy"}))
	if err != nil {
		return err
	}
	if out.Ready || !strings.Contains(strings.Join(out.WhyNot, "\n"), "the node is drained until") {
		return fmt.Errorf("a drained node: %+v", out)
	}
	return nil
}

func (f *fleet) permit(ctx context.Context) error {
	out, err := f.fails(ctx, f.a1(), "edge_permit", on(f.a1(), map[string]any{"wait": "2s"}), "a1 may not leave", "b1 of site b", "rollout one: to 2.0")
	if err != nil {
		return err
	}
	for _, w := range out.InTheWay {
		if w.Node == "b1" && w.Site == "b" && w.Prefix == lab.Prefix4.String() {
			return nil
		}
	}
	return fmt.Errorf("b1 is not in the way: %+v", out.InTheWay)
}

func (f *fleet) refused(ctx context.Context) error {
	a := f.a1()
	out, err := f.fails(ctx, a, "edge_drain", order(a, map[string]any{"wait": "8s"}), "a1 is not off the air within 8s", "b1", "Our order was taken back")
	if err != nil {
		return err
	}
	if !out.TakenBack || out.Changed || len(out.InTheWay) == 0 {
		return fmt.Errorf("the answer is %+v", out)
	}
	if st, err := a.Status(ctx); err != nil || len(st.Drains) > 0 {
		return fmt.Errorf("the drain is still there: %v, %w", st.Drains, err)
	}
	return f.holds(ctx, "r-a", "a1", true)
}

func (f *fleet) others(ctx context.Context) error {
	b := f.b1()
	before, err := b.Status(ctx)
	if err != nil {
		return err
	}
	for _, state := range []string{"drained", "undrained"} {
		if _, err := f.fails(ctx, b, "edge_drain", order(b, map[string]any{"owner": "two", "state": state}), "not ours", "rollout one: to 2.0", "edgectl undrain"); err != nil {
			return err
		}
	}
	after, err := b.Status(ctx)
	if err != nil {
		return err
	}
	if len(after.Drains) != 1 || after.Drains[0] != before.Drains[0] {
		return fmt.Errorf("the drain was %+v and is %+v", before.Drains, after.Drains)
	}
	return nil
}

func (f *fleet) unhealthy(ctx context.Context) error {
	b := f.b1()
	proxy := b.Daemon(lab.Proxy)
	proxy.RestartNever()
	if err := proxy.Kill(ctx); err != nil {
		return err
	}
	err := story.Until(ctx, "edged has seen it", func() error {
		out, err := f.module(ctx, b, "edge_status", on(b, nil))
		if err == nil && out.Healthy {
			err = errors.New("it is healthy")
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := f.fails(ctx, b, "edge_drain", order(b, map[string]any{"state": "undrained"}), "b1 is not healthy, and stays drained", "proxy"); err != nil {
		return err
	}
	if st, err := b.Status(ctx); err != nil || len(st.Drains) != 1 {
		return fmt.Errorf("its drains are %v, %w", st.Drains, err)
	}
	proxy.RestartAfter(0)
	_, err = f.does(ctx, false, b, "edge_status", on(b, map[string]any{"wait": "60s", "until": "healthy", "times": 2}))
	return err
}

func (f *fleet) undrains(ctx context.Context) error {
	b := f.b1()
	back := order(b, map[string]any{"state": "undrained"})
	if _, err := f.does(ctx, true, b, "edge_drain", back, "--check"); err != nil {
		return err
	}
	if st, err := b.Status(ctx); err != nil || len(st.Drains) != 1 {
		return fmt.Errorf("check mode has undrained: %v, %w", st.Drains, err)
	}
	if _, err := f.does(ctx, true, b, "edge_drain", back); err != nil {
		return err
	}
	if err := f.holds(ctx, "r-b", "b1", true); err != nil {
		return err
	}
	if _, err := f.does(ctx, false, b, "edge_drain", back); err != nil {
		return err
	}
	if _, err := f.does(ctx, false, b, "edge_routes", on(b, map[string]any{"until": "full", "wait": "20s"})); err != nil {
		return err
	}
	_, err := f.does(ctx, false, b, "edge_status", on(b, map[string]any{"wait": "30s"}))
	return err
}

func (f *fleet) drainBook(ctx context.Context) error {
	book := func(args ...string) (string, error) {
		return f.playbook(ctx, f.a1().Host, "drain", append([]string{"-e", "drain_reason='new fan'", "-e", "drain_for=1h"}, args...)...)
	}
	if out, err := book(); err == nil || !strings.Contains(out, "Say which nodes") {
		return fmt.Errorf("it drains a fleet by an oversight: %w\n%s", err, out)
	}
	if out, err := book("--limit", "a1"); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if err := f.holds(ctx, "r-a", "a1", false); err != nil {
		return err
	}
	if out, err := book("--limit", "a1"); err != nil || !strings.Contains(out, "changed=0") {
		return fmt.Errorf("the second run: %w\n%s", err, out)
	}
	if out, err := book("--limit", "a1", "-e", "drain_state=undrained"); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return f.holds(ctx, "r-a", "a1", true)
}
