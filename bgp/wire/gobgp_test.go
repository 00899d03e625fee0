package wire_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	gobgp "github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// GoBGP is the reader of what we write, and for its UPDATEs we are the reader:
// both must mean the same. Only these tests import its codec.

func rf(f edge.Family) gobgp.RouteFamily {
	if f == edge.IPv6 {
		return gobgp.RF_IPv6_UC
	}
	return gobgp.RF_IPv4_UC
}

// asGoBGP says what GoBGP reads in an OPEN, in our words.
func asGoBGP(t *testing.T, raw []byte) wire.Open {
	t.Helper()
	m, err := gobgp.ParseBGPMessage(raw)
	must(t, err)
	body := m.Body.(*gobgp.BGPOpen)
	id, _ := netip.AddrFromSlice(body.ID.To4())
	o := wire.Open{ASN: uint32(body.MyAS), Hold: time.Duration(body.HoldTime) * time.Second, ID: id}
	family := func(afi uint16, safi uint8) edge.Family {
		f := map[gobgp.RouteFamily]edge.Family{gobgp.RF_IPv4_UC: edge.IPv4, gobgp.RF_IPv6_UC: edge.IPv6}[gobgp.AfiSafiToRouteFamily(afi, safi)]
		if f == "" {
			t.Fatalf("AFI %d, SAFI %d", afi, safi)
		}
		return f
	}
	for _, p := range body.OptParams {
		for _, c := range p.(*gobgp.OptionParameterCapability).Capability {
			switch c := c.(type) {
			case *gobgp.CapMultiProtocol:
				o.Families = append(o.Families, family(gobgp.RouteFamilyToAfiSafi(c.CapValue)))
			case *gobgp.CapRouteRefresh:
				o.RouteRefresh = true
			case *gobgp.CapFourOctetASNumber:
				o.FourOctet, o.ASN = true, c.CapValue
			case *gobgp.CapExtendedNexthop:
				for _, tuple := range c.Tuples {
					if tuple.NexthopAFI != gobgp.AFI_IP6 {
						t.Fatalf("next hops of AFI %d", tuple.NexthopAFI)
					}
					o.ExtendedNextHop = append(o.ExtendedNextHop, family(tuple.NLRIAFI, uint8(tuple.NLRISAFI)))
				}
			case *gobgp.CapGracefulRestart:
				g := &wire.GracefulRestart{Restarting: c.Flags&8 != 0, Notification: c.Flags&4 != 0, Time: time.Duration(c.Time) * time.Second}
				for _, tuple := range c.Tuples {
					if g.Families == nil {
						g.Families = map[edge.Family]bool{}
					}
					g.Families[family(tuple.AFI, tuple.SAFI)] = tuple.Flags&0x80 != 0
				}
				o.GracefulRestart = g
			default:
				t.Fatalf("GoBGP reads a %T", c)
			}
		}
	}
	return o
}

func TestGoBGPReadsOurOpen(t *testing.T) {
	rnd := rand.New(rand.NewPCG(8, 538))
	for range 2000 {
		want := randomOpen(rnd)
		if diff := cmp.Diff(want, asGoBGP(t, want.Marshal()), exported); diff != "" {
			t.Fatalf("(-written +GoBGP's reading):\n%s", diff)
		}
	}
}

func TestGoBGPReadsTheRest(t *testing.T) {
	for _, f := range []edge.Family{edge.IPv4, edge.IPv6} {
		m, err := gobgp.ParseBGPMessage(wire.EndOfRIB(f))
		must(t, err)
		if ok, got := m.Body.(*gobgp.BGPUpdate).IsEndOfRib(); !ok || got != rf(f) {
			t.Errorf("%s: end of RIB %v of %v", f, ok, got)
		}
		raw, err := gobgp.NewEndOfRib(rf(f)).Serialize()
		must(t, err)
		if u, err := wire.ParseUpdate(raw, true); err != nil || u.EndOfRIB != f {
			t.Errorf("GoBGP's end of RIB of %s: %+v, %v", f, u, err)
		}
		afi, safi := gobgp.RouteFamilyToAfiSafi(rf(f))
		raw, err = gobgp.NewBGPRouteRefreshMessage(afi, 0, safi).Serialize()
		must(t, err)
		if got, ok := wire.ParseRouteRefresh(raw); !ok || got != f {
			t.Errorf("GoBGP's route refresh of %s: %s, %v", f, got, ok)
		}
	}
	if m, err := gobgp.ParseBGPMessage(wire.Keepalive()); err != nil || m.Header.Type != gobgp.BGP_MSG_KEEPALIVE {
		t.Errorf("keepalive: %+v, %v", m, err)
	}
	m, err := gobgp.ParseBGPMessage(wire.Notify(6, 2, []byte("\x03bye")))
	must(t, err)
	if n := m.Body.(*gobgp.BGPNotification); n.ErrorCode != 6 || n.ErrorSubcode != 2 || string(n.Data) != "\x03bye" {
		t.Errorf("notification: %+v", n)
	}
}

// randomUpdate is an UPDATE as GoBGP writes it, with what we must read in it.
func randomUpdate(rnd *rand.Rand) (*gobgp.BGPMessage, wire.Update) {
	var u wire.Update
	nets := func(v6 bool) (out []netip.Prefix) {
		for range rnd.IntN(4) {
			a, bits := netip.AddrFrom4([4]byte{byte(rnd.IntN(224)), byte(rnd.Uint32()), byte(rnd.Uint32()), byte(rnd.Uint32())}), 9+rnd.IntN(24)
			if v6 {
				b := [16]byte{0x20}
				for i := 1; i < 16; i++ {
					b[i] = byte(rnd.Uint32())
				}
				a, bits = netip.AddrFrom16(b), 9+rnd.IntN(120)
			}
			out = append(out, netip.PrefixFrom(a, bits).Masked())
		}
		return out
	}
	v4, v6, gone4, gone6 := nets(false), nets(true), nets(false), nets(true)
	u.Withdrawn = slices.Concat(gone4, gone6)
	u.Announced = slices.Concat(v4, v6)
	var attrs []gobgp.PathAttributeInterface
	if len(u.Announced) > 0 {
		attrs = randomPath(rnd, &u.Path)
		u.Path.NextHop = netip.MustParseAddr("192.0.2.7")
		if len(v4) > 0 {
			attrs = append(attrs, gobgp.NewPathAttributeNextHop("192.0.2.7"))
		} else {
			u.Path.NextHop = netip.MustParseAddr("2001:db8::7")
		}
	}
	if len(v6) > 0 {
		attrs = append(attrs, gobgp.NewPathAttributeMpReachNLRI("2001:db8::7", nlri6(v6)))
	}
	if len(gone6) > 0 {
		attrs = append(attrs, gobgp.NewPathAttributeMpUnreachNLRI(nlri6(gone6)))
	}
	rnd.Shuffle(len(attrs), func(i, j int) { attrs[i], attrs[j] = attrs[j], attrs[i] })
	return gobgp.NewBGPUpdateMessage(nlri4(gone4), attrs, nlri4(v4)), u
}

func randomPath(rnd *rand.Rand, p *wire.Path) []gobgp.PathAttributeInterface {
	p.Origin = uint8(rnd.IntN(3))
	var segments []gobgp.AsPathParamInterface
	for range rnd.IntN(4) {
		as := make([]uint32, 1+rnd.IntN(5))
		for i := range as {
			as[i] = 1 + rnd.Uint32N(1<<32-1)
		}
		segments = append(segments, gobgp.NewAs4PathParam(uint8(1+rnd.IntN(2)), as))
		p.ASPath = append(p.ASPath, as...)
	}
	attrs := []gobgp.PathAttributeInterface{gobgp.NewPathAttributeOrigin(p.Origin), gobgp.NewPathAttributeAsPath(segments)}
	if rnd.IntN(2) == 0 {
		p.MED, p.LocalPref = ptr(rnd.Uint32()), ptr(rnd.Uint32())
		attrs = append(attrs, gobgp.NewPathAttributeMultiExitDisc(*p.MED), gobgp.NewPathAttributeLocalPref(*p.LocalPref), gobgp.NewPathAttributeAtomicAggregate(),
			gobgp.NewPathAttributeAggregator(uint32(65536), "192.0.2.9"), gobgp.NewPathAttributeOriginatorId("192.0.2.9"), gobgp.NewPathAttributeClusterList([]string{"192.0.2.9"}))
	}
	if n := rnd.IntN(100); n > 0 && rnd.IntN(2) == 0 {
		var std []uint32
		var large []*gobgp.LargeCommunity
		for range n {
			c, l := rnd.Uint32(), edge.LargeCommunity{Global: rnd.Uint32(), Local1: rnd.Uint32(), Local2: rnd.Uint32()}
			std, p.Communities = append(std, c), append(p.Communities, edge.Community(c))
			large, p.Large = append(large, gobgp.NewLargeCommunity(l.Global, l.Local1, l.Local2)), append(p.Large, l)
		}
		attrs = append(attrs, gobgp.NewPathAttributeCommunities(std), gobgp.NewPathAttributeLargeCommunities(large))
	}
	return attrs
}

func nlri4(nets []netip.Prefix) (out []*gobgp.IPAddrPrefix) {
	for _, p := range nets {
		out = append(out, gobgp.NewIPAddrPrefix(uint8(p.Bits()), p.Addr().String()))
	}
	return out
}

func nlri6(nets []netip.Prefix) (out []gobgp.AddrPrefixInterface) {
	for _, p := range nets {
		out = append(out, gobgp.NewIPv6AddrPrefix(uint8(p.Bits()), p.Addr().String()))
	}
	return out
}

func TestWeReadGoBGPsUpdate(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 606))
	shapes := map[string]int{}
	for range 1500 {
		m, want := randomUpdate(rnd)
		raw, err := m.Serialize()
		must(t, err)
		got, err := wire.ParseUpdate(raw, true)
		must(t, err)
		if len(raw) == 23 {
			want.EndOfRIB = edge.IPv4
		}
		if diff := cmp.Diff(want, got, exported); diff != "" {
			t.Fatalf("%x (-written +read):\n%s", raw, diff)
		}
		for i, p := range got.Announced {
			hop := netip.MustParseAddr("192.0.2.7")
			if p.Addr().Is6() {
				hop = netip.MustParseAddr("2001:db8::7")
			}
			if path := got.PathOf(i); path.NextHop != hop {
				t.Fatalf("%x: %s via %s", raw, p, path.NextHop)
			}
		}
		shapes[fmt.Sprint(len(got.Announced) > 0, len(got.Withdrawn) > 0, got.Path.MED != nil, got.Path.Large != nil)]++
	}
	if len(shapes) != 10 {
		t.Errorf("the updates have %d shapes: %v", len(shapes), slices.Sorted(maps.Keys(shapes)))
	}
}
