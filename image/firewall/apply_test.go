package firewall

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

func TestApplyAndRemove(t *testing.T) {
	p := newPair(t)
	const others = "table inet mine { chain c { type filter hook input priority 5; policy accept; }; }\ntable ip edge_host { chain c { }; }\n"
	run(t, others, "nft", "-f", "-")
	before := run(t, "", "nft", "-a", "list", "ruleset")
	there := func(want bool) {
		t.Helper()
		got, err := Applied()
		check(t, err)
		if got != want {
			t.Fatalf("the table is there: %v", got)
		}
	}
	check(t, Remove()) // of nothing
	there(false)
	check(t, busy(t).Apply())
	there(true)
	listed := listing(t)
	check(t, p.send(t, packet{"tcp", "203.0.113.9", "10.1.0.2:22", 0}, refusedManagement))
	stood := counts(t)[refusedManagement]
	check(t, busy(t).Apply())
	if got := counts(t)[refusedManagement]; got < stood {
		t.Errorf("the counter went from %d to %d", stood, got)
	}
	run(t, "", "nft", "reset", "counters", "table", "inet", Table)
	if got := listing(t); got != listed {
		t.Errorf("applied again:\n%s\nwas:\n%s", got, listed)
	}
	run(t, "delete chain inet edge_host forward\n", "nft", "-f", "-")
	check(t, busy(t).Apply())
	check(t, Build().Apply())
	if strings.Contains(listing(t), "198.51.100.10") {
		t.Error("the rules of rescue have VIPs")
	}
	check(t, Remove())
	there(false)
	if got := run(t, "", "nft", "-a", "list", "ruleset"); got != before {
		t.Errorf("others' tables:\n%s\nwere:\n%s", got, before)
	}
}

// TestUnprivileged: who may not is told so.
func TestUnprivileged(t *testing.T) {
	newPair(t)
	check(t, busy(t).Apply())
	// Of this thread only; it is thrown away with the test.
	hdr, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	var have [2]unix.CapUserData
	check(t, unix.Capget(&hdr, &have[0]))
	none = have
	none[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	check(t, unix.Capset(&hdr, &none[0]))
	defer func() { check(t, unix.Capset(&hdr, &have[0])) }()
	if err := busy(t).Apply(); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("without CAP_NET_ADMIN: %v", err)
	}
}

// TestLargest: all that a configuration may list fits into one batch.
func TestLargest(t *testing.T) {
	newPair(t)
	c := reference(t)
	for i := range 512 {
		vip := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 443)
		c.Fleet.Services = append(c.Fleet.Services, edge.Service{VIP: vip, Protocol: edge.TCP})
	}
	for i := range 2048 {
		a := netip.AddrFrom4([4]byte{10, 7, byte(i >> 8), byte(i)})
		c.Fleet.Nodes = append(c.Fleet.Nodes, edge.Node{Addr4: a, Gossip: netip.AddrPortFrom(a, 7946)})
	}
	for i := range 256 {
		c.Local.Speaker.Peers = append(c.Local.Speaker.Peers, edge.Peer{Addr: netip.AddrFrom4([4]byte{10, 8, 0, byte(i)}), TTLSecurity: i % 4, Interface: fmt.Sprintf("if%d", i%7)})
	}
	for i := range 4096 {
		c.Local.HostFirewall.ManagementNets = append(c.Local.HostFirewall.ManagementNets, netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(i >> 7), byte(i << 1), 0}), 24))
	}
	check(t, Build(c, reference(t)).Apply())
	if got := strings.Count(listing(t), ". tcp . 443"); got != 513 {
		t.Errorf("%d services, want 513", got)
	}
}

// TestOwnConnections: what the box begins is answered.
func TestOwnConnections(t *testing.T) {
	p := newPair(t)
	check(t, busy(t).Apply())
	p.in(t, p.outside, func() { serve(t, "10.1.0.1:80", "10.0.0.1:179") })
	for _, to := range []string{"10.1.0.1:80", "10.0.0.1:179"} {
		c, err := net.DialTimeout("tcp", to, 5*time.Second)
		check(t, err)
		say(t, c)
		c.Close()
	}
	u, err := net.Dial("udp", "10.1.0.1:80")
	check(t, err)
	defer u.Close()
	say(t, u)
	ping(t, "ip4:icmp", "10.1.0.1", 0, echo(1))
	ping(t, "ip6:ipv6-icmp", "fd00:1::1", 129, []byte{128, 0, 0, 0, 0, 1, 0, 1})
}

// ping waits for an answer of the type.
func ping(t *testing.T, network, to string, kind byte, request []byte) {
	t.Helper()
	c, err := net.Dial(network, to)
	check(t, err)
	defer c.Close()
	check(t, c.SetDeadline(time.Now().Add(5*time.Second)))
	_, err = c.Write(request)
	check(t, err)
	for buf := make([]byte, 256); ; {
		n, err := c.Read(buf)
		check(t, err)
		at := 0
		if buf[0]>>4 == 4 { // over IPv4 its header comes first
			at = 20
		}
		if n > at && buf[at] == kind {
			return
		}
	}
}

// serve answers on the addresses, TCP and UDP, with what it is sent.
func serve(t *testing.T, addrs ...string) {
	t.Helper()
	for _, a := range addrs {
		ln, err := net.Listen("tcp", a)
		check(t, err)
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go io.Copy(c, c)
			}
		}()
		pc, err := net.ListenPacket("udp", a)
		check(t, err)
		t.Cleanup(func() { pc.Close() })
		go func() {
			buf := make([]byte, 2048)
			for {
				n, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = pc.WriteTo(buf[:n], from)
			}
		}()
	}
}

// say sends a line and waits until it comes back.
func say(t *testing.T, c net.Conn) {
	t.Helper()
	check(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	_, err := c.Write([]byte("hello\n"))
	check(t, err)
	line, err := bufio.NewReader(c).ReadString('\n')
	check(t, err)
	if line != "hello\n" {
		t.Fatalf("%q came back", line)
	}
}

// TestReplaceUnderTraffic: rules are replaced all the time, by others that let the
// same in; no packet of it is lost, and no connection cut.
func TestReplaceUnderTraffic(t *testing.T) {
	replaceUnderTraffic(t, 80, busy(t), busy(t, "management_nets: [10.0.0.0/8", "management_nets: [0.0.0.0/0"))
}

// TestRescueUnderTraffic: a rescue that begins cuts neither who manages the box nor
// what it still serves, and neither does one that ends.
func TestRescueUnderTraffic(t *testing.T) {
	c := busyConfig(t)
	replaceUnderTraffic(t, 20, Build(c), Rescue(c))
}

func replaceUnderTraffic(t *testing.T, times int, rules ...Ruleset) {
	t.Helper()
	p := newPair(t)
	check(t, rules[0].Apply())
	serve(t, "198.51.100.10:443", "10.1.0.2:22", "198.51.100.53:53")
	p.in(t, p.outside, func() { serve(t, "10.1.0.1:80") })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	own, err := net.Dial("udp", "10.1.0.1:80") // tracked: the box began it
	check(t, err)
	flows := []net.Conn{own}
	p.in(t, p.outside, func() {
		for _, f := range [][2]string{{"tcp", "198.51.100.10:443"}, {"tcp", "10.1.0.2:22"}, {"udp", "198.51.100.53:53"}} {
			c, err := net.DialTimeout(f[0], f[1], 5*time.Second)
			check(t, err)
			flows = append(flows, c)
		}
	})
	errs := make(chan error, len(flows))
	said := make([]int, len(flows))
	for i, c := range flows {
		go func() { errs <- chat(ctx, c, &said[i]) }()
	}
	for i := range times {
		check(t, rules[i%2].Apply())
	}
	stop()
	for range flows {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for i, n := range said {
		if n < times {
			t.Errorf("flow %d went back and forth %d times only", i, n)
		}
	}
	for name, n := range counts(t) {
		if n != 0 && name != refusedBroadcast && name != refusedICMP {
			t.Errorf("%s: %d", name, n)
		}
	}
}

// chat sends one message after the other, each once the one before is back: one that
// is lost is an error, also of TCP, whose retransmission takes longer.
func chat(ctx context.Context, c net.Conn, said *int) error {
	defer c.Close()
	buf := make([]byte, 64)
	for ctx.Err() == nil {
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("ping")); err != nil {
			return err
		}
		if _, err := c.Read(buf); err != nil {
			return fmt.Errorf("after %d messages to %s: %w", *said, c.RemoteAddr(), err)
		}
		*said++
	}
	return nil
}

// TestFloodIsNotTracked: what anybody can send leaves no entry behind, let in or
// refused.
func TestFloodIsNotTracked(t *testing.T) {
	p := newPair(t)
	check(t, busy(t, "management_nets: [10.0.0.0/8, \"fd00::/8\"]", "management_nets: []").Apply())
	before := tracked(t)
	p.in(t, p.outside, func() {
		for _, to := range []string{"198.51.100.10:443", "10.1.0.2:22", "10.1.0.2:7946", "10.1.0.2:179", "10.1.0.2:8080", "198.51.100.53:9"} {
			for range 300 {
				fd := p.knock(t, packet{network: "tcp", from: "203.0.113.9", to: to})
				unix.Close(fd)
			}
		}
		u, err := net.ListenPacket("udp", "203.0.113.9:0")
		check(t, err)
		defer u.Close()
		for port := range 300 {
			for _, ip := range []net.IP{net.IPv4(198, 51, 100, 53), net.IPv4(10, 1, 0, 2)} {
				_, err := u.WriteTo([]byte("x"), &net.UDPAddr{IP: ip, Port: 1 + port})
				if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
					t.Fatal(err)
				}
			}
		}
	})
	check(t, p.send(t, packet{"tcp", "203.0.113.9", "10.1.0.2:8080", 0}, refusedRest)) // the last of them has come
	if after := tracked(t); after > before+5 {
		t.Errorf("%d entries, before the flood %d", after, before)
	}
}

// tracked is how many entries connection tracking has in this namespace.
func tracked(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/thread-self/net/stat/nf_conntrack")
	check(t, err)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	n, err := strconv.ParseInt(strings.Fields(lines[1])[0], 16, 64)
	check(t, err)
	return int(n)
}

// TestForward: the box, which edged makes a router, is none for others.
func TestForward(t *testing.T) {
	p := newPair(t)
	sysctl(t, "ipv4/ip_forward", "1")
	check(t, busy(t).Apply())
	p.in(t, p.outside, func() { run(t, "", "ip", "route", "add", "192.0.2.0/24", "via", "10.1.0.2") })
	check(t, p.send(t, packet{"udp", "203.0.113.9", "192.0.2.1:53", 0}, refusedForward))
}

// TestRescue: without a configuration ssh is reached, and nothing else.
func TestRescue(t *testing.T) {
	p := newPair(t)
	sysctl(t, "ipv4/icmp_ratelimit", "0")
	check(t, Build().Apply())
	for _, one := range []packet{{"tcp", "203.0.113.9", "10.1.0.2:22", 0}, {"tcp", "169.254.9.9", "169.254.77.1:22", 0}, {"tcp6", "fe80::9%out0", "[fe80::2%out0]:22", 0}} {
		check(t, p.send(t, one, ""))
	}
	check(t, p.send(t, packet{"tcp", "203.0.113.9", "10.1.0.2:9180", 0}, refusedRest))
	check(t, p.send(t, packet{"tcp", "203.0.113.9", "10.1.0.2:179", 0}, refusedRest))
}

// TestRescueBeginsAndEnds: who is on the link reaches ssh while the box is in rescue,
// and at no other time; what is still served is let in until it is not.
func TestRescueBeginsAndEnds(t *testing.T) {
	p := newPair(t)
	sysctl(t, "ipv4/icmp_ratelimit", "0")
	c := busyConfig(t)
	ssh, bgp, gossip := packet{"tcp", "203.0.113.9", "10.1.0.2:22", 0}, packet{"tcp", "10.1.0.1", "10.1.0.2:179", 255}, packet{"udp", "10.2.0.2", "10.1.0.2:7946", 0}
	link4, link6 := packet{"tcp", "169.254.9.9", "169.254.77.1:22", 0}, packet{"tcp6", "fe80::9%out0", "[fe80::2%out0]:22", 0}
	vip, other := packet{"tcp", "203.0.113.9", "198.51.100.10:443", 0}, packet{"tcp", "203.0.113.9", "198.51.100.10:8080", 0}
	configured := map[string][]packet{"": {vip, bgp, gossip}, refusedManagement: {ssh, link4, link6}, refusedVIP: {other}}
	for _, step := range []struct {
		name  string
		rules Ruleset
		want  map[string][]packet
	}{
		{"configured", Build(c), configured},
		{"the rescue begins", Rescue(c), map[string][]packet{"": {vip, bgp, gossip, ssh, link4, link6}, refusedVIP: {other}}},
		{"nothing is served any more", Rescue(), map[string][]packet{"": {ssh, link4, link6}, refusedRest: {vip, bgp, gossip, other}}},
		{"the rescue ends", Build(c), configured},
	} {
		check(t, step.rules.Apply())
		for counter, all := range step.want {
			for _, one := range all {
				if err := p.send(t, one, counter); err != nil {
					t.Errorf("%s: %s: %v", step.name, one, err)
				}
			}
		}
	}
}

// TestUnion: while a change is brought about, what either configuration needs is let
// in; the first says how the box is managed.
func TestUnion(t *testing.T) {
	p := newPair(t)
	sysctl(t, "ipv4/icmp_ratelimit", "0")
	next := reference(t, "vip: 198.51.100.10", "vip: 198.51.100.11", "address: 10.1.0.1\n", "address: 10.1.0.7\n", "management_nets: [10.0.0.0/8", "management_nets: [192.168.0.0/16")
	check(t, Build(next, reference(t, "    listen: 0\n", "    listen: 179\n")).Apply())
	for _, one := range []packet{{"tcp", "203.0.113.9", "198.51.100.10:443", 0}, {"tcp", "10.1.0.1", "10.1.0.2:179", 255}, {"tcp", "192.168.7.7", "10.1.0.2:22", 0}} {
		check(t, p.send(t, one, ""))
	}
	check(t, p.send(t, packet{"tcp", "10.0.0.1", "10.1.0.2:22", 0}, refusedManagement))
	if got := listing(t); !strings.Contains(got, "198.51.100.11 . tcp . 443") || !strings.Contains(got, "10.1.0.7 . \"eth0\"") {
		t.Errorf("what is new is not let in:\n%s", got)
	}
}
