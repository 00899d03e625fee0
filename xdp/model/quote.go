package model

// isEcho and isError say what an ICMP message asks for. Each is called with what
// was seen to be one of 8 bytes at least.
func (p *packet) isEcho() bool {
	if p.tuple.V6 {
		return p.rest[0] == 128
	}
	return p.rest[0] == 8
}

func (p *packet) isError() bool {
	if p.tuple.V6 {
		return p.rest[0] >= 1 && p.rest[0] <= 4
	}
	switch p.rest[0] {
	case 3, 11, 12: // unreachable, time exceeded, parameter problem
		return true
	}
	return false
}

// followQuote makes the flow that an ICMP error quotes the packet's own: its
// tuple, and whether it is a fragment. The quote is a packet that the VIP sent,
// cut off somewhere, so that its lengths say nothing.
func (p *packet) followQuote() Verdict {
	q, ok := parseQuote(p.rest[8:], p.tuple.V6)
	if !ok || q.tuple.Src != p.tuple.Dst {
		return DropICMPQuote
	}
	if q.tuple.Proto == q.tuple.icmp() {
		return PassICMP // the answer to a ping of this box
	}
	if hasPorts(q.tuple.Proto) && !q.fragment {
		if len(q.rest) < 4 {
			return DropICMPQuote
		}
		q.readPorts()
	}
	p.tuple, p.fragment, p.icmpError = q.tuple.reversed(), q.fragment, true
	return Undecided
}

func hasPorts(proto uint8) bool { return proto == protoTCP || proto == protoUDP }

// parseQuote parses the IP headers of a quoted packet.
func parseQuote(b []byte, v6 bool) (q packet, ok bool) {
	if v6 {
		return parseQuote6(b)
	}
	if len(b) < ip4Len || b[0]>>4 != 4 {
		return q, false
	}
	head := headLen(b)
	if head < ip4Len || head > len(b) {
		return q, false
	}
	more, offset := splitFragment4(b)
	q.tuple = Tuple{Src: mapped(b[12:16]), Dst: mapped(b[16:20]), Proto: b[9]}
	q.fragment, q.rest = more || offset != 0, b[head:]
	return q, true
}

func parseQuote6(b []byte) (q packet, ok bool) {
	if len(b) < ip6Len || b[0]>>4 != 6 {
		return q, false
	}
	c, v := walk(b[6], b[ip6Len:])
	q.tuple = Tuple{V6: true, Src: [16]byte(b[8:24]), Dst: [16]byte(b[24:40]), Proto: c.proto}
	q.fragment, q.rest = c.fragment, c.rest
	return q, v == Undecided
}
