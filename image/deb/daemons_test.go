package deb_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// daemons are in the order in which they are to be stopped.
func daemons() []string { return []string{"edgebgp", "edgeproxy", "edged"} }

const configuration = `node:
  name: a1
  key_file: /etc/edge/node.key
  forwarder: {interfaces: [eth0], mode: generic, flows: 1024, half_flows: 1024}
  bgp: {asn: 64512}
fleet:
  ring_seed_file: /etc/edge/ring.seed
  sites: [{name: a}]
  nodes: [{name: a1, site: a, address4: 10.1.0.2, gossip: "10.1.0.2:7946", public_key: "%s"}]
  prefixes: [{prefix: 198.51.100.0/24}]
  services: [{name: web, vip: 198.51.100.10, port: 80, protocol: tcp, proxy: http}]
  regions: [{name: r, capacity: 10, upstreams: [{name: u, address: "10.1.0.9:80"}]}]
  proxy: {routes: [{regions: [r]}]}
  guard: {key_file: /etc/edge/gossip.key}
`

// configure makes a configuration as docs/install.md tells.
func configure(t *testing.T, b *box) {
	t.Helper()
	key := b.sh(t, `cd /etc/edge
head -c 32 /dev/urandom | base64 > gossip.key
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > ring.seed
edgectl guard key --out node.key
chown edged: gossip.key ring.seed node.key
chmod 0600 gossip.key ring.seed`)
	_, key, ok := strings.Cut(strings.TrimSpace(key), "public_key: ")
	if !ok {
		t.Fatalf("edgectl guard key says %q", key)
	}
	b.put(t, "/etc/edge/edge.yaml", fmt.Sprintf(configuration, strings.Trim(key, `"`)))
	b.sh(t, "chown root:edge /etc/edge/edge.yaml; chmod 0644 /etc/edge/edge.yaml; edgectl check /etc/edge/edge.yaml")
	b.sh(t, "echo state >/var/lib/edge/state; chown edged: /var/lib/edge/state")
}

// pid is that of a unit's process; "0" if there is none.
func (b *box) daemonPID(t *testing.T, unit string) string {
	t.Helper()
	return strings.TrimSpace(b.run(t, "systemctl", "show", "--property=MainPID", "--value", unit))
}

// start starts the daemons and waits until all are ready.
func (b *box) start(t *testing.T) {
	t.Helper()
	if !b.runs {
		return
	}
	b.run(t, "systemctl", "start", "edged", "edgeproxy", "edgebgp")
	b.active(t)
}

func (b *box) active(t *testing.T) {
	t.Helper()
	poll(t, "the daemons run and answer", func() error {
		for _, d := range daemons() {
			if _, err := b.try("systemctl", "is-active", d); err != nil {
				out, _ := b.try("journalctl", "--no-pager", "-n", "30", "-o", "cat", "-u", d)
				return fmt.Errorf("%w\n%s", err, out)
			}
		}
		out, err := b.try("edgectl", "status")
		if err == nil && strings.Contains(out, "does not answer") {
			err = fmt.Errorf("a daemon does not reach another:\n%s", out)
		}
		return err
	})
}

// idle checks that no daemon runs, since there is no configuration, and that
// none has failed.
func (b *box) idle(t *testing.T) {
	t.Helper()
	if !b.runs {
		return
	}
	for _, d := range daemons() {
		if out, _ := b.try("systemctl", "is-active", d); strings.TrimSpace(out) != "" && !strings.HasPrefix(out, "systemctl is-active") && !strings.HasPrefix(out, "inactive") {
			t.Errorf("%s is %q without a configuration", d, out)
		}
	}
}

// gone checks that no process of the package is left.
func (b *box) gone(t *testing.T) {
	t.Helper()
	if out, err := b.try("bash", "-c", `for exe in /proc/[0-9]*/exe; do readlink $exe || true; done | grep ^/usr/bin/edge`); err == nil {
		t.Errorf("still running: %s", out)
	}
}

// upgraded upgrades from the old version to the new one: the configuration stays,
// edged alone is restarted, and the operator is told about the other two.
func upgraded(t *testing.T, b *box) {
	t.Helper()
	config := b.run(t, "sha256sum", "/etc/edge/edge.yaml", "/etc/edge/node.key", "/var/lib/edge/state")
	was := map[string]string{}
	if b.runs {
		for _, d := range daemons() {
			was[d] = b.daemonPID(t, d)
		}
	}
	// The new version refuses the file: nothing is restarted.
	if b.runs {
		b.sh(t, "cp -p /etc/edge/edge.yaml /pkgs/kept.yaml; echo 'odd: key' >>/etc/edge/edge.yaml")
		out := b.apt(t, "install", "/pkgs/new.deb")
		if !strings.Contains(out, "edged is NOT restarted") || b.daemonPID(t, "edged") != was["edged"] {
			t.Errorf("edged was restarted into a configuration that it refuses:\n%s", out)
		}
		b.sh(t, "cp -p /pkgs/kept.yaml /etc/edge/edge.yaml")
		b.apt(t, "install", "/pkgs/old.deb")
		b.active(t)
		was["edged"] = b.daemonPID(t, "edged")
	}
	out := b.apt(t, "install", "/pkgs/new.deb")
	installed(t, b, newVersion)
	if now := b.run(t, "sha256sum", "/etc/edge/edge.yaml", "/etc/edge/node.key", "/var/lib/edge/state"); now != config {
		t.Errorf("the upgrade has changed\n%sinto\n%s", config, now)
	}
	if !b.runs {
		return
	}
	b.active(t)
	for _, d := range daemons() {
		if restarted := b.daemonPID(t, d) != was[d]; restarted != (d == "edged") {
			t.Errorf("%s: restarted %v", d, restarted)
		}
	}
	if !strings.Contains(out, "edgebgp and edgeproxy go on with their old version") || !strings.Contains(out, "systemctl restart edgeproxy edgebgp") {
		t.Errorf("the upgrade does not say what is still old:\n%s", out)
	}
}

// comesBack checks that a box with a configuration runs again when the package is
// installed again, and that a removal has stopped the daemons in the right order.
func (b *box) comesBack(t *testing.T, out string) {
	t.Helper()
	if !b.runs {
		return
	}
	b.active(t)
	b.run(t, "nft", "add", "table", "inet", "edge_host") // as edge-firewall does
	for what, line := range map[string]string{
		"the VIP": "ip addr show dev lo | grep 198.51.100.10/32", "the blackhole": "ip route show proto 77 | grep 198.51.100.0/24",
		"the program": "ls /sys/fs/bpf/edge/v2", "the table": "nft list table inet catchment",
	} {
		poll(t, what+" is there before the purge", func() error {
			_, err := b.try("bash", "-euo", "pipefail", "-c", line)
			return err
		})
	}
	if strings.Contains(out, "restarted") {
		t.Errorf("an installation is taken for an upgrade:\n%s", out)
	}
	var stopped []string
	for line := range strings.Lines(b.run(t, "journalctl", "--no-pager", "-o", "cat", "_PID=1")) {
		for _, d := range daemons() {
			if strings.HasPrefix(line, "Stopped "+d+".service") {
				stopped = append(stopped, d)
			}
		}
	}
	if n := len(stopped); n < 3 || !slices.Equal(stopped[n-3:], daemons()) {
		t.Errorf("they were stopped in the order %v, want %v", stopped, daemons())
	}
}
