package model

import (
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
)

// Query asks about a packet that opens no connection, of a flow to a VIP.
type Query struct {
	// Flow is the packet's: two addresses of one family, any protocol.
	Flow edge.Flow
	// Fragment asks about a fragment; ports do not count then.
	Fragment bool
	// ConnectionID is that of the packet, if it is of QUIC with a short header.
	ConnectionID []byte
}

// Explain says what would happen to such a packet at now, as small as can be and
// with hops left, and why: Outcome.Why. It changes nothing, and asks no limits.
func (w *World) Explain(q Query, now time.Duration) Outcome {
	d := decision{w: w, now: now, still: true, p: q.packet()}
	kind := w.Addrs[d.p.tuple.Dst] & AddrKind
	switch {
	case kind != AddrVIP:
		d.Verdict = PassNotVIP
	case d.p.tuple.badSource():
		d.Verdict = DropBadSource
	default:
		d.Verdict = d.explain()
	}
	d.Out = nil
	if a := d.Verdict.Action(); a == Drop || a == Pass {
		d.Egress = 0
	}
	return d.Outcome
}

func (d *decision) explain() Verdict {
	if v := d.block(); v != Undecided {
		return v
	}
	if d.p.tuple.Proto == d.p.tuple.icmp() {
		return PassICMP
	}
	return d.forward()
}

// badSource says whether no host sends from the tuple's source to its destination.
func (t Tuple) badSource() bool {
	src := netip.AddrFrom16(t.Src)
	if t.V6 {
		return src.Is4In6() || src.IsMulticast() || src.IsUnspecified() || src.IsLoopback() || t.Src == t.Dst
	}
	first := t.Src[12]
	return first == 0 || first == 127 || first >= 224 || t.Src == t.Dst
}

// packet is the packet that a query is about, as it would be parsed.
func (q Query) packet() packet {
	p := packet{
		tuple: Tuple{
			V6:    !q.Flow.Dst.Addr().Unmap().Is4(),
			Src:   q.Flow.Src.Addr().As16(),
			Dst:   q.Flow.Dst.Addr().As16(),
			Proto: uint8(q.Flow.Protocol),
		},
		ip: make([]byte, ip6Len), ttl: ourTTL, fragment: q.Fragment,
	}
	if q.Fragment || !hasPorts(p.tuple.Proto) {
		return p
	}
	p.tuple.SPort, p.tuple.DPort = q.Flow.Src.Port(), q.Flow.Dst.Port()
	if p.tuple.Proto == protoUDP && len(q.ConnectionID) > 0 {
		p.shortID = q.ConnectionID
	}
	return p
}
