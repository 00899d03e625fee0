package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/catchment-dev/edge/image/tune"
	"github.com/catchment-dev/edge/xdp/nic"
)

// inNamespace moves the test's thread into a network namespace of its own.
func inNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Set(home); err != nil {
			t.Error(err)
		}
		ns.Close()
		home.Close()
		runtime.UnlockOSThread()
	})
}

// appliance runs one of its commands on this thread.
func appliance(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), env{stdout: &out, stderr: &errs, now: time.Now}, append([]string{"appliance"}, args...))
	return code, out.String(), errs.String()
}

// config writes the smallest configuration with changes, and returns its path.
func config(t *testing.T, dir string, replace ...string) string {
	t.Helper()
	b, err := os.ReadFile("../../testdata/smallest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(append(replace, "  name: n\n", "  name: n\n  state_dir: "+dir+"\n")...).Replace(string(b))
	path := filepath.Join(dir, "edge.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func rules(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestFirewall: when there are rules, of what, and what is said.
func TestFirewall(t *testing.T) {
	inNamespace(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "edge.yaml")
	place(t, dir, setupLeave, "")
	expect := func(what string, code int, says string, has ...string) {
		t.Helper()
		var out bytes.Buffer
		o := &options{env: env{stdout: &out}, output: "text"}
		c := o.applianceFirewallCommand(&box{root: dir})
		c.SetArgs(append([]string{"--config", path}, strings.Fields(what)...))
		err := c.ExecuteContext(t.Context())
		got := rules(t)
		if text := out.String() + fmt.Sprint(err); (err != nil) != (code != exitOK) || !strings.Contains(text, says) {
			t.Errorf("firewall %s: want code %d; %s, want %q", what, code, text, says)
		}
		for _, h := range has {
			if no, ok := strings.CutPrefix(h, "no "); ok == strings.Contains(got, strings.TrimPrefix(no, "no ")) {
				t.Errorf("firewall %s: want %s:\n%s", what, h, got)
			}
		}
	}
	expect("", exitRefused, "there are no rules", "no edge_host")
	expect("--appliance", exitRefused, "rules of the rescue", "policy drop", "no vip4")
	expect("--remove", exitOK, "removed", "no edge_host")
	config(t, dir)
	expect("", exitOK, "off, as node.host_firewall.mode is auto", "no edge_host")
	expect("--appliance", exitOK, "rules of "+path, "192.0.2.80", "10.0.0.9")
	// One that is refused changes nothing.
	config(t, dir, "fleet:\n", "flee:\n")
	expect("--appliance", exitRefused, "the rules stay as they are", "192.0.2.80")
	// What edged still serves stays open until it is served no longer.
	config(t, dir)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "applied.yaml"), before, 0o644); err != nil {
		t.Fatal(err)
	}
	config(t, dir, "192.0.2.80", "192.0.2.81")
	expect("--appliance", exitOK, "and of what edged has in force", "192.0.2.80", "192.0.2.81")
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "applied.yaml"), after, 0o644); err != nil {
		t.Fatal(err)
	}
	expect("--appliance", exitOK, "rules of "+path+"\n", "no 192.0.2.80", "192.0.2.81")
	config(t, dir, "  name: n\n", "  name: n\n  host_firewall: {mode: off}\n  state_dir: "+dir+"\n")
	expect("--appliance", exitOK, "off, as node.host_firewall.mode is off", "no edge_host")
	config(t, dir, "  name: n\n", "  name: n\n  host_firewall: {mode: on}\n  state_dir: "+dir+"\n")
	expect("", exitOK, "rules of", "policy drop")
	// A bad one at boot: the box must be reached all the same.
	expect("--remove", exitOK, "removed")
	config(t, dir, "fleet:\n", "flee:\n")
	expect("--appliance", exitRefused, "rules of the rescue", "policy drop")
	// In rescue it is all the same what the file says: it is not in force.
	const nets = "  name: n\n  host_firewall: {management_nets: [10.9.0.0/16]}\n"
	config(t, dir, "  name: n\n", nets+"  state_dir: "+dir+"\n")
	expect("--appliance", exitOK, "rules of "+path, "10.9.0.0/16", "192.0.2.80")
	leave := filepath.Join(dir, setupLeave)
	if err := os.Remove(leave); err != nil {
		t.Fatal(err)
	}
	expect("--appliance", exitOK, "rules of the rescue", "no 10.9.0.0/16", "no 192.0.2.80")
	place(t, dir, edgedSocket, "")
	place(t, dir, edgedFolder+"/applied.yaml", string(after))
	expect("--appliance", exitOK, "and what edged still serves", "no 10.9.0.0/16", "192.0.2.81")
	place(t, dir, setupLeave, "")
	expect("--appliance", exitOK, "rules of "+path, "10.9.0.0/16")
	// Elsewhere there is no rescue.
	if err := os.Remove(leave); err != nil {
		t.Fatal(err)
	}
	config(t, dir, "  name: n\n", "  name: n\n  host_firewall: {mode: on, management_nets: [10.9.0.0/16]}\n  state_dir: "+dir+"\n")
	expect("", exitOK, "rules of "+path, "10.9.0.0/16")
}

// place writes a file below a root.
func place(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestTune: an uplink that edged would refuse is set, once, and what cannot be set is
// told.
func TestTune(t *testing.T) {
	inNamespace(t)
	path := config(t, t.TempDir())
	if code, _, errs := appliance(t, "tune", "--config", path, "--wait", "200ms"); code != exitRefused || !strings.Contains(errs, "wait 200ms for the interface eth0") {
		t.Errorf("without an interface: code %d, %q", code, errs)
	}
	// It comes later, as at boot.
	made := make(chan error, 1)
	ns, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	go func() {
		h, err := netlink.NewHandleAt(ns)
		if err != nil {
			made <- err
			return
		}
		defer h.Close()
		made <- h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", MTU: 9000}, PeerName: "far0", PeerMTU: 9000})
	}()
	code, out, errs := appliance(t, "tune", "--config", path)
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	if code != exitOK || !strings.Contains(out, "tune: set far0: mtu 3506 (the MTU of its peer far0, 9000, is too large") || !strings.Contains(out, "tune: left as it is: interface eth0: it is a veth with transmit offloads") {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
	found, err := nic.Preflight("eth0", "native", mostOverhead)
	if err != nil {
		t.Fatal(err)
	}
	if err := nic.Fatal(found); err != nil {
		t.Errorf("it is set, and still: %v", err)
	}
	if code, out, _ := appliance(t, "tune", "--config", path); code != exitOK || strings.Contains(out, "tune: set") {
		t.Errorf("again: code %d, %q", code, out)
	}
}

// TestChanges: every setting of the preflight arrives as it is.
func TestChanges(t *testing.T) {
	got := changes([]nic.Finding{
		{What: "down", Remedy: "ip link set eth0 up"},
		{What: "lro", Setting: nic.Setting{Interface: "eth0", Feature: "rx-lro"}},
		{What: "queues", Setting: nic.Setting{Interface: "eth1", Queues: &nic.Queues{RX: nic.Leave, TX: 2, Combined: 3}}},
		{What: "mtu", Setting: nic.Setting{Interface: "eth2", MTU: 1500}},
	})
	if len(got) != 3 || got[0].String() != "eth0: rx-lro off" || got[1].String() != "eth1: queues tx 2, combined 3" || got[2].String() != "eth2: mtu 1500" || got[2].Why != "mtu" {
		t.Errorf("%v", got)
	}
	if tune.Leave != nic.Leave {
		t.Error("the two do not mean the same by leaving a number")
	}
}
