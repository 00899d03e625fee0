package relay

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/catchment-dev/edge/bgp/wire"
)

var (
	own2  = netip.MustParseAddr("fe80::2")
	onNet = netip.MustParseAddr("fd00:1::9")
	off   = netip.MustParseAddr("2001:db8::1")
)

func hopOf(external bool) *linkHop {
	return &linkHop{own: own2, external: external, subnets: []netip.Prefix{netip.MustParsePrefix("fd00:1::/64")}}
}

// updateWith is an UPDATE that announces net6 with hop in MP_REACH_NLRI, between
// other attributes; extended: with a length of two bytes. pad is the length of an
// attribute that nobody knows.
func updateWith(hop netip.Addr, extended bool, pad int) []byte {
	value := append([]byte{0, 2, 1, 16}, hop.AsSlice()...)
	value = append(value, 0, 48, 0x20, 0x01, 0x0d, 0xb8, 0, 1)
	head := []byte{0x80, attrMPReach, byte(len(value))}
	if extended {
		head = []byte{0x90, attrMPReach, 0, byte(len(value))}
	}
	attrs := append([]byte{0x40, 1, 1, 0}, append(head, value...)...)
	attrs = append(attrs, 0x40, 2, 6, 2, 1, 0xfa, 0x56, 0xea, 1)
	if pad > 0 {
		attrs = append(attrs, 0xd0, 99, byte(pad>>8), byte(pad))
		attrs = append(attrs, make([]byte, pad)...)
	}
	return raw(2, append([]byte{0, 0, byte(len(attrs) >> 8), byte(len(attrs))}, attrs...))
}

// TestLinkHop: what a router on the link is sent for a next hop.
func TestLinkHop(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		external bool
		hop      netip.Addr
		want     []netip.Addr
	}{
		{"on the link", true, onNet, []netip.Addr{onNet, own2}},
		{"on the link, iBGP", false, onNet, []netip.Addr{onNet, own2}},
		{"elsewhere", true, off, []netip.Addr{own2, own2}},
		{"elsewhere, iBGP", false, off, []netip.Addr{off}},
	} {
		for _, extended := range []bool{false, true} {
			in := updateWith(c.hop, extended, 0)
			before, err := wire.ParseUpdate(in, true)
			must(t, err)
			out := hopOf(c.external).apply(in)
			after, err := wire.ParseUpdate(out, true)
			must(t, err)
			if after.Path.NextHop != c.want[0] || len(after.Strange) > 0 {
				t.Errorf("%s: next hop %s, %v", c.name, after.Path.NextHop, after.Strange)
			}
			if grown := len(out) - len(in); grown != 16*(len(c.want)-1) {
				t.Errorf("%s: grown by %d bytes", c.name, grown)
			}
			for _, a := range c.want {
				if !contains(out, a) {
					t.Errorf("%s: no %s in %x", c.name, a, out)
				}
			}
			before.Path.NextHop = after.Path.NextHop
			if !reflect.DeepEqual(before, after) {
				t.Errorf("%s: %+v became %+v", c.name, before, after)
			}
		}
	}
}

func contains(b []byte, a netip.Addr) bool {
	for i := range len(b) - 15 {
		if netip.AddrFrom16([16]byte(b[i:i+16])) == a {
			return true
		}
	}
	return false
}

// TestLinkHopFits: a message is never longer than a router takes.
func TestLinkHopFits(t *testing.T) {
	t.Parallel()
	base := len(updateWith(onNet, false, 0)) + 4
	for pad := maxMessage - base - 40; pad <= maxMessage-base; pad++ {
		for _, hop := range []netip.Addr{onNet, off} {
			in := updateWith(hop, false, pad)
			out := hopOf(true).apply(in)
			u, err := wire.ParseUpdate(out, true)
			if len(out) > maxMessage || err != nil || u.Path.NextHop != hop && u.Path.NextHop != own2 {
				t.Fatalf("%d bytes became %d: next hop %s, %v", len(in), len(out), u.Path.NextHop, err)
			}
		}
	}
}

// TestLinkHopLeaves: what has no next hop of 16 bytes goes as it came.
func TestLinkHopLeaves(t *testing.T) {
	t.Parallel()
	for _, in := range [][]byte{
		announcing(net4), withdrawing(net4), wire.EndOfRIB("ipv6"), wire.EndOfRIB("ipv4"), raw(2, nil), raw(2, []byte{0, 9, 0}), raw(2, []byte{0, 0, 0, 9, 1}),
	} {
		if out := hopOf(true).apply(in); !reflect.DeepEqual(in, out) {
			t.Errorf("%x became %x", in, out)
		}
	}
}

// FuzzLinkHop: nothing that it is given makes it crash, and what can be read can be
// read after it, with the same prefixes.
func FuzzLinkHop(f *testing.F) {
	f.Add(updateWith(onNet, false, 3), true)
	f.Add(updateWith(off, true, 0), true)
	f.Add(announcing(net4), false)
	f.Fuzz(func(t *testing.T, in []byte, external bool) {
		if len(in) > maxMessage {
			return
		}
		before, bad := wire.ParseUpdate(in, true)
		out := hopOf(external).apply(in)
		if bad != nil {
			return
		}
		after, err := wire.ParseUpdate(out, true)
		if err != nil {
			t.Fatalf("%x became %x: %v", in, out, err)
		}
		if !reflect.DeepEqual(before.Announced, after.Announced) || !reflect.DeepEqual(before.Withdrawn, after.Withdrawn) {
			t.Fatalf("%x became %x: %v, %v", in, out, before.Announced, after.Announced)
		}
	})
}

// TestLinkHopDamaged: the same with messages that are damaged at random.
func TestLinkHopDamaged(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		in := updateWith(onNet, rng.IntN(2) == 0, rng.IntN(40))
		for range 1 + rng.IntN(4) {
			in[wire.HeaderLen+rng.IntN(len(in)-wire.HeaderLen)] = byte(rng.Uint32())
		}
		hopOf(true).apply(in[:wire.HeaderLen+rng.IntN(len(in)-wire.HeaderLen+1)])
		hopOf(true).apply(in)
	}
}
