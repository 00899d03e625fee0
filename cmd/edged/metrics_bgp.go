package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/catchment-dev/edge"
)

var (
	metricPeer         = prometheus.NewDesc("edge_bgp_peer_established", "1 if the session is established.", []string{"peer"}, nil)
	metricFlaps        = prometheus.NewDesc("edge_bgp_peer_flaps_total", "Established sessions that were lost.", []string{"peer"}, nil)
	metricHeld         = prometheus.NewDesc("edge_bgp_peer_prefixes_sent", "Prefixes that the peer holds from this node.", []string{"peer"}, nil)
	metricPeerReceived = prometheus.NewDesc("edge_bgp_peer_prefixes_received", "Prefixes that the peer has sent, of which none is used.", []string{"peer"}, nil)
	metricUpdates      = prometheus.NewDesc("edge_bgp_peer_updates_total", "UPDATE messages by direction: sent, received.", []string{"peer", "direction"}, nil)
	metricWithdraws    = prometheus.NewDesc("edge_bgp_peer_withdraws_total", "Prefixes that were withdrawn from the peer.", []string{"peer"}, nil)
	metricMalformed    = prometheus.NewDesc("edge_bgp_peer_malformed_total", "Messages of the peer that are not as the standards say.", []string{"peer"}, nil)
	metricBFD          = prometheus.NewDesc("edge_bfd_up", "1 if the BFD session is up.", []string{"peer"}, nil)
	metricBFDFlaps     = prometheus.NewDesc("edge_bfd_flaps_total", "BFD sessions that went down.", []string{"peer"}, nil)
	metricRPKI         = prometheus.NewDesc("edge_rpki_validity", "1 for what the RPKI says of the announcement.", []string{"prefix", "validity"}, nil)
	metricRefused      = prometheus.NewDesc("edge_bgp_connections_refused_total", "Connections to the BGP port that were refused, by reason.", []string{"reason"}, nil)
	metricVRPs         = prometheus.NewDesc("edge_rpki_vrps", "Validated ROA payloads known.", nil, nil)
	metricSighting     = prometheus.NewDesc("edge_watch_sightings", "What the world makes of our prefixes and should not, by kind.", []string{"prefix", "kind"}, nil)
	metricPrefer       = prometheus.NewDesc("edge_preference_active", "1 if an order to move traffic is in force.", nil, nil)
)

func speakerMetrics() []*prometheus.Desc {
	return []*prometheus.Desc{
		metricPeer, metricFlaps, metricHeld, metricPeerReceived, metricUpdates, metricWithdraws, metricMalformed,
		metricBFD, metricBFDFlaps, metricRPKI, metricVRPs, metricSighting, metricPrefer, metricRefused,
	}
}

func (s scrape) speaker(st edge.SystemStatus) {
	for _, p := range st.Speaker.Peers {
		s.peer(p)
	}
	for why, n := range st.Speaker.Refused {
		s.counter(metricRefused, n, why)
	}
	for _, o := range st.Speaker.Origins {
		s.gauge(metricRPKI, 1, o.Net.String(), o.Validity)
	}
	if st.Speaker.RPKI.Source != "" {
		s.gauge(metricVRPs, float64(st.Speaker.RPKI.Items))
	}
	type sighting struct{ prefix, kind string }
	seen := map[sighting]int{}
	for _, w := range st.Speaker.Sightings {
		seen[sighting{w.Net.String(), w.Kind}]++
	}
	for w, n := range seen {
		s.gauge(metricSighting, float64(n), w.prefix, w.kind)
	}
	active := 0.0
	for _, o := range st.Prefers {
		if len(o.Sites) > 0 {
			active = 1
		}
	}
	s.gauge(metricPrefer, active)
}

func (s scrape) peer(p edge.PeerState) {
	id, m := string(p.ID), p.Messages
	s.gauge(metricPeer, truth(p.Session == "established"), id)
	s.counter(metricFlaps, uint64(p.Flaps), id)
	s.gauge(metricHeld, float64(len(p.Held)), id)
	s.gauge(metricPeerReceived, float64(p.Received), id)
	s.counter(metricUpdates, m.UpdatesSent, id, "sent")
	s.counter(metricUpdates, m.UpdatesReceived, id, "received")
	s.counter(metricWithdraws, m.WithdrawsSent, id)
	s.counter(metricMalformed, m.Malformed, id)
	if p.BFD != nil {
		s.gauge(metricBFD, truth(p.BFD.State == "up"), id)
		s.counter(metricBFDFlaps, uint64(p.BFD.Flaps), id)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
