package bgp_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/internal/bgptest"
)

// uplink joins the speaker to a new namespace by link n, with link-local addresses
// alone: fe80::2 is the speaker's on every link, fe80::1 the router's. The kernel
// adds one of its own to each, which it prefers once that is known to be unique.
func uplink(t testing.TB, s *speaker, n int) *space {
	t.Helper()
	ns, name := newSpace(t), fmt.Sprintf("v%d", n)
	bgptest.Link(t, s.ns, ns, name)
	s.ns.Up(t, name, "fe80::2/64")
	ns.Up(t, name, "fe80::1/64")
	return ns
}

// linkPeer is the router of link n.
func linkPeer(s *speaker, n int) edge.Peer {
	p := peerN(n)
	p.Interface = fmt.Sprintf("v%d", n)
	p.Addr = netip.MustParseAddr("fe80::1%" + p.Interface)
	p.LocalAddr = netip.MustParseAddr("fe80::2")
	p.NextHop4 = netip.MustParseAddr("2001:db8:ffff::1")
	p.PasswordFile, p.TTLSecurity = s.key(p.Interface, "key-of-"+p.Interface), 1
	p.BFD = &edge.BFD{MinTx: 300 * time.Millisecond, MinRx: 300 * time.Millisecond, Multiplier: 10}
	return p
}

// linkBird and linkFRR are the routers of uplinks. FRR 8.4 does not dial a
// link-local address, and its bgpd asks for BFD with one without naming the
// interface, which comes to nothing; so bfdd is told.
func linkBird(t testing.TB, ns *space, n int) *bird {
	t.Helper()
	b := &bird{t: t, ns: ns, dir: tempDir(t), n: n}
	b.configure(birdOptions{
		local: "fe80::1", remote: "fe80::2", channel: "", families: []string{"ipv6", "ipv4 { extended next hop on; import all; export none; };\n#"},
		session: fmt.Sprintf("interface \"v%[1]d\"; password \"key-of-v%[1]d\"; ttl security on; bfd on;", n),
		top:     "protocol bfd { interface \"*\" { min rx interval 300 ms; min tx interval 300 ms; multiplier 10; }; }",
	})
	b.start()
	return b
}

func linkFRR(t testing.TB, ns *space, n int) *frr {
	t.Helper()
	f := &frr{t: t, ns: ns, procs: map[string]*process{}}
	f.dir = bgptest.FRRDir(t, map[string]string{"bfdd": fmt.Sprintf("log stdout\nbfd\n peer fe80::2 local-address fe80::1 interface v%d\n  detect-multiplier 10\n", n), "bgpd": fmt.Sprintf(`log stdout
router bgp %d
 bgp router-id 10.0.%d.2
 no bgp ebgp-requires-policy
 no bgp network import-check
 neighbor fe80::2 remote-as 4200000001
 neighbor fe80::2 interface v%[2]d
 neighbor fe80::2 timers 3 9
 neighbor fe80::2 password key-of-v%[2]d
 neighbor fe80::2 ttl-security hops 1
 neighbor fe80::2 capability extended-nexthop
 address-family ipv4 unicast
  neighbor fe80::2 activate
 exit-address-family
 address-family ipv6 unicast
  neighbor fe80::2 activate
 exit-address-family
`, 65100+n, n)})
	for _, name := range []string{"zebra", "bfdd", "bgpd"} {
		d := bgptest.Daemon{Dir: f.dir}
		if name == "bfdd" {
			d.More = []string{"--bfdctl", f.dir + "/bfdd.sock"}
		}
		f.procs[name] = ns.StartFRR(t, name, d)
	}
	return f
}

// TestTwoUplinks: a box with two uplinks, to a BIRD and an FRR that both are
// fe80::1, each with a TCP MD5 key of its own, GTSM and BFD. It has no other
// address on the links. Both have the prefixes, and when one link is cut it is the
// end of one session only.
func TestTwoUplinks(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	n1, n2 := uplink(t, s, 1), uplink(t, s, 2)
	linkBird(t, n1, 1)
	linkFRR(t, n2, 2)
	p, q := linkPeer(s, 1), linkPeer(s, 2)
	in := intentOf(p, q)
	in.Speaker.Listen = 179
	s.set(in)
	s.established("r1", "r2")
	inFIB(t, n1, true)
	inFIB(t, n2, true)
	for _, want := range []edge.Peer{p, q} {
		eventually(t, func() string {
			st := s.peer(want.ID)
			if st.BFD == nil || st.BFD.State != "up" || len(st.Held) != 2 {
				return fmt.Sprintf("%+v, %+v", st, st.BFD)
			}
			return ""
		})
		st := s.peer(want.ID)
		own := netip.MustParseAddr("fe80::2").WithZone(want.Interface)
		if st.Addr != want.Addr || st.Local.Addr() != own || st.ASN != want.ASN || st.Held[0].NextHop != own || st.Held[1].NextHop != own {
			t.Errorf("%s: %+v", want.Addr, st)
		}
	}

	n1.Down(t, "v1")
	eventually(t, func() string {
		if st := s.peer("r1"); st.Flaps != 1 || !strings.Contains(st.LastErr, "BFD: detection time expired") || st.BFD.State == "up" {
			return fmt.Sprintf("%+v, %+v", st, st.BFD)
		}
		return ""
	})
	if st := s.peer("r2"); st.Session != "established" || st.Flaps != 0 || st.BFD.State != "up" || st.BFD.Flaps != 0 {
		t.Errorf("the other uplink: %+v, %+v", st, st.BFD)
	}
	inFIB(t, n2, true)
	n1.Up(t, "v1", "fe80::1/64")
	s.established("r1")
	inFIB(t, n1, true)

	// Its restart finds both again, from the state file.
	s.proc.Stop(9)
	s.start()
	s.established("r1", "r2")
	inFIB(t, n1, true)
	inFIB(t, n2, true)
	if !strings.Contains(s.proc.Output(), "address=fe80::1%v2") {
		t.Error("the log does not name the link")
	}
}
