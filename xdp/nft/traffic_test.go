package nft

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// seen are the MSS that either side of a connection has got from the other.
type seen struct{ client, box int }

func TestMSSIsLowered(t *testing.T) {
	for _, f := range []struct {
		name      string
		vip, node string
		plain     int // MSS of a link of 1500 bytes
	}{
		{"IPv4", vip4, node4, 1460},
		{"IPv6", vip6, node6, 1440},
	} {
		t.Run(f.name, func(t *testing.T) {
			p := newPair(t)
			connect := func(a string, port uint16, accepted <-chan *net.TCPConn) seen {
				t.Helper()
				c := p.dial(t, at(a, port))
				s := <-accepted
				defer s.Close()
				return seen{mss(t, c), mss(t, s)}
			}
			vip, node := map[uint16]<-chan *net.TCPConn{}, serve(t, at(f.node, 443))
			for _, port := range []uint16{443, 444} {
				vip[port] = serve(t, at(f.vip, port))
			}
			one := func(port uint16, p edge.Protocol, mss int) Service { return Service{at(f.vip, port), p, mss} }
			plain := seen{f.plain, f.plain}
			for _, c := range []struct {
				name      string
				rules     Rules
				want, all seen // of port 443, of port 444
			}{
				{"no rules", nil, plain, plain},
				{"one port", Rules{one(443, edge.TCP, 1300)}, seen{1300, 1300}, plain},
				{"all ports", Rules{one(0, edge.TCP, 1300)}, seen{1300, 1300}, seen{1300, 1300}},
				{"all protocols", Rules{one(0, edge.AnyProtocol, 1300)}, seen{1300, 1300}, seen{1300, 1300}},
				{"a port goes before all", Rules{one(443, edge.TCP, 1400), one(0, edge.TCP, 1300)}, seen{1400, 1400}, seen{1300, 1300}},
				{"a port below all", Rules{one(443, edge.TCP, 1200), one(0, edge.TCP, 1300)}, seen{1200, 1200}, seen{1300, 1300}},
				{"the lowest of two", Rules{one(443, edge.TCP, 1400), one(443, edge.TCP, 1350), one(443, edge.TCP, 1390)}, seen{1350, 1350}, plain},
				{"never raised", Rules{one(0, edge.TCP, 9000)}, plain, plain},
				{"no clamp", Rules{one(443, edge.TCP, 0)}, plain, plain},
				{"UDP has none", Rules{one(443, edge.UDP, 1300), one(0, edge.UDP, 1300)}, plain, plain},
			} {
				check(t, Apply(c.rules))
				if got := connect(f.vip, 443, vip[443]); got != c.want {
					t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
				}
				if got := connect(f.vip, 444, vip[444]); got != c.all {
					t.Errorf("%s, another port: %+v, want %+v", c.name, got, c.all)
				}
				if got := connect(f.node, 443, node); got != plain {
					t.Errorf("%s, another address: %+v, want %+v", c.name, got, plain)
				}
			}
		})
	}
}

// TestSmallMSSStays: a side that announces less than the limit is not given
// more, each side for itself.
func TestSmallMSSStays(t *testing.T) {
	p := newPair(t)
	check(t, Apply(vips(443, edge.TCP, 1300)))
	accepted := map[string]<-chan *net.TCPConn{vip4: serve(t, at(vip4, 443)), vip6: serve(t, at(vip6, 443))}
	advertise := func(ns netns.NsHandle, of, via string, mss int) {
		in(t, ns, func() {
			a := netip.MustParseAddr(of)
			r := &netlink.Route{Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, AdvMSS: mss, LinkIndex: up(t, "up0").Attrs().Index}
			if via != "" {
				r.Gw = net.ParseIP(via)
			}
			check(t, netlink.RouteReplace(r))
		})
	}
	for _, c := range []struct{ vip, node, client string }{{vip4, node4, client4}, {vip6, node6, client6}} {
		for _, want := range []seen{{1300, 1290}, {1290, 1300}, {600, 700}} {
			advertise(p.client, c.vip, c.node, want.box)
			advertise(p.box, c.client, "", want.client)
			got := seen{mss(t, p.dial(t, at(c.vip, 443))), 0}
			s := <-accepted[c.vip]
			got.box = mss(t, s)
			s.Close()
			if got != want {
				t.Errorf("%s: %+v, want %+v", c.vip, got, want)
			}
		}
	}
}

// TestFromTheBox: a connection that a box opens from a VIP of all ports has its
// answers come by the tunnel too.
func TestFromTheBox(t *testing.T) {
	p := newPair(t)
	check(t, Apply(vips(0, edge.AnyProtocol, 1300)))
	for vip, client := range map[string]string{vip4: client4, vip6: client6} {
		var accepted <-chan *net.TCPConn
		in(t, p.client, func() { accepted = serve(t, at(client, 7000)) })
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(at(vip, 0)), Timeout: 30 * time.Second}
		c, err := d.Dial("tcp", at(client, 7000).String())
		check(t, err)
		s := <-accepted
		if got, want := (seen{mss(t, s), mss(t, c.(*net.TCPConn))}), (seen{1300, 1300}); got != want {
			t.Errorf("from %s: %+v, want %+v", vip, got, want)
		}
		c.Close()
		s.Close()
	}
}

// kind is what a tracked flow is.
type kind struct {
	addr  string
	proto uint8
}

// tracked are the flows that the box tracks, by the address that is asked.
func tracked(t *testing.T) map[kind]bool {
	t.Helper()
	out := map[kind]bool{}
	for _, f := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, f)
		check(t, err)
		for _, flow := range flows {
			a, _ := netip.AddrFromSlice(flow.Forward.DstIP)
			out[kind{a.Unmap().String(), flow.Forward.Protocol}] = true
			a, _ = netip.AddrFromSlice(flow.Forward.SrcIP)
			out[kind{a.Unmap().String(), flow.Forward.Protocol}] = true
		}
	}
	return out
}

// TestVIPTrafficIsNotTracked: TCP, UDP, fragments and pings, in a namespace whose
// firewall tracks.
func TestVIPTrafficIsNotTracked(t *testing.T) {
	p := newPair(t)
	nftTool(t, operators)
	for _, a := range []string{vip4, vip6, node4, node6} {
		serve(t, at(a, 443))
		echoUDP(t, at(a, 443))
	}
	var all []kind
	for _, a := range []string{vip4, node4, vip6, node6} {
		ping := uint8(unix.IPPROTO_ICMP)
		if at(a, 0).Addr().Is6() {
			ping = unix.IPPROTO_ICMPV6
		}
		for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, ping} {
			all = append(all, kind{a, proto})
		}
	}
	for _, c := range []struct {
		name string
		do   func() error
		vips bool // are tracked
	}{
		{"without rules", func() error { return nil }, true},
		{"with rules for one port", func() error { return Apply(vips(443, edge.TCP, 1400)) }, false},
		{"with rules for all", func() error { return Apply(vips(0, edge.AnyProtocol, 0)) }, false},
		{"removed", Remove, true},
	} {
		check(t, c.do())
		check(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
		for _, a := range []string{vip4, vip6, node4, node6} {
			p.dial(t, at(a, 443))
			p.askUDP(t, at(a, 443), 100)
			p.askUDP(t, at(a, 443), 4000) // in fragments
			p.ping(t, at(a, 0).Addr())
			if err := p.ask(t, at(a, 9), 100); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Fatalf("%s: where nobody listens: %v", c.name, err) // an ICMP error is wanted
			}
			fromBox(t, at(a, 443))
		}
		got := tracked(t)
		for _, k := range all {
			isVIP := k.addr == vip4 || k.addr == vip6
			if want := !isVIP || c.vips; got[k] != want {
				t.Errorf("%s: traffic of %s, protocol %d, is tracked: %v", c.name, k.addr, k.proto, got[k])
			}
		}
	}
}

// fromBox connects from an address of the box that is no VIP.
func fromBox(t *testing.T, to netip.AddrPort) {
	t.Helper()
	node := node4
	if to.Addr().Is6() {
		node = node6
	}
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(at(node, 0)), Timeout: 30 * time.Second}
	c, err := d.Dial("tcp", to.String())
	check(t, err)
	c.Close()
}

// echoUDP answers on a port of the box until the test ends.
func echoUDP(t *testing.T, to netip.AddrPort) {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(to))
	check(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { c.Close(); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			c.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
}

// ask sends a datagram of n bytes from the client and waits for an answer, or
// for an ICMP error.
func (p pair) ask(t *testing.T, to netip.AddrPort, n int) error {
	t.Helper()
	var c net.Conn
	var err error
	in(t, p.client, func() { c, err = net.Dial("udp", to.String()) })
	check(t, err)
	defer c.Close()
	check(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = c.Write(make([]byte, n))
	check(t, err)
	got, err := c.Read(make([]byte, n+1))
	if os.IsTimeout(err) {
		t.Fatalf("%s does not answer", to)
	}
	if err == nil && got != n {
		t.Fatalf("%s answers with %d bytes, want %d", to, got, n)
	}
	return err
}

func (p pair) askUDP(t *testing.T, to netip.AddrPort, n int) {
	t.Helper()
	check(t, p.ask(t, to, n))
}

func (p pair) ping(t *testing.T, to netip.Addr) {
	t.Helper()
	network, from := "ip4:icmp", client4
	var typ, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if to.Is6() {
		network, from = "ip6:ipv6-icmp", client6
		typ, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var c *icmp.PacketConn
	var err error
	in(t, p.client, func() { c, err = icmp.ListenPacket(network, from) })
	check(t, err)
	defer c.Close()
	check(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	b, err := (&icmp.Message{Type: typ, Body: &icmp.Echo{ID: 1, Seq: 1, Data: make([]byte, 8)}}).Marshal(nil)
	check(t, err)
	_, err = c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()})
	check(t, err)
	for buf := make([]byte, 1500); ; {
		n, who, err := c.ReadFrom(buf)
		check(t, err)
		m, err := icmp.ParseMessage(typ.Protocol(), buf[:n])
		check(t, err)
		if m.Type == reply && who.String() == to.String() {
			return
		}
	}
}

// TestNoPacketSeesHalfATable changes the rules while connections are opened: each
// one meets the MSS of before or of after, and none is tracked.
func TestNoPacketSeesHalfATable(t *testing.T) {
	p := newPair(t)
	nftTool(t, operators)
	serveAndClose(t, at(vip4, 443))
	check(t, Apply(vips(443, edge.TCP, 1300)))
	type result struct {
		mss map[int]int
		err error
	}
	stop, results := make(chan struct{}), make(chan result, 1)
	go func() {
		r := result{mss: map[int]int{}}
		defer func() { results <- r }()
		runtime.LockOSThread() // and is not given back: it stays in the namespace
		if r.err = netns.Set(p.client); r.err != nil {
			return
		}
		for {
			select {
			case <-stop:
				return
			default:
			}
			c, err := net.DialTimeout("tcp", at(vip4, 443).String(), 30*time.Second)
			if err != nil {
				r.err = err
				return
			}
			r.mss[mss(t, c.(*net.TCPConn))]++
			c.Close()
		}
	}()
	for i := range 100 {
		m := 1300 - i%2*100
		check(t, Apply(append(vips(443, edge.TCP, m), vips(8443, edge.TCP, 1000+i)...)))
	}
	close(stop)
	r := <-results
	check(t, r.err)
	t.Logf("connections by MSS: %v", r.mss)
	for m := range r.mss {
		if m != 1200 && m != 1300 {
			t.Errorf("%d connections had an MSS of %d", r.mss[m], m)
		}
	}
	if r.mss[1200] == 0 || r.mss[1300] == 0 {
		t.Errorf("not both rules were met: %v", r.mss)
	}
	if got := tracked(t); got[kind{vip4, unix.IPPROTO_TCP}] {
		t.Errorf("a connection was tracked")
	}
}

// serveAndClose accepts and closes until the test ends.
func serveAndClose(t *testing.T, to netip.AddrPort) {
	t.Helper()
	ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(to))
	check(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { ln.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
}
