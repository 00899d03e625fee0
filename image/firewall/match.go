package firewall

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// match are the expressions of a part of a rule: it goes on if they hold.
type match []expr.Any

// family is where IPv4 and IPv6 differ.
type family struct {
	suffix       string // of the names of its sets
	nfproto      byte
	source, dest uint32 // offsets in the IP header
	ttl          uint32 // likewise; of IPv6 the hop limit
	length       uint32 // of an address, in bytes
	addr         nftables.SetDatatype
}

func families() [2]family {
	return [2]family{
		{"4", unix.NFPROTO_IPV4, 12, 16, 8, 4, nftables.TypeIPAddr},
		{"6", unix.NFPROTO_IPV6, 8, 24, 7, 16, nftables.TypeIP6Addr},
	}
}

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return families()[0]
	}
	return families()[1]
}

func (f family) has(a netip.Addr) bool { return a.BitLen() == 8*int(f.length) }

// register is that of 32 bits which begins so many bytes behind the first.
func register(bytes uint32) uint32 { return unix.NFT_REG32_00 + bytes/4 }

// only goes on with packets of the family.
func (f family) only() match {
	return equals(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, f.nfproto)
}

// load puts an address into the first registers.
func (f family) load(at uint32) expr.Any {
	return &expr.Payload{DestRegister: register(0), Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: f.length}
}

// from goes on with packets whose source address is in the set.
func (f family) from(name string) match {
	return join(f.only(), match{f.load(f.source), lookup(name)})
}

// fromLink is from for a set of addresses with an interface each.
func (f family) fromLink(name string) match {
	return join(f.only(), match{f.load(f.source), &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register(f.length)}, lookup(name)})
}

// to goes on with packets whose destination address is in the set.
func (f family) to(name string) match { return join(f.only(), match{f.load(f.dest), lookup(name)}) }

// toProtocol and toService are to for sets of addresses with a protocol, and with
// a protocol and a port.
func (f family) toProtocol(name string) match {
	return join(f.only(), match{f.load(f.dest), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register(f.length)}, lookup(name)})
}

func (f family) toService(name string) match {
	return join(f.only(), match{
		f.load(f.dest),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register(f.length)},
		&expr.Payload{DestRegister: register(f.length + 4), Base: expr.PayloadBaseTransportHeader, Offset: destPort, Len: 2},
		lookup(name),
	})
}

// within goes on with packets whose source is in the network, which is of the
// family.
func (f family) within(n netip.Prefix) match {
	mask := make([]byte, f.length)
	for i := range n.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return join(f.only(), match{
		f.load(f.source),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: f.length, Mask: mask, Xor: make([]byte, f.length)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: n.Addr().AsSlice()},
	})
}

// near goes on with packets whose TTL is at least so; 0 is any.
func (f family) near(least uint8) match {
	if least == 0 {
		return nil
	}
	return match{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.ttl, Len: 1},
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: []byte{least}},
	}
}

func lookup(name string) expr.Any { return &expr.Lookup{SourceRegister: 1, SetName: name} }

// equals loads one byte into the first register and goes on if it is want.
func equals(load expr.Any, want byte) match {
	return match{load, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{want}}}
}

func protocol(p byte) match { return equals(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, p) }

// Offsets in the headers of TCP and UDP (RFC 9293 section 3.1), and flags.
const (
	sourcePort = 0
	destPort   = 2
	tcpFlags   = 13
	flagSYN    = 0x02
	flagACK    = 0x10
)

// port goes on with packets of the protocol that have the port at the offset.
func port(p byte, at uint32, n uint16) match {
	return join(protocol(p), match{loadPort(at), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, n)}})
}

// ports is port for a set of them.
func ports(p byte, at uint32, name string) match {
	return join(protocol(p), match{loadPort(at), lookup(name)})
}

func loadPort(at uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: at, Len: 2}
}

// answers goes on with TCP packets that do not open a connection.
func answers() match {
	return match{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlags, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{flagSYN | flagACK}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{flagSYN}},
	}
}

// icmpType goes on with ICMP packets of the type.
func icmpType(p, n byte) match {
	return join(protocol(p), equals(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1}, n))
}

// state goes on with packets that connection tracking has put into one of the
// states. What is not tracked is in none.
func state(bits uint32) match {
	return match{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

// link goes on with packets of the interface, in (MetaKeyIIFNAME) or out.
func link(key expr.MetaKey, name string) match {
	return match{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: linkName(name)}}
}

// linkName is the name as the kernel compares it.
func linkName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// The ends of a rule.
func accept() match { return match{&expr.Verdict{Kind: expr.VerdictAccept}} }

func untracked() match { return match{&expr.Notrack{}} }

func jump(chain string) match { return match{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}} }

// refuse drops and counts: the counter is the reason.
func refuse(counter string) match {
	return match{&expr.Objref{Type: int(nftables.ObjTypeCounter), Name: counter}, &expr.Verdict{Kind: expr.VerdictDrop}}
}

func join(parts ...match) match {
	var out match
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// rule is a match that ends in a verdict, with a comment for who lists it.
type rule struct {
	comment string
	exprs   match
}

func newRule(comment string, parts ...match) rule { return rule{comment, join(parts...)} }

// userData is the comment as the tool nft writes it.
func (r rule) userData() []byte {
	if r.comment == "" {
		return nil
	}
	return userdata.AppendString(nil, userdata.TypeComment, r.comment)
}
