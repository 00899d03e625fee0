package firewall

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pair are a box and what is outside of it, each a network namespace, with a link
// between them.
type pair struct{ box, outside netns.NsHandle }

// newPair moves the test's thread into the namespace of the box until it ends.
func newPair(t *testing.T) pair {
	t.Helper()
	runtime.LockOSThread()
	home, err := netns.Get()
	check(t, err)
	t.Cleanup(func() {
		check(t, netns.Set(home))
		home.Close()
		runtime.UnlockOSThread()
	})
	p := pair{}
	p.outside, err = netns.New()
	check(t, err)
	p.box, err = netns.New()
	check(t, err)
	t.Cleanup(func() { p.outside.Close(); p.box.Close() })
	check(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "out0", PeerNamespace: netlink.NsFd(int(p.outside)),
	}))
	furnish(t, "eth0", "10.1.0.2/24", "fd00:1::2/64", "169.254.77.1/16", "198.51.100.10/32", "198.51.100.53/32", "fe80::2/64")
	p.in(t, p.outside, func() {
		furnish(t, "out0", "10.1.0.1/24", "fd00:1::1/64", "10.2.0.2/32", "10.3.0.2/32", "fd00:2::2/128", "203.0.113.9/32", "10.0.0.1/32", "192.168.7.7/32", "169.254.9.9/16", "fe80::1/64", "fe80::9/64")
		run(t, "", "ip", "route", "add", "198.51.100.0/24", "via", "10.1.0.2")
	})
	for _, via := range [][2]string{{"0.0.0.0/0", "10.1.0.1"}, {"::/0", "fd00:1::1"}} {
		run(t, "", "ip", "route", "add", via[0], "via", via[1])
	}
	return p
}

// furnish brings an interface up, with addresses that are usable at once.
func furnish(t *testing.T, name string, addrs ...string) {
	t.Helper()
	for _, key := range []string{"all/accept_dad", "default/accept_dad", name + "/accept_dad"} {
		sysctl(t, "ipv6/conf/"+key, "0")
	}
	sysctl(t, "ipv4/conf/all/rp_filter", "0")
	for _, dev := range []string{"lo", name} {
		l, err := netlink.LinkByName(dev)
		check(t, err)
		check(t, netlink.LinkSetUp(l))
	}
	l, err := netlink.LinkByName(name)
	check(t, err)
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		check(t, err)
		check(t, netlink.AddrAdd(l, addr))
	}
}

func sysctl(t *testing.T, key, value string) {
	t.Helper()
	check(t, os.WriteFile("/proc/sys/net/"+key, []byte(value), 0))
}

// in runs f in another namespace.
func (p pair) in(t *testing.T, ns netns.NsHandle, f func()) {
	t.Helper()
	back, err := netns.Get()
	check(t, err)
	defer back.Close()
	check(t, netns.Set(ns))
	defer func() { check(t, netns.Set(back)) }()
	f()
}

// run executes a command in the namespace of this thread: a child of it starts there.
func run(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

func listing(t *testing.T) string {
	t.Helper()
	return run(t, "", "nft", "list", "table", "inet", Table)
}

// reference is the configuration that documents every key, with changes.
func reference(t *testing.T, replace ...string) *edge.Config {
	t.Helper()
	b, err := os.ReadFile("../../reference.yaml")
	check(t, err)
	text := string(b)
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(text, replace[i]) {
			t.Fatalf("reference.yaml has no %q", replace[i])
		}
		text = strings.Replace(text, replace[i], replace[i+1], 1)
	}
	c, err := edge.Parse("reference.yaml", []byte(text))
	check(t, err)
	return c
}
