package model

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/catchment-dev/edge/xdp/model/frame"
)

// about returns an ICMP error that quotes bytes, to the VIP.
func about(f family, quote []byte) frame.Packet {
	e := f.fail(f.answer(f.tcp(portGUE, 0)).IP())
	e.Payload = quote
	return e
}

// An error reaches the backend of the flow that it quotes, whichever table or
// ring knows it, and however little is quoted.
func TestErrorFollowsFlow(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		head := frame.IPv4Len
		if f.v6 {
			head = frame.IPv6Len
		}
		quote := f.answer(f.tcp(portGUE, frame.ACK)).IP()
		for _, bytes := range []int{4, 5, 8, 20, len(quote) - head} {
			for _, table := range []string{"ring", "half", "flow"} {
				l := newLab()
				into := map[string]Flows{"ring": {}, "half": l.half, "flow": l.flows}[table]
				flow, to := moved(l, f, portGUE, into)
				if table == "ring" {
					to = flow.Backend
				}
				half, flows := maps.Clone(l.half), maps.Clone(l.flows)
				o := l.send(about(f, quote[:head+bytes]))
				want(t, table, o, TXBackend)
				if o.Backend != to || o.Hash != flow.Hash || !o.ICMPError || o.Service != f.id(portGUE) {
					t.Errorf("%d bytes quoted, %s: backend %d by %s, want %d: %v", bytes, table, o.Backend, o.By, to, o.Why)
				}
				if !maps.Equal(l.half, half) || !maps.Equal(l.flows, flows) {
					t.Errorf("%s: something was remembered", table)
				}
			}
		}
		for _, n := range []int{0, 1, head - 1, head, head + 3} {
			want(t, "too little", newLab().send(about(f, quote[:n])), DropICMPQuote)
		}
	})
}

// The error itself travels, with its own hops.
func TestErrorTravels(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		e := about(f, f.answer(f.tcp(portGUE, 0)).IP())
		e.TTL = 2
		o := newLab().send(e)
		_, outer := open(t, o.Out)
		e.TTL = 1
		if !bytes.Equal(outer.payload[8:], e.IP()) {
			t.Errorf("sent % x\nwant % x", outer.payload[8:], e.IP())
		}
		want(t, "without hops", newLab().send(e), DropTTL)
		blocked := about(f, f.answer(f.tcp(portGUE, 0)).IP())
		quote := f.tcp(portGUE, 0)
		quote.Src = blocked.Src
		if f.v6 {
			copy(blocked.Payload[24:], f.blocked.AsSlice())
		} else {
			copy(blocked.Payload[16:], f.blocked.AsSlice())
		}
		want(t, "about a flow of a blocked source", newLab().send(blocked), TXBackend)
	})
}

// Which messages are errors.
func TestErrorTypes(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		errors := []uint8{3, 11, 12}
		if f.v6 {
			errors = []uint8{1, 2, 3, 4}
		}
		for kind := range 256 {
			e := about(f, f.answer(f.tcp(portGUE, 0)).IP())
			e.Type = uint8(kind)
			wanted := PassICMP
			switch {
			case slices.Contains(errors, e.Type):
				wanted = TXBackend
			case e.Type == map[bool]uint8{false: 8, true: 128}[f.v6]:
				wanted = TXEcho
			}
			o := newLab().send(e)
			if o.Verdict != wanted {
				t.Errorf("type %d: %v, want %v", kind, o.Verdict, wanted)
			}
		}
	})
}

// What a quote may look like.
func TestQuotes(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		base := f.answer(f.tcp(portGUE, 0))
		ip := base.IP()
		other, wrong := base, byte(0x65)
		other.Src = f.tcp(portGUE, 0).Src
		if f.v6 {
			wrong = 0x40
		}
		udp := f.answer(f.udp(portGUE, make([]byte, 64)))
		udpParts, tcpParts := frame.Fragments(udp.IP(), 1, 32), frame.Fragments(base.IP(), 1, 8)
		gre := f.answer(kindOf(f, "gre"))
		bare := frame.IPv4Len
		if f.v6 {
			bare = frame.IPv6Len
		}
		lying := with(ip, 2, 0, 1)
		if f.v6 {
			lying = with(ip, 4, 0xff, 0xff)
		}
		ping := f.answer(f.ping())
		for _, c := range []struct {
			name  string
			quote []byte
			want  Verdict
		}{
			{"of another source", other.IP(), DropICMPQuote},
			{"of another version", with(ip, 0, wrong), DropICMPQuote},
			{"with lengths that lie", lying, TXBackend},
			{"udp", udp.IP()[:bare+8], TXBackend},
			{"a first fragment", udpParts[0], TXBackend}, {"a later fragment", udpParts[1], TXBackend},
			{"a fragment without a service", frame.Fragments(gre.IP(), 1, 8)[1], DropICMPQuote},
			{"a fragment whose services differ", tcpParts[1], DropFragmentPorts},
			{"a first fragment whose services differ", tcpParts[0], DropFragmentPorts},
			{"a ping of this box", ping.IP(), PassICMP}, {"a ping in fragments", frame.Fragments(ping.IP(), 1, 8)[1], PassICMP},
			{"a ping, cut off", ping.IP()[:bare], PassICMP},
			{"a port without a service", f.answer(f.tcp(9999, 0)).IP(), PassNoService},
		} {
			want(t, c.name, newLab().send(about(f, c.quote)), c.want)
		}
		flow := newLab().Decide(eth(frame.Fragments(f.udp(portGUE, make([]byte, 64)).IP(), 1, 32)[1]), long).Hash
		for _, part := range udpParts {
			if o := newLab().send(about(f, part)); o.Hash != flow {
				t.Error("a quoted fragment is of another flow than fragments are")
			}
		}
		wild := about(f, gre.IP()[:bare])
		wild.Dst = gre.Src
		o := newLab().send(wild)
		want(t, "a protocol without ports, and nothing behind its header", o, TXBackend)
		if got := sendKind(newLab(), "gre", kindOf(f, "gre")); got.Hash != o.Hash {
			t.Error("it is not the flow that was quoted")
		}
	})
}

func TestQuoteOptions(t *testing.T) {
	f := families()[0]
	p := f.answer(f.tcp(portGUE, 0))
	p.Options = slices.Repeat([]byte{1}, 40)
	ip := p.IP()
	for n, v := range map[int]Verdict{64: TXBackend, 63: DropICMPQuote, 60: DropICMPQuote, 59: DropICMPQuote, 30: DropICMPQuote} {
		want(t, "cut off quote with options", newLab().send(about(f, ip[:n])), v)
	}
	want(t, "a header length of 16", newLab().send(about(f, with(ip, 0, 0x44))), DropICMPQuote)
	if a, b := newLab().send(about(f, ip)), newLab().send(f.tcp(portGUE, frame.ACK)); a.Hash != b.Hash {
		t.Error("it is not the flow that was quoted")
	}
}

func TestQuoteHeaders(t *testing.T) {
	f := families()[1]
	flow := newLab().send(f.tcp(portGUE, frame.ACK)).Hash
	opt, atomic := frame.Option(frame.DstOpts), frame.Atomic()
	for _, c := range []struct {
		name    string
		headers []frame.Header
		cut     int // bytes of the quote that are missing, of 60 and the headers
		want    Verdict
	}{
		{"one", []frame.Header{opt}, 0, TXBackend},
		{"ah and an atomic fragment", []frame.Header{frame.Authentication(), atomic}, 0, TXBackend},
		{"six", slices.Repeat([]frame.Header{opt}, 6), 0, TXBackend},
		{"seven", slices.Repeat([]frame.Header{opt}, 7), 0, DropICMPQuote},
		{"two fragment headers", []frame.Header{atomic, atomic}, 0, DropICMPQuote},
		{"the ports are the last", []frame.Header{opt}, 32, TXBackend},
		{"a port is missing", []frame.Header{opt}, 33, DropICMPQuote},
		{"cut off in a header", []frame.Header{opt}, 40, DropICMPQuote},
	} {
		p := f.answer(f.tcp(portGUE, 0))
		p.Headers = c.headers
		ip := p.IP()
		o := newLab().send(about(f, ip[:len(ip)-c.cut]))
		want(t, c.name, o, c.want)
		if c.want == TXBackend && o.Hash != flow {
			t.Errorf("%s: it is not the flow that was quoted", c.name)
		}
	}
}
