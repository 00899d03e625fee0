package model

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/catchment-dev/edge/xdp/model/frame"
)

// step is one packet of a sequence.
type step struct {
	name  string
	flags byte
	by    By
	// where the flow is then: flow, half, both, or nowhere.
	then string
}

func (l *lab) where(o Outcome) string {
	_, flow := l.flows[o.Hash]
	_, half := l.half[o.Hash]
	switch {
	case flow && half:
		return "both"
	case flow:
		return "flow"
	case half:
		return "half"
	}
	return "nowhere"
}

// A connection: its first packet opens an entry in half, the second one takes it
// into the flow table. A SYN on the ports of a live flow takes its place.
func TestConnection(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		l := newLab()
		for _, s := range []step{
			{"rst of no flow", frame.RST, ByRing, "nowhere"},
			{"syn and rst", frame.SYN | frame.RST, ByRing, "nowhere"},
			{"syn", frame.SYN, ByRing, "half"},
			{"syn again", frame.SYN, ByRing, "half"},
			{"first ack", frame.ACK, ByHalf, "flow"},
			{"second ack", frame.ACK, ByTable, "flow"},
			{"syn-ack is no syn", frame.SYN | frame.ACK, ByTable, "flow"},
			{"syn on live ports", frame.SYN, ByRing, "flow"},
			{"its ack", frame.ACK, ByTable, "flow"},
			{"fin", frame.FIN | frame.ACK, ByTable, "flow"},
			{"rst", frame.RST, ByTable, "flow"},
			{"after the rst", frame.ACK, ByTable, "flow"},
		} {
			was := l.where(l.Explain(query(f.tcp(portGUE, 0)), long))
			o := l.send(f.tcp(portGUE, s.flags))
			if o.Opened != (s.by == ByRing && s.then == "half") || o.Established != (was == "half" && s.then == "flow") {
				t.Errorf("%s: opened %v, established %v", s.name, o.Opened, o.Established)
			}
			if o.By != s.by || l.where(o) != s.then {
				t.Errorf("%s: by %q, flow is %s; want %q, %s: %v", s.name, o.By, l.where(o), s.by, s.then, o.Why)
			}
		}
		e := l.flows[l.send(f.tcp(portGUE, frame.ACK)).Hash]
		if e.Service != f.id(portGUE) || e.Generation != 1 || e.Until != tick(long)+60 {
			t.Errorf("entry %+v", e)
		}
	})
}

// What is not tracked leaves nothing behind.
func TestUntracked(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		l := newLab()
		for range 2 {
			if o := l.send(f.udp(portGUE, nil)); o.By != ByRing || l.where(o) != "nowhere" || o.Tracked {
				t.Errorf("udp without an affinity: by %s, %s", o.By, l.where(o))
			}
		}
		if first, second := l.send(f.udp(portTracked, nil)), l.send(f.udp(portTracked, nil)); first.By != ByRing || second.By != ByHalf {
			t.Errorf("udp with an affinity: by %s, then %s", first.By, second.By)
		}
	})
}

// moved makes the flow of TCP of a service follow the backend that is not the
// ring's, in one of the tables, and returns the flow.
func moved(l *lab, f family, port uint16, table Flows) (flow Outcome, to uint32) {
	o := l.Explain(query(f.tcp(port, 0)), long)
	to = f.backend(port) + f.backend(port) + 1 - o.Backend
	table[o.Hash] = FlowEntry{Backend: to, Generation: 1, Service: o.Service, Until: tick(long)}
	return o, to
}

// When an entry is followed, and when it is not.
func TestFollow(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		for _, c := range []struct {
			name   string
			change func(l *lab, id uint32)
			at     time.Duration
			want   bool
		}{
			{"in the ring", func(*lab, uint32) {}, 0, true},
			{"in its last tick", func(*lab, uint32) {}, 0, true},
			{"past it", func(*lab, uint32) {}, 1 << tickShift, false},
			{"keeps tcp", state(Member | KeepTCP), 0, true},
			{"keeps all but tcp", state(Member | KeepOther), 0, false},
			{"keeps none", state(Member), 0, false},
			{"no member", state(KeepTCP | KeepOther), 0, false},
			{"gone", func(l *lab, id uint32) { delete(l.Backends, id) }, 0, false},
			{"came back", func(l *lab, id uint32) {
				b := l.Backends[id]
				b.Generation++
				l.Backends[id] = b
			}, 0, false},
			{"of another service now", func(l *lab, id uint32) {
				b := l.Backends[id]
				b.Service++
				l.Backends[id] = b
			}, 0, false},
		} {
			for _, half := range []bool{false, true} {
				l := newLab()
				table, by := l.flows, ByTable
				if half {
					table, by = l.half, ByHalf
				}
				flow, to := moved(l, f, portGUE, table)
				c.change(l, to)
				wantTo, wantBy := flow.Backend, ByRing
				if c.want {
					wantTo, wantBy = to, by
				}
				o := l.Decide(inLink.Frame(f.tcp(portGUE, frame.ACK).IP()), long+c.at)
				if o.Backend != wantTo || o.By != wantBy {
					t.Errorf("%s, half %v: backend %d by %s, want %d by %s: %v", c.name, half, o.Backend, o.By, wantTo, wantBy, o.Why)
				}
				if e := l.half[o.Hash]; half && c.want && e != (FlowEntry{}) {
					t.Errorf("%s: still in half", c.name)
				}
				if e, ok := l.flows[o.Hash]; c.want && (!ok || e.Until != tick(long+c.at)+60 || e.Backend != to) {
					t.Errorf("%s: entry %+v", c.name, e)
				}
			}
		}
	})
}

func state(s State) func(*lab, uint32) {
	return func(l *lab, id uint32) {
		b := l.Backends[id]
		b.State = s
		l.Backends[id] = b
	}
}

// UDP follows a backend that keeps what is not TCP.
func TestFollowUDP(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		for s, want := range map[State]bool{Member | KeepOther: true, Member | KeepTCP: false, Member: false} {
			l := newLab()
			first := l.send(f.udp(portTracked, nil))
			state(s)(l, first.Backend)
			second := l.send(f.udp(portTracked, nil))
			if (second.By == ByHalf) != want {
				t.Errorf("state %b: by %s: %v", s, second.By, second.Why)
			}
		}
	})
}

// A server id names the backend of whoever comes from wherever; all else of QUIC
// goes by the ring.
func TestServerID(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		first := f.backend(portQUIC)
		for _, c := range []struct {
			name    string
			payload []byte
			by      By
			backend uint32 // 0: the ring's
		}{
			{"the first", frame.ShortHeader([]byte{9, 7, 0, 5}, 20), ByServerID, first},
			{"the second", frame.ShortHeader([]byte{9, 7, 1}, 0), ByServerID, first + 1},
			{"unknown", frame.ShortHeader([]byte{9, 7, 2}, 20), ByRing, 0},
			{"too short", frame.ShortHeader([]byte{9, 7}, 0), ByRing, 0},
			{"a first byte alone", []byte{0x40}, ByRing, 0},
			{"empty", nil, ByRing, 0},
			{"a long header", frame.LongHeader([]byte{9, 7, 0, 5}, 20), ByRing, 0},
			{"a long header that looks like one", []byte{0x80, 9, 7, 0, 5}, ByRing, 0},
			{"of another service", frame.ShortHeader([]byte{9, 8, 0}, 20), ByRing, 0},
			{"of nobody", frame.ShortHeader([]byte{9, 8, 1}, 20), ByRing, 0},
		} {
			l := newLab()
			l.services[f.id(portQUIC)].Affinity = AffinityFiveTuple
			for port := range uint16(8) {
				p := f.udp(portQUIC, c.payload)
				p.Src = netip.AddrPortFrom(f.client, port)
				o := l.send(p)
				if o.By != c.by || c.backend != 0 && o.Backend != c.backend {
					t.Errorf("%s: %d by %s: %v", c.name, o.Backend, o.By, o.Why)
				}
				if tracked := l.where(o) != "nowhere"; tracked != (c.by == ByRing) {
					t.Errorf("%s: the flow is %s", c.name, l.where(o))
				}
			}
		}
	})
}

// The server id must be in what UDP says is its payload, and its backend a member.
func TestServerIDInside(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		ip := f.udp(portQUIC, frame.ShortHeader([]byte{9, 7, 1, 5}, 20)).IP()
		at := len(ip) - 25 - 4
		for size, want := range map[byte]By{8 + 4: ByServerID, 8 + 3: ByRing, 8 + 1: ByRing, 8: ByRing} {
			if o := newLab().Decide(eth(with(ip, at, 0, size)), long); o.By != want {
				t.Errorf("UDP of %d bytes: by %s, want %s", size, o.By, want)
			}
		}
		l := newLab()
		state(Member)(l, f.backend(portQUIC)+1)
		if o := l.Decide(eth(ip), long); o.By != ByServerID {
			t.Errorf("a member that keeps nothing: by %s", o.By)
		}
		state(0)(l, f.backend(portQUIC)+1)
		if o := l.Decide(eth(ip), long); o.By == ByServerID {
			t.Errorf("one that has left: by %s", o.By)
		}
	})
}

// The limits: as many at once as the burst, then one each interval; the source
// is asked first, so that it uses up nothing of the service's.
func TestSYNLimits(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		l := newLab()
		l.services[f.id(portSource)].SYN = Limit{time.Second, 4 * time.Second}
		from := func(a netip.Addr, port uint16) frame.Packet {
			p := f.tcp(portSource, frame.SYN)
			p.Src = netip.AddrPortFrom(a, port)
			return p
		}
		beside := f.client.Prev()
		for i, c := range []struct {
			from netip.Addr
			at   time.Duration
			want Verdict
		}{
			{f.client, 0, TXBackend}, {f.client, 0, TXBackend}, {f.client, 0, DropSYNLimitSource}, {f.client, 0, DropSYNLimitSource},
			{f.other, 0, TXBackend}, {f.other, 0, TXBackend}, {f.other, 0, DropSYNLimitSource},
			// Four of the service's five are gone. An IPv6 source is its /64.
			{beside, 0, map[bool]Verdict{false: TXBackend, true: DropSYNLimitSource}[f.v6]},
			{f.blocked.Next(), 0, DropBlocked},
			{f.client, time.Second - 1, DropSYNLimitSource},
			{f.client, time.Second, TXBackend}, {f.client, time.Second, DropSYNLimitSource},
			// The service gives one a second, and in IPv6 has one left.
			{addrOf(f, 1), time.Second, map[bool]Verdict{false: DropSYNLimitService, true: TXBackend}[f.v6]},
			{addrOf(f, 2), time.Second, DropSYNLimitService}, {addrOf(f, 3), time.Second, DropSYNLimitService},
		} {
			o := l.Decide(eth(from(c.from, uint16(i)).IP()), long+c.at)
			want(t, c.from.String(), o, c.want)
			if limited := c.want == DropSYNLimitService || c.want == DropSYNLimitSource; o.Limited != limited {
				t.Errorf("%d: limited %v", i, o.Limited)
			}
		}
		l.services[f.id(portService)].SYNSource = l.services[f.id(portSource)].SYNSource
		want(t, "the same source to another service", l.send(f.tcp(portService, frame.SYN)), TXBackend)
		for range 20 {
			want(t, "no SYN", l.send(f.tcp(portSource, frame.ACK)), TXBackend)
			want(t, "no SYN", l.send(f.tcp(portSource, frame.SYN|frame.ACK)), TXBackend)
		}
	})
}

// addrOf is one of many sources, in IPv6 of as many networks.
func addrOf(f family, n byte) netip.Addr {
	if f.v6 {
		return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0xf, 0xf, 0, n})
	}
	return netip.AddrFrom4([4]byte{198, 18, 0, n})
}

// Limits stand in the way of SYNs alone that nothing else stops, and a limit of
// one is one.
func TestSYNLimitOfOne(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		l := newLab()
		l.services[f.id(portGUE)].SYN = Limit{time.Second, 0}
		for _, v := range []Verdict{TXBackend, DropSYNLimitService} {
			want(t, "syn", l.send(f.tcp(portGUE, frame.SYN)), v)
		}
		// Where a SYN is as any packet, it is limited all the same.
		l = newLab()
		s := l.services[f.id(portGUE)]
		s.SYN, s.Affinity, s.PerSession = Limit{time.Second, 0}, AffinitySrc, true
		for _, v := range []Verdict{TXBackend, DropSYNLimitService} {
			want(t, "syn of a session", l.send(f.tcp(portGUE, frame.SYN)), v)
		}
		want(t, "syn and ack", l.send(f.tcp(portGUE, frame.SYN|frame.ACK)), TXBackend)
	})
}

// Without tables, nothing is remembered and all goes by the ring.
func TestNoTables(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		l := newLab()
		before := maps.Clone(l.flows)
		l.Flows, l.Half = nil, nil
		for range 3 {
			if o := l.send(f.tcp(portGUE, frame.ACK)); o.By != ByRing || o.Verdict != TXBackend {
				t.Errorf("%v by %s", o.Verdict, o.By)
			}
		}
		if !maps.Equal(before, l.flows) {
			t.Error("something was remembered")
		}
	})
}

// The flags of an address say which wildcards are asked at all.
func TestAddressFlags(t *testing.T) {
	both(t, func(t *testing.T, f family) {
		l, key := newLab(), f.wild.As16()
		l.VIPs[VIPKey{Addr: key, Proto: frame.UDP}] = f.id(portGUE)
		tcp, udp := f.tcp(7, frame.ACK), f.udp(7, nil)
		tcp.Dst = netip.AddrPortFrom(f.wild, 7)
		udp.Dst = tcp.Dst
		everything, ports := f.first+offWild, f.id(portGUE)
		for flags, want := range map[uint32][2]uint32{
			AddrAllPorts | AddrAllProtocols: {everything, ports}, AddrAllPorts: {0, ports}, AddrAllProtocols: {everything, everything}, 0: {0, 0},
		} {
			l.Addrs[key] = AddrVIP | flags
			if got := [2]uint32{l.send(tcp).Service, l.send(udp).Service}; got != want {
				t.Errorf("flags %#x: services %d, want %d", flags, got, want)
			}
		}
	})
}
