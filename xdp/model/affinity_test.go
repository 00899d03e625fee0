package model

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/xdp/model/frame"
)

// The table of the issue, written out by hand: which fields choose the slot of
// the ring, and behind the colon which ones are the key of the flow tables. a is
// the source, b the destination, x and y their ports, p the protocol; - is not
// tracked. "new" is a packet for which the tables are not asked, "old" one for
// which they are, "none" one of a flow that is not tracked.
const affinityTable = `
affinity tracking    tcp             syn udp         esp     gre     sctp  icmp-other  tcp-part  udp-part  gre-part sctp-part
none     connection  abxyp:abxyp     new abxyp:-     abp:-   abp:-   abp:- abp:-       abp:abp   abp:-     abp:-    abp:-
5        connection  abxyp:abxyp     new abxyp:abxyp abp:abp abp:abp abp:- abp:-       abp:abp   abp:abp   abp:abp  abp:-
3        connection  abp:abxyp       new abp:abxyp   abp:abp abp:abp abp:- abp:-       abp:abp   abp:abp   abp:abp  abp:-
2        connection  ab:abxyp        new ab:abxyp    ab:abp  ab:abp  ab:-  ab:-        ab:abp    ab:abp    ab:abp   ab:-
1        connection  a:abxyp         new a:abxyp     a:abp   a:abp   a:-   a:-         a:abp     a:abp     a:abp    a:-
none     session     abxyp:abxyp     new abxyp:-     abp:-   abp:-   abp:- abp:-       abp:abp   abp:-     abp:-    abp:-
5        session     abxyp:abxyp     new abxyp:abxyp abp:abp abp:abp abp:- abp:-       abp:abp   abp:abp   abp:abp  abp:-
3        session     abp:abp         old abp:abp     abp:abp abp:abp abp:- abp:-       abp:abp   abp:abp   abp:abp  abp:-
2        session     ab:ab           old ab:ab       ab:ab   ab:ab   ab:-  ab:-        ab:ab     ab:ab     ab:ab    ab:-
1        session     a:a             old a:a         a:a     a:a     a:-   a:-         a:a       a:a       a:a      a:-
`

func affinityOf(word string) Affinity {
	return map[string]Affinity{"none": AffinityNone, "1": AffinitySrc, "2": AffinitySrcDst, "3": AffinitySrcDstProto, "5": AffinityFiveTuple}[word]
}

// kindOf returns a packet of a column of the table.
func kindOf(f family, kind string) frame.Packet {
	kind, _, _ = strings.Cut(kind, "-")
	p := frame.Packet{
		Src: netip.AddrPortFrom(f.client, 1111), Dst: netip.AddrPortFrom(f.wild, 2222), Payload: make([]byte, 32), Flags: frame.ACK,
		Proto: map[string]uint8{"tcp": frame.TCP, "syn": frame.TCP, "udp": frame.UDP, "esp": frame.ESP, "gre": frame.GRE, "sctp": frame.SCTP}[kind],
	}
	if kind == "icmp" { // the other family's
		p.Proto = frame.ICMPv6
		if f.v6 {
			p.Proto = frame.ICMP
		}
	}
	if kind == "syn" {
		p.Flags = frame.SYN
	}
	return p
}

// variants returns the packet with one field changed, by the letter of the field.
func variants(f family, p frame.Packet) map[string]frame.Packet {
	out := map[string]frame.Packet{}
	for letter, change := range map[string]func(*frame.Packet){
		"a": func(p *frame.Packet) { p.Src = netip.AddrPortFrom(f.other, 1111) },
		"b": func(p *frame.Packet) { p.Dst = netip.AddrPortFrom(f.wild.Next(), 2222) },
		"x": func(p *frame.Packet) { p.Src = netip.AddrPortFrom(f.client, 1112) },
		"y": func(p *frame.Packet) { p.Dst = netip.AddrPortFrom(f.wild, 2223) },
		"p": func(p *frame.Packet) {
			p.Proto = map[uint8]uint8{frame.TCP: frame.UDP, frame.UDP: frame.TCP, frame.ESP: frame.GRE, frame.GRE: frame.ESP}[p.Proto]
			if p.Proto == 0 {
				p.Proto = 200
			}
		},
	} {
		v := p
		change(&v)
		out[letter] = v
	}
	return out
}

// affinityLab has one service of everything on two addresses.
func affinityLab(f family, affinity Affinity, session bool) *lab {
	l := newLab()
	second := f.wild.Next().As16()
	l.Addrs[second] = l.Addrs[f.wild.As16()]
	l.VIPs[VIPKey{Addr: second}] = f.first + offWild
	s := l.services[f.first+offWild]
	s.Affinity, s.PerSession = affinity, session
	return l
}

// pieces sends a packet: whole, or as the fragment of a column.
func sendKind(l *lab, kind string, p frame.Packet) Outcome {
	ip := p.IP()
	if strings.HasSuffix(kind, "-part") {
		ip = frame.Fragments(ip, 3, 16)[1]
	}
	return l.Decide(inLink.Frame(ip), long)
}

func TestAffinityTable(t *testing.T) {
	rows := strings.Split(strings.TrimSpace(affinityTable), "\n")
	kinds := strings.Fields(rows[0])[2:]
	for _, row := range rows[1:] {
		cells := strings.Fields(row)
		affinity, session := affinityOf(cells[0]), cells[1] == "session"
		for i, kind := range kinds {
			both(t, func(t *testing.T, f family) {
				l := affinityLab(f, affinity, session)
				if kind == "syn" {
					checkNew(t, l, f, strings.Join(cells[:2], " "), cells[2+i])
					return
				}
				got := seen(l, f, kind)
				if got != cells[2+i] {
					t.Errorf("%s %s, %s: %s, want %s", cells[0], cells[1], kind, got, cells[2+i])
				}
			})
		}
	}
}

// seen finds out which fields count, by changing one at a time.
func seen(l *lab, f family, kind string) string {
	base := kindOf(f, kind)
	first := sendKind(l, kind, base)
	var ring, table []string
	for letter, p := range variants(f, base) {
		o := sendKind(l, kind, p)
		if o.Slot != first.Slot {
			ring = append(ring, letter)
		}
		if o.Hash != first.Hash {
			table = append(table, letter)
		}
	}
	if !first.Tracked {
		table = []string{"-"}
	}
	order := func(letters []string) string {
		slices.SortFunc(letters, func(a, b string) int { return strings.Index("abxyp", a) - strings.Index("abxyp", b) })
		return strings.Join(letters, "")
	}
	return order(ring) + ":" + order(table)
}

// checkNew gives a flow a backend that is not the ring's, and looks whether a
// SYN follows it.
func checkNew(t *testing.T, l *lab, f family, row, want string) {
	t.Helper()
	ack := sendKind(l, "tcp", kindOf(f, "tcp"))
	other := ack.Backend + 1
	if l.Backends[other].Service != ack.Service {
		other = ack.Backend - 1
	}
	for _, table := range []Flows{l.flows, l.half} {
		clear(l.flows)
		clear(l.half)
		table[ack.Hash] = FlowEntry{Backend: other, Generation: 1, Service: ack.Service, Until: 1 << 30}
		got := "old"
		syn := sendKind(l, "syn", kindOf(f, "syn"))
		if syn.Backend != other {
			got = "new"
		}
		if got != want || (got == "new") != (syn.By == ByRing) {
			t.Errorf("%s: a SYN is %s (%s), want %s", row, got, syn.By, want)
		}
		if o := sendKind(l, "tcp", kindOf(f, "tcp")); o.Backend != syn.Backend || o.By == ByRing {
			t.Errorf("%s: the next packet goes to %d by %s, the SYN went to %d", row, o.Backend, o.By, syn.Backend)
		}
	}
}
