package nft

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// layout is what the table has in it. The services are elements of sets, so that
// a packet costs the same whether there is one of them or a thousand. There are
// as many rules as there are different MSS: one or two for a family.
type layout struct {
	flags  uint32
	sets   []set
	chains []chain
}

type set struct {
	name     string
	key      nftables.SetDatatype
	special  bool                  // it is a map, has flags or a size, which ours are and have not
	elements []nftables.SetElement // in order of their keys
}

type chain struct {
	name string
	kind nftables.ChainType
	hook nftables.ChainHook
	prio nftables.ChainPriority
	// policy is what becomes of a packet at the end.
	policy nftables.ChainPolicy
	rules  []rule
}

type rule struct {
	userData []byte // the comment, as the tool nft writes it
	exprs    []expr.Any
}

func (r rule) same(o rule) bool { return reflect.DeepEqual(r, o) }

func newRule(comment string, exprs ...[]expr.Any) rule {
	return rule{userdata.AppendString(nil, userdata.TypeComment, comment), slices.Concat(exprs...)}
}

// family is where IPv4 and IPv6 differ.
type family struct {
	suffix           string // of the names of its sets
	nfproto          byte
	source, dest     uint32 // offsets in the IP header
	ttl              uint32 // likewise; of IPv6 the hop limit
	length           uint32 // of an address
	addr             nftables.SetDatatype
	registerPastAddr uint32 // where a key goes on, when the address is in register 1
}

// The kernel numbers registers of 4 bytes from 8 on, and calls those at the
// bounds of 16 bytes 1 to 4: so 9 is what follows 4 bytes in 1.
func families() [2]family {
	return [2]family{
		{"4", unix.NFPROTO_IPV4, 12, 16, 8, 4, nftables.TypeIPAddr, unix.NFT_REG32_00 + 1},
		{"6", unix.NFPROTO_IPV6, 8, 24, 7, 16, nftables.TypeIP6Addr, unix.NFT_REG_2},
	}
}

func (f family) has(a netip.Addr) bool { return a.BitLen() == 8*int(f.length) }

func newChain(name string, hook *nftables.ChainHook) chain {
	return chain{name: name, kind: nftables.ChainTypeFilter, hook: *hook, prio: *nftables.ChainPriorityRaw, policy: nftables.ChainPolicyAccept}
}

// newLayout lays out the table of r and guards. A nil untrack leaves the rules out
// that end tracking.
func newLayout(r Rules, guards []Guard, untrack expr.Any) layout {
	var l layout
	// Before connection tracking (-200). What comes out of a tunnel comes up the
	// uplink like any packet: the forwarder decapsulates before the stack.
	in, out := newChain("prerouting", nftables.ChainHookPrerouting), newChain("output", nftables.ChainHookOutput)
	for _, f := range families() {
		in.rules = append(in.rules, f.guards(guards)...)
	}
	for _, f := range families() {
		vips := f.vips(r)
		if len(vips.elements) == 0 {
			continue
		}
		l.sets = append(l.sets, vips)
		if untrack != nil {
			// By the address alone: a fragment and an ICMP error name no port of
			// ours. A packet of this box to its own VIP is met on its way out.
			in.rules = append(in.rules, f.untrack(f.dest, vips, untrack))
			out.rules = append(out.rules, f.untrack(f.source, vips, untrack), f.untrack(f.dest, vips, untrack))
		}
		for _, c := range f.clamps(r) {
			l.sets = append(l.sets, c.of)
			in.rules = append(in.rules, f.clamp(f.dest, destPort, c))
			out.rules = append(out.rules, f.clamp(f.source, sourcePort, c))
		}
	}
	l.chains = []chain{in, out}
	return l
}

// Offsets in the TCP header (RFC 9293 section 3.1), and its flags.
const (
	sourcePort = 0
	destPort   = 2
	tcpFlags   = 13
	flagSYN    = 0x02
	flagRST    = 0x04
)

func (f family) only() []expr.Any {
	return equals(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, f.nfproto)
}

func (f family) load(at uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: f.length}
}

// equals loads one byte into register 1 and goes on if it is want.
func equals(load expr.Any, want byte) []expr.Any {
	return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{want}}}
}

// untrack ends tracking for packets that have a VIP at an offset.
func (f family) untrack(at uint32, vips set, untrack expr.Any) rule {
	return newRule("edged: VIP, not tracked", f.only(), []expr.Any{
		f.load(at), &expr.Lookup{SourceRegister: 1, SetName: vips.name}, untrack,
	})
}

// clamp is the set of VIPs that share an MSS: of addresses with ports, or of
// whole addresses.
type clamp struct {
	mss   uint16
	ports bool
	of    set
}

// clamp sets the MSS option to that of c, and ends the chain: ports go before
// whole addresses. The kernel itself never raises an MSS (net/netfilter/
// nft_exthdr.c: "increase can cause connection to stall"), and leaves a SYN
// without the option alone.
func (f family) clamp(at, port uint32, c clamp) rule {
	key := []expr.Any{f.load(at)}
	if c.ports {
		key = append(key, &expr.Payload{DestRegister: f.registerPastAddr, Base: expr.PayloadBaseTransportHeader, Offset: port, Len: 2})
	}
	return newRule("edged: VIP, MSS that fits into the tunnel", f.only(), synOnly(), key, []expr.Any{
		&expr.Lookup{SourceRegister: 1, SetName: c.of.name},
		&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, c.mss)},
		&expr.Exthdr{SourceRegister: 1, Type: unix.TCPOPT_MAXSEG, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt},
		&expr.Verdict{Kind: expr.VerdictReturn},
	})
}

// synOnly goes on with a SYN or a SYN-ACK: nothing else has an MSS, and of most
// packets nothing more is looked at. A fragment has no flags: it does not go on.
func synOnly() []expr.Any {
	return slices.Concat(
		equals(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, unix.IPPROTO_TCP),
		[]expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlags, Len: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{flagSYN | flagRST}, Xor: []byte{0}},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{flagSYN}},
		})
}

// vips are the addresses of one family.
func (f family) vips(r Rules) set {
	keys := map[string]bool{}
	for _, s := range r {
		if a := s.VIP.Addr().Unmap(); f.has(a) {
			keys[string(a.AsSlice())] = true
		}
	}
	return newSet("vip"+f.suffix, f.addr, keys)
}

// clamps are the VIPs of one family by their MSS, with those that are ports
// first.
func (f family) clamps(r Rules) []clamp {
	type vip struct {
		addr netip.Addr
		port uint16
	}
	lowest := map[vip]int{}
	for _, s := range r {
		v := vip{s.VIP.Addr().Unmap(), s.VIP.Port()}
		if !f.has(v.addr) || s.MSS <= 0 || s.Protocol != edge.TCP && s.Protocol != edge.AnyProtocol {
			continue
		}
		if old, ok := lowest[v]; !ok || s.MSS < old {
			lowest[v] = min(s.MSS, mostMSS)
		}
	}
	keys := map[uint16]map[bool]map[string]bool{} // by MSS and by whether they have ports
	for v, mss := range lowest {
		m := uint16(mss)
		if keys[m] == nil {
			keys[m] = map[bool]map[string]bool{false: {}, true: {}}
		}
		key := v.addr.AsSlice()
		if v.port != 0 {
			key = append(binary.BigEndian.AppendUint16(key, v.port), 0, 0) // each part is padded to 4 bytes
		}
		keys[m][v.port != 0][string(key)] = true
	}
	var out []clamp
	for _, ports := range []bool{true, false} {
		for _, m := range slices.Sorted(maps.Keys(keys)) {
			if c := f.newClamp(m, ports, keys[m][ports]); len(c.of.elements) > 0 {
				out = append(out, c)
			}
		}
	}
	return out
}

func (f family) newClamp(mss uint16, ports bool, keys map[string]bool) clamp {
	name, key := fmt.Sprintf("vip%s_mss_%d", f.suffix, mss), f.addr
	if ports {
		name, key = fmt.Sprintf("vip%s_port_mss_%d", f.suffix, mss), nftables.MustConcatSetType(f.addr, nftables.TypeInetService)
	}
	return clamp{mss, ports, newSet(name, key, keys)}
}

func newSet(name string, key nftables.SetDatatype, keys map[string]bool) set {
	s := set{name: name, key: key}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		s.elements = append(s.elements, nftables.SetElement{Key: []byte(k)})
	}
	return s
}

// sorted returns l in the order of names: the kernel has its own.
func (l layout) sorted() layout {
	l.sets = slices.SortedFunc(slices.Values(l.sets), func(a, b set) int { return cmp.Compare(a.name, b.name) })
	l.chains = slices.SortedFunc(slices.Values(l.chains), func(a, b chain) int { return cmp.Compare(a.name, b.name) })
	return l
}
