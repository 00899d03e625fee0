package wire_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// openOf makes an OPEN of AS 65101, hold 90 s, 10.0.0.1 with parameters in hex
// digits.
func openOf(t testing.TB, params string) []byte {
	t.Helper()
	return message(t, wire.TypeOpen, fmt.Sprintf("04 fe4d 005a 0a000001 %02x %s", len(unhex(t, params)), params))
}

// capsOf makes one of capabilities.
func capsOf(t testing.TB, caps string) []byte {
	t.Helper()
	return openOf(t, fmt.Sprintf("02%02x %s", len(unhex(t, caps)), caps))
}

func plainOpen(change func(*wire.Open)) wire.Open {
	o := wire.Open{ASN: 65101, Hold: 90 * time.Second, ID: netip.MustParseAddr("10.0.0.1"), Families: []edge.Family{edge.IPv4}}
	if change != nil {
		change(&o)
	}
	return o
}

func TestParseOpen(t *testing.T) {
	for _, c := range []struct {
		name string
		raw  []byte
		want wire.Open
	}{
		{"no parameters: ipv4", openOf(t, ""), plainOpen(nil)},
		{"an empty parameter", openOf(t, "0200"), plainOpen(nil)},
		{"hold 0", message(t, wire.TypeOpen, "04 fe4d 0000 0a000001 00"), plainOpen(func(o *wire.Open) { o.Hold = 0 })},
		{"hold 3", message(t, wire.TypeOpen, "04 fe4d 0003 0a000001 00"), plainOpen(func(o *wire.Open) { o.Hold = 3 * time.Second })},
		{"an identifier that is no host (RFC 6286)", message(t, wire.TypeOpen, "04 fe4d 005a ffffffff 00"),
			plainOpen(func(o *wire.Open) { o.ID = netip.MustParseAddr("255.255.255.255") })},
		{"both families, sorted", capsOf(t, "0104 0002 00 01 0104 0001 ff 01 0104 0001 00 01"),
			plainOpen(func(o *wire.Open) { o.Families = []edge.Family{edge.IPv4, edge.IPv6} })},
		{"ipv6 only", capsOf(t, "0104 0002 00 01"), plainOpen(func(o *wire.Open) { o.Families = []edge.Family{edge.IPv6} })},
		{"one of ours among others", capsOf(t, "0104 0019 00 46 0104 0001 00 80 0104 0001 00 01"), plainOpen(nil)},
		{"many parameters", openOf(t, "0206 0104 0001 00 01 0202 0200 0206 4104 0000fe4d"),
			plainOpen(func(o *wire.Open) { o.RouteRefresh, o.FourOctet = true, true })},
		{"4-byte AS", message(t, wire.TypeOpen, "04 5ba0 005a 0a000001 08 0206 4104 fa56ea01"),
			plainOpen(func(o *wire.Open) { o.ASN, o.FourOctet = 4200000001, true })},
		{"AS_TRANS for an AS that fits", message(t, wire.TypeOpen, "04 5ba0 005a 0a000001 08 0206 4104 0000fe4d"),
			plainOpen(func(o *wire.Open) { o.FourOctet = true })},
		{"the same AS twice", capsOf(t, "4104 0000fe4d 4104 0000fe4d"), plainOpen(func(o *wire.Open) { o.FourOctet = true })},
		{"extended next hop", capsOf(t, "0512 0001 0001 0002 0001 0080 0002 0001 0001 0001"),
			plainOpen(func(o *wire.Open) { o.ExtendedNextHop = []edge.Family{edge.IPv4} })},
		{"graceful restart, helper only", capsOf(t, "4002 0078"),
			plainOpen(func(o *wire.Open) { o.GracefulRestart = &wire.GracefulRestart{Time: 120 * time.Second} })},
		{"graceful restart", capsOf(t, "400e cfff 0001 01 80 0002 01 00 0019 46 80"), plainOpen(func(o *wire.Open) {
			o.GracefulRestart = &wire.GracefulRestart{Restarting: true, Notification: true, Time: 4095 * time.Second,
				Families: map[edge.Family]bool{edge.IPv4: true, edge.IPv6: false}}
		})},
		{"graceful restart: the last one counts", capsOf(t, "4006 8078 0001 01 80 4002 0005"),
			plainOpen(func(o *wire.Open) { o.GracefulRestart = &wire.GracefulRestart{Time: 5 * time.Second} })},
		{"others, sorted, each once", capsOf(t, "8000 4600 4903 026869 4600 0600 ff00"),
			plainOpen(func(o *wire.Open) { o.Unknown = []uint8{6, 70, 73, 128, 255} })},
		{"extended parameters", message(t, wire.TypeOpen, "04 fe4d 005a 0a000001 ff ff 000a 02 0002 0200 02 0002 4600"),
			plainOpen(func(o *wire.Open) { o.RouteRefresh, o.Unknown = true, []uint8{70} })},
		{"extended parameters, any first length", message(t, wire.TypeOpen, "04 fe4d 005a 0a000001 01 ff 0000"), plainOpen(nil)},
		{"extended parameters, long", message(t, wire.TypeOpen, "04 fe4d 005a 0a000001 ff ff 0204 02 0201"+"49ff"+strings.Repeat("61", 255)+"49fe"+strings.Repeat("62", 254)),
			plainOpen(func(o *wire.Open) { o.Unknown = []uint8{73} })},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, err := wire.ParseOpen(c.raw)
			must(t, err)
			if diff := cmp.Diff(c.want, o, exported); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestOpenFaults(t *testing.T) {
	const both = "010400010001 010400020001"
	for _, c := range []struct {
		name    string
		raw     []byte
		subcode uint8
		data    string
	}{
		{"version 3", message(t, wire.TypeOpen, "03 fe4d 005a 0a000001 00"), 1, "0004"},
		{"version 5", message(t, wire.TypeOpen, "05 fe4d 005a 0a000001 00"), 1, "0004"},
		{"AS 0", message(t, wire.TypeOpen, "04 0000 005a 0a000001 00"), 2, ""},
		{"AS_TRANS alone", message(t, wire.TypeOpen, "04 5ba0 005a 0a000001 00"), 2, ""},
		{"AS 0 of 4 bytes", capsOf(t, "4104 00000000"), 2, ""},
		{"AS_TRANS of 4 bytes", message(t, wire.TypeOpen, "04 5ba0 005a 0a000001 08 0206 4104 00005ba0"), 2, ""},
		{"two AS numbers", capsOf(t, "4104 0000fe4e"), 2, ""},
		{"a wide AS without AS_TRANS", capsOf(t, "4104 fa56ea01"), 2, ""},
		{"two AS numbers of 4 bytes", capsOf(t, "4104 0000fe4d 4104 0000fe4e"), 2, ""},
		{"identifier 0", message(t, wire.TypeOpen, "04 fe4d 005a 00000000 00"), 3, ""},
		{"parameter 1, authentication", openOf(t, "0101 00"), 4, ""},
		{"parameter 3", openOf(t, "0300"), 4, ""},
		{"parameter 255 in second place", openOf(t, "0200 ff00"), 4, ""},
		{"hold 1", message(t, wire.TypeOpen, "04 fe4d 0001 0a000001 00"), 6, ""},
		{"hold 2", message(t, wire.TypeOpen, "04 fe4d 0002 0a000001 00"), 6, ""},
		{"no unicast", capsOf(t, "0104 0019 00 46"), 7, both},
		{"no unicast, only multicast", capsOf(t, "0104 0001 00 02"), 7, both},
		{"parameters shorter than said", message(t, wire.TypeOpen, "04 fe4d 005a 0a000001 05 0200"), 0, ""},
		{"parameters longer than said", message(t, wire.TypeOpen, "04 fe4d 005a 0a000001 02 0200 0200"), 0, ""},
		{"parameters not said", message(t, wire.TypeOpen, "04 fe4d 005a 0a000001 00 0200"), 0, ""},
		{"extended, but length 0", message(t, wire.TypeOpen, "04 fe4d 005a 0a000001 00 ff 0000"), 0, ""},
		{"extended length cut off", message(t, wire.TypeOpen, "04 fe4d 005a 0a000001 ff ff 00"), 0, ""},
		{"extended length wrong", message(t, wire.TypeOpen, "04 fe4d 005a 0a000001 ff ff 0004 02 0000"), 0, ""},
		{"extended parameter cut off", message(t, wire.TypeOpen, "04 fe4d 005a 0a000001 ff ff 0002 02 00"), 0, ""},
		{"extended parameter too long", message(t, wire.TypeOpen, "04 fe4d 005a 0a000001 ff ff 0005 02 0003 0200"), 0, ""},
		{"a parameter of one byte", openOf(t, "02"), 0, ""},
		{"a parameter too long", openOf(t, "0203 0200"), 0, ""},
		{"a capability of one byte", openOf(t, "0201 02"), 0, ""},
		{"a capability too long", capsOf(t, "4105 0000fe4d"), 0, ""},
		{"multiprotocol of 3 bytes", capsOf(t, "0103 000100"), 0, ""},
		{"multiprotocol of 5 bytes", capsOf(t, "0105 0001000100"), 0, ""},
		{"route refresh of 1 byte", capsOf(t, "0201 00"), 0, ""},
		{"extended next hop of 5 bytes", capsOf(t, "0505 0001000100"), 0, ""},
		{"graceful restart of 1 byte", capsOf(t, "4001 00"), 0, ""},
		{"graceful restart of 5 bytes", capsOf(t, "4005 0078 000101"), 0, ""},
		{"4-byte AS of 2 bytes", capsOf(t, "4102 fe4d"), 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, err := wire.ParseOpen(c.raw)
			failure(t, err, 2, c.subcode, c.data)
			if diff := cmp.Diff(wire.Open{}, o, exported); diff != "" {
				t.Errorf("an OPEN with the error:\n%s", diff)
			}
		})
	}
}

// TestOpenCorpus: OPENs of published advisories.
func TestOpenCorpus(t *testing.T) {
	for _, f := range corpus(t, "open") {
		t.Run(f.name, func(t *testing.T) {
			got := "taken"
			if _, err := wire.ParseOpen(f.raw); err != nil {
				var bad *wire.Error
				if !errors.As(err, &bad) {
					t.Fatal(err)
				}
				got = fmt.Sprintf("error %d/%d", bad.Code, bad.Subcode)
			}
			if got != f.want {
				t.Errorf("%s, want %s", got, f.want)
			}
		})
	}
}

// randomOpen is any Open that a peer can be, without Unknown.
func randomOpen(rnd *rand.Rand) wire.Open {
	families := func(least int) (f []edge.Family) {
		for len(f) < least || f == nil && rnd.IntN(2) == 0 {
			for _, x := range []edge.Family{edge.IPv4, edge.IPv6} {
				if rnd.IntN(2) == 0 {
					f = append(f, x)
				}
			}
		}
		return f
	}
	o := wire.Open{
		ASN:             1 + rnd.Uint32N(23455),
		Hold:            time.Duration(3+rnd.IntN(65533)) * time.Second,
		ID:              netip.AddrFrom4([4]byte{byte(1 + rnd.IntN(255)), byte(rnd.Uint32()), byte(rnd.Uint32()), byte(rnd.Uint32())}),
		Families:        families(1),
		FourOctet:       rnd.IntN(2) == 0,
		RouteRefresh:    rnd.IntN(2) == 0,
		ExtendedNextHop: families(0),
	}
	if o.FourOctet && rnd.IntN(2) == 0 {
		o.ASN = 65536 + rnd.Uint32N(1<<32-65536)
	}
	if rnd.IntN(8) == 0 {
		o.Hold = 0
	}
	if rnd.IntN(2) == 0 {
		g := &wire.GracefulRestart{Restarting: rnd.IntN(2) == 0, Notification: rnd.IntN(2) == 0, Time: time.Duration(rnd.IntN(4096)) * time.Second}
		for _, f := range families(0) {
			if g.Families == nil {
				g.Families = map[edge.Family]bool{}
			}
			g.Families[f] = rnd.IntN(2) == 0
		}
		o.GracefulRestart = g
	}
	return o
}

func TestOpenRoundTrip(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 492))
	for range 20000 {
		want := randomOpen(rnd)
		got, err := wire.ParseOpen(want.Marshal())
		if err != nil || !reflect.DeepEqual(want, got) {
			t.Fatalf("%+v\nbecame %+v, %v", want, got, err)
		}
	}
}

// TestMarshalOdd: values out of their range do not reach into other fields.
func TestMarshalOdd(t *testing.T) {
	o := wire.Open{ASN: 65101, Hold: 100000 * time.Second, ID: netip.MustParseAddr("::ffff:10.0.0.1"),
		GracefulRestart: &wire.GracefulRestart{Time: 5000 * time.Second}, Unknown: []uint8{70}}
	got, err := wire.ParseOpen(o.Marshal())
	must(t, err)
	want := plainOpen(func(o *wire.Open) {
		o.Hold, o.GracefulRestart = 65535*time.Second, &wire.GracefulRestart{Time: 4095 * time.Second}
	})
	if diff := cmp.Diff(want, got, exported); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	o.Hold, o.GracefulRestart.Time = -time.Second, -time.Second
	got, err = wire.ParseOpen(o.Marshal())
	must(t, err)
	if got.Hold != 0 || got.GracefulRestart.Time != 0 {
		t.Errorf("negative times became %s and %s", got.Hold, got.GracefulRestart.Time)
	}
	if _, err := wire.ParseOpen(wire.Open{ASN: 1}.Marshal()); err == nil {
		t.Error("an OPEN without an identifier was taken")
	}
}

// checkOpen asserts what holds of every OPEN.
func checkOpen(t testing.TB, raw []byte) {
	t.Helper()
	o, err := wire.ParseOpen(raw)
	if err != nil {
		var bad *wire.Error
		if !errors.As(err, &bad) || bad.Code != 1 && bad.Code != 2 || bad.Text == "" {
			t.Fatalf("%x: %#v", raw, err)
		}
		return
	}
	o.Unknown = nil
	again, err := wire.ParseOpen(o.Marshal())
	if err != nil || !reflect.DeepEqual(o, again) {
		t.Fatalf("%x: %+v\nbecame %+v, %v", raw, o, again, err)
	}
}
