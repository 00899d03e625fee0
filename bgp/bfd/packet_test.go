package bfd

import (
	"encoding/json"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// wire is an Up packet of 24 bytes, as RFC 5880 section 4.1 draws it.
func wire() []byte {
	return []byte{
		0x20 | 3, 3<<6 | 0x20, 3, 24, // version 1, diag 3; Up, Poll; 3; 24
		0, 0, 0, 7, 0, 0, 0, 9, // discriminators
		0, 0x04, 0x93, 0xe0, 0, 0, 0xc3, 0x50, // 300 ms, 50 ms
		0, 0, 0, 0,
	}
}

func TestParse(t *testing.T) {
	good := packet{state: Up, diag: 3, poll: true, multiplier: 3, mine: 7, yours: 9, minTx: 300 * time.Millisecond, minRx: 50 * time.Millisecond}
	for _, c := range []struct {
		name   string
		change func([]byte) []byte
		want   reason
	}{
		{"as drawn", func(b []byte) []byte { return b }, taken},
		{"followed by rubbish", func(b []byte) []byte { return append(b, 1, 2, 3) }, taken},
		{"empty", func(b []byte) []byte { return nil }, badLength},
		{"cut", func(b []byte) []byte { return b[:23] }, badLength},
		{"length 23", func(b []byte) []byte { b[3] = 23; return b }, badLength},
		{"length 25 of 24", func(b []byte) []byte { b[3] = 25; return b }, badLength},
		{"length 25 of 25", func(b []byte) []byte { b[3] = 25; return append(b, 0) }, taken},
		{"version 0", func(b []byte) []byte { b[0] = 3; return b }, badVersion},
		{"version 2", func(b []byte) []byte { b[0] = 2<<5 | 3; return b }, badVersion},
		{"multiplier 0", func(b []byte) []byte { b[2] = 0; return b }, badMultiplier},
		{"multipoint", func(b []byte) []byte { b[1] |= bitMultipoint; return b }, badMultipoint},
		{"mine 0", func(b []byte) []byte { clear(b[4:8]); return b }, badDiscriminator},
		{"yours 0, up", func(b []byte) []byte { clear(b[8:12]); return b }, badDiscriminator},
		{"yours 0, init", func(b []byte) []byte { clear(b[8:12]); b[1] = 2 << 6; return b }, badDiscriminator},
		{"auth, length 24", func(b []byte) []byte { b[1] |= bitAuth; return append(b, 1, 2) }, badLength},
		{"auth, length 26", func(b []byte) []byte { b[1] |= bitAuth; b[3] = 26; return append(b, 1, 2) }, badAuth},
	} {
		p, why := parse(c.change(wire()))
		if why != c.want {
			t.Errorf("%s: dropped for %q, want %q", c.name, why, c.want)
		}
		if why == taken && p != good {
			t.Errorf("%s: %+v, want %+v", c.name, p, good)
		}
	}
	for _, s := range []State{AdminDown, Down} {
		b := wire()
		clear(b[8:12])
		b[1] = byte(s) << 6
		if p, why := parse(b); why != taken || p.state != s || p.yours != 0 {
			t.Errorf("yours 0, %s: dropped for %q", s, why)
		}
	}
}

// roundTrip says whether what is parsed is written as it was, but for what we
// ignore: the C bit, a Length beyond the packet, and the echo interval.
func roundTrip(t *testing.T, b []byte) {
	t.Helper()
	p, why := parse(b)
	if why != taken {
		if why >= reasons || why.String() == "" {
			t.Errorf("%x is dropped for no reason", b)
		}
		return
	}
	var got [packetLen]byte
	p.put(&got)
	want := slices.Clone(b[:packetLen])
	want[1] &^= 0x08
	want[3] = packetLen
	clear(want[20:])
	if diff := cmp.Diff(want, got[:]); diff != "" {
		t.Errorf("written otherwise than read (-want +got):\n%s", diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(wire())
	f.Add(wire()[:20])
	f.Fuzz(roundTrip)
}

func TestPutBounds(t *testing.T) {
	var b [packetLen]byte
	packet{multiplier: 1, mine: 1, minTx: -1, minRx: math.MaxInt64}.put(&b)
	p, why := parse(b[:])
	if why != taken || p.minTx != 0 || p.minRx != math.MaxUint32*time.Microsecond {
		t.Errorf("%+v, dropped for %q", p, why)
	}
}

func TestWords(t *testing.T) {
	for s, want := range map[State]string{AdminDown: "admin-down", Down: "down", Init: "init", Up: "up"} {
		b, err := json.Marshal(s)
		must(t, err)
		var back State
		if err := json.Unmarshal(b, &back); string(b) != `"`+want+`"` || err != nil || back != s {
			t.Errorf("%s is written as %s and read as %s: %v", s, b, back, err)
		}
	}
	var s State
	if _, err := State(4).MarshalText(); err == nil || s.UnmarshalText([]byte("UP")) == nil || State(4).String() != "state 4" {
		t.Error("a state that is none was taken")
	}
	for d, want := range map[Diag]string{0: "no diagnostic", 1: "detection time expired", 3: "neighbour signalled session down", 7: "administratively down", 31: "diagnostic 31"} {
		if d.String() != want {
			t.Errorf("diag %d is %q, want %q", uint8(d), d, want)
		}
	}
	words := Reasons()
	slices.Sort(words)
	if len(slices.Compact(words)) != int(reasons)-1 || slices.Contains(words, "") {
		t.Errorf("reasons %q", words)
	}
}

func TestValidate(t *testing.T) {
	a := netip.MustParseAddr
	for _, c := range []struct {
		c    Config
		want string // empty: valid
	}{
		{Config{Peer: a("192.0.2.1")}, ""},
		{Config{Peer: a("192.0.2.1"), Local: a("192.0.2.2"), Interface: "eth0", MinTx: 50 * time.Millisecond, MinRx: 10 * time.Second, Multiplier: 50}, ""},
		{Config{Peer: a("2001:db8::1"), Local: a("2001:db8::2"), Multihop: true, MinTTL: 250}, ""},
		{Config{Peer: a("fe80::1%eth0")}, ""},
		{Config{Peer: a("fe80::1%eth0"), Interface: "eth0", Local: a("fe80::2%eth0")}, ""},
		{Config{Peer: a("fe80::1"), Interface: "eth0"}, ""},
		{Config{Peer: a("::ffff:192.0.2.1"), Local: a("192.0.2.2")}, ""},
		{Config{}, "not a unicast address"},
		{Config{Peer: a("0.0.0.0")}, "not a unicast address"},
		{Config{Peer: a("224.0.0.1")}, "not a unicast address"},
		{Config{Peer: a("255.255.255.255")}, "not a unicast address"},
		{Config{Peer: a("192.0.2.1"), Local: a("::")}, "local address :: is not a unicast address"},
		{Config{Peer: a("192.0.2.1"), Local: a("2001:db8::1")}, "not of the peer's family"},
		{Config{Peer: a("2001:db8::1"), Local: a("fe80::1%eth0")}, "is link-local and the peer is not"},
		{Config{Peer: a("192.0.2.1"), Multihop: true}, "multihop needs a local address"},
		{Config{Peer: a("192.0.2.1"), MinTTL: 255}, "for multihop only"},
		{Config{Peer: a("fe80::1%eth0"), Local: a("fe80::2"), Multihop: true}, "multihop to the link-local address"},
		{Config{Peer: a("fe80::1")}, "needs an interface"},
		{Config{Peer: a("fe80::1%eth0"), Interface: "eth1"}, `zone "eth0" and interface "eth1"`},
		{Config{Peer: a("fe80::1%eth0"), Local: a("fe80::2%eth1")}, `zone "eth1" and interface "eth0"`},
		{Config{Peer: a("192.0.2.1"), Interface: "sixteencharacter"}, "no name of an interface"},
		{Config{Peer: a("192.0.2.1"), MinTx: 49 * time.Millisecond}, "transmit interval 49ms"},
		{Config{Peer: a("192.0.2.1"), MinRx: 11 * time.Second}, "receive interval 11s"},
		{Config{Peer: a("192.0.2.1"), Multiplier: 1}, "multiplier 1"},
		{Config{Peer: a("192.0.2.1"), Multiplier: 51}, "multiplier 51"},
		{Config{Peer: a("192.0.2.1"), MinTx: -1}, "transmit interval -1ns"},
	} {
		err := c.c.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.c, err, c.want)
		}
	}
	n := Config{Peer: a("fe80::1%eth0"), Multihop: true}.normal()
	want := Config{Peer: a("fe80::1"), Interface: "eth0", Multihop: true, MinTTL: 1, MinTx: 300 * time.Millisecond, MinRx: 300 * time.Millisecond, Multiplier: 3}
	if n != want {
		t.Errorf("normal: %+v, want %+v", n, want)
	}
}
