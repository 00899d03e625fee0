package units

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// configuration has a probe of each kind that a unit's walls may hinder.
const configuration = `node:
  name: n
  key_file: /etc/edge/node.key
  probe_source4: 10.1.0.65
  host_firewall: {mode: on}
  forwarder: {interfaces: [eth0], flows: 65536, memory_limit: 512MiB}
  bgp:
    asn: 64512
    listen: 179
    peers:
      - {name: r, address: 10.1.0.1, asn: 65001, local_address: 10.1.0.2, interface: eth0, password_file: /etc/edge/bgp.key, ttl_security: 1, bfd: {}}
fleet:
  ring_seed_file: /etc/edge/ring.seed
  sites: [{name: s}]
  nodes: [{name: n, site: s, address4: 10.1.0.2, gossip: "10.1.0.2:7946", public_key: "%s"}]
  prefixes: [{prefix: 192.0.2.0/24}]
  services:
    - {name: web, vip: 192.0.2.80, port: 80, protocol: tcp, proxy: http}
    - {name: dns, vip: 192.0.2.53, port: 53, protocol: udp, backends: [{name: b, address: 10.1.0.1}]}
  regions: [{name: east, capacity: 100, upstreams: [{name: u, address: "10.1.0.1:80"}]}]
  proxy: {routes: [{}], access_log: /var/log/edgeproxy/access.log}
  guard: {key_file: /etc/edge/gossip.key}
  health:
    probes:
      - {name: fwd, kind: forwarder}
      - {name: proxy, kind: process, pid_file: /run/edge/edgeproxy.pid}
      - {name: unit, kind: unit, unit: edgeproxy}
      - {name: ping, kind: icmp, target: 10.1.0.1}
      - {name: cmd, kind: command, command: [/bin/sh, -c, "id -un | grep -qx edged"]}
      - {name: route, kind: route, prefix: 0.0.0.0/0}
      - {name: mem, kind: pressure, resource: memory, some_avg10: 99}
      - {name: disk, kind: disk, file: /var, min_free: 1MiB}
      - {name: health, kind: http, url: "http://10.1.0.2:9181/healthz"}
      - {name: origin, kind: http, url: "http://10.1.0.1/"}
      - {name: vip, kind: vip, service: web}
`

// TestBoot runs the daemons under systemd, as their users, with the capabilities and
// behind the walls of their units: they do all that they are for, and no more.
func TestBoot(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	run(t, "go", "build", "-o", bin+"/", "../../cmd/edged", "../../cmd/edgebgp", "../../cmd/edgeproxy", "../../cmd/edgectl")
	etc := filepath.Join(dir, "etc")
	for _, d := range []string{etc, filepath.Join(dir, "origin")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_, key, ok := strings.Cut(run(t, filepath.Join(bin, "edgectl"), "guard", "key", "--out", etc+"/node.key"), "public_key: ")
	if !ok {
		t.Fatal("no public key")
	}
	for name, text := range map[string]string{
		"edge.yaml":  fmt.Sprintf(configuration, strings.Trim(strings.TrimSpace(key), `"`)),
		"ring.seed":  strings.Repeat("5a", 32) + "\n",
		"gossip.key": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n",
		"bgp.key":    "secret\n",
	} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(t, filepath.Join(bin, "edgectl"), "check", etc+"/edge.yaml")
	judge(t, boot(t, dir, bin))
}

// boot boots and returns what check.sh has said.
func boot(t *testing.T, dir, bin string) string {
	t.Helper()
	said, _ := bootBy(t, dir, 3*time.Minute, "testdata/boot.sh", dir, bin, here(t))
	return said
}

func here(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// bootBy has a script start systemd in namespaces and a cgroup of its own, and returns
// what was said to the file said of dir, which has to end with "== end"; late says that
// it did not end in time.
func bootBy(t *testing.T, dir string, limit time.Duration, script ...string) (said string, late bool) {
	t.Helper()
	group := cgroup(t)
	ctx, stop := context.WithTimeout(t.Context(), limit)
	defer stop()
	// --kill-child: with unshare everything below ends.
	args := append([]string{"--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child", "--mount-proc", "bash"}, script...)
	cmd := exec.CommandContext(ctx, "unshare", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	console, err := os.Create(filepath.Join(dir, "console"))
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	cmd.Stdout, cmd.Stderr = console, console
	err = cmd.Run() // ends by a signal: the first process of the namespace powers off
	b, readErr := os.ReadFile(filepath.Join(dir, "said"))
	if readErr != nil || !strings.Contains(string(b), "== end") {
		shown, _ := os.ReadFile(console.Name())
		t.Fatalf("%v, %v, %v\nsaid: %s\nconsole: %s", err, readErr, ctx.Err(), b, shown)
	}
	return string(b), ctx.Err() != nil
}

// cgroup makes a control group that is the top of the hierarchy for what is started
// in it, and removes it with the test.
func cgroup(t *testing.T) *os.File {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	top := ""
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" && top == "" {
			top = f[1]
		}
	}
	if top == "" {
		t.Fatal("cgroup v2 is not mounted")
	}
	path := filepath.Join(top, fmt.Sprintf("edge-units-%d", os.Getpid()))
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroup(t, path) })
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// removeGroup removes a group and those in it; the kernel lets go of the last
// process a moment after it has ended.
func removeGroup(t *testing.T, path string) {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var dirs []string
		err := filepath.WalkDir(path, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append([]string{p}, dirs...)
			}
			return nil
		})
		for _, d := range dirs { // the deepest first
			err = errors.Join(err, syscall.Rmdir(d))
		}
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("remove %s: %v", path, err)
			return
		}
	}
}

// judge compares what check.sh has said with what should be.
func judge(t *testing.T, said string) {
	t.Helper()
	want := `the daemons answer each other
probe fwd is up
probe proxy is up
probe unit is up
probe ping is up
probe cmd is up
probe route is up
probe mem is up
probe disk is up
probe health is up
probe origin is up
probe vip is up
== processes
edged user edged CapEff: 000000c000201000 NoNewPrivs: 1 Seccomp: 2
edged started again 0 times, oom -500
edgebgp user edgebgp CapEff: 0000000000801400 NoNewPrivs: 1 Seccomp: 2
edgebgp started again 0 times, oom -900
edgeproxy user edgeproxy CapEff: 0000000000000000 NoNewPrivs: 1 Seccomp: 2
edgeproxy started again 0 times, oom 500
== walls
edged may write /var/lib/edge
edgeproxy sees edgeproxy.pid edgeproxy.sock
edgebgp reads bgp.key
== bgp
warnings of scheduling: 0
peer added" peer=r address=10.1.0.1 asn=65001 md5=true
== firewall
chains that drop: 2
an edited file changes the rules
the daemons still answer
== leave
edge-leave: success, drained: the box goes down
edge-leave: success, drained: an upgrade
== again
edged takes over what it left
probe vip is up after it
edged is reloaded by its unit
probe vip is up after the proxy
edged needs CAP_SYS_ADMIN
== failed
edged.service loaded failed failed Catchment health, guard and decision
== end
`
	var lines []string
	said, _, _ = strings.Cut(said, "== end")
	for line := range strings.Lines(said + "== end") {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	if got := strings.Join(lines, "\n") + "\n"; got != want {
		t.Errorf("said:\n%s\nwant:\n%s", got, want)
	}
}
