package main

import (
	"net/netip"
	"testing"

	"github.com/catchment-dev/edge"
)

// TestReceived: what a peer has sent, whole, cut, not handed out, beyond its
// limit, and that of peers without a session or without known settings.
func TestReceived(t *testing.T) {
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, p := range list {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	peers := []struct {
		set edge.Peer
		is  edge.PeerState
	}{
		{edge.Peer{ID: "whole", ImportLimit: 5000, DefaultRoute: true},
			edge.PeerState{Received: 3, Default: true, FirstReceived: prefixes("0.0.0.0/0", "198.51.100.128/25", "203.0.113.0/24")}},
		{edge.Peer{ID: "cut", DefaultRoute: true},
			edge.PeerState{Received: 900, FirstReceived: prefixes("192.0.2.0/24", "203.0.113.0/24")}},
		{edge.Peer{ID: "many", ImportLimit: 1000000}, edge.PeerState{Received: 987654, Pending: 7}},
		{edge.Peer{ID: "over", ImportLimit: 1},
			edge.PeerState{Received: 1, OverLimit: true, FirstReceived: prefixes("2001:db8:2::/48")}},
		{edge.Peer{ID: "over-cut", ImportLimit: 1000},
			edge.PeerState{Received: 1000, OverLimit: true, FirstReceived: prefixes("203.0.113.0/24")}},
		{edge.Peer{ID: "glass", Watch: true},
			edge.PeerState{Received: 2, FirstReceived: prefixes("198.51.100.0/24", "203.0.113.0/24")}},
		{edge.Peer{ID: "nothing"}, edge.PeerState{}},
		{edge.Peer{}, edge.PeerState{ID: "unset", Received: 1, FirstReceived: prefixes("203.0.113.0/24")}},
		{edge.Peer{ID: "down"}, edge.PeerState{Session: "active"}},
	}
	st := quiet()
	st.Speaker.Speaker = &edge.Speaker{ASN: 64512, RouterID: netip.MustParseAddr("10.1.0.2")}
	st.Speaker.Peers, st.Speaker.KeepErr = nil, "no space left on device"
	for i, p := range peers {
		if p.set.ID != "" {
			st.Speaker.Speaker.Peers = append(st.Speaker.Speaker.Peers, p.set)
			p.is.ID = p.set.ID
		}
		p.is.Addr, p.is.ASN, p.is.Since = netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 3)}), 65001, st.Speaker.Started
		if p.is.Session == "" {
			p.is.Session = "established"
		}
		st.Speaker.Peers = append(st.Speaker.Peers, p.is)
	}
	e := "--socket=" + (&edged{status: st}).serve(t)
	golden(t, "received", []string{e, "bgp"}, false)
	for _, p := range st.Speaker.Peers {
		golden(t, "received-"+string(p.ID), []string{e, "bgp", string(p.ID)}, false)
	}
	golden(t, "received-colour", []string{e, "bgp", "over-cut"}, true)
}
