package main

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/maglev"
)

// flowLooker says where a packet would go. The forwarder is one.
type flowLooker interface {
	Lookup(f edge.Flow, cid []byte) (edge.FlowVerdict, error)
}

// explainFlow also says what the host firewall does, where the packet comes to it.
func explainFlow(fwd flowLooker, what string, host func(edge.Flow) string) (edge.Explanation, error) {
	e := edge.Explanation{What: what, Kind: "flow"}
	f, cid, err := parseFlow(what)
	if err != nil {
		return e, err
	}
	v, err := fwd.Lookup(f, cid)
	if err != nil {
		return e, fmt.Errorf("look up flow: %w", err)
	}
	e.Lines = append(e.Lines, fmt.Sprintf("%s: %s", v.Action, v.Reason))
	if v.Service != "" {
		e.Lines = append(e.Lines, fmt.Sprintf("service %s", v.Service),
			fmt.Sprintf("backend %s: %s", cmp.Or(string(v.Backend), "none"), chosenBy(v)))
	}
	if v.Action == "pass" {
		e.Lines = append(e.Lines, host(f))
	}
	return e, nil
}

// chosenBy says why it is that backend, and what else there is to know of it.
func chosenBy(v edge.FlowVerdict) string {
	slot := fmt.Sprintf("slot %d of %d", v.Slot, maglev.Size)
	switch v.By {
	case "table":
		return "the flow table remembers it; in the ring it has " + slot
	case "half":
		return "the table of flows that have shown one packet remembers it; in the ring it has " + slot
	case "ring":
		return "the ring chooses it, by " + slot + "; no table remembers the flow"
	case "server_id":
		return "the server id in the connection id names it; in the ring the flow has " + slot
	case "":
		return "nothing chooses one"
	}
	return "chosen by " + v.By + "; in the ring the flow has " + slot
}

// parseFlow reads "tcp 192.0.2.1:40000 198.51.100.10:443", and of QUIC the
// connection id in hexadecimal behind it: "udp SRC DST cid=0a1b2c". A protocol
// without ports has addresses alone: "gre 192.0.2.1 198.51.100.10". Any
// protocol may be given by number.
func parseFlow(s string) (f edge.Flow, cid []byte, err error) {
	parts := strings.Fields(s)
	if len(parts) != 3 && len(parts) != 4 {
		return f, nil, fmt.Errorf("flow %q is not PROTOCOL SOURCE DESTINATION, or that with cid=HEX", s)
	}
	if f.Protocol, err = parseProtocol(parts[0]); err != nil {
		return f, nil, err
	}
	if f.Src, err = parseEnd(f.Protocol, parts[1]); err != nil {
		return f, nil, fmt.Errorf("read source of flow: %w", err)
	}
	if f.Dst, err = parseEnd(f.Protocol, parts[2]); err != nil {
		return f, nil, fmt.Errorf("read destination of flow: %w", err)
	}
	if f.Src.Addr().Is4() != f.Dst.Addr().Is4() {
		return f, nil, fmt.Errorf("flow %q mixes IPv4 and IPv6", s)
	}
	if len(parts) == 4 {
		cid, err = parseConnectionID(f.Protocol, parts[3])
	}
	return f, cid, err
}

// parseProtocol reads a protocol by the name that it has in our documents, by
// one that people know it by, or by number.
func parseProtocol(s string) (edge.Protocol, error) {
	var p edge.Protocol
	s = strings.ToLower(s)
	switch s {
	case "esp":
		return 50, nil
	case "gre":
		return 47, nil
	case "sctp":
		return 132, nil
	}
	if n, err := strconv.ParseUint(s, 10, 8); err == nil {
		p = edge.Protocol(n)
	} else if err := p.UnmarshalText([]byte(s)); err != nil {
		return p, fmt.Errorf("protocol %q is not tcp, udp, esp, gre, sctp or a number from 1 to 255", s)
	}
	if p == edge.AnyProtocol {
		return p, errors.New("a flow has one protocol: tcp, udp, esp, gre, sctp or a number from 1 to 255")
	}
	return p, nil
}

// parseEnd reads one end of a flow: with a port if the protocol has ports.
func parseEnd(p edge.Protocol, s string) (netip.AddrPort, error) {
	if p == edge.TCP || p == edge.UDP {
		at, err := netip.ParseAddrPort(s)
		if err != nil {
			return at, fmt.Errorf("%q is not ADDRESS:PORT, like 192.0.2.1:40000 or [2001:db8::1]:40000", s)
		}
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address; %s has no ports", s, p)
	}
	return netip.AddrPortFrom(a.Unmap(), 0), nil
}

// maxConnectionID is the longest connection id of QUIC, in bytes (RFC 9000,
// section 17.2).
const maxConnectionID = 20

func parseConnectionID(p edge.Protocol, s string) ([]byte, error) {
	text, ok := strings.CutPrefix(s, "cid=")
	b, err := hex.DecodeString(text)
	switch {
	case !ok || err != nil || len(b) == 0 || len(b) > maxConnectionID:
		return nil, fmt.Errorf("%q is not cid= and 1 to %d bytes in hexadecimal", s, maxConnectionID)
	case p != edge.UDP:
		return nil, fmt.Errorf("a flow of %s has no connection id: QUIC is udp", p)
	}
	return b, nil
}
