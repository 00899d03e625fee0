package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/catchment-dev/edge"
)

// The metrics of edged. Those that are here are read from the snapshot when it
// is scraped, those of the forwarder from itself.
var (
	metricRung    = prometheus.NewDesc("edge_prefix_rung", "1 for the rung of the ladder on which the prefix stands.", []string{"prefix", "rung"}, nil)
	metricHealth  = prometheus.NewDesc("edge_prefix_health", "1 for the health of the prefix.", []string{"prefix", "health"}, nil)
	metricProbe   = prometheus.NewDesc("edge_health_probe_up", "1 if the probe is up or full, 0 if it is down; absent while unknown.", []string{"probe"}, nil)
	metricFull    = prometheus.NewDesc("edge_health_probe_full", "1 if the probe's target is alive but full; absent while unknown.", []string{"probe"}, nil)
	metricMember  = prometheus.NewDesc("edge_guard_member_age_seconds", "Age of a node's last report; absent if there has been none.", []string{"node"}, nil)
	metricDropped = prometheus.NewDesc("edge_guard_dropped_total", "Gossip that was thrown away.", []string{"reason"}, nil)
	metricStuck   = prometheus.NewDesc("edge_guard_blocked", "1 if the prefix wants to leave and has been refused for five seconds.", []string{"prefix"}, nil)
	metricRoom    = prometheus.NewDesc("edge_guard_may_leave", "How many sites could leave the prefix, as far as this node has heard.", []string{"prefix"}, nil)
	metricSuspect = prometheus.NewDesc("edge_guard_common_cause_sites", "Sites at which a check fails that is suspect, with those that are silent.", []string{"check"}, nil)
	metricAlarms  = prometheus.NewDesc("edge_alarms", "Conditions that need a person.", nil, nil)
	metricDog     = prometheus.NewDesc("edge_watchdog_running", "1 if a watchdog resets this box should it hang; only on an appliance.", nil, nil)
	metricConfig  = prometheus.NewDesc("edge_config_generation", "Configurations applied since the start.", nil, nil)
)

// collector reads when it is asked. It may be scraped by several at once.
type collector struct{ d *daemon }

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range append(append(forwarderMetrics(), speakerMetrics()...), metricRung, metricHealth, metricProbe, metricFull, metricMember, metricDropped, metricStuck, metricRoom, metricSuspect, metricAlarms, metricDog, metricConfig) {
		ch <- m
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	st, s := c.d.Status(), scrape{ch}
	s.forwarder(c.d.fwd)
	for _, d := range st.Decisions {
		s.gauge(metricRung, 1, d.Prefix.String(), string(d.Rung))
	}
	for _, h := range st.Conditions {
		s.gauge(metricHealth, 1, h.Prefix.String(), h.Health.String())
	}
	for _, p := range st.Probes {
		if p.State != edge.Unknown {
			s.gauge(metricProbe, truth(p.State.Alive()), string(p.Probe))
			s.gauge(metricFull, truth(p.State == edge.Full), string(p.Probe))
		}
	}
	s.speaker(st)
	for _, m := range st.Guard.Members {
		if m.Age >= 0 {
			s.gauge(metricMember, m.Age.Seconds(), string(m.Node))
		}
	}
	for _, p := range st.Guard.Prefixes {
		s.gauge(metricRoom, float64(p.MayLeave), p.Prefix.String())
		s.gauge(metricStuck, truth(!st.Guard.Asking[p.Prefix].BlockedSince.IsZero()), p.Prefix.String())
	}
	sites := map[edge.ProbeID]int{}
	for _, v := range st.Guard.Suspects { // one check can be the cause of several needs
		sites[v.Cause.Check()] = max(sites[v.Cause.Check()], len(v.Sites)+len(v.Silent))
	}
	for check, n := range sites {
		s.gauge(metricSuspect, float64(n), string(check))
	}
	for why, n := range st.Guard.Dropped {
		s.counter(metricDropped, n, why)
	}
	s.gauge(metricAlarms, float64(len(st.Alarms)))
	if runs, known := watchdogRuns(imageDir, watchdogClass); known {
		s.gauge(metricDog, truth(runs))
	}
	s.gauge(metricConfig, float64(st.Generation))
}
