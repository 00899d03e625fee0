package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
	"github.com/catchment-dev/edge/guard"
	"github.com/catchment-dev/edge/image/setup"
	"github.com/catchment-dev/edge/image/setup/confirm"
)

// fakeDaemon answers each reload with the next of its answers, and the last one
// for ever.
type fakeDaemon struct {
	answers []string // "" is yes
	status  edge.SystemStatus
}

func (d *fakeDaemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/status" {
		socket.JSON(w, http.StatusOK, d.status)
		return
	}
	a := d.answers[0]
	if len(d.answers) > 1 {
		d.answers = d.answers[1:]
	}
	if a != "" {
		socket.Fail(w, http.StatusConflict, errors.New(a))
		return
	}
	socket.JSON(w, http.StatusOK, map[string]any{"generation": 2, "changes": []string{"node.bgp.lease: 5s -> 9s"}})
}

// unitSystem is a setup.System without a host.
type unitSystem struct{}

func (unitSystem) Hostname(string) error                 { return nil }
func (unitSystem) Shadow(string) error                   { return nil }
func (unitSystem) ReloadUnits([]string, ...string) error { return nil }

func runningFake(t *testing.T, d *fakeDaemon) (*runningBox, *[]string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "edged.sock")
	if d != nil {
		serve(t, path, d)
	}
	var told []string
	return &runningBox{
		o:       &options{env: env{stdout: os.Stdout, stderr: os.Stderr}, socket: path, timeout: 5e9},
		place:   setup.Place{Run: filepath.Join(dir, "run"), Etc: dir, Sys: dir, System: unitSystem{}, Owner: func(string, string) (int, int) { return 0, 0 }},
		version: "1.0.0",
		run: func(_ context.Context, name string, args ...string) (string, error) {
			told = append(told, strings.Join(append([]string{name}, args...), " "))
			return "", nil
		},
	}, &told
}

func moveOf(t *testing.T, from, to setup.Tree) move {
	t.Helper()
	var m move
	for i, side := range []*state{&m.from, &m.to} {
		if side.tree = []setup.Tree{from, to}[i]; side.tree != nil {
			side.number = i + 1
			side.config, _ = setup.CheckConfig(side.tree)
		}
	}
	return m
}

// TestRunningBox: what the box is told depends on what has changed, and on what
// edged says of it.
func TestRunningBox(t *testing.T) {
	one, two := configTree(t, 3), configTree(t, 4)
	network := withFiles(two, map[string]string{"network/10-uplink.network": "[Match]\nName=eth0\n[Network]\nAddress=10.0.0.2/24\n", "network/x.link": "[Match]\nOriginalName=a\n"})
	seeded := withFiles(one, map[string]string{"secrets/ring.seed": "fedcba9876543210\n"})
	const firewall, loads = "systemctl restart edge-firewall.service", "systemctl show -P LoadState "
	for name, c := range map[string]struct {
		from, to setup.Tree
		answers  []string
		told     []string
		note     string
		fails    string
		plain    bool
	}{
		"a reload does":       {from: one, to: two, answers: []string{""}, told: []string{firewall}, note: "node.bgp.lease: 5s -> 9s"},
		"the network as well": {from: one, to: network, answers: []string{""}, told: []string{"networkctl reload", firewall}, note: "network/x.link counts from the next boot on"},
		"edged must be restarted": {from: one, to: two, answers: []string{"node.name has changed, which needs a restart of edged (nothing is withdrawn by it); nothing was applied"},
			told: []string{firewall, "systemctl restart edged.service"}, note: "node.name has changed"},
		"edgeproxy must be": {from: one, to: two, answers: []string{`node.proxy_user changes from "a" to "b": that needs a restart of edgeproxy`, ""},
			told: []string{firewall, "systemctl restart edgeproxy.service"}, note: "edgeproxy was restarted"},
		"edged has just started": {from: one, to: two, answers: []string{"edgebgp has not yet said what it announces; nothing was applied", ""}, told: []string{firewall}},
		"edged refuses": {from: one, to: two, answers: []string{"node.bgp has changed, and a session would end: edgectl drain"},
			told: []string{firewall}, fails: "edged refuses the configuration: node.bgp has changed"},
		"the seed is read at the start": {from: one, to: seeded, answers: []string{""}, told: []string{firewall, "systemctl restart edged.service"}, note: "every node needs the same"},
		"edged has other settings": {from: one, to: withFiles(one, map[string]string{"units/edged.service.d/a.conf": "[Service]\nMemoryMax=8G\n"}), answers: []string{""},
			told: []string{loads + "edged.service", firewall, "systemctl restart edged.service"}, note: "edged.service: restarted"},
		"so has edgeproxy": {from: withFiles(one, map[string]string{"units/edgeproxy.service.d/a.conf": "[Service]\nMemoryMax=8G\n"}), to: one, answers: []string{""},
			told: []string{loads + "edgeproxy.service", firewall, "systemctl restart edgeproxy.service"}, note: "edgeproxy was restarted"},
		"edgebgp is left alone": {from: one, to: withFiles(one, map[string]string{"units/edgebgp.service.d/a.conf": "[Service]\nTimeoutStopSec=5min\n"}), answers: []string{""},
			told: []string{loads + "edgebgp.service", firewall}, note: "count from its next start: systemctl restart edgebgp"},
		"the journal has": {from: one, to: withFiles(one, map[string]string{"units/journald.conf.d/a.conf": "[Journal]\nSystemMaxUse=2G\n"}), answers: []string{""},
			told: []string{loads + "systemd-journald.service", firewall}, note: "systemd-journald.service was started again"},
		"from rescue": {to: two, told: []string{"networkctl reload", firewall, "systemctl restart edge-tune.service", "systemctl start edged.service edgeproxy.service edgebgp.service"},
			note: "the network was set anew"},
		"to rescue":   {from: one, told: []string{"networkctl reload", firewall, "systemctl stop edgebgp.service edgeproxy.service edged.service", firewall}, note: "the daemons were stopped"},
		"a plain box": {from: one, to: network, answers: []string{""}, plain: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := moveOf(t, c.from, c.to)
			d := &fakeDaemon{answers: append(c.answers, c.answers...)}
			if m.to.config != nil {
				d.status.ConfigHash = m.to.config.Hash
			}
			b, told := runningFake(t, d)
			b.plain = c.plain
			notes, err := b.Apply(t.Context(), m)
			if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%v, want %q", err, c.fails)
			}
			if d := cmp.Diff(c.told, *told); d != "" {
				t.Error(d)
			}
			if text := strings.Join(notes, "\n"); !strings.Contains(text, c.note) {
				t.Errorf("notes %q, want %q", text, c.note)
			}
			_, okErr := os.Stat(filepath.Join(b.place.Run, "edge-setup/ok"))
			if (okErr == nil) != (c.to != nil && !c.plain) {
				t.Errorf("leave to start the daemons: %v", okErr)
			}
		})
	}
}

// TestRefusedUnit: sshd goes on, and would be gone after a boot. What is older is gone back
// to all the same.
func TestRefusedUnit(t *testing.T) {
	one := configTree(t, 3)
	two := withFiles(one, map[string]string{"units/ssh.service.d/a.conf": "[Service]\nTasksMax=1\n"})
	b, _ := runningFake(t, &fakeDaemon{answers: []string{""}})
	b.run = func(_ context.Context, _ string, args ...string) (string, error) {
		if slices.Contains(args, "LoadState") {
			return "bad-setting\n", nil
		}
		return "", nil
	}
	m := moveOf(t, one, two)
	if _, err := b.Apply(t.Context(), m); err == nil || !strings.Contains(err.Error(), "systemd refuses ssh.service") {
		t.Error(err)
	}
	if notes, err := b.Apply(t.Context(), m.back()); err != nil || !strings.Contains(strings.Join(notes, " "), "systemd refuses ssh.service") {
		t.Errorf("%q, %v", notes, err)
	}
}

// TestSilentEdged: on the image it is started again; elsewhere its owner has
// stopped it.
func TestSilentEdged(t *testing.T) {
	b, told := runningFake(t, nil)
	b.plain = true
	notes, err := b.Apply(t.Context(), moveOf(t, configTree(t, 3), configTree(t, 4)))
	if err != nil || len(*told) > 0 || !strings.Contains(strings.Join(notes, " "), "when it is started") {
		t.Errorf("%q %v, told %q", notes, err, *told)
	}
}

// TestWordsOfRefusals: what is looked for is what edged and edgeproxy say.
func TestWordsOfRefusals(t *testing.T) {
	for file, words := range map[string][]string{
		"../edged/reload.go":  {wantsEdged, "try again in a moment", "has not yet said", "reload again"},
		"../edgeproxy/api.go": {wantsProxy},
	} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range words {
			if !strings.Contains(string(b), w) {
				t.Errorf("%s does not say %q any more: config apply looks for it", file, w)
			}
		}
	}
}

func TestLook(t *testing.T) {
	d := &fakeDaemon{status: edge.SystemStatus{Speaker: edge.SpeakerState{Peers: []edge.PeerState{{ID: "r-a", Session: "established"}, {ID: "r-b", Session: "active"}}}}}
	b, _ := runningFake(t, d)
	greets, silent := listen(t, "SSH-2.0-test\r\n"), listen(t, "HTTP/1.1 400\r\n")
	f := b.Look(t.Context(), confirm.Rules{SSH: []string{greets, silent, "127.0.0.1:1", "192.0.2.77:22", "nonsense"}})
	if !f.Edged || !slices.Equal(f.Established, []string{"r-a"}) || !slices.Equal(f.SSH, []string{greets}) {
		t.Errorf("%+v", f)
	}
	d.status.SpeakerErr = "edgebgp does not answer"
	if f := b.Look(t.Context(), confirm.Rules{}); !f.Edged || len(f.Established) > 0 {
		t.Errorf("what edgebgp said before it was gone counts: %+v", f)
	}
	if b, _ := runningFake(t, nil); b.Look(t.Context(), confirm.Rules{}).Edged {
		t.Error("nobody answers")
	}
}

func listen(t *testing.T, greeting string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Write([]byte(greeting))
			c.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().String()
}

func TestPlainFile(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		link  string
		plain bool
	}{"absolute": {configStore + "/current", false}, "relative": {strings.Repeat("../", strings.Count(dir, "/")) + configStore[1:] + "/current", false}, "elsewhere": {"/srv/edge", true}} {
		path := filepath.Join(dir, name)
		if err := os.Symlink(c.link, path); err != nil {
			t.Fatal(err)
		}
		if got := plainFile(path); (got == filepath.Join(path, "edge.yaml")) != c.plain || (got == "") == c.plain {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := plainFile(dir); got != filepath.Join(dir, "edge.yaml") {
		t.Errorf("a folder: %q", got)
	}
}

// TestKeysAsTheGuardReadsThem: what the setup takes the guard takes, and what it
// refuses keeps edged from starting.
func TestKeysAsTheGuardReadsThem(t *testing.T) {
	good := configTree(t, 3)
	c, problems := setup.Check(good)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	key, gossip := string(good["secrets/node.key"]), string(good["secrets/gossip.key"])
	path := filepath.Join(t.TempDir(), "key")
	judge := func(name, text string, read func() error) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, problems := setup.Check(withFiles(good, map[string]string{name: text}))
		if err := read(); (err == nil) != (len(problems) == 0) {
			t.Errorf("%s %.30q: the guard says %v, the setup says %v", name, text, err, problems)
		}
	}
	for _, text := range []string{key, "\n" + key, "text before\n" + key + "text after\n", "", "x", key[:40], strings.ReplaceAll(key, "PRIVATE", "PUBLIC"), key + key, strings.Replace(key, "AQ", "AR", 1)} {
		judge("secrets/node.key", text, func() error {
			k, err := guard.ReadNodeKey(path)
			if err == nil {
				err = guard.CheckNodeKey(k, c.Local.ID, c.Fleet.Nodes)
			}
			return err
		})
	}
	many := ""
	for i := range guard.MaxKeys + 1 {
		many += string(rune('A'+i)) + gossip[1:]
	}
	for _, text := range []string{gossip, "# a\n\n  " + gossip, gossip + gossip, "", "# a\n", gossip[1:], "x\n" + gossip, many, many[strings.Index(many, "\n")+1:], strings.Repeat("#\n", 10000) + gossip} {
		judge("secrets/gossip.key", text, func() error {
			_, err := guard.ReadGossipKeys(path)
			return err
		})
	}
}
