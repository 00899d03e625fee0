package relay

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/internal/bgptest"
)

// bareLink joins the hub to a new namespace by link n, with link-local addresses
// alone: fe80::2 is ours on every link, fe80::1 the router's.
func bareLink(t testing.TB, r *rig, n int) *space {
	t.Helper()
	ns := newSpace(t)
	joinBare(t, r, ns, n)
	return ns
}

func joinBare(t testing.TB, r *rig, ns *space, n int) {
	t.Helper()
	name := fmt.Sprintf("v%d", n)
	bgptest.Link(t, r.ns, ns, name)
	for _, s := range []*space{r.ns, ns} { // none that the kernel makes
		must(t, s.Run(func() error { return writeSysctl("net/ipv6/conf/"+name+"/addr_gen_mode", "1") }))
	}
	r.ns.Up(t, name, "fe80::2/64")
	ns.Up(t, name, "fe80::1/64")
}

// linkPeer is the router of link n. IPv4 has a next hop of IPv6, too.
func linkPeer(n int) edge.Peer {
	p := peerN(n)
	p.Interface = fmt.Sprintf("v%d", n)
	p.Addr = netip.MustParseAddr("fe80::1%" + p.Interface)
	p.NextHop4 = netip.MustParseAddr("fd00:99::1")
	return p
}

// linkBird and linkFRR are routers with the address fe80::1.
func linkBird(t testing.TB, r *rig, ns *space, n int, session string) *bird {
	t.Helper()
	return newBird(t, r, n, birdOptions{
		ns: ns, local: "fe80::1", remote: "fe80::2", session: fmt.Sprintf("interface \"v%d\"; %s", n, session),
		channels: "ipv4 { import all; export none; extended next hop on; }; ipv6 { import all; export none; };",
		top:      "protocol kernel { ipv4 { export all; }; }\nprotocol kernel { ipv6 { export all; }; }",
	})
}

func linkFRR(t testing.TB, ns *space, n int, session ...string) *frr {
	t.Helper()
	return newFRRIn(t, ns, n, fmt.Sprintf("10.0.%d.2", n), "fe80::2", append([]string{fmt.Sprintf("interface v%d", n), "capability extended-nexthop"}, session...)...)
}

// leads waits until the kernel of a namespace sends a prefix to a gateway by an
// interface.
func leads(t testing.TB, ns *space, prefix netip.Prefix, via, link string) {
	t.Helper()
	l, err := ns.Netlink.LinkByName(link)
	must(t, err)
	eventually(t, func() string {
		routes, err := ns.Netlink.RouteList(nil, netlink.FAMILY_ALL)
		must(t, err)
		for _, r := range routes {
			if r.Dst == nil || r.Dst.String() != prefix.String() {
				continue
			}
			gw := fmt.Sprint(r.Gw)
			if r.Via != nil {
				gw = r.Via.(*netlink.Via).Addr.String()
			}
			if gw == via && r.LinkIndex == l.Attrs().Index {
				return ""
			}
		}
		return fmt.Sprintf("%s via %s on %s in %v", prefix, via, link, routes)
	})
}

// hop9 are routes whose next hop is on no link.
var hop9 = []route{{Prefix: net4, NextHop: "fd00:99::1"}, {Prefix: net6, NextHop: "fd00:99::1"}}

// TestOneAddressTwice: a BIRD and an FRR with one link-local address on two
// links, or two BIRDs that dial (FRR 8.4 does not dial link-local addresses:
// "Waiting for NHT"), with GTSM. Each is sent our address on its link, and the end
// of one session is none of the other.
func TestOneAddressTwice(t *testing.T) {
	for _, passive := range []bool{false, true} {
		t.Run(fmt.Sprintf("passive %v", passive), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 179)
			n1, n2 := bareLink(t, r, 1), bareLink(t, r, 2)
			if passive {
				linkBird(t, r, n1, 1, "ttl security on;")
				linkBird(t, r, n2, 2, "ttl security on;")
			} else {
				linkBird(t, r, n1, 1, "ttl security on; passive;")
				linkFRR(t, n2, 2, "ttl-security hops 1", "passive")
			}
			p, q := linkPeer(1), linkPeer(2)
			for _, one := range []*edge.Peer{&p, &q} {
				one.Passive, one.TTLSecurity = passive, 1
				r.add(*one).announce(hop9...)
			}
			for i, one := range []edge.Peer{p, q} {
				st := r.established(one)
				at := netip.MustParseAddr("fe80::2").WithZone(one.Interface)
				if st.Remote.ASN != one.ASN || st.Local.Addr() != at || (st.Local.Port() == 179) != passive {
					t.Errorf("%s: AS %d, local end %s", one.Addr, st.Remote.ASN, st.Local)
				}
				st = r.holds(one, net4, net6)
				for _, h := range st.Held {
					if h.NextHop != at {
						t.Errorf("%s is sent %s by %s", one.ID, h.Net, h.NextHop)
					}
				}
				for _, net := range []netip.Prefix{net4, net6} {
					leads(t, []*space{n1, n2}[i], net, "fe80::2", one.Interface)
				}
			}
			r.hub.Down(p.Addr, "cut")
			r.until(p, "", "cut")
			r.remove(p)
			if st := r.state(q); st.Session != "established" || st.Flaps != 0 {
				t.Errorf("the other session: %+v", st)
			}
		})
	}
}

// TestOneAddressTwoKeys: a TCP MD5 key belongs to a link, not to the address that
// several routers have. Both ends dial.
func TestOneAddressTwoKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	var spaces []*space
	for n := 1; n <= 4; n++ {
		spaces = append(spaces, bareLink(t, r, n))
	}
	// The first has also a session by global addresses, whose connections come by a
	// link that has a socket of its own.
	spaces[0].Up(t, "v1", "fd00:1::2/64")
	r.ns.Up(t, "v1", "fd00:1::1/64")
	newBird(t, r, 1, birdOptions{
		ns: spaces[0], local: "fe80::1", remote: "fe80::2", session: `interface "v1"; password "one";`,
		top: `protocol bgp five { local fd00:1::2 as 65105; neighbor fd00:1::1 as 4200000001; password "five"; connect delay time 1; ipv6 { import all; export none; }; }`,
	})
	linkFRR(t, spaces[1], 2, "password two")
	linkBird(t, r, spaces[2], 3, "")
	wrong := linkBird(t, r, spaces[3], 4, `password "one";`)
	one, two, none, four, five := linkPeer(1), linkPeer(2), linkPeer(3), linkPeer(4), peerN(5)
	five.Addr, five.Passive = netip.MustParseAddr("fd00:1::2"), true
	one.Passive, none.Passive = true, true
	r.addKeyed(five, "five")
	r.addKeyed(one, "one")
	r.addKeyed(two, "two")
	r.add(none)
	r.addKeyed(four, "four")
	for _, p := range []edge.Peer{one, two, none, five} {
		if st := r.established(p); st.Remote.ASN != p.ASN {
			t.Errorf("%s is AS %d", p.Addr, st.Remote.ASN)
		}
	}
	r.until(four, "", "no answer within 2s, as if the TCP MD5 keys differ")
	// Who has no key is not heard where one is needed.
	if _, err := dialTo(spaces[3], "fe80::1", "fe80::2", "v4"); err == nil {
		t.Error("a connection without key was taken")
	}
	// Another key, for one link alone.
	r.remove(four)
	r.addKeyed(four, "one")
	r.established(four)
	wrong.configure(birdOptions{local: "fe80::1", remote: "fe80::2", session: `interface "v4";`})
	wrong.birdc("configure")
	r.until(four, "", "the router")
	r.remove(four)
	r.add(four)
	r.established(four)
	for _, p := range []edge.Peer{one, two, none, five} {
		if st := r.state(p); st.Flaps != 0 || st.Session != "established" {
			t.Errorf("%s: %+v", p.Addr, st)
		}
	}
	// Where no key is left, no socket is.
	r.remove(one)
	r.remove(two)
	r.links(0)
}

// links waits until so many links have a socket of their own.
func (r *rig) links(want int) {
	r.t.Helper()
	eventually(r.t, func() string {
		r.hub.mu.Lock()
		defer r.hub.mu.Unlock()
		if n := len(r.hub.links); n != want {
			return fmt.Sprintf("%d sockets on links, want %d", n, want)
		}
		return ""
	})
}

// dialTo connects to the BGP port of an address by a link.
func dialTo(ns *space, from, to, link string) (net.Conn, error) {
	var conn net.Conn
	err := ns.Run(func() (err error) {
		d := dialer(func(fd int) error { return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, link) })
		d.LocalAddr = &net.TCPAddr{IP: netip.MustParseAddr(from).AsSlice()}
		ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
		defer cancel()
		conn, err = d.DialContext(ctx, "tcp", net.JoinHostPort(to, "179"))
		return err
	})
	return conn, err
}

// TestPortIsOurs: sockets on links open the port to no second edgebgp.
func TestPortIsOurs(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	bareLink(t, r, 1)
	p := linkPeer(1)
	p.Passive = true
	r.addKeyed(p, "key")
	r.links(1)
	if l, err := r.hub.listenOn(&listener{v6: true}); err == nil {
		t.Error("a second socket has the port")
		l.Close()
	}
}

// TestGTSMOnLinks: a socket on a link asks for the TTL that all who come by it
// keep to.
func TestGTSMOnLinks(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	bareLink(t, r, 1)
	bareLink(t, r, 2)
	p, global, bound := linkPeer(1), peerN(3), peerN(4)
	p.Passive, p.TTLSecurity = true, 1
	global.Addr, bound.Addr = netip.MustParseAddr("fd00:3::2"), netip.MustParseAddr("fd00:4::2")
	global.TTLSecurity, bound.Interface = 2, "v2"
	r.addKeyed(p, "key")
	r.links(1)
	for i, step := range []struct {
		do        func()
		all, link int
	}{
		{func() {}, 0, 255},
		{func() { r.add(global) }, 254, 254},
		{func() { r.add(bound) }, 0, 254},
		{func() { r.remove(global) }, 0, 255},
	} {
		step.do()
		r.hub.mu.Lock()
		for l, want := range map[*listener]int{r.hub.listeners[1]: step.all, r.hub.links["v1"]: step.link} {
			must(t, control(l, func(fd int) error {
				least, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MINHOPCOUNT)
				if least != want {
					t.Errorf("step %d, interface %q: TTL of at least %d, want %d", i, l.link, least, want)
				}
				return err
			}))
		}
		r.hub.mu.Unlock()
	}
}

// TestKeyOfAnInterface: the kernel has no keys by interface, other than by VRF. If
// it has one day, the sockets on links need not be.
func TestKeyOfAnInterface(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	bareLink(t, r, 1)
	sig := unix.TCPMD5Sig{Flags: unix.TCP_MD5SIG_FLAG_IFINDEX, Ifindex: int32(r.hub.index("v1")), Keylen: 3}
	sig.Addr.Family = unix.AF_INET6
	copy(sig.Addr.Data[6:], netip.MustParseAddr("fe80::1").AsSlice())
	copy(sig.Key[:], "key")
	must(t, control(r.hub.listeners[1], func(fd int) error {
		if err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG_EXT, &sig); err != unix.EINVAL {
			t.Errorf("a key for the interface %d: %v, want %v", sig.Ifindex, err, unix.EINVAL)
		}
		return nil
	}))
}

// TestLinkComesAndGoes: the socket on a link follows its interface.
func TestLinkComesAndGoes(t *testing.T) {
	t.Parallel()
	r := newRig(t, 179)
	p := linkPeer(1)
	p.Passive, p.Hold, p.Keepalive = true, 3*time.Second, time.Second
	r.addKeyed(p, "key")
	r.until(p, "active", "listen on interface v1: no such device")
	ns := bareLink(t, r, 1)
	linkBird(t, r, ns, 1, `password "key";`)
	r.established(p)
	l, err := r.ns.Netlink.LinkByName("v1")
	must(t, err)
	must(t, r.ns.Netlink.LinkDel(l))
	r.until(p, "active")
	joinBare(t, r, ns, 1)
	r.established(p)
	// So it does if only its name is another one.
	l, err = r.ns.Netlink.LinkByName("v1")
	must(t, err)
	must(t, r.ns.Netlink.LinkSetName(l, "v9"))
	r.until(p, "", "listen on interface v1: no such device")
	must(t, r.ns.Netlink.LinkSetName(l, "v1"))
	r.established(p)
}

// TestLinkLocalRefused: what is no address of a link, and the second of a kind.
func TestLinkLocalRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	r.add(linkPeer(1))
	for _, c := range []struct{ addr, link, want string }{
		{"fe80::1", "v1", "there is a peer fe80::1 already"},
		{"fe80::1%v1", "", "there is a peer fe80::1%v1 already"},
		{"fe80::1%v1", "v2", `is not the interface "v2"`},
		{"fe80::3", "", "link-local, and no interface"},
		{"fd00::1%v1", "v1", "zone of address"},
		{"fe80::1%v2", "v2", ""},
		{"fe80::1", "v3", ""},
	} {
		p := peerN(2)
		p.Addr, p.Interface = netip.MustParseAddr(c.addr), c.link
		cfg, _ := r.configOf(p)
		if err := r.hub.Add(cfg); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s on %q: %v, want %q", c.addr, c.link, err, c.want)
		}
	}
}
