package nft

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// withTTL sets the TTL and the hop limit of a socket before it is used.
func withTTL(ttl int) func(string, string, syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) {
			if strings.HasSuffix(network, "6") {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ttl)
			} else {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, ttl)
			}
		})
		if cerr != nil {
			return cerr
		}
		return err
	}
}

// opens says whether a connection opens. One that is not answered is tried again:
// on a busy box it may be late.
func opens(ctx context.Context, ttl int, to netip.AddrPort) bool {
	for range 5 {
		if opensSoon(ctx, ttl, to) {
			return true
		}
	}
	return false
}

// opensSoon is one attempt. A packet that is dropped is sent again after a second at
// the earliest.
func opensSoon(ctx context.Context, ttl int, to netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, 700*time.Millisecond)
	defer cancel()
	d := net.Dialer{Control: withTTL(ttl)}
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func TestGuard(t *testing.T) {
	p := newPair(t)
	const listen = 1179
	for _, a := range []struct{ node, client string }{{node4, client4}, {node6, client6}} {
		serve(t, at(a.node, listen))
		serve(t, at(a.node, 80))
	}
	// The routers at the far end: one next door, one that sends from afar.
	for ttl, port := range map[int]uint16{255: bgpPort, 64: 1080} {
		for _, client := range []string{client4, client6} {
			in(t, p.client, func() {
				l := net.ListenConfig{Control: withTTL(ttl)}
				ln, err := l.Listen(t.Context(), "tcp", at(client, port).String())
				check(t, err)
				t.Cleanup(func() { ln.Close() })
			})
		}
	}
	for _, tt := range []struct {
		name   string
		guards []Guard
		far    bool // gets through from afar
	}{
		{"none", nil, true},
		{"of the peers", []Guard{{Peer: netip.MustParseAddr(client4), Listen: listen, MinTTL: 255}, {Peer: netip.MustParseAddr(client6), Listen: listen, MinTTL: 255}}, false},
		{"of everybody", []Guard{{Listen: listen, MinTTL: 250}}, false},
		{"of others", []Guard{{Peer: netip.MustParseAddr("10.0.0.9"), Listen: listen, MinTTL: 255}, {Peer: netip.MustParseAddr("fd00::9"), Listen: listen, MinTTL: 255}}, true},
		{"lower", []Guard{{Peer: netip.MustParseAddr(client4), Listen: listen, MinTTL: 63}, {Peer: netip.MustParseAddr(client6), Listen: listen, MinTTL: 63}}, true},
		{"without a port", []Guard{{Peer: netip.MustParseAddr(client4), Listen: 0, MinTTL: 255}, {Peer: netip.MustParseAddr(client6), Listen: 0, MinTTL: 255}}, true},
	} {
		check(t, Apply(nil, tt.guards...))
		for _, a := range []struct{ node, client string }{{node4, client4}, {node6, client6}} {
			in(t, p.client, func() {
				if !opens(t.Context(), 255, at(a.node, listen)) {
					t.Errorf("%s: %s: not from next door", tt.name, a.node)
				}
				if got := opens(t.Context(), 63, at(a.node, listen)); got != tt.far {
					t.Errorf("%s: %s: from afar: %t, want %t", tt.name, a.node, got, tt.far)
				}
				if !opens(t.Context(), 63, at(a.node, 80)) {
					t.Errorf("%s: %s: another port is guarded", tt.name, a.node)
				}
			})
			if !opens(t.Context(), 64, at(a.client, bgpPort)) || !opens(t.Context(), 64, at(a.client, 1080)) {
				t.Errorf("%s: %s: what this box dials is not answered", tt.name, a.client)
			}
		}
	}
	check(t, Apply(nil))
	if got := listing(t); got != "" {
		t.Errorf("rules are left:\n%s", got)
	}
}

// TestGuardOfDialled: the answers of a peer's port 179 are guarded too.
func TestGuardOfDialled(t *testing.T) {
	p := newPair(t)
	for _, client := range []string{client4, client6} {
		in(t, p.client, func() {
			l := net.ListenConfig{Control: withTTL(64)}
			ln, err := l.Listen(t.Context(), "tcp", at(client, bgpPort).String())
			check(t, err)
			t.Cleanup(func() { ln.Close() })
		})
		for _, ttl := range []uint8{64, 65} {
			check(t, Apply(nil, Guard{Peer: netip.MustParseAddr(client), Listen: 0, MinTTL: ttl}))
			if got := opens(t.Context(), 255, at(client, bgpPort)); got != (ttl == 64) {
				t.Errorf("%s answers with TTL 64, %d is asked for: opens %t", client, ttl, got)
			}
		}
	}
}

// TestGuardOfUDP: BFD packets from afar do not reach the socket.
func TestGuardOfUDP(t *testing.T) {
	p := newPair(t)
	const port = 3784
	check(t, Apply(nil, Guard{UDP: true, Listen: port, MinTTL: 255}))
	for _, a := range []struct{ node, client string }{{node4, client4}, {node6, client6}} {
		pc, err := net.ListenPacket("udp", at(a.node, port).String())
		check(t, err)
		in(t, p.client, func() {
			for _, ttl := range []int{254, 255} { // the far one first
				d := net.Dialer{Control: withTTL(ttl)}
				c, err := d.Dial("udp", at(a.node, port).String())
				check(t, err)
				_, err = c.Write([]byte{byte(ttl)})
				check(t, err)
				c.Close()
			}
		})
		buf := make([]byte, 16)
		check(t, pc.SetReadDeadline(time.Now().Add(time.Minute)))
		if n, _, err := pc.ReadFrom(buf); err != nil || n != 1 || buf[0] != 255 {
			t.Errorf("%s: got % x, %v, want what was sent with TTL 255", a.node, buf[:n], err)
		}
		pc.Close()
	}
}

// TestGuardsAreKept: they are put right like the rest, and written once.
func TestGuardsAreKept(t *testing.T) {
	newPair(t)
	guards := []Guard{{Peer: netip.MustParseAddr(client4), Listen: 179, MinTTL: 255}, {Peer: netip.MustParseAddr(client6), Listen: 179, MinTTL: 254}, {Listen: 179, MinTTL: 254}}
	check(t, Apply(some(), guards...))
	applied := handles(t)
	guards[0], guards[2] = guards[2], guards[0]
	check(t, Apply(some(), guards...))
	if got := handles(t); got != applied {
		t.Errorf("the same guards again:\n%s\nbefore:\n%s", got, applied)
	}
	want := listing(t)
	nftTool(t, "flush ruleset\n"+want)
	check(t, Apply(some(), guards...))
	if got := listing(t); got != want {
		t.Errorf("applied upon its own listing:\n%s\nwas:\n%s", got, want)
	}
	if !strings.Contains(want, "ip ttl < 255 drop") || !strings.Contains(want, "ip6 hoplimit < 254 drop") {
		t.Errorf("the guards are not there:\n%s", want)
	}
}
