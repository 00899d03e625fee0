package model

import (
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
)

// decision is one packet on its way through the rules.
type decision struct {
	Outcome

	w   *World
	now time.Duration
	in  link
	p   packet
	svc *Service
	// still says that the World must stay as it is.
	still bool
}

// Decide says what becomes of a frame that comes in at now, the time of
// CLOCK_MONOTONIC, and changes the flow tables and the limits as the packet
// does. It takes any bytes, and does not write to them.
func (w *World) Decide(frame []byte, now time.Duration) Outcome {
	d := decision{w: w, now: now}
	d.Verdict = d.classify(frame)
	switch {
	case d.Verdict.Action() == Drop:
		d.Out, d.Egress = nil, 0
	case d.Verdict.Action() == Pass && d.Verdict != PassDecap:
		d.Out, d.Egress = frame, 0
	}
	return d.Outcome
}

// say keeps what was asked and answered.
func (d *decision) say(asked string, answer edge.Reason, backend uint32) {
	d.Why = append(d.Why, Step{asked, answer, backend})
}

// classify says whom a frame is for.
func (d *decision) classify(frame []byte) Verdict {
	var v Verdict
	if d.in, v = splitEthernet(frame); v != Undecided {
		return v
	}
	dst, v := destination(d.in.payload, d.in.v6)
	if v != Undecided {
		return v
	}
	kind := d.w.Addrs[dst] & AddrKind
	switch {
	case kind != AddrVIP && kind != AddrTunnel:
		return PassNotVIP
	case !d.w.ours(d.in.dst):
		return PassForeignMAC
	case kind == AddrTunnel:
		return d.decapsulate()
	}
	if d.p, v = parseIP(d.in.payload, d.in.v6); v != Undecided {
		return v
	}
	return d.toVIP()
}

func (w *World) ours(mac [6]byte) bool {
	for _, m := range w.MACs {
		if m == mac {
			return true
		}
	}
	return false
}

// toVIP judges a packet to a VIP whose IP headers are in order.
func (d *decision) toVIP() Verdict {
	d.Length = len(d.p.ip)
	if v := d.block(); v != Undecided {
		return v
	}
	if v := d.p.parseTransport(); v != Undecided {
		return v
	}
	if d.p.tuple.Proto == d.p.tuple.icmp() {
		if d.p.isEcho() {
			return d.echo()
		}
		if !d.p.isError() {
			return PassICMP
		}
		if v := d.p.followQuote(); v != Undecided {
			return v
		}
	}
	return d.forward()
}

func (d *decision) block() Verdict {
	if d.w.Blocked == nil {
		return Undecided
	}
	if d.w.Blocked(netip.AddrFrom16(d.p.tuple.Src).Unmap()) {
		d.say("blocklist", "the source is in it", 0)
		return DropBlocked
	}
	d.say("blocklist", "the source is not in it", 0)
	return Undecided
}

// forward finds the service of a packet, and its backend.
func (d *decision) forward() Verdict {
	id, v := d.w.service(&d.p)
	d.ICMPError, d.Fragment = d.p.icmpError, d.p.fragment
	switch v {
	case Undecided:
	case DropFragmentPorts:
		d.say("service", "fragments name no port, and the services of the protocol differ", 0)
		return v
	default:
		d.say("service", "none has that address, port and protocol", 0)
		return v
	}
	d.Service = id
	if d.w.Service != nil {
		d.svc = d.w.Service(id)
	}
	if d.svc == nil {
		d.say("service", "it has no table", 0)
		return DropNoTable
	}
	if v := d.choose(); v != Undecided {
		return v
	}
	return d.leave()
}

// service finds the service of a packet to a VIP. Which wildcards to try, the
// flags of the address say.
func (w *World) service(p *packet) (id uint32, v Verdict) {
	flags, t := w.Addrs[p.tuple.Dst], p.tuple
	if t.DPort != 0 { // a fragment has none
		if id, ok := w.VIPs[VIPKey{t.Dst, t.DPort, t.Proto}]; ok {
			return id & vipID, Undecided
		}
	}
	if flags&AddrAllPorts != 0 {
		id, ok := w.VIPs[VIPKey{Addr: t.Dst, Proto: t.Proto}]
		switch {
		case !ok || id&VIPFragments != 0 && !p.fragment:
		case id&vipID == 0:
			return 0, DropFragmentPorts
		default:
			return id & vipID, Undecided
		}
	}
	if flags&AddrAllProtocols != 0 {
		if id, ok := w.VIPs[VIPKey{Addr: t.Dst}]; ok {
			return id & vipID, Undecided
		}
	}
	return 0, PassNoService
}
