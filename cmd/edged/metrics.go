package main

import (
	"github.com/prometheus/client_golang/prometheus"
)

// The metrics of edged. Each is read from the snapshot when it is scraped.
var (
	metricRung     = prometheus.NewDesc("edge_prefix_rung", "1 for the rung of the ladder on which the prefix stands.", []string{"prefix", "rung"}, nil)
	metricHealth   = prometheus.NewDesc("edge_prefix_health", "1 for the health of the prefix.", []string{"prefix", "health"}, nil)
	metricPackets  = prometheus.NewDesc("edge_xdp_packets_total", "Packets by how they left the forwarder.", []string{"action", "reason"}, nil)
	metricReceived = prometheus.NewDesc("edge_xdp_received_total", "Packets that the forwarder has seen.", nil, nil)
	metricProbe    = prometheus.NewDesc("edge_health_probe_up", "1 if the probe is up, 0 if it is down; absent while unknown.", []string{"probe"}, nil)
	metricPeer     = prometheus.NewDesc("edge_bgp_peer_established", "1 if the session is established.", []string{"peer"}, nil)
	metricMember   = prometheus.NewDesc("edge_guard_member_age_seconds", "Age of a node's last report; absent if there has been none.", []string{"node"}, nil)
	metricDropped  = prometheus.NewDesc("edge_guard_dropped_total", "Gossip that was thrown away.", []string{"reason"}, nil)
	metricAlarms   = prometheus.NewDesc("edge_alarms", "Conditions that need a person.", nil, nil)
	metricConfig   = prometheus.NewDesc("edge_config_generation", "Configurations applied since the start.", nil, nil)
)

// collector reads the snapshot. It may be scraped by several at once.
type collector struct{ d *daemon }

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range []*prometheus.Desc{metricRung, metricHealth, metricPackets, metricReceived, metricProbe, metricPeer, metricMember, metricDropped, metricAlarms, metricConfig} {
		ch <- m
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	st := c.d.Status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, d := range st.Decisions {
		gauge(metricRung, 1, d.Prefix.String(), string(d.Rung))
	}
	for _, h := range st.Conditions {
		gauge(metricHealth, 1, h.Prefix.String(), h.Health.String())
	}
	for _, v := range st.Forwarder.Verdicts {
		counter(metricPackets, v.Count, v.Action, string(v.Reason))
	}
	counter(metricReceived, st.Forwarder.Received)
	for _, p := range st.Probes {
		if up, known := upValue(p.State.String()); known {
			gauge(metricProbe, up, string(p.Probe))
		}
	}
	for _, p := range st.Speaker.Peers {
		up, _ := upValue(map[bool]string{true: "up", false: "down"}[p.Session == "established"])
		gauge(metricPeer, up, string(p.ID))
	}
	for _, m := range st.Guard.Members {
		if m.Age >= 0 {
			gauge(metricMember, m.Age.Seconds(), string(m.Node))
		}
	}
	for why, n := range st.Guard.Dropped {
		counter(metricDropped, n, why)
	}
	gauge(metricAlarms, float64(len(st.Alarms)))
	gauge(metricConfig, float64(st.Generation))
}

func upValue(state string) (v float64, known bool) {
	switch state {
	case "up":
		return 1, true
	case "down":
		return 0, true
	}
	return 0, false
}
