package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// drain takes site c out, kills its edged, and finds it still out.
func drain(ctx context.Context, t *testing.T, w world) error {
	box := w.Lab.Boxes["c1"]
	out, err := box.Ctl(ctx, "drain", "--reason", "new fan")
	if err != nil {
		return fmt.Errorf("drain: %w: %s", err, out)
	}
	prefix := lab.Prefix4.String()
	if err := w.rung(ctx, "c1", prefix, edge.Withdrawn); err != nil {
		return err
	}
	if err := w.Lab.Routers["r-c"].Await(ctx, lab.Prefix4, "r-b"); err != nil {
		return err
	}
	killed := time.Now()
	if err := box.Daemon(lab.Control).Kill(ctx); err != nil {
		return err
	}
	err = story.Until(ctx, "the new edged of c1 has decided", func() error {
		st, err := box.Status(ctx)
		switch {
		case err != nil:
			return err
		case !st.Started.After(killed) || len(st.Decisions) != 2:
			return errors.New("it has not")
		case len(st.Drains) != 1 || st.Drains[0].Reason != "new fan":
			return fmt.Errorf("its drains are %v", st.Drains)
		}
		for _, d := range st.Decisions {
			if d.Rung.OnAir() || !strings.Contains(string(d.Reason), "new fan") {
				return fmt.Errorf("%s is %s: %s", d.Prefix, d.Rung, d.Reason)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if out, err := box.Ctl(ctx, "undrain"); err != nil {
		return fmt.Errorf("undrain: %w: %s", err, out)
	}
	if _, err := box.Ctl(ctx, "undrain"); err == nil {
		t.Error("a second undrain found something to take back")
	}
	return w.Settle(ctx)
}

// badReload: every error with its place, and the generation stays.
func badReload(ctx context.Context, t *testing.T, w world) error {
	box := w.Lab.Boxes["b1"]
	good, err := box.Config()
	if err != nil {
		return err
	}
	before, err := box.Status(ctx)
	if err != nil {
		return err
	}
	bad := strings.Replace(good, "hold: 9s", "hold: 1s", 1)
	bad = strings.Replace(bad, "min_sites: 1", "min_sites: 99", 1)
	if err := box.Configure(bad); err != nil {
		return err
	}
	_, err = box.Ctl(ctx, "reload")
	if err == nil {
		return errors.New("a bad configuration was taken")
	}
	for _, must := range []string{"edge.yaml:", "hold", "min_sites"} {
		if !strings.Contains(err.Error(), must) {
			t.Errorf("the refusal does not say %q: %v", must, err)
		}
	}
	if _, err := box.Ctl(ctx, "check", box.ConfigPath()); err == nil {
		t.Error("edgectl check finds nothing wrong")
	}
	after, err := box.Status(ctx)
	if err != nil {
		return err
	}
	if after.Generation != before.Generation || after.ConfigHash != before.ConfigHash || after.ConfigErr == "" {
		t.Errorf("generation %d, error %q; want generation %d and an error", after.Generation, after.ConfigErr, before.Generation)
	}
	// A proxy that crashes now must come back with what was applied last.
	if err := box.Daemon(lab.Proxy).Kill(ctx); err != nil {
		return err
	}
	err = story.Until(ctx, "b1's edgeproxy is back", func() error {
		var st edge.ProxyState
		return box.Ask(ctx, lab.Proxy, "/v1/state", &st)
	})
	if err != nil {
		return err
	}
	if err := box.Configure(good); err != nil {
		return err
	}
	if out, err := box.Ctl(ctx, "reload"); err != nil {
		return fmt.Errorf("reload the good configuration: %w: %s", err, out)
	}
	return w.Settle(ctx)
}

// dropPrefix deletes the IPv6 prefix of one box: it leaves as any other, with
// the guard's permit, then its services go; and it comes back with the file.
func dropPrefix(ctx context.Context, t *testing.T, w world) error {
	box := w.Lab.Boxes["c1"]
	good, err := box.Config()
	if err != nil {
		return err
	}
	without, err := cutPrefix6(good)
	if err != nil {
		return err
	}
	if err := box.Configure(without); err != nil {
		return err
	}
	watch, err := w.Lab.Routers["r-c"].Watch(lab.Prefix6)
	if err != nil {
		return err
	}
	defer watch.Close()
	out, err := box.Ctl(ctx, "reload")
	if err != nil {
		return fmt.Errorf("reload: %w", err)
	}
	t.Logf("reload: %s", strings.TrimSpace(out))
	if err := w.Lab.Routers["r-c"].Await(ctx, lab.Prefix6, "r-b"); err != nil {
		return err
	}
	err = story.Until(ctx, "c1 has forgotten the prefix", func() error {
		st, err := box.Status(ctx)
		if err != nil {
			return err
		}
		if len(st.Decisions) != 1 || len(st.Services) != 3 {
			return fmt.Errorf("%d prefixes, %d services", len(st.Decisions), len(st.Services))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if lost, err := watch.Lost(); err != nil || len(lost) > 0 {
		return fmt.Errorf("r-c lost the prefix %d times, %v", len(lost), err)
	}
	if err := box.Configure(good); err != nil {
		return err
	}
	if out, err := box.Ctl(ctx, "reload"); err != nil {
		return fmt.Errorf("reload the whole configuration: %w: %s", err, out)
	}
	return w.Settle(ctx)
}

// cutPrefix6 takes the IPv6 prefix and its services out of a configuration.
func cutPrefix6(yaml string) (string, error) {
	line := fmt.Sprintf("    - {prefix: %q, min_sites: 1}\n", lab.Prefix6)
	out := strings.Replace(yaml, line, "", 1)
	for _, name := range []string{"web6", "plain6"} {
		from := strings.Index(out, "    - name: "+name+"\n")
		if from < 0 {
			return "", fmt.Errorf("the configuration has no service %s", name)
		}
		next := strings.Index(out[from+1:], "    - name: ")
		out = out[:from] + out[from+1+next:]
	}
	// The probe of the service goes with it.
	if from := strings.Index(out, "      - {name: web6-vip,"); from >= 0 {
		out = out[:from] + out[from+strings.Index(out[from:], "\n")+1:]
	}
	if len(out) == len(yaml) || strings.Contains(out, lab.Prefix6.String()) {
		return "", errors.New("the configuration has no line for the IPv6 prefix")
	}
	return out, nil
}

// lease stops edged without killing it: a daemon that hangs.
func lease(ctx context.Context, t *testing.T, w world) error {
	box := w.Lab.Boxes["b1"]
	watch, err := w.Lab.Routers["r-b"].Watch(lab.Prefix4)
	if err != nil {
		return err
	}
	defer watch.Close()
	if err := box.Daemon(lab.Control).Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	start := time.Now()
	err = story.Until(ctx, "edgebgp has degraded b1", func() error {
		st, err := speaker(ctx, box)
		if err != nil {
			return err
		}
		h, ok := held(st, lab.Prefix4)
		if !st.Expired || !ok || h.Prepend != 3 || h.MED != 1000 {
			return fmt.Errorf("expired %t, peers hold %+v", st.Expired, h)
		}
		return nil
	})
	t.Logf("degraded %.1f s after edged stopped", time.Since(start).Seconds())
	if err := errors.Join(err, box.Daemon(lab.Control).Signal(syscall.SIGCONT)); err != nil {
		return err
	}
	err = story.Until(ctx, "b1 is announced at its best again", func() error {
		st, err := speaker(ctx, box)
		if err != nil {
			return err
		}
		if h, ok := held(st, lab.Prefix4); st.Expired || !ok || h.Prepend != 0 {
			return fmt.Errorf("expired %t, peers hold %+v", st.Expired, h)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if lost, err := watch.Lost(); err != nil || len(lost) > 0 {
		return fmt.Errorf("r-b lost the prefix %d times, %v", len(lost), err)
	}
	return w.Settle(ctx)
}

func speaker(ctx context.Context, b *lab.Box) (st edge.SpeakerState, err error) {
	return st, b.Ask(ctx, lab.Speaker, "/v1/state", &st)
}

func held(st edge.SpeakerState, p netip.Prefix) (edge.HeldPrefix, bool) {
	for _, peer := range st.Peers {
		for _, h := range peer.Held {
			if h.Net == p {
				return h, true
			}
		}
	}
	return edge.HeldPrefix{}, false
}

// speakerRestart kills edgebgp: the routers drop the site at once, and have it
// back as soon as the speaker is.
func speakerRestart(ctx context.Context, t *testing.T, w world) error {
	box := w.Lab.Boxes["c1"]
	start := time.Now()
	if err := box.Daemon(lab.Speaker).Kill(ctx); err != nil {
		return err
	}
	if err := w.Lab.Routers["r-c"].Await(ctx, lab.Prefix4, "r-b"); err != nil {
		return err
	}
	t.Logf("r-c dropped c1 %.2f s after the kill", time.Since(start).Seconds())
	if err := w.Settle(ctx); err != nil {
		return err
	}
	t.Logf("back after %.2f s", time.Since(start).Seconds())
	return nil
}

// explain answers for each kind of thing, and refuses what it does not know.
func explain(ctx context.Context, t *testing.T, w world) error {
	box := w.Lab.Boxes["a1"]
	for _, tt := range []struct{ what, must string }{
		{lab.Prefix4.String(), "announced"},
		{lab.VIP4.String(), "in the ring"},
		{netip.AddrPortFrom(lab.VIP6, 443).String(), "service web6"},
		{fmt.Sprintf("tcp 192.0.2.1:40000 %s", netip.AddrPortFrom(lab.VIP4, 443)), "the ring chooses it"},
		{fmt.Sprintf("udp 192.0.2.1:40000 %s", netip.AddrPortFrom(lab.VIP4, 9)), "pass"},
	} {
		out, err := box.Ctl(ctx, "explain", tt.what)
		if err != nil {
			return err
		}
		if !strings.Contains(out, tt.must) {
			t.Errorf("explain %s does not say %q:\n%s", tt.what, tt.must, out)
		}
	}
	for _, what := range []string{"203.0.113.0/24", "203.0.113.1", "nonsense"} {
		if out, err := box.Ctl(ctx, "explain", what); err == nil {
			t.Errorf("explain %s: %s", what, out)
		}
	}
	out, err := box.Ctl(ctx, "status", "-o", "json")
	if err == nil && !strings.Contains(out, `"rung"`) {
		err = fmt.Errorf("edgectl status -o json: %.200s", out)
	}
	return err
}
