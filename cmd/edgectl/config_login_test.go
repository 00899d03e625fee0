package main

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/catchment-dev/edge/image/setup/confirm"
)

const tcpTable = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100000A:0016 097100CB:C350 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0 20 4 30 10 -1
   1: 0100000A:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 20 4 30 10 -1
   2: 0100000A:01BB 097100CB:C350 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0 20 4 30 10 -1
   3: 0000000000000000FFFF00000200000A:0016 0000000000000000FFFF0000097100CB:C350 01 00000024:00000000 01:000000C8 00000003 0
   4: B80D0120000000000000000001000000:0016 B80D0120000000000000000009000000:C350 01 00000000:00000000 04:000000C8 00000003 0
   5: 0100000A:0016 0A7100CB:C350 01 00000024:00000000 01:00000014 00000000 0
   6: nonsense:0016 x 01 0 01:0 1
   7: 01:0016 01:0016 01 0 01:0 1
   8: 0100000A:0016 0A7100CB:C351 01
`

func TestParseTCP(t *testing.T) {
	var got []string
	for _, c := range parseTCP(tcpTable) {
		text := c.String()
		if c.unanswered {
			text += " unanswered"
		}
		got = append(got, text)
	}
	want := []string{
		"203.0.113.9:50000 10.0.0.1:22", "203.0.113.9:50000 10.0.0.1:443", "203.0.113.9:50000 10.0.0.2:22 unanswered",
		"[2001:db8::9]:50000 [2001:db8::1]:22", "203.0.113.10:50000 10.0.0.1:22",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func FuzzParseTCP(f *testing.F) {
	f.Add(tcpTable)
	f.Add("0: 0100000A:0016 097100CB:C350 01 0 01: 1")
	f.Fuzz(func(t *testing.T, table string) {
		for _, c := range parseTCP(table) {
			if again, ok := connOf(c.String()); !ok || !again.same(c) {
				t.Errorf("%s does not name itself: %v", c, again)
			}
		}
	})
}

func TestSSHLogins(t *testing.T) {
	for connection, want := range map[string][2]string{
		"203.0.113.9 50000 10.0.0.1 2222":    {"10.0.0.1:2222", "203.0.113.9:50000 10.0.0.1:2222"},
		"2001:db8::9 50000 2001:db8::1 2222": {"[2001:db8::1]:2222", "[2001:db8::9]:50000 [2001:db8::1]:2222"},
		"fe80::9%eth0 5 fe80::1%eth0 2222":   {"[fe80::1%eth0]:2222", "[fe80::9%eth0]:5 [fe80::1%eth0]:2222"},
	} {
		l := sshLogins(connection)
		if !slices.Equal(l.at, want[:1]) || !slices.Equal(l.watched, want[1:]) || len(l.others) > 0 {
			t.Errorf("%s: %+v", connection, l)
		}
	}
	inNamespace(t)
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, connection := range []string{"", "x", "203.0.113.9 50000 10.0.0.1 70000"} {
		if l := sshLogins(connection); len(l.at)+len(l.watched)+len(l.others) > 0 {
			t.Errorf("%q: %+v", connection, l)
		}
	}
	// As sudo leaves it: all that are there.
	ln, err := net.Listen("tcp", "127.0.0.1:22")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var names []string
	for range mostWatched + 2 {
		c, err := net.Dial("tcp", "127.0.0.1:22")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		names = append(names, c.LocalAddr().String()+" 127.0.0.1:22")
	}
	l := sshLogins("")
	if !slices.Equal(l.at, []string{"127.0.0.1:22"}) || len(l.watched) != mostWatched || len(l.others) != 2 {
		t.Errorf("%+v", l)
	}
	for _, name := range append(l.watched, l.others...) {
		if !slices.Contains(names, name) {
			t.Errorf("%s is none of %q", name, names)
		}
	}
	one := strings.Fields(strings.ReplaceAll(names[0], ":", " "))
	if l := sshLogins(strings.Join(one, " ")); !slices.Equal(l.watched, names[:1]) || len(l.others) != mostWatched+1 {
		t.Errorf("of one that is known: %+v", l)
	}
}

// wire is a box and a client with a router between them, each in a network namespace.
type wire struct {
	t                   *testing.T
	box, router, client netns.NsHandle
}

func newWire(t *testing.T) *wire {
	t.Helper()
	inNamespace(t)
	p := &wire{t: t}
	for _, ns := range []*netns.NsHandle{&p.client, &p.router, &p.box} {
		var err error
		if *ns, err = netns.New(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ns.Close() })
	}
	p.veth(p.box, p.router, "10.1.0.1/24", "10.1.0.254/24")
	p.veth(p.client, p.router, "10.2.0.9/24", "10.2.0.254/24")
	p.in(p.router)
	p.check(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	p.route(p.client, "10.2.0.254")
	p.route(p.box, "10.1.0.254")
	return p
}

func (p *wire) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *wire) in(ns netns.NsHandle) {
	p.t.Helper()
	p.check(netns.Set(ns))
}

// veth joins two of them. The name is that of the far end.
func (p *wire) veth(one, router netns.NsHandle, addr, far string) {
	p.t.Helper()
	p.in(router)
	name := strings.ReplaceAll(strings.TrimSuffix(far, "/24"), ".", "-")
	p.check(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(one)}))
	for ns, is := range map[netns.NsHandle][2]string{router: {name, far}, one: {"eth0", addr}} {
		p.in(ns)
		link, err := netlink.LinkByName(is[0])
		p.check(err)
		a, err := netlink.ParseAddr(is[1])
		p.check(err)
		p.check(netlink.AddrAdd(link, a))
		p.check(netlink.LinkSetUp(link))
	}
}

func (p *wire) route(ns netns.NsHandle, gateway string) {
	p.t.Helper()
	p.in(ns)
	p.check(netlink.RouteReplace(defaultRoute(gateway)))
}

func defaultRoute(gateway string) *netlink.Route {
	return &netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: net.ParseIP(gateway)}
}

// forwards has the router pass packets on, or lose them all.
func (p *wire) forwards(yes string) {
	p.t.Helper()
	p.in(p.router)
	p.check(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte(yes), 0))
	p.in(p.box)
}

// until polls what the box sees of the logins.
func (p *wire) until(what string, r confirm.Rules, is func(confirm.Facts) bool) {
	p.t.Helper()
	var f confirm.Facts
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-tick.C {
		f = confirm.Facts{}
		if lookAtLogins(r, &f); is(f) {
			return
		}
	}
	p.t.Fatalf("not in time: %s; %+v", what, f)
}

// TestLostGateway: a box that can still reach itself sees by the connection of the
// operator that the way to him is lost, and that it is back.
func TestLostGateway(t *testing.T) {
	p := newWire(t)
	ln, err := net.Listen("tcp", "10.1.0.1:22")
	p.check(err)
	defer ln.Close()
	dial := func() (server, client net.Conn) {
		p.in(p.client)
		client, err := net.Dial("tcp", "10.1.0.1:22")
		p.check(err)
		t.Cleanup(func() { client.Close() })
		p.in(p.box)
		server, err = ln.Accept()
		p.check(err)
		t.Cleanup(func() { server.Close() })
		return server, client
	}
	server, client := dial()
	name := client.LocalAddr().String() + " 10.1.0.1:22"
	r := confirm.Rules{Logins: []string{name}}
	send := func() {
		_, err := server.Write([]byte("generation 2 is in force\n"))
		p.check(err)
	}
	calm := func(f confirm.Facts) bool {
		return slices.Equal(f.Open, r.Logins) && len(f.Stuck)+len(f.NoRoute) == 0 && !f.Fresh
	}
	send()
	p.until("all is well", r, calm)

	p.forwards("0")
	p.until("nothing is sent: nothing is known", r, calm)
	send()
	p.until("it hangs", r, func(f confirm.Facts) bool { return slices.Equal(f.Stuck, r.Logins) && len(f.NoRoute) == 0 })
	p.forwards("1")
	p.until("the way is back", r, calm)

	p.check(netlink.RouteDel(defaultRoute("10.1.0.254")))
	p.until("no route", r, func(f confirm.Facts) bool { return slices.Equal(f.NoRoute, r.Logins) })
	p.route(p.box, "10.1.0.254")
	p.until("a route again", r, func(f confirm.Facts) bool { return len(f.NoRoute) == 0 })

	// Another gateway that does not exist: the neighbour never answers.
	p.route(p.box, "10.1.0.77")
	send()
	p.until("a gateway that is not there", r, func(f confirm.Facts) bool { return slices.Equal(f.Stuck, r.Logins) })
	p.route(p.box, "10.1.0.254")
	p.until("the right one again", r, calm)

	// Somebody comes in anew, which is no news of those who were there before, and
	// none of the box itself.
	_, second := dial()
	p.until("a new login", r, func(f confirm.Facts) bool { return f.Fresh && slices.Equal(f.Open, r.Logins) })
	r.Others = []string{second.LocalAddr().String() + " 10.1.0.1:22"}
	lo, err := netlink.LinkByName("lo")
	p.check(err)
	p.check(netlink.LinkSetUp(lo))
	own, err := net.Dial("tcp", "10.1.0.1:22")
	p.check(err)
	defer own.Close()
	p.until("the others are known", r, calm)

	client.Close()
	server.Close()
	p.until("it has ended", r, func(f confirm.Facts) bool { return len(f.Open) == 0 })
	if !routed(tcpConn{local: netip.MustParseAddrPort("192.0.2.1:22"), remote: netip.MustParseAddrPort("192.0.2.2:1")}) {
		t.Error("an address that the box does not have is taken for a route that is lost")
	}
}
