package main

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge/image/setup"
	"github.com/catchment-dev/edge/image/setup/confirm"
)

// configYAML is an edge.yaml with two peers; hold is a setting to change.
func configYAML(public string, hold int) string {
	return fmt.Sprintf(`node:
  name: a1
  key_file: /etc/edge/secrets/node.key
  forwarder: {interfaces: [eth0]}
  bgp:
    asn: 64512
    peers:
      - {name: r-a, address: 10.0.0.254, asn: 65001, hold: %ds, keepalive: 1s}
      - {name: r-b, address: 10.0.0.253, asn: 65001, hold: %ds, keepalive: 1s}
fleet:
  ring_seed_file: /etc/edge/secrets/ring.seed
  sites: [{name: a}]
  nodes: [{name: a1, site: a, address4: 10.0.0.1, gossip: "10.0.0.1:7946", public_key: "%s"}]
  prefixes: [{prefix: 198.51.100.0/24}]
  guard: {key_file: /etc/edge/secrets/gossip.key}
`, hold, hold, public)
}

// configTree is a small configuration that is good.
func configTree(t *testing.T, hold int) setup.Tree {
	t.Helper()
	seed := [ed25519.SeedSize]byte{1}
	private := ed25519.NewKeyFromSeed(seed[:])
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return setup.Tree{
		"edge.yaml":                 []byte(configYAML(base64.StdEncoding.EncodeToString(private.Public().(ed25519.PublicKey)), hold)),
		"network/10-uplink.network": []byte("[Match]\nName=eth0\n[Network]\nAddress=10.0.0.1/24\n"),
		"secrets/node.key":          pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		"secrets/ring.seed":         []byte("0123456789abcdef\n"),
		"secrets/gossip.key":        []byte(base64.StdEncoding.EncodeToString(seed[:]) + "\n"),
	}
}

func withFiles(t setup.Tree, files map[string]string) setup.Tree {
	out := setup.Tree{}
	for name, b := range t {
		out[name] = b
	}
	for name, text := range files {
		out[name] = []byte(text)
	}
	return out
}

func folder(t *testing.T, tree setup.Tree) string {
	t.Helper()
	dir := t.TempDir()
	for name, b := range tree {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// fakeLive is a running box that goes by whatever it is told.
type fakeLive struct {
	t     *testing.T
	dir   string
	store *setup.Store
	told  []string
	facts confirm.Facts
	fail  func(m move) error
}

func (f *fakeLive) Apply(_ context.Context, m move) ([]string, error) {
	if n, err := f.store.Current(); err != nil || n != m.to.number {
		f.t.Errorf("generation %d is to be applied and %d is current: %v", m.to.number, n, err)
	}
	f.told = append(f.told, fmt.Sprintf("apply %d", m.to.number))
	if f.fail != nil {
		return nil, f.fail(m)
	}
	return []string{"done"}, nil
}

func (f *fakeLive) Look(context.Context, confirm.Rules) confirm.Facts { return f.facts }

// Guard sees that the way back is there before anything is done.
func (f *fakeLive) Guard(context.Context) error {
	p, err := f.store.Pending()
	n, currentErr := f.store.Current()
	if err != nil || currentErr != nil || p == nil || p.From != n {
		f.t.Errorf("the guard starts with %+v pending and generation %d: %v %v", p, n, err, currentErr)
	}
	f.told = append(f.told, "guard")
	return nil
}

const (
	sshAt    = "10.0.0.1:22"
	sshLogin = "203.0.113.9:50000 10.0.0.1:22"
	sshOther = "203.0.113.10:50000 10.0.0.1:22"
)

func newConfigs(t *testing.T) (*configs, *fakeLive) {
	t.Helper()
	return openFake(t, t.TempDir(), "")
}

func openFake(t *testing.T, dir, file string) (*configs, *fakeLive) {
	t.Helper()
	s, err := setup.OpenStore(setup.StoreOptions{Dir: dir, Version: "1.0.0", File: file, Owner: func(string, string) (int, int) { return 0, 0 }, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	live := &fakeLive{t: t, dir: dir, store: s, facts: confirm.Facts{Edged: true, Established: []string{"r-a", "r-b", "gone"}, SSH: []string{sshAt},
		Open: []string{sshLogin, sshOther}, Stuck: []string{sshOther}}}
	return &configs{store: s, live: live, logins: func() logins {
		return logins{at: []string{sshAt}, watched: []string{sshLogin, sshOther}, others: []string{"192.0.2.3:1 10.0.0.1:22"}}
	}, bootID: "boot-a", now: time.Now,
		sources: func() setup.Found {
			return setup.Found{Notes: []string{"credentials of the EFI partition: device busy"}}
		}}, live
}

// onConfig runs a command line of edgectl config on a box.
func onConfig(t *testing.T, c *configs, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs strings.Builder
	o := &options{env: env{stdout: &out, stderr: &errs, now: time.Now, user: "ops"}, output: "text", timeout: time.Second}
	cmd := o.configCommand(func() (*configs, error) { return c, nil })
	cmd.PersistentFlags().StringVarP(&o.output, "output", "o", "text", "")
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	if err != nil {
		code = exitUsage
		if errors.As(err, new(problem)) {
			code = exitRefused
		}
		fmt.Fprintln(&errs, err)
	}
	return out.String(), errs.String(), code
}

func wantRun(t *testing.T, c *configs, code int, part string, args ...string) {
	t.Helper()
	stdout, stderr, got := onConfig(t, c, args...)
	if got != code || !strings.Contains(stdout+stderr, part) {
		t.Errorf("%q: exit %d, want %d with %q:\n%s%s", args, got, code, part, stdout, stderr)
	}
}

func TestConfigApply(t *testing.T) {
	c, live := newConfigs(t)
	wantRun(t, c, exitOK, "no configuration is in force", "show")
	wantRun(t, c, exitRefused, "there is no configuration to confirm", "confirm")
	wantRun(t, c, exitOK, "generation 1 is in force\n  done\n", "apply", folder(t, configTree(t, 3)))
	wantRun(t, c, exitOK, "it was in force already", "apply", folder(t, configTree(t, 3)))
	// A file alone: the rest stays.
	file := filepath.Join(folder(t, configTree(t, 4)), "edge.yaml")
	wantRun(t, c, exitOK, "kept from generation 1: network/, secrets/", "apply", file, "--confirm-within", "60s")
	wantRun(t, c, exitOK, "generation 2 is in force, and not confirmed", "show")
	wantRun(t, c, exitRefused, "generation 2 waits to be confirmed", "apply", file)
	wantRun(t, c, exitRefused, "generation 2 waits to be confirmed", "revert", "2")
	p, err := c.store.Pending()
	if err != nil || p == nil || p.From != 1 || !slices.Equal(p.Peers, []string{"r-a", "r-b"}) || !slices.Equal(p.SSH, []string{sshAt}) || !slices.Equal(p.Logins, []string{sshLogin}) || len(p.Others) != 1 || !p.Edged || p.Within != time.Minute {
		t.Errorf("pending: %+v %v", p, err)
	}
	wantRun(t, c, exitOK, "generation 2 is confirmed", "confirm")
	wantRun(t, c, exitOK, "generation 2 is confirmed", "confirm")
	wantRun(t, c, exitOK, "generation 2 is in force\n", "show")
	wantRun(t, c, exitOK, `"confirmed": true`, "show", "-o", "json")
	// By hand back and forth.
	wantRun(t, c, exitOK, "generation 3 is in force", "apply", folder(t, configTree(t, 5)), "--confirm-within", "60s")
	wantRun(t, c, exitOK, "generation 2 is in force", "revert")
	wantRun(t, c, exitRefused, "generation 3 was taken back at", "confirm")
	wantRun(t, c, exitOK, "by ops", "show")
	wantRun(t, c, exitRefused, "name a generation", "revert")
	wantRun(t, c, exitOK, "generation 1 is in force", "revert", "1")
	wantRun(t, c, exitRefused, "read generation 9", "revert", "9")
	want := []string{"apply 1", "apply 1", "guard", "apply 2", "guard", "apply 3", "apply 2", "apply 1"}
	if !slices.Equal(live.told, want) {
		t.Errorf("told %q, want %q", live.told, want)
	}
	if out, _, _ := onConfig(t, c, "show", "-o", "json"); strings.Contains(out, "digest") {
		t.Error("a digest is shown to everybody")
	}
}

func TestConfigUsage(t *testing.T) {
	c, live := newConfigs(t)
	dir := folder(t, configTree(t, 3))
	for _, args := range [][]string{{}, {"apply", dir, "--confirm-within", "1s"}, {"apply", dir, "--confirm-within", "2h"}, {"apply", dir, dir}, {"revert", "x"}, {"revert", "-1"}, {"confirm", "now"}} {
		wantRun(t, c, exitUsage, "", args...)
	}
	for part, args := range map[string][]string{
		"no source of this box":     {"apply"},
		"no such file":              {"apply", filepath.Join(dir, "none")},
		"neither a folder nor a":    {"apply", "/dev/null"},
		"edge.yaml: there is none":  {"apply", folder(t, setup.Tree{"hostname": []byte("a\n")})},
		"it is not a part":          {"apply", folder(t, setup.Tree{"edge.yml": []byte("a\n")})},
		"larger than 1048576 bytes": {"apply", filepath.Join(folder(t, setup.Tree{"x": make([]byte, 2<<20)}), "x")},
	} {
		wantRun(t, c, exitRefused, part, args...)
	}
	if len(live.told) > 0 {
		t.Errorf("a mistake was applied: %q", live.told)
	}
}

// TestConfigWhole: a folder that is all there is must be that.
func TestConfigWhole(t *testing.T) {
	c, _ := newConfigs(t)
	wantRun(t, c, exitOK, "", "apply", folder(t, configTree(t, 3)))
	alone := folder(t, setup.Tree{"edge.yaml": configTree(t, 4)["edge.yaml"]})
	wantRun(t, c, exitRefused, "network: there is no file *.network", "apply", alone, "--whole")
	wantRun(t, c, exitOK, "generation 2", "apply", alone)
}

// TestConfigApplyFails: what cannot be brought about is taken back at once.
func TestConfigApplyFails(t *testing.T) {
	for _, within := range [][]string{nil, {"--confirm-within", "60s"}} {
		c, live := newConfigs(t)
		wantRun(t, c, exitOK, "", "apply", folder(t, configTree(t, 3)))
		live.fail = func(m move) error {
			if m.to.number == 2 {
				return errors.New("edged refuses the configuration: a reason")
			}
			return nil
		}
		wantRun(t, c, exitRefused, "a reason\ngeneration 1 is in force again", append([]string{"apply", folder(t, configTree(t, 4))}, within...)...)
		if n, err := c.store.Current(); n != 1 || err != nil {
			t.Errorf("generation %d: %v", n, err)
		}
		if p, err := c.store.Pending(); p != nil || err != nil {
			t.Errorf("pending: %+v %v", p, err)
		}
		wantRun(t, c, exitOK, "generation 2 was taken back", "show")
	}
}

func TestConfigNoGuardNoChange(t *testing.T) {
	c, live := newConfigs(t)
	wantRun(t, c, exitOK, "", "apply", folder(t, configTree(t, 3)))
	c.live = noGuard{live}
	wantRun(t, c, exitRefused, "nothing was applied", "apply", folder(t, configTree(t, 4)), "--confirm-within", "60s")
	if n, err := c.store.Current(); n != 1 || err != nil || len(live.told) != 1 {
		t.Errorf("generation %d, told %q: %v", n, live.told, err)
	}
	if p, err := c.store.Pending(); p != nil || err != nil {
		t.Errorf("pending: %+v %v", p, err)
	}
}

type noGuard struct{ *fakeLive }

func (noGuard) Guard(context.Context) error { return errors.New("no systemd") }

// TestConfigSources: what was applied from a source is not taken again at the
// next boot, even if it had to be taken back.
func TestConfigSources(t *testing.T) {
	c, _ := newConfigs(t)
	wantRun(t, c, exitRefused, "no source of this box holds a configuration: name a folder or a file\n  credentials of the EFI partition: device busy", "apply")
	wantRun(t, c, exitOK, "", "apply", folder(t, configTree(t, 3)))
	tree := configTree(t, 4)
	c.sources = func() setup.Found {
		return setup.Found{OK: true, Tree: tree, Name: "volume EDGECFG on vdb", Notes: []string{"something of the source"}}
	}
	wantRun(t, c, exitOK, "something of the source", "apply", "--confirm-within", "60s")
	wantRun(t, c, exitOK, "generation 1", "revert")
	if c.store.State().Taken != tree.Digest() {
		t.Error("the next boot takes it again")
	}
	c.sources = func() setup.Found {
		return setup.Found{OK: true, Tree: tree, Name: "volume", Problems: setup.Problems{{File: "volume", Message: "several"}}}
	}
	wantRun(t, c, exitRefused, "volume: several", "apply")
}

// TestConfigRenumber: an address that is to go is no loss.
func TestConfigRenumber(t *testing.T) {
	c, _ := newConfigs(t)
	wantRun(t, c, exitOK, "", "apply", folder(t, configTree(t, 3)))
	moved := withFiles(configTree(t, 3), map[string]string{"network/10-uplink.network": "[Match]\nName=eth0\n[Network]\nAddress=10.0.0.2/24\n"})
	wantRun(t, c, exitOK, "10.0.0.1:22 is not in the new configuration", "apply", folder(t, moved), "--confirm-within", "60s")
	if p, err := c.store.Pending(); err != nil || len(p.SSH) > 0 || len(p.Logins) > 0 {
		t.Errorf("%+v %v", p, err)
	}
}

// TestConfigPlain: on a box of somebody else only edge.yaml is ours.
func TestConfigPlain(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "edge.yaml")
	one, two := configTree(t, 3)["edge.yaml"], configTree(t, 4)["edge.yaml"]
	if err := os.WriteFile(file, one, 0o640); err != nil {
		t.Fatal(err)
	}
	c, _ := openFake(t, filepath.Join(dir, "store"), file)
	wantRun(t, c, exitRefused, "secrets/ring.seed: this box was not made from the image", "apply", folder(t, configTree(t, 4)))
	wantRun(t, c, exitOK, "generation 2 is in force", "apply", filepath.Join(folder(t, configTree(t, 4)), "edge.yaml"), "--confirm-within", "60s")
	is := func(want []byte) {
		t.Helper()
		if b, err := os.ReadFile(file); err != nil || string(b) != string(want) {
			t.Errorf("the file is another: %v\n%s", err, b)
		}
	}
	is(two)
	wantRun(t, c, exitOK, "generation 1 is in force", "revert")
	is(one)
	// Edited by hand meanwhile: that is what comes back.
	three := configTree(t, 7)["edge.yaml"]
	if err := os.WriteFile(file, three, 0o640); err != nil {
		t.Fatal(err)
	}
	wantRun(t, c, exitOK, "", "apply", filepath.Join(folder(t, configTree(t, 4)), "edge.yaml"), "--confirm-within", "60s")
	is(two)
	wantRun(t, c, exitOK, "", "revert")
	is(three)
}

// TestConfigGuard plays what comes after a change, in virtual time.
func TestConfigGuard(t *testing.T) {
	for name, c := range map[string]struct {
		after  time.Duration
		during func(t *testing.T, c *configs, live *fakeLive)
		want   string
		when   time.Duration
		end    int
	}{
		"nobody confirms": {0, func(*testing.T, *configs, *fakeLive) {}, "nobody has confirmed it within 2m0s", 120 * time.Second, 1},
		"confirmed": {50 * time.Second, func(t *testing.T, c *configs, _ *fakeLive) {
			wantRun(t, c, exitOK, "generation 2 is confirmed", "confirm")
		}, "does not wait any more", 51 * time.Second, 2},
		"BGP is lost": {0, func(_ *testing.T, _ *configs, live *fakeLive) {
			live.facts.Established = []string{"r-a"}
		}, "the BGP session with r-b was lost", 30 * time.Second, 1},
		"ssh is lost": {0, func(_ *testing.T, _ *configs, live *fakeLive) { live.facts.SSH = nil }, "sshd has not answered on 10.0.0.1:22", 10 * time.Second, 1},
		"the login hangs": {0, func(_ *testing.T, _ *configs, live *fakeLive) {
			live.facts.Open, live.facts.Stuck = []string{sshLogin}, []string{sshLogin}
		}, "nothing has arrived at whoever is logged in: 203.0.113.9:50000", 30 * time.Second, 1},
		"another boot": {0, func(_ *testing.T, c *configs, _ *fakeLive) { c.bootID = "boot-b" }, "the box was restarted", 0, 1},
		"its file is damaged": {10 * time.Second, func(t *testing.T, _ *configs, live *fakeLive) {
			damagePending(t, live)
		}, "nobody has confirmed it", 120 * time.Second, 1},
		"its file is damaged first": {0, func(t *testing.T, _ *configs, live *fakeLive) {
			damagePending(t, live)
		}, "nobody can confirm it: read pending change", (backTries - 1) * backEvery, 1},
		"taken back by hand": {10 * time.Second, func(t *testing.T, c *configs, _ *fakeLive) {
			wantRun(t, c, exitOK, "", "revert")
		}, "does not wait any more", 11 * time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cs, live := newConfigs(t)
				wantRun(t, cs, exitOK, "", "apply", folder(t, configTree(t, 3)))
				wantRun(t, cs, exitOK, "", "apply", folder(t, configTree(t, 4)), "--confirm-within", "120s")
				start := time.Now()
				if c.after == 0 {
					c.during(t, cs, live)
				} else {
					go func() {
						time.Sleep(c.after + 500*time.Millisecond) // between two looks
						c.during(t, cs, live)
					}()
				}
				text, err := cs.guard(t.Context())
				synctest.Wait() // for what was done meanwhile
				if err != nil || !strings.Contains(text, c.want) || time.Since(start).Truncate(time.Second) != c.when {
					t.Errorf("after %s: %s%v; want %q after %s", time.Since(start), text, err, c.want, c.when)
				}
				if n, err := cs.store.Current(); n != c.end || err != nil {
					t.Errorf("generation %d, want %d: %v", n, c.end, err)
				}
				if p, err := cs.store.Pending(); p != nil || err != nil {
					t.Errorf("pending: %+v %v", p, err)
				}
				if last := live.told[len(live.told)-1]; last != fmt.Sprintf("apply %d", c.end) {
					t.Errorf("the box was last told to %s", last)
				}
			})
		})
	}
}

// damagePending is what a broken disk may leave of a change that waits.
func damagePending(t *testing.T, live *fakeLive) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(live.dir, "pending.json"), []byte("{"), 0o600); err != nil {
		t.Error(err)
	}
}

// TestConfigGuardDamaged: of a first change there is nothing to go back to.
func TestConfigGuardDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, live := newConfigs(t)
		wantRun(t, c, exitOK, "", "apply", folder(t, configTree(t, 3)), "--confirm-within", "120s")
		damagePending(t, live)
		if text, err := c.guard(t.Context()); err != nil || !strings.Contains(text, "generation 1 stays") {
			t.Errorf("%s %v", text, err)
		}
		if p, err := c.store.Pending(); p != nil || err != nil {
			t.Errorf("pending: %+v %v", p, err)
		}
	})
}

// TestConfigGuardAgain: a guard that was killed, or that failed, is followed by
// one that has what is left of the time.
func TestConfigGuardAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, live := newConfigs(t)
		wantRun(t, c, exitOK, "", "apply", folder(t, configTree(t, 3)))
		wantRun(t, c, exitOK, "", "apply", folder(t, configTree(t, 4)), "--confirm-within", "120s")
		start := time.Now()
		ctx, kill := context.WithTimeout(t.Context(), 100*time.Second)
		if text, err := c.guard(ctx); err != nil || !strings.Contains(text, "still waits") {
			t.Errorf("%s %v", text, err)
		}
		kill()
		live.fail = func(move) error { return errors.New("networkd does not answer") }
		if _, err := c.guard(t.Context()); err == nil || time.Since(start).Truncate(time.Second) != 120*time.Second+(backTries-1)*backEvery {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
		wantRun(t, c, exitRefused, "generation 2 is being taken back", "confirm")
		live.fail = nil
		if text, err := c.guard(t.Context()); err != nil || !strings.Contains(text, "generation 2 was taken back") {
			t.Errorf("%s %v", text, err)
		}
		if text, err := c.guard(t.Context()); err != nil || !strings.Contains(text, "no change waits") {
			t.Errorf("%s %v", text, err)
		}
	})
}

// TestConfigGuardWaitsForTheLock: a command that is applying is not overtaken.
func TestConfigGuardWaitsForTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newConfigs(t)
		wantRun(t, c, exitOK, "", "apply", folder(t, configTree(t, 3)))
		wantRun(t, c, exitOK, "", "apply", folder(t, configTree(t, 4)), "--confirm-within", "20s")
		unlock, err := c.store.Lock()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(40 * time.Second)
			unlock()
		}()
		start := time.Now()
		if text, err := c.guard(t.Context()); err != nil || time.Since(start) < 40*time.Second {
			t.Errorf("after %s: %s %v", time.Since(start), text, err)
		}
	})
}
