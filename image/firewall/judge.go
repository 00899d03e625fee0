package firewall

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// Packet is one that comes to the box from outside. Of ICMP it is a ping, of TCP a
// SYN.
type Packet struct {
	Protocol edge.Protocol
	From, To netip.AddrPort // both of one family; without ports where there are none
}

// Fate is what becomes of a packet.
type Fate struct {
	// LetIn says that it is let in, at once or under conditions: with a TTL or hop
	// limit of TTL at least (0: any), by the interface Link ("": any).
	LetIn bool
	TTL   uint8
	Link  string
	// Refused is the counter of the reason for which it is dropped: always, or where
	// neither condition holds. Where one does, the counter may be another.
	Refused string
	// Answers says that it is let in too where it answers what the box has begun.
	Answers bool
}

// usualTTL is that of a packet of which nothing is known: it has come some hops.
const usualTTL = 64

// Judge says what the rules would do to a packet. It goes through the same rules that
// Apply writes, as the kernel does, but for limits of rate, which it takes as kept.
func (r Ruleset) Judge(p Packet) Fate {
	try := func(link string, ttl uint8, state uint32) (letIn bool, counter string) {
		m := machine{layout: r.layout, link: link, state: state}
		m.write(p, ttl)
		v := m.chain("input")
		return v == expr.VerdictAccept, m.counter
	}
	letIn, counter := try("", usualTTL, expr.CtStateBitNEW)
	if letIn {
		return Fate{LetIn: true}
	}
	out := Fate{Refused: counter}
	out.Answers, _ = try("", usualTTL, expr.CtStateBitESTABLISHED)
	for _, link := range append([]string{""}, r.links...) {
		if ok, _ := try(link, directHopTTL, expr.CtStateBitNEW); !ok {
			continue
		}
		least := uint8(directHopTTL)
		for ; least > 0; least-- {
			if ok, _ := try(link, least-1, expr.CtStateBitNEW); !ok {
				break
			}
		}
		out.LetIn, out.TTL, out.Link = true, least, link
		return out
	}
	return out
}

// machine runs rules over one packet, as nf_tables does.
type machine struct {
	layout             layout
	network, transport []byte
	protocol, nfproto  byte
	link               string
	state              uint32
	registers          [64]byte
	counter            string
}

// write makes the headers.
func (m *machine) write(p Packet, ttl uint8) {
	f := familyOf(p.From.Addr())
	m.nfproto, m.protocol = f.nfproto, byte(p.Protocol)
	m.network, m.transport = make([]byte, f.dest+f.length), make([]byte, 20)
	m.network[f.ttl] = ttl
	copy(m.network[f.source:], p.From.Addr().AsSlice())
	copy(m.network[f.dest:], p.To.Addr().AsSlice())
	m.transport[sourcePort], m.transport[sourcePort+1] = byte(p.From.Port()>>8), byte(p.From.Port())
	m.transport[destPort], m.transport[destPort+1] = byte(p.To.Port()>>8), byte(p.To.Port())
	m.transport[tcpFlags] = flagSYN
	switch m.protocol {
	case unix.IPPROTO_ICMP:
		m.transport[0] = echoRequest4
	case unix.IPPROTO_ICMPV6:
		m.transport[0] = echoRequest6
	}
}

// chain is the verdict of a chain; VerdictContinue if none of its rules has one and
// nor has the chain.
func (m *machine) chain(name string) expr.VerdictKind {
	i := slices.IndexFunc(m.layout.chains, func(c chain) bool { return c.name == name })
	for _, r := range m.layout.chains[i].rules {
		if v := m.rule(r); v != expr.VerdictContinue {
			return v
		}
	}
	if m.layout.chains[i].drops {
		return expr.VerdictDrop
	}
	return expr.VerdictContinue
}

func (m *machine) rule(r rule) expr.VerdictKind {
	for _, e := range r.exprs {
		switch e := e.(type) {
		case *expr.Verdict:
			if e.Kind == expr.VerdictJump {
				return m.chain(e.Chain)
			}
			return e.Kind
		case *expr.Objref:
			m.counter = e.Name
		default:
			if !m.holds(e) {
				return expr.VerdictContinue
			}
		}
	}
	return expr.VerdictContinue
}

// holds runs one expression; false: the rule does not go on. What it does not know
// is none of this package.
func (m *machine) holds(e expr.Any) bool {
	switch e := e.(type) {
	case *expr.Meta:
		copy(m.at(e.Register), m.meta(e.Key))
	case *expr.Payload:
		from := m.network
		if e.Base == expr.PayloadBaseTransportHeader {
			from = m.transport
		}
		to := m.at(e.DestRegister)
		clear(to[:(e.Len+3)&^3]) // whole registers are loaded
		copy(to, from[e.Offset:e.Offset+e.Len])
	case *expr.Bitwise:
		in, out := m.at(e.SourceRegister), m.at(e.DestRegister)
		for i := range int(e.Len) {
			out[i] = in[i]&e.Mask[i] ^ e.Xor[i]
		}
	case *expr.Ct:
		copy(m.at(e.Register), binaryutil.NativeEndian.PutUint32(m.state))
	case *expr.Cmp:
		return compare(e.Op, bytes.Compare(m.at(e.Register)[:len(e.Data)], e.Data))
	case *expr.Lookup:
		return m.finds(e.SetName, m.at(e.SourceRegister))
	case *expr.Limit:
	default:
		panic("firewall: an expression that Judge does not know")
	}
	return true
}

func (m *machine) meta(key expr.MetaKey) []byte {
	switch key {
	case expr.MetaKeyNFPROTO:
		return []byte{m.nfproto, 0, 0, 0}
	case expr.MetaKeyL4PROTO:
		return []byte{m.protocol, 0, 0, 0}
	case expr.MetaKeyIIFNAME:
		return linkName(m.link)
	case expr.MetaKeyPKTTYPE:
		return []byte{unix.PACKET_HOST, 0, 0, 0}
	}
	panic("firewall: a fact of a packet that Judge does not know")
}

// at is a register: the first four are of 16 bytes, and lie over those of four.
func (m *machine) at(register uint32) []byte {
	if register < unix.NFT_REG32_00 {
		return m.registers[16*(register-1):]
	}
	return m.registers[4*(register-unix.NFT_REG32_00):]
}

func (m *machine) finds(name string, key []byte) bool {
	i := slices.IndexFunc(m.layout.sets, func(s set) bool { return s.name == name })
	all := m.layout.sets[i].elements
	_, ok := slices.BinarySearchFunc(all, key, func(e nftables.SetElement, key []byte) int { return bytes.Compare(e.Key, key[:len(e.Key)]) })
	return ok
}

func compare(op expr.CmpOp, c int) bool {
	switch op {
	case expr.CmpOpEq:
		return c == 0
	case expr.CmpOpNeq:
		return c != 0
	}
	return c >= 0 // CmpOpGte: others are not made
}
