package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// exported compares what others see of an Update: addresses by value, and not
// the next hops of PathOf.
var exported = cmp.Options{
	cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}),
	cmpopts.IgnoreUnexported(wire.Update{}),
}

func prefixes(s string) (out []netip.Prefix) {
	for _, p := range strings.Fields(s) {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func ptr(n uint32) *uint32 { return &n }

// The parts that most messages of these tests are made of.
const (
	origin  = "40010100"
	path4   = "400206 0201 0000fe4d"
	hop     = "400304 c0000201"
	base    = origin + path4 + hop
	net4    = "18cb0071"        // 203.0.113.0/24
	net6    = "30 20010db80bad" // 2001:db8:bad::/48
	hop6    = "20010db8000000000000000000000001"
	local6  = "fe800000000000000000000000000001"
	reach6  = "800e1c 0002 01 10" + hop6 + "00" + net6
	reach46 = "800e19 0001 01 10" + hop6 + "00" + net4
)

// update makes an UPDATE of three fields in hex digits.
func update(t testing.TB, withdrawn, attrs, nlri string) []byte {
	t.Helper()
	w, a := unhex(t, withdrawn), unhex(t, attrs)
	return message(t, wire.TypeUpdate, fmt.Sprintf("%04x %x %04x %x %s", len(w), w, len(a), a, nlri))
}

func TestParseUpdate(t *testing.T) {
	via := netip.MustParseAddr("192.0.2.1")
	via6 := netip.MustParseAddr("2001:db8::1")
	plain := wire.Path{ASPath: []uint32{65101}, NextHop: via}
	plain6 := wire.Path{ASPath: []uint32{65101}, NextHop: via6}
	for _, c := range []struct {
		name                   string
		withdrawn, attrs, nlri string
		two                    bool
		want                   wire.Update
	}{
		{"announce", "", base, net4, false, wire.Update{Announced: prefixes("203.0.113.0/24"), Path: plain}},
		{"withdraw", net4 + "20c0000207 00", "", "", false, wire.Update{Withdrawn: prefixes("203.0.113.0/24 192.0.2.7/32 0.0.0.0/0")}},
		{"both", "080a", base, net4, false, wire.Update{Announced: prefixes("203.0.113.0/24"), Withdrawn: prefixes("10.0.0.0/8"), Path: plain}},
		{"host bits", "", base, "17cb0071 04ff", false, wire.Update{Announced: prefixes("203.0.112.0/23 240.0.0.0/4"), Path: plain}},
		{"all attributes", "", "40010102 400210 0102 0000fe4d fffffffe 0201 fa56ea01" + hop + "800404 00000032 400504 00000064 400600" +
			"c00708 0000fe4d c0000201 c00808 ffff0000 fde8000a 800904 0a000001 800a04 0a000002 c01008 0002fde800000001" +
			"c02018 0000fde80000000100000002 fa56ea01ffffffff00000000 c0ff01 00", net4, false,
			wire.Update{Announced: prefixes("203.0.113.0/24"), Path: wire.Path{
				Origin: 2, ASPath: []uint32{65101, 4294967294, 4200000001}, NextHop: via, MED: ptr(50), LocalPref: ptr(100),
				Communities: []edge.Community{edge.GracefulShutdown, 65000<<16 | 10},
				Large:       []edge.LargeCommunity{{Global: 65000, Local1: 1, Local2: 2}, {Global: 4200000001, Local1: 4294967295}},
			}}},
		{"extended length", "", "50010001 00 50020006 0201 0000fe4d 50030004 c0000201", net4, false, wire.Update{Announced: prefixes("203.0.113.0/24"), Path: plain}},
		{"partial and reserved flags", "", base + "ef0804 ffff0000", net4, false,
			wire.Update{Announced: prefixes("203.0.113.0/24"), Path: wire.Path{ASPath: []uint32{65101}, NextHop: via, Communities: []edge.Community{edge.GracefulShutdown}}}},
		{"empty path", "", origin + "400200" + hop, net4, false, wire.Update{Announced: prefixes("203.0.113.0/24"), Path: wire.Path{NextHop: via}}},
		{"ipv6", "", origin + path4 + reach6, "", false, wire.Update{Announced: prefixes("2001:db8:bad::/48"), Path: plain6}},
		{"ipv6 with a link-local next hop", "", origin + path4 + "800e2c 0002 01 20" + hop6 + local6 + "00" + net6, "", false,
			wire.Update{Announced: prefixes("2001:db8:bad::/48"), Path: plain6}},
		{"ipv6 with a link-local next hop only", "", origin + path4 + "800e2c 0002 01 20" + strings.Repeat("00", 16) + local6 + "00" + net6, "", false,
			wire.Update{Announced: prefixes("2001:db8:bad::/48"), Path: wire.Path{ASPath: []uint32{65101}, NextHop: netip.MustParseAddr("fe80::1")}}},
		{"a NEXT_HOP that means nothing", "", origin + path4 + "400304 00000000" + reach6, "", false, wire.Update{Announced: prefixes("2001:db8:bad::/48"), Path: plain6}},
		{"extended next hop", "", origin + path4 + reach46, "", false, wire.Update{Announced: prefixes("203.0.113.0/24"), Path: plain6}},
		{"extended next hop of 32 bytes", "", origin + path4 + "800e2a 0001 01 20" + hop6 + local6 + "ff" + net4 + "00", "", false,
			wire.Update{Announced: prefixes("203.0.113.0/24 0.0.0.0/0"), Path: plain6}},
		{"ipv4 in MP_REACH_NLRI", "", origin + path4 + "800e0d 0001 01 04 c0000201 00" + net4, "", false, wire.Update{Announced: prefixes("203.0.113.0/24"), Path: plain}},
		{"MP_UNREACH_NLRI", "", "800f0a 0002 01" + net6, "", false, wire.Update{Withdrawn: prefixes("2001:db8:bad::/48")}},
		{"MP_UNREACH_NLRI of ipv4", "080a", "800f07 0001 01" + net4, "", false, wire.Update{Withdrawn: prefixes("10.0.0.0/8 203.0.113.0/24")}},
		{"end of RIB, ipv4 the other way", "", "800f03 0001 01", "", false, wire.Update{EndOfRIB: edge.IPv4}},
		{"end of RIB, extended length", "", "900f0003 0002 01", "", false, wire.Update{EndOfRIB: edge.IPv6}},
		{"no end of RIB: withdrawals", "080a", "800f03 0002 01", "", false, wire.Update{Withdrawn: prefixes("10.0.0.0/8")}},
		{"no end of RIB: an attribute", "", "800f03 0002 01" + origin, "", false, wire.Update{}},
		{"no end of RIB: MP_REACH_NLRI without prefixes", "", "800e15 0002 01 10" + hop6 + "00", "", false, wire.Update{}},
		{"a family that is not ours", "", "800f05 0019 46 0102", "", false, wire.Update{Strange: []string{"MP_UNREACH_NLRI of AFI 25, SAFI 70: left out"}}},
		{"multicast", "", origin + path4 + "800e0d 0001 02 04 c0000201 00" + net4, "", false, wire.Update{Strange: []string{"MP_REACH_NLRI of AFI 1, SAFI 2: left out"}}},
		{"an attribute twice", "", base + "40010102", net4, false,
			wire.Update{Announced: prefixes("203.0.113.0/24"), Path: plain, Strange: []string{"ORIGIN is there twice: the second one is left out"}}},
		{"an unknown attribute twice", "", base + "c06300 c06300", net4, false,
			wire.Update{Announced: prefixes("203.0.113.0/24"), Path: plain, Strange: []string{"attribute 99 is there twice: the second one is left out"}}},
		{"2-byte AS numbers", "", origin + "400206 0202 fe4d 0001" + hop + "c00706 fe4d c0000201", net4, true,
			wire.Update{Announced: prefixes("203.0.113.0/24"), Path: wire.Path{ASPath: []uint32{65101, 1}, NextHop: via}}},
		{"repeated short prefixes", "00 00 080a 080b", base, "080a 080a 080a" + net4 + net4, false,
			wire.Update{Announced: prefixes("10.0.0.0/8 203.0.113.0/24 203.0.113.0/24"), Withdrawn: prefixes("0.0.0.0/0 11.0.0.0/8"), Path: plain}},
	} {
		t.Run(c.name, func(t *testing.T) {
			u, err := wire.ParseUpdate(update(t, c.withdrawn, c.attrs, c.nlri), !c.two)
			must(t, err)
			if diff := cmp.Diff(c.want, u, exported); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestUpdateFaults: what ends the session, with what.
func TestUpdateFaults(t *testing.T) {
	long := strings.Repeat("00", 300)
	for _, c := range []struct {
		name    string
		raw     []byte
		subcode uint8
		data    string
	}{
		{"withdrawn routes beyond the message", message(t, wire.TypeUpdate, "0001 0000"), 1, ""},
		{"attributes beyond the message", message(t, wire.TypeUpdate, "0000 0005"+origin), 1, ""},
		{"no room for the length of the attributes", message(t, wire.TypeUpdate, "0003 080a 00 00"), 1, ""},
		{"withdrawn prefix of 33 bits", update(t, "21 0102030405", "", ""), 10, ""},
		{"withdrawn prefix cut off", update(t, "18 0102", "", ""), 10, ""},
		{"prefix of 33 bits", update(t, "", base, "21 0102030405"), 10, ""},
		{"prefix cut off", update(t, "", base, net4+"20 010203"), 10, ""},
		{"MP_REACH_NLRI twice", update(t, "", base+reach6+reach6, net4), 1, ""},
		{"MP_UNREACH_NLRI twice", update(t, "", "800f03 0002 01 800f03 0001 01", ""), 1, ""},
		{"MP_REACH_NLRI of 4 bytes", update(t, "", base+"800e04 00020110", net4), 9, "800e04 00020110"},
		{"MP_UNREACH_NLRI of 2 bytes", update(t, "", base+"800f02 0002", net4), 9, "800f02 0002"},
		{"next hop of 0 bytes", update(t, "", "800e05 0002 01 00 00", ""), 9, "800e05 0002 01 00 00"},
		{"ipv6 with a next hop of 4 bytes", update(t, "", "800e09 0002 01 04 c0000201 00", ""), 9, "800e09 0002 01 04 c0000201 00"},
		{"next hop of 24 bytes", update(t, "", "800e1d 0002 01 18"+hop6+"0000000000000000 00", ""), 9, "800e1d 0002 01 18" + hop6 + "0000000000000000 00"},
		{"next hop and no reserved byte", update(t, "", "800e14 0002 01 10"+hop6, ""), 9, "800e14 0002 01 10" + hop6},
		{"MP_REACH_NLRI with 129 bits", update(t, "", "800e27 0002 01 10"+hop6+"00 81"+hop6+"00", ""), 9, "800e27 0002 01 10" + hop6 + "00 81" + hop6 + "00"},
		{"MP_UNREACH_NLRI of ipv4 with 33 bits", update(t, "", "800f09 0001 01 21 0102030405", ""), 9, "800f09 0001 01 21 0102030405"},
		{"extended length in the data", update(t, "", "900e0131 0002 01 11"+long+"00", ""), 9, "900e0131 0002 01 11" + long + "00"},
		// RFC 7606 section 5.2: a fault and nothing to withdraw instead.
		{"bad ORIGIN, no prefix", update(t, "", "40010103", ""), 6, "40010103"},
		{"bad flags, no prefix", update(t, net4, "c0010100", ""), 4, "c0010100"},
		{"bad length, no prefix", update(t, net4, "80040100", ""), 5, "80040100"},
		{"bad NEXT_HOP, no prefix", update(t, "", "40030400000000", ""), 8, "40030400000000"},
		{"bad AS_PATH, no prefix", update(t, "", "400201 02", ""), 11, "400201 02"},
		{"unknown and well-known, no prefix", update(t, "", "406300", ""), 2, "406300"},
		{"no attribute, no prefix", update(t, "", "4001", ""), 1, ""},
		{"bad MED with MP_UNREACH_NLRI", update(t, "", "800f0a 0002 01"+net6+"800400", ""), 5, "800400"},
		{"bad MED with MP_REACH_NLRI without prefixes", update(t, "", "800e15 0002 01 10"+hop6+"00 800400", ""), 5, "800400"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u, err := wire.ParseUpdate(c.raw, true)
			failure(t, err, 3, c.subcode, c.data)
			if diff := cmp.Diff(wire.Update{}, u, exported); diff != "" {
				t.Errorf("an update with the error:\n%s", diff)
			}
		})
	}
}

// TestSurvived: each fault that only costs the prefixes, or only the attribute.
func TestSurvived(t *testing.T) {
	for _, c := range []struct {
		name, attrs string
		withdrawn   bool
		text        string
	}{
		{"flags of ORIGIN", "c0010100" + path4 + hop, true, "ORIGIN has flags 0xc0: treated as withdrawn"},
		{"flags of MED", base + "c00404 00000001", true, "MULTI_EXIT_DISC has flags 0xc0: treated as withdrawn"},
		{"flags of COMMUNITIES", base + "400804 00000001", true, "COMMUNITIES has flags 0x40: treated as withdrawn"},
		{"flags of LARGE_COMMUNITY", base + "80200c 000000010000000100000001", true, "LARGE_COMMUNITY has flags 0x80: treated as withdrawn"},
		{"flags of an EXTENDED COMMUNITIES", base + "801008 0000000000000000", true, "EXTENDED COMMUNITIES has flags 0x80: treated as withdrawn"},
		{"flags of ATOMIC_AGGREGATE", base + "c00600", true, "ATOMIC_AGGREGATE has flags 0xc0: treated as withdrawn"},
		{"ORIGIN of 2 bytes", "4001020000" + path4 + hop, true, "ORIGIN has 2 bytes: treated as withdrawn"},
		{"ORIGIN 3", "40010103" + path4 + hop, true, "ORIGIN is 3: treated as withdrawn"},
		{"AS_PATH of one byte", origin + "400201 02" + hop, true, "AS_PATH ends with a byte that is no segment: treated as withdrawn"},
		{"AS_PATH type 0", origin + "400206 0001 00000001" + hop, true, "AS_PATH has a segment of type 0: treated as withdrawn"},
		{"AS_PATH type 5", origin + "400206 0501 00000001" + hop, true, "AS_PATH has a segment of type 5: treated as withdrawn"},
		{"AS_PATH empty segment", origin + "400202 0200" + hop, true, "AS_PATH has a segment without any AS: treated as withdrawn"},
		{"AS_PATH overrun", origin + "400206 0202 00000001" + hop, true, "AS_PATH has a segment of 2 AS numbers in 4 bytes: treated as withdrawn"},
		{"AS_PATH with AS 0", origin + "40020a 0202 00000001 00000000" + hop, true, "AS_PATH has AS 0: treated as withdrawn"},
		{"NEXT_HOP of 3 bytes", origin + path4 + "400303 c00002", true, "NEXT_HOP has 3 bytes: treated as withdrawn"},
		{"NEXT_HOP of 16 bytes", origin + path4 + "400310" + hop6, true, "NEXT_HOP has 16 bytes: treated as withdrawn"},
		{"NEXT_HOP multicast", origin + path4 + "400304 e0000001", true, "NEXT_HOP is no address of a host: treated as withdrawn"},
		{"NEXT_HOP loopback", origin + path4 + "400304 7f000001", true, "NEXT_HOP is no address of a host: treated as withdrawn"},
		{"NEXT_HOP broadcast", origin + path4 + "400304 ffffffff", true, "NEXT_HOP is no address of a host: treated as withdrawn"},
		{"MED of 3 bytes", base + "800403 000000", true, "MULTI_EXIT_DISC has 3 bytes: treated as withdrawn"},
		{"LOCAL_PREF of 5 bytes", base + "400505 0000000000", true, "LOCAL_PREF has 5 bytes: treated as withdrawn"},
		{"COMMUNITIES of 5 bytes", base + "c00805 0000000000", true, "COMMUNITIES has 5 bytes: treated as withdrawn"},
		{"COMMUNITIES of 0 bytes", base + "c00800", true, "COMMUNITIES has 0 bytes: treated as withdrawn"},
		{"ORIGINATOR_ID of 5 bytes", base + "800905 0000000000", true, "ORIGINATOR_ID has 5 bytes: treated as withdrawn"},
		{"CLUSTER_LIST of 0 bytes", base + "800a00", true, "CLUSTER_LIST has 0 bytes: treated as withdrawn"},
		{"EXTENDED COMMUNITIES of 0 bytes", base + "c01000", true, "EXTENDED COMMUNITIES has 0 bytes: treated as withdrawn"},
		{"LARGE_COMMUNITY of 8 bytes", base + "c02008 0000000000000000", true, "LARGE_COMMUNITY has 8 bytes: treated as withdrawn"},
		{"LARGE_COMMUNITY of 0 bytes", base + "c02000", true, "LARGE_COMMUNITY has 0 bytes: treated as withdrawn"},
		{"no ORIGIN", path4 + hop, true, "ORIGIN is missing: treated as withdrawn"},
		{"no AS_PATH", origin + hop, true, "AS_PATH is missing: treated as withdrawn"},
		{"no NEXT_HOP", origin + path4, true, "NEXT_HOP is missing: treated as withdrawn"},
		{"unknown, well-known", base + "402a00", true, "attribute 42 is unknown and not optional: treated as withdrawn"},
		{"bytes left", base + "c008", true, "the last 2 bytes of the attributes are no attribute: treated as withdrawn"},
		{"one byte left", base + "50", true, "the last 1 bytes of the attributes are no attribute: treated as withdrawn"},
		{"extended length cut off", base + "d00800", true, "the last 3 bytes of the attributes are no attribute: treated as withdrawn"},
		{"the last one is too long", base + "c00805 00000001", true, "the last 7 bytes of the attributes are no attribute: treated as withdrawn"},
		{"ATOMIC_AGGREGATE of 1 byte", base + "40060100", false, "ATOMIC_AGGREGATE has 1 bytes: left out"},
		{"AGGREGATOR of 6 bytes", base + "c00706 fe4dc0000201", false, "AGGREGATOR has 6 bytes, not 8: left out"},
		{"AGGREGATOR of AS 0", base + "c00708 00000000c0000201", false, "AGGREGATOR names AS 0: left out"},
		{"AS4_PATH", base + "c01106 0201 00000001", false, "AS4_PATH comes over a session with AS numbers of 4 bytes: left out"},
		{"AS4_AGGREGATOR", base + "c01208 00000001c0000201", false, "AS4_AGGREGATOR comes over a session with AS numbers of 4 bytes: left out"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u, err := wire.ParseUpdate(update(t, "080a", c.attrs, net4+net4), true)
			must(t, err)
			want := wire.Update{Strange: []string{c.text}, Withdrawn: prefixes("203.0.113.0/24 203.0.113.0/24 10.0.0.0/8")}
			if !c.withdrawn {
				want.Withdrawn, want.Announced = prefixes("10.0.0.0/8"), prefixes("203.0.113.0/24 203.0.113.0/24")
				want.Path = wire.Path{ASPath: []uint32{65101}, NextHop: netip.MustParseAddr("192.0.2.1")}
			}
			if diff := cmp.Diff(want, u, exported); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestTwoNextHops: a message with prefixes in both places has two next hops.
func TestTwoNextHops(t *testing.T) {
	u, err := wire.ParseUpdate(update(t, "", base+reach6, net4+"080a"), true)
	must(t, err)
	var got []string
	for i, p := range u.Announced {
		got = append(got, fmt.Sprint(p, " ", u.PathOf(i).NextHop))
	}
	want := []string{"203.0.113.0/24 192.0.2.1", "10.0.0.0/8 192.0.2.1", "2001:db8:bad::/48 2001:db8::1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var table wire.Table
	table.Apply(u)
	for i, p := range u.Announced {
		if path, ok := table.Get(p); !ok || path.NextHop != u.PathOf(i).NextHop {
			t.Errorf("the table has %s via %s", p, path.NextHop)
		}
	}
}

// TestAS4Path: RFC 6793 section 4.2.3.
func TestAS4Path(t *testing.T) {
	const a, b = "fa56ea01", "fa56ea02" // 4200000001, 4200000002
	for _, c := range []struct {
		name, path, wide string
		want             []uint32
	}{
		{"wide at the end", "0203 fde9 5ba0 5ba0", "0202" + a + b, []uint32{65001, 4200000001, 4200000002}},
		{"all wide", "0202 5ba0 5ba0", "0202" + a + b, []uint32{4200000001, 4200000002}},
		{"longer than AS_PATH", "0201 fde9", "0202" + a + b, []uint32{65001}},
		{"a set counts one", "0202 fde9 fdea 0103 0001 0002 0003", "0101" + a, []uint32{65001, 65002, 4200000001}},
		{"a set in front", "0102 fde9 fdea 0201 5ba0", "0201" + a, []uint32{65001, 65002, 4200000001}},
		{"confederations", "0302 0001 0002 0201 5ba0", "0301 00000001 0201" + a, []uint32{4200000001}},
		{"malformed", "0201 fde9", "02", []uint32{65001}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, wide := unhex(t, c.path), unhex(t, c.wide)
			attrs := origin + fmt.Sprintf("4002%02x%x", len(path), path) + hop + fmt.Sprintf("c011%02x%x", len(wide), wide)
			u, err := wire.ParseUpdate(update(t, "", attrs, net4), false)
			must(t, err)
			if diff := cmp.Diff(c.want, u.Path.ASPath); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestMalformed: the UPDATEs of published advisories and incidents do what is
// written above each.
func TestMalformed(t *testing.T) {
	for _, f := range corpus(t, "malformed") {
		t.Run(f.name, func(t *testing.T) {
			m, err := wire.NewReader(bytes.NewReader(f.raw)).Read()
			must(t, err) // the fault is in the body
			u, err := wire.ParseUpdate(m.Raw, true)
			var bad *wire.Error
			var got string
			switch {
			case errors.As(err, &bad):
				got = fmt.Sprintf("error %d/%d", bad.Code, bad.Subcode)
			case len(u.Announced) > 0:
				got = "announce " + strings.Trim(fmt.Sprint(u.Announced), "[]")
			case len(u.Withdrawn) > 0:
				got = "withdraw " + strings.Trim(fmt.Sprint(u.Withdrawn), "[]")
			default:
				got = "nothing"
			}
			if got != f.want {
				t.Errorf("%s, want %s (%v, %v)", got, f.want, err, u.Strange)
			}
		})
	}
}

// TestNoAlias: what is returned does not change with the bytes of the Reader.
func TestNoAlias(t *testing.T) {
	raw := update(t, "080a", base+"c00804 ffff0000 c0200c 000000010000000200000003"+reach6, net4)
	u, err := wire.ParseUpdate(raw, true)
	must(t, err)
	again, err := wire.ParseUpdate(slices.Clone(raw), true)
	must(t, err)
	for i := range raw {
		raw[i] = 0xaa
	}
	if diff := cmp.Diff(again, u, exported); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	raw = update(t, "", "40010103", "")
	_, err = wire.ParseUpdate(raw, true)
	clear(raw)
	failure(t, err, 3, 6, "40010103")
}

// checkUpdate asserts what holds of every message.
func checkUpdate(t testing.TB, raw []byte) {
	t.Helper()
	for _, four := range []bool{true, false} {
		u, err := wire.ParseUpdate(raw, four)
		if err != nil {
			var bad *wire.Error
			if !errors.As(err, &bad) || bad.Code != 1 && bad.Code != 3 || len(bad.Data) > wire.MaxLen || bad.Text == "" {
				t.Fatalf("%x: %#v", raw, err)
			}
			continue
		}
		for _, p := range slices.Concat(u.Announced, u.Withdrawn) {
			if !p.IsValid() || p != p.Masked() {
				t.Fatalf("%x: prefix %v", raw, p)
			}
		}
		for i := range u.Announced {
			if p := u.PathOf(i); !p.NextHop.IsValid() || p.NextHop.IsUnspecified() || p.Origin > 2 || slices.Contains(p.ASPath, 0) {
				t.Fatalf("%x: path %+v", raw, p)
			}
		}
		if len(u.Strange) > 16 || u.EndOfRIB != "" && (len(u.Announced) > 0 || len(u.Withdrawn) > 0) {
			t.Fatalf("%x: %+v", raw, u)
		}
		table := wire.Table{Limit: 100}
		table.Apply(u)
		if n := table.Len(edge.IPv4) + table.Len(edge.IPv6); n > 100 || n == 0 && len(u.Announced) > 0 {
			t.Fatalf("%x: a table of %d", raw, n)
		}
	}
}
