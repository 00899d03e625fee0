package main

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/catchment-dev/edge"
)

// counting is a forwarder that has counted; every reading adds a packet.
type counting struct {
	st   edge.ForwarderStats
	fail error
}

func (c *counting) Stats() (edge.ForwarderStats, error) {
	c.st.Received++
	return c.st, c.fail
}

// forwarderCollector is the forwarder's part of the collector alone.
type forwarderCollector struct{ src statsSource }

func (forwarderCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range forwarderMetrics() {
		ch <- m
	}
}
func (c forwarderCollector) Collect(ch chan<- prometheus.Metric) { scrape{ch}.forwarder(c.src) }

func counted() *counting {
	return &counting{st: edge.ForwarderStats{
		Mode: "native", Interfaces: []string{"eth0", "eth1"}, Received: 9, Flows: 1000, HalfFlows: 500, Memory: 1 << 20, Blocked: 3,
		Verdicts: []edge.VerdictCount{{Action: "drop", Reason: "ttl", Count: 4}, {Action: "tx", Reason: "backend", Count: 5}},
		Services: []edge.ServiceCount{
			{Service: "web", Packets: 10, Bytes: 1000, New: 3, Established: 2, Evicted: 1,
				By: map[string]uint64{"table": 4, "half": 3, "ring": 2, "server_id": 1, "icmp_error": 5, "fragment": 6, "limited": 7}},
			{Service: "dns", Packets: 1},
			{Service: "web", Packets: 100, By: map[string]uint64{"table": 100}},
		},
		Backends: []edge.BackendCount{{Service: "web", Backend: "a1", Packets: 7, Bytes: 70}, {Service: "dns", Backend: "a1", Packets: 2}, {Service: "web", Backend: "a1", Packets: 1, Bytes: 1}},
	}}
}

// TestForwarderMetrics: each count is told once, under the name that says what
// it is; and as it is now, not as it was at the last turn of the loop.
func TestForwarderMetrics(t *testing.T) {
	c := forwarderCollector{counted()}
	const want = `
edge_xdp_readable 1
edge_xdp_attached{interface="eth0",mode="native"} 1
edge_xdp_attached{interface="eth1",mode="native"} 1
edge_xdp_packets_total{action="drop",reason="ttl"} 4
edge_xdp_packets_total{action="tx",reason="backend"} 5
edge_xdp_received_total 10
edge_xdp_flow_capacity{table="flow"} 1000
edge_xdp_flow_capacity{table="half"} 500
edge_xdp_memory_bytes 1.048576e+06
edge_xdp_blocked_prefixes 3
edge_xdp_service_packets_total{service="web"} 110
edge_xdp_service_packets_total{service="dns"} 1
edge_xdp_service_bytes_total{service="web"} 1000
edge_xdp_service_bytes_total{service="dns"} 0
edge_xdp_service_chosen_total{by="table",service="web"} 104
edge_xdp_service_chosen_total{by="half",service="web"} 3
edge_xdp_service_chosen_total{by="ring",service="web"} 2
edge_xdp_service_chosen_total{by="server_id",service="web"} 1
edge_xdp_service_seen_total{kind="icmp_error",service="web"} 5
edge_xdp_service_seen_total{kind="fragment",service="web"} 6
edge_xdp_service_seen_total{kind="limited",service="web"} 7
edge_xdp_service_flows_opened_total{service="web"} 3
edge_xdp_service_flows_established_total{service="web"} 2
edge_xdp_service_flows_evicted_total{service="web"} 1
edge_xdp_backend_packets_total{backend="a1",service="web"} 8
edge_xdp_backend_packets_total{backend="a1",service="dns"} 2
edge_xdp_backend_bytes_total{backend="a1",service="web"} 71
`
	got := told(t, c)
	for line := range strings.Lines(want) {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(got, line) {
			t.Errorf("it does not say %q; of this name there are %q", line, named(got, line))
		}
	}
	if again := told(t, c); !slices.Contains(again, "edge_xdp_received_total 11") {
		t.Errorf("the second scrape says %q", named(again, "edge_xdp_received_total"))
	}
}

// exposition is what Prometheus is told.
func exposition(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("scrape: %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// told are its lines without comments.
func told(t *testing.T, c prometheus.Collector) (lines []string) {
	t.Helper()
	for line := range strings.Lines(exposition(t, c)) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// named are the lines of the metric of line.
func named(lines []string, line string) (out []string) {
	name := line[:strings.IndexAny(line+" ", "{ ")]
	for _, l := range lines {
		if strings.HasPrefix(l, name) {
			out = append(out, l)
		}
	}
	return out
}

func TestForwarderMetricsLint(t *testing.T) {
	problems, err := promlint.New(strings.NewReader(exposition(t, forwarderCollector{counted()}))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestForwarderUnreadable: a forwarder that cannot be read hides no other metric.
func TestForwarderUnreadable(t *testing.T) {
	got := told(t, forwarderCollector{&counting{fail: errors.New("closed")}})
	if !slices.Equal(got, []string{"edge_xdp_readable 0"}) {
		t.Errorf("it says %q", got)
	}
}

// TestSummed keeps what it is given as it is.
func TestSummed(t *testing.T) {
	c := counted()
	before := maps.Clone(c.st.Services[0].By)
	for range 2 {
		got := summed(c.st.Services, serviceKey, addService)
		if len(got) != 2 || got[0].By["table"] != 104 || got[0].Packets != 110 {
			t.Errorf("summed: %+v", got)
		}
	}
	if !maps.Equal(before, c.st.Services[0].By) {
		t.Errorf("it has changed the counts: %v", c.st.Services[0].By)
	}
}
