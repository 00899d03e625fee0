package ansible

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// routerBox is a BIRD and an FRR without anybody at the other end: what a changed
// fleet.yaml does to their configurations.
type routerBox struct {
	*controller
	t      *testing.T
	folder string
	enter  []string
}

const routerBoxFleet = `plugin: catchment.edge.fleet
node: {bgp: {asn: 64512}}
fleet: {prefixes: [%s]}
sites:
  - name: a
    nodes:
      - {name: in4, host: 192.0.2.1, address4: 10.1.0.2, gossip: "10.1.0.2:7946", node: {bgp: {peers: [
          {name: bird, address: 10.1.0.1, asn: 65001%[2]s}, {name: frr, address: 10.1.0.1, asn: 65001%[2]s}]}}}
      - {name: bfd, host: 192.0.2.1, address6: "FD00:1:0::2", gossip: "10.1.0.3:7946", node: {bgp: {peers: [
          {name: bird, address: "fd00:1::1", asn: 65001, bfd: {}}, {name: frr, address: "fd00:1::1", asn: 65001}]}}}
routers:
  - {name: bird, host: 127.0.0.1, daemon: bird, asn: 65001}
  - {name: frr, host: 127.0.0.1, daemon: frr, asn: 65001}
`

const routerSecret = "x9-hunter2-Zq"

func newRouterBox(t *testing.T) *routerBox {
	t.Helper()
	script, err := filepath.Abs("testdata/router-box.sh")
	must(t, err)
	b := &routerBox{controller: newController(t, t.TempDir()), t: t, folder: t.TempDir()}
	b.env = append(b.env, "ANSIBLE_INVENTORY_ENABLED=catchment.edge.fleet")
	b.inventory = filepath.Join(b.dir, "fleet.yaml")
	must(t, os.WriteFile(b.path("bird.conf"), []byte("router id 192.0.2.9;\nprotocol device {}\n"), 0o644))
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--net", "bash", script, b.folder)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		logs, _ := exec.Command("tail", "-n", "20", b.path("bird.log"), b.path("bgpd.log")).CombinedOutput()
		t.Fatalf("the router does not start: %v\n%s", err, logs)
	}
	b.enter = []string{"-t", fmt.Sprint(cmd.Process.Pid), "-m", "-n"}
	return b
}

func (b *routerBox) path(name string) string { return filepath.Join(b.folder, name) }

func (b *routerBox) read(name string) string {
	b.t.Helper()
	text, err := os.ReadFile(b.path(name))
	must(b.t, err)
	return string(text)
}

// in runs a program at the router.
func (b *routerBox) in(name string, args ...string) string {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), "nsenter", append(slices.Concat(b.enter, []string{name}), args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// play has a fleet of these prefixes, and of one peer with more of it, set up; it says
// whether that went well.
func (b *routerBox) play(router, prefixes, more string) (string, bool) {
	b.t.Helper()
	return b.playFleet(router, routerBoxFleet, prefixes, more)
}

func (b *routerBox) playFleet(router, fleet, prefixes, more string) (string, bool) {
	b.t.Helper()
	entries := ""
	for prefix := range strings.FieldsSeq(prefixes) {
		entries += fmt.Sprintf("{prefix: %q}, ", prefix)
	}
	must(b.t, os.WriteFile(b.inventory, fmt.Appendf(nil, fleet, entries, more), 0o644))
	cmd := exec.CommandContext(b.t.Context(), "nsenter", slices.Concat(b.enter, []string{
		"ansible-playbook", "-i", b.inventory, "catchment.edge.routers", "--limit", router, "--diff", "-vvv", "-e", "ansible_connection=local",
		"-e", "edge_router_bird_group=root edge_router_frr_group=root edge_router_frr_save=false",
		"-e", "edge_router_bird_conf=" + b.path("bird.conf") + " edge_router_bird_socket=" + b.path("bird.ctl"),
		"-e", "edge_router_bird_file=" + b.path("edge-bird.conf") + " edge_router_frr_file=" + b.path("edge-frr.conf"),
	})...)
	cmd.Env, cmd.Dir = b.env, b.dir
	out, err := cmd.CombinedOutput()
	for _, secret := range []string{routerSecret, "hunter2"} {
		if strings.Contains(string(out), secret) {
			b.t.Errorf("a password is printed:\n%s", out)
		}
	}
	return string(out), err == nil
}

func (b *routerBox) good(router, prefixes, more string, changes bool) {
	b.t.Helper()
	out, ok := b.play(router, prefixes, more)
	if !ok || strings.Contains(out, "changed=0") == changes {
		b.t.Fatalf("%s, %s, %q: good %t, changes is to be %t\n%s", router, prefixes, more, ok, changes, out)
	}
}

func (b *routerBox) password(text string) {
	b.t.Helper()
	at := filepath.Join(b.dir, "secrets", "fleet", "bgp.key")
	must(b.t, os.MkdirAll(filepath.Dir(at), 0o700))
	must(b.t, os.WriteFile(at, []byte(text), 0o600))
}

const (
	keyed = ", password_file: /etc/edge/secrets/bgp.key"
	two   = "198.51.100.0/24 203.0.113.0/24 2001:DB8:100:0::/48"
)

// TestRouterForgets: what fleet.yaml has no more, FRR has no more, and a second run
// changes nothing.
func TestRouterForgets(t *testing.T) {
	b := newRouterBox(t)
	b.password(routerSecret + "\r\n")
	running := func() string { return b.in("vtysh", "-c", "show running-config bgpd") }
	b.good("frr", two, keyed+", bfd: {}, multihop: 2", true)
	for _, want := range []string{"10.1.0.2 password " + routerSecret + "\n", "10.1.0.2 bfd", "10.1.0.2 ebgp-multihop 2", "fd00:1::2 peer-group EDGE"} {
		if text := running(); !strings.Contains(text, want) {
			t.Errorf("FRR has no %q\n%s", want, text)
		}
	}
	b.good("frr", two, keyed+", bfd: {}, multihop: 2", false)
	b.good("frr", "203.0.113.0/24 2001:db8:100::/48", ", ttl_security: 1", true)
	text := running()
	for _, gone := range []string{"198.51.100.0", "password", "10.1.0.2 bfd", "ebgp-multihop"} {
		if strings.Contains(text, gone) {
			t.Errorf("FRR still has %q\n%s", gone, text)
		}
	}
	for _, want := range []string{"permit 203.0.113.0/24\n", "10.1.0.2 ttl-security hops 1"} {
		if !strings.Contains(text, want) {
			t.Errorf("FRR has no %q\n%s", want, text)
		}
	}
	b.good("frr", "203.0.113.0/24 2001:db8:100::/48", ", ttl_security: 1", false)
}

// TestRouterPasswords: what a router cannot take is refused before anything is written,
// and is in no output.
func TestRouterPasswords(t *testing.T) {
	b := newRouterBox(t)
	for _, text := range []string{"hunter2 " + routerSecret, `hunter2"` + routerSecret, "hunter2\n" + routerSecret + "\n", "", "\n", "hünter2", "\xff", strings.Repeat("x", 81)} {
		b.password(text)
		for _, router := range []string{"bird", "frr"} {
			out, ok := b.play(router, two, keyed)
			if ok || !strings.Contains(out, "the password of in4 in the folder of secrets (bgp.key) is not there, or is not one line") {
				t.Errorf("%s, %q: good %t\n%s", router, text, ok, out)
			}
			if _, err := os.Stat(b.path("edge-" + router + ".conf")); !os.IsNotExist(err) {
				t.Errorf("%s, %q: a file was written: %v", router, text, err)
			}
		}
	}
}

// TestRouterJinja: a value of fleet.yaml is never more than a value.
func TestRouterJinja(t *testing.T) {
	b := newRouterBox(t)
	mark := filepath.Join(t.TempDir(), "ran")
	run := "{{ lookup('pipe', 'touch " + mark + "') }}"
	for what, more := range map[string]string{
		"the name of a password": `, password_file: "/etc/edge/secrets/` + run + `"`,
		"an address":             `, local_address: "` + run + `"`,
		"the folder of secrets":  keyed,
	} {
		fleet := routerBoxFleet
		if more == keyed {
			fleet = `secrets: "` + run + "\"\n" + fleet
		}
		for _, router := range []string{"bird", "frr"} {
			out, ok := b.playFleet(router, fleet, two, more)
			if _, err := os.Stat(mark); ok || !os.IsNotExist(err) {
				t.Errorf("%s, %s: good %t, Jinja has run: %v\n%s", router, what, ok, err == nil, out)
			}
		}
	}
}

// TestRouterRefuses: a configuration that BIRD does not take leaves the running one, and
// the files that it starts with the next time.
func TestRouterRefuses(t *testing.T) {
	b := newRouterBox(t)
	b.password(routerSecret)
	protocols := func() string { return b.in("birdc", "-s", b.path("bird.ctl"), "show", "protocols") }
	alone := b.read("bird.conf")
	taken := alone + "filter catchment_in4 { reject; }\n"

	// The first time: bird.conf, which BIRD has not read again, has our name already.
	must(t, os.WriteFile(b.path("bird.conf"), []byte(taken), 0o644))
	out, ok := b.play("bird", two, keyed)
	if _, err := os.Stat(b.path("edge-bird.conf")); ok || b.read("bird.conf") != taken || !os.IsNotExist(err) || !strings.Contains(out, "already defined") {
		t.Errorf("a name that is taken: good %t, %v, bird.conf\n%s\n%s", ok, err, b.read("bird.conf"), out)
	}
	must(t, os.WriteFile(b.path("bird.conf"), []byte(alone), 0o644))

	// Boxes with the names of our filters.
	b.good("bird", two, keyed, true)
	b.good("bird", two, keyed, false)
	was := protocols()
	if !strings.Contains(was, "edge_in4") || !strings.Contains(was, "edge_bfd") {
		t.Errorf("BIRD has\n%s", was)
	}

	// Later: what is good alone, and not with what somebody has put into bird.conf.
	before, conf := b.read("edge-bird.conf"), b.read("bird.conf")+"filter catchment_in4 { reject; }\n"
	must(t, os.WriteFile(b.path("bird.conf"), []byte(conf), 0o644))
	out, ok = b.play("bird", "203.0.113.0/24", keyed)
	if ok || !strings.Contains(out, "goes on with those of before") || !strings.Contains(out, "already defined") {
		t.Errorf("what BIRD refuses: good %t\n%s", ok, out)
	}
	if b.read("edge-bird.conf") != before || b.read("bird.conf") != conf || protocols() != was {
		t.Errorf("after what BIRD refuses:\n%s\n%s", b.read("edge-bird.conf"), protocols())
	}
	files, err := os.ReadDir(b.folder)
	if err != nil || slices.ContainsFunc(files, func(f os.DirEntry) bool { return strings.HasSuffix(f.Name(), "~") }) {
		t.Errorf("copies are left: %v, %v", files, err)
	}
	must(t, os.WriteFile(b.path("bird.conf"), []byte(strings.Replace(conf, "filter catchment_in4 { reject; }\n", "", 1)), 0o644))
	b.good("bird", "203.0.113.0/24", keyed, true)
}
