package nft

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/internal/nstest"
)

const (
	vip4, vip6       = "192.0.2.1", "2001:db8::1"
	node4, node6     = "10.0.0.1", "fd00::1"
	client4, client6 = "10.0.0.2", "fd00::2"
)

// What every test here calls, by a short name.
var (
	check  = nstest.Check
	in     = nstest.In
	sysctl = nstest.Sysctl
	up     = nstest.Up
)

// newNS puts the test's thread into a new network namespace, for good: the
// thread ends with the test's goroutine.
func newNS(t testing.TB) netns.NsHandle {
	t.Helper()
	ns := nstest.New(t)
	// Without timestamps TCP_MAXSEG is the MSS, without 12 bytes of options.
	sysctl(t, "ipv4/tcp_timestamps", "0")
	sysctl(t, "ipv6/conf/default/accept_dad", "0")
	// Every refusal is to be heard.
	sysctl(t, "ipv4/icmp_ratelimit", "0")
	sysctl(t, "ipv6/icmp/ratelimit", "0")
	up(t, "lo")
	return ns
}

func addAddr(t testing.TB, l netlink.Link, cidr string) {
	t.Helper()
	a, err := netlink.ParseAddr(cidr)
	check(t, err)
	a.Flags = unix.IFA_F_NODAD
	check(t, netlink.AddrAdd(l, a))
}

// pair is a client and a box with VIPs, joined by a cable. The thread of the
// test is in the box.
type pair struct{ client, box netns.NsHandle }

func newPair(t *testing.T) pair {
	t.Helper()
	p := pair{client: newNS(t), box: newNS(t)}
	check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, PeerName: "up0", PeerNamespace: netlink.NsFd(int(p.client))}))
	up0 := up(t, "up0")
	addAddr(t, up0, node4+"/24")
	addAddr(t, up0, node6+"/64")
	lo := up(t, "lo")
	addAddr(t, lo, vip4+"/32")
	addAddr(t, lo, vip6+"/128")
	in(t, p.client, func() {
		up0 := up(t, "up0")
		addAddr(t, up0, client4+"/24")
		addAddr(t, up0, client6+"/64")
		for dst, via := range map[string]string{vip4 + "/32": node4, vip6 + "/128": node6} {
			_, n, err := net.ParseCIDR(dst)
			check(t, err)
			check(t, netlink.RouteAdd(&netlink.Route{Dst: n, Gw: net.ParseIP(via)}))
		}
	})
	return p
}

// nftTool runs the tool of operators in the namespace of this thread.
func nftTool(t testing.TB, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v\n%s\n%s", err, script, out)
	}
	return string(out)
}

func listing(t testing.TB) string { t.Helper(); return nftTool(t, "list ruleset\n") }

// handles is the listing with the numbers that the kernel gives to all that is
// made: they are others if anything was made anew.
func handles(t testing.TB) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", "--handle", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	return string(out)
}

func vips(port uint16, p edge.Protocol, mss int) Rules {
	return Rules{
		{VIP: at(vip4, port), Protocol: p, MSS: mss},
		{VIP: at(vip6, port), Protocol: p, MSS: mss},
	}
}

func at(a string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(a), port)
}

// serve accepts on a TCP port of the box until the test ends, and keeps the
// connections open.
func serve(t *testing.T, to netip.AddrPort) <-chan *net.TCPConn {
	t.Helper()
	ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(to))
	check(t, err)
	conns := make(chan *net.TCPConn, 16)
	done := make(chan struct{})
	t.Cleanup(func() { ln.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := ln.AcceptTCP()
			if err != nil {
				return
			}
			conns <- c
		}
	}()
	return conns
}

// dial connects from the client.
func (p pair) dial(t *testing.T, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	var c net.Conn
	var err error
	in(t, p.client, func() { c, err = net.DialTimeout("tcp", to.String(), 30*time.Second) })
	check(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// mss is what a socket may send at once: what the other side has announced, as
// it came over.
func mss(t testing.TB, c *net.TCPConn) int {
	t.Helper()
	raw, err := c.SyscallConn()
	check(t, err)
	var n int
	check(t, raw.Control(func(fd uintptr) { n, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG) }))
	check(t, err)
	return n
}
