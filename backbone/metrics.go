package backbone

import "github.com/prometheus/client_golang/prometheus"

// collector shows the state of a Selector as metrics.
type collector struct {
	s                                             *Selector
	rtt, upstreams, sent, allow, capacity, demand *prometheus.Desc
	refused                                       *prometheus.Desc
}

// Collector returns the metrics of the selector, named edge_backbone_*.
func (s *Selector) Collector() prometheus.Collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("edge_backbone_"+name, help, labels, nil)
	}
	return &collector{
		s:         s,
		rtt:       d("region_rtt_seconds", "Smoothed connect time to the region; 0 if not measured yet.", "region"),
		upstreams: d("region_upstreams", "Upstreams of the region, by state: up or not.", "region", "state"),
		sent:      d("region_sent_requests_per_second", "What this node sends to the region.", "region"),
		allow:     d("region_allowance_requests_per_second", "What this node may send to the region.", "region"),
		capacity:  d("region_capacity_requests_per_second", "What the whole fleet may send to the region.", "region"),
		demand:    d("demand_requests_per_second", "Requests that arrive at this node."),
		refused:   d("refused_total", "Requests for which no region could be chosen, by reason.", "reason"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.rtt, c.upstreams, c.sent, c.allow, c.capacity, c.demand, c.refused} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	row := c.s.Load()
	gauge(c.demand, row.Demand)
	for _, v := range row.Regions {
		name := string(v.Region)
		gauge(c.rtt, v.RTT.Seconds(), name)
		gauge(c.upstreams, float64(v.Up), name, "up")
		gauge(c.upstreams, float64(v.Of-v.Up), name, "not_up")
		gauge(c.sent, v.Sent, name)
		gauge(c.allow, v.Allowance, name)
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for _, r := range c.s.regions {
		gauge(c.capacity, r.Capacity, string(r.ID))
	}
	for _, err := range []error{ErrDown, ErrFull} {
		ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(c.s.refused[err]), err.Error())
	}
}
