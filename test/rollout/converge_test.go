package rollout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// checkNew: --check says what it would do and does nothing.
func checkNew(ctx context.Context, t *testing.T, f *fleet) error {
	if _, err := f.playsWell(ctx, t, "site", nil, "--check", "--diff"); err != nil {
		return err
	}
	return f.each(func(n *node) error {
		for _, path := range []string{"/etc/edge", "/usr/bin/edged"} {
			if _, err := os.Stat(n.inside(path)); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("a check has made %s of %s, %v", path, n.Name(), err)
			}
		}
		return nil
	})
}

func convergeNew(ctx context.Context, t *testing.T, f *fleet) error {
	got, err := f.playsWell(ctx, t, "site", nil, "--diff")
	if err != nil {
		return err
	}
	f.measured("converge/new boxes", got.Took.Seconds(), "s")
	return f.settled(ctx)
}

// convergeAgain: a second run changes nothing, under traffic, and nobody notices.
func convergeAgain(ctx context.Context, t *testing.T, f *fleet) error {
	return f.underTraffic(ctx, t, func(ctx context.Context) error {
		got, err := f.playsWell(ctx, t, "site", nil, "--diff")
		if err == nil && len(got.Changes) > 0 {
			err = fmt.Errorf("a second run changes %v", got.Changes)
		}
		f.measured("converge/nothing to do", got.Took.Seconds(), "s")
		return err
	})
}

// refuseMistake: a configuration that every box would refuse, and one that only the last
// one would, whose edge.yaml alone is wrong.
func refuseMistake(ctx context.Context, t *testing.T, f *fleet) error {
	before, err := f.configs(ctx)
	if err != nil {
		return err
	}
	for what, wrong := range map[string]func(tree){
		"everywhere": func(all tree) { all["fleet"].(tree)["health"].(tree)["hold"] = "soon" },
		"on one box": func(all tree) { lastNode(all)["node"].(tree)["bgp"].(tree)["router_id"] = "none" },
	} {
		undo, err := f.edit(wrong)
		if err != nil {
			return err
		}
		got, err := f.play(ctx, "site", nil)
		if err == nil {
			err = undo()
		}
		if err != nil {
			return err
		}
		if !got.Failed || len(got.Changes) > 0 {
			return fmt.Errorf("a mistake %s is taken: %s, changes %v\n%s", what, got, got.Changes, got.Text)
		}
		t.Logf("%5.1f s  %s: refused by %v", got.Took.Seconds(), what, got.Failures)
	}
	after, err := f.configs(ctx)
	if err == nil && !maps.Equal(before, after) {
		err = errors.New("a mistake has changed a box")
	}
	return err
}

// applyChange: on all boxes, once, and nobody notices.
func applyChange(ctx context.Context, t *testing.T, f *fleet) error {
	if _, err := f.edit(func(all tree) { all["fleet"].(tree)["health"].(tree)["hold"] = "2s" }); err != nil {
		return err
	}
	return f.underTraffic(ctx, t, func(ctx context.Context) error {
		got, err := f.playsWell(ctx, t, "site", nil, "--diff")
		if err != nil {
			return err
		}
		if n := len(got.Changed()); n != len(f.nodes) {
			return fmt.Errorf("it was changed on %v", got.Changed())
		}
		if got, err = f.playsWell(ctx, t, "site", nil); err == nil && len(got.Changes) > 0 {
			err = fmt.Errorf("a second run changes %v", got.Changes)
		}
		return err
	})
}

// configs are the sums of the configurations of all nodes, by their names.
func (f *fleet) configs(ctx context.Context) (map[string]string, error) {
	var mu sync.Mutex
	sums := map[string]string{}
	return sums, f.each(func(n *node) error {
		out, err := n.run(ctx, "sha256sum", "/etc/edge/edge.yaml")
		mu.Lock()
		defer mu.Unlock()
		sums[n.Name()] = out
		return err
	})
}

// noSecretTold: nothing that an operator is shown has one of the secrets in it.
func noSecretTold(_ context.Context, _ *testing.T, f *fleet) error {
	if err := f.rememberSecrets(); err != nil {
		return err
	}
	logs, err := filepath.Glob(filepath.Join(f.operator.Home, "log-*"))
	if err != nil || len(logs) < 3 {
		return fmt.Errorf("the logs are %v, %v", logs, err)
	}
	for _, log := range logs {
		text, err := os.ReadFile(log)
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		if name := tells(string(text), f.secretsSeen); name != "" {
			return fmt.Errorf("%s tells the secret %s", log, name)
		}
	}
	return nil
}
