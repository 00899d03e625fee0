package proxy

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/catchment-dev/edge"
)

// metrics counts what the proxy does. The counters are our own, since the
// state document shows them too; Collect turns them into Prometheus's.
type metrics struct {
	s          *Server
	byClass    [6]atomic.Uint64 // by the first digit of the status
	handshakes atomic.Uint64    // those that failed
	full       atomic.Uint64
	resumed    atomic.Uint64
	panics     atomic.Uint64
	duration   prometheus.Histogram

	mu       sync.Mutex
	byRegion map[regionClass]uint64

	descs descs
}

type regionClass struct {
	region edge.RegionID
	class  string
}

type descs struct {
	requests, regions, conns, upstream, handshakes, done, dropped, panics *prometheus.Desc
}

func newMetrics(s *Server) *metrics {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("edge_proxy_"+name, help, labels, nil)
	}
	return &metrics{
		s: s, byRegion: map[regionClass]uint64{},
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "edge_proxy_request_duration_seconds", Help: "From the end of a request's head to the end of its answer.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}),
		descs: descs{
			requests:   d("requests_total", "Requests answered, by class of status.", "class"),
			regions:    d("region_requests_total", "Requests answered by a region, by class of status.", "region", "class"),
			conns:      d("connections", "Client connections that are open."),
			upstream:   d("upstream_connections_total", "Connections taken for a request to an upstream: new or reused.", "kind"),
			handshakes: d("tls_handshake_errors_total", "TLS handshakes that failed."),
			done:       d("tls_handshakes_total", "TLS handshakes that succeeded: full, or resumed from a session ticket.", "kind"),
			dropped:    d("access_lines_dropped_total", "Access log lines that could not be written."),
			panics:     d("panics_total", "Requests that ended in a panic: each is a bug."),
		},
	}
}

func (m *metrics) count(region edge.RegionID, status int, took time.Duration) {
	class := min(max(status/100, 0), 5)
	m.byClass[class].Add(1)
	m.duration.Observe(took.Seconds())
	if region == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byRegion[regionClass{region, className(class)}]++
}

func className(class int) string { return strconv.Itoa(class) + "xx" }

func (m *metrics) requests() (n uint64) {
	for i := range m.byClass {
		n += m.byClass[i].Load()
	}
	return n
}

func (m *metrics) classes() map[string]uint64 {
	out := map[string]uint64{}
	for i := range m.byClass {
		if n := m.byClass[i].Load(); n > 0 {
			out[className(i)] = n
		}
	}
	return out
}

// Collector returns the metrics of the server, named edge_proxy_*.
func (s *Server) Collector() prometheus.Collector { return s.metrics }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	d := m.descs
	for _, x := range []*prometheus.Desc{d.requests, d.regions, d.conns, d.upstream, d.handshakes, d.done, d.dropped, d.panics} {
		ch <- x
	}
	m.duration.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for i := 1; i < len(m.byClass); i++ {
		count(m.descs.requests, m.byClass[i].Load(), className(i))
	}
	m.mu.Lock()
	for k, n := range m.byRegion {
		count(m.descs.regions, n, string(k.region), k.class)
	}
	m.mu.Unlock()
	count(m.descs.upstream, m.s.pool.opened.Load(), "new")
	count(m.descs.upstream, m.s.pool.taken.Load(), "reused")
	count(m.descs.handshakes, m.handshakes.Load())
	count(m.descs.done, m.full.Load(), "full")
	count(m.descs.done, m.resumed.Load(), "resumed")
	count(m.descs.dropped, m.s.access.dropped.Load())
	count(m.descs.panics, m.panics.Load())
	ch <- prometheus.MustNewConstMetric(m.descs.conns, prometheus.GaugeValue, float64(m.s.open.Load()))
	m.duration.Collect(ch)
}
