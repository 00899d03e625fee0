package lab

import (
	"net/netip"
	"testing"
)

// TestTappedStreams puts streams together from segments that come late, twice, in
// part, or not at all.
func TestTappedStreams(t *testing.T) {
	to := netip.MustParseAddrPort("10.0.0.1:7946")
	a, b := netip.MustParseAddrPort("10.0.0.2:1000"), netip.MustParseAddrPort("10.0.0.3:1000")
	segment := func(from netip.AddrPort, seq uint32, text string) passed {
		return passed{from: from, to: to, tcp: true, seq: seq, payload: []byte(text)}
	}
	syn := func(from netip.AddrPort, seq uint32) passed {
		return passed{from: from, to: to, tcp: true, syn: true, seq: seq}
	}
	const top = 1<<32 - 3 // the numbers wrap
	got := streams([]passed{
		segment(b, 500, "not from its beginning"),
		syn(a, top), syn(a, top), segment(a, 0, "cde"), segment(a, top+1, "ab"), segment(a, top+2, "bcd"), segment(a, 3, "f"),
		{from: to, to: a, tcp: true, seq: 7, payload: []byte("an answer")},
		{from: b, to: to, payload: []byte("a datagram")},
		syn(b, 9), segment(b, 10, "x"), segment(b, 12, "lost before it"),
		syn(a, 70), segment(a, 71, "the port again"),
	}, to)
	want := []TappedStream{{a, to, []byte("abcdef")}, {b, to, []byte("x")}, {a, to, []byte("the port again")}}
	if len(got) != len(want) {
		t.Fatalf("got %d streams, want %d: %q", len(got), len(want), got)
	}
	for i, w := range want {
		if got[i].From != w.From || got[i].To != w.To || string(got[i].Data) != string(w.Data) {
			t.Errorf("stream %d is %q, want %q", i, got[i], w)
		}
	}
}
