package nft

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// bgpPort is the TCP port of a router (RFC 4271 section 8.1.1).
const bgpPort = 179

// Guard keeps packets of BGP or BFD off that come from further away than they
// should (GTSM, RFC 5082; RFC 5881 section 5). Their sockets check that as well;
// this is for what would fill their queues, like a flood of SYNs.
type Guard struct {
	// Peer is whose packets are looked at; not valid: those of everybody.
	Peer netip.Addr
	// UDP guards a port of UDP, not of TCP.
	UDP bool
	// Listen is the local port that is guarded; 0: none. TCP packets from port 179
	// of Peer are guarded too, unless that is everybody.
	Listen uint16
	// MinTTL is the lowest TTL or hop limit that is let through.
	MinTTL uint8
}

// guards are the rules for guards of one family, in a fixed order.
func (f family) guards(list []Guard) []rule {
	var out []rule
	for _, g := range slices.SortedFunc(slices.Values(list), Guard.compare) {
		if g.Peer.IsValid() && !f.has(g.Peer.Unmap()) {
			continue
		}
		if g.Peer.IsValid() && !g.UDP {
			out = append(out, f.guard(g, sourcePort, bgpPort))
		}
		if g.Listen != 0 {
			out = append(out, f.guard(g, destPort, g.Listen))
		}
	}
	return slices.CompactFunc(out, rule.same)
}

func (g Guard) compare(o Guard) int {
	if c := g.Peer.Compare(o.Peer); c != 0 {
		return c
	}
	if g.UDP != o.UDP {
		return map[bool]int{false: -1, true: 1}[g.UDP]
	}
	return slices.Compare([]uint16{g.Listen, uint16(g.MinTTL)}, []uint16{o.Listen, uint16(o.MinTTL)})
}

// guard drops packets of the peer that have a port at an offset and a TTL
// below the lowest.
func (f family) guard(g Guard, at uint32, port uint16) rule {
	var from []expr.Any
	if g.Peer.IsValid() {
		from = []expr.Any{f.load(f.source), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: g.Peer.Unmap().AsSlice()}}
	}
	comment, protocol := "edged: BGP, from too far away", byte(unix.IPPROTO_TCP)
	if g.UDP {
		comment, protocol = "edged: BFD, from too far away", unix.IPPROTO_UDP
	}
	return newRule(comment, f.only(), from,
		equals(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, protocol),
		[]expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: at, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.ttl, Len: 1},
			&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: []byte{g.MinTTL}},
			&expr.Verdict{Kind: expr.VerdictDrop},
		})
}
