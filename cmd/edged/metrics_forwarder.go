package main

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/catchment-dev/edge"
)

// The metrics of the forwarder.
var (
	metricReadable    = prometheus.NewDesc("edge_xdp_readable", "1 if the forwarder's counters could be read; the others of the forwarder are absent if not.", nil, nil)
	metricAttached    = prometheus.NewDesc("edge_xdp_attached", "1 for each uplink, with the mode in which the forwarder is attached to it.", []string{"interface", "mode"}, nil)
	metricPackets     = prometheus.NewDesc("edge_xdp_packets_total", "Packets by how they left the forwarder.", []string{"action", "reason"}, nil)
	metricReceived    = prometheus.NewDesc("edge_xdp_received_total", "Packets that the forwarder has seen.", nil, nil)
	metricFlowRoom    = prometheus.NewDesc("edge_xdp_flow_capacity", "Flows that a table is made for: flow has the established ones, half those that have shown one packet.", []string{"table"}, nil)
	metricMemory      = prometheus.NewDesc("edge_xdp_memory_bytes", "Kernel memory that the forwarder's maps take.", nil, nil)
	metricBlocked     = prometheus.NewDesc("edge_xdp_blocked_prefixes", "Source prefixes in the blocklist.", nil, nil)
	metricSvcPackets  = prometheus.NewDesc("edge_xdp_service_packets_total", "Packets for the service.", []string{"service"}, nil)
	metricSvcBytes    = prometheus.NewDesc("edge_xdp_service_bytes_total", "Bytes for the service, from the IP header on.", []string{"service"}, nil)
	metricSvcChosen   = prometheus.NewDesc("edge_xdp_service_chosen_total", "Packets for the service by what chose their backend: table, half, ring or server_id.", []string{"service", "by"}, nil)
	metricSvcSeen     = prometheus.NewDesc("edge_xdp_service_seen_total", "Packets for the service that were of a kind: icmp_error, fragment, or limited (a SYN over the limit).", []string{"service", "kind"}, nil)
	metricOpened      = prometheus.NewDesc("edge_xdp_service_flows_opened_total", "Flows that took a place among those that have shown one packet.", []string{"service"}, nil)
	metricEstablished = prometheus.NewDesc("edge_xdp_service_flows_established_total", "Flows that went from there to the flow table.", []string{"service"}, nil)
	metricEvicted     = prometheus.NewDesc("edge_xdp_service_flows_evicted_total", "Live flows that lost their place to another.", []string{"service"}, nil)
	metricBkPackets   = prometheus.NewDesc("edge_xdp_backend_packets_total", "Packets sent to the backend for the service.", []string{"service", "backend"}, nil)
	metricBkBytes     = prometheus.NewDesc("edge_xdp_backend_bytes_total", "Bytes sent to the backend for the service, without the outer headers.", []string{"service", "backend"}, nil)
)

// forwarderMetrics are all of them, for Describe.
func forwarderMetrics() []*prometheus.Desc {
	return []*prometheus.Desc{
		metricReadable, metricAttached, metricPackets, metricReceived, metricFlowRoom, metricMemory, metricBlocked,
		metricSvcPackets, metricSvcBytes, metricSvcChosen, metricSvcSeen, metricOpened, metricEstablished, metricEvicted,
		metricBkPackets, metricBkBytes,
	}
}

// statsSource has the counters of the data plane. The forwarder is one.
type statsSource interface {
	Stats() (edge.ForwarderStats, error)
}

// scrape is one answer in the making.
type scrape struct{ ch chan<- prometheus.Metric }

func (s scrape) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s scrape) counter(d *prometheus.Desc, v uint64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

// forwarder asks the data plane itself: a rate over counters that are half a
// second old would be wrong by that. If it cannot be read, the other metrics are
// still told.
func (s scrape) forwarder(src statsSource) {
	st, err := src.Stats()
	if err != nil {
		s.gauge(metricReadable, 0)
		return
	}
	s.gauge(metricReadable, 1)
	for _, name := range st.Interfaces {
		s.gauge(metricAttached, 1, name, st.Mode)
	}
	for _, v := range st.Verdicts {
		s.counter(metricPackets, v.Count, v.Action, string(v.Reason))
	}
	s.counter(metricReceived, st.Received)
	s.gauge(metricFlowRoom, float64(st.Flows), "flow")
	s.gauge(metricFlowRoom, float64(st.HalfFlows), "half")
	s.gauge(metricMemory, float64(st.Memory))
	s.gauge(metricBlocked, float64(st.Blocked))
	for _, c := range summed(st.Services, serviceKey, addService) {
		s.service(c)
	}
	for _, c := range summed(st.Backends, backendKey, addBackend) {
		s.counter(metricBkPackets, c.Packets, string(c.Service), string(c.Backend))
		s.counter(metricBkBytes, c.Bytes, string(c.Service), string(c.Backend))
	}
}

func (s scrape) service(c edge.ServiceCount) {
	id := string(c.Service)
	s.counter(metricSvcPackets, c.Packets, id)
	s.counter(metricSvcBytes, c.Bytes, id)
	// What chose adds up to what was chosen; the rest are counted besides.
	for _, by := range []string{"table", "half", "ring", "server_id"} {
		s.counter(metricSvcChosen, c.By[by], id, by)
	}
	for _, kind := range []string{"icmp_error", "fragment", "limited"} {
		s.counter(metricSvcSeen, c.By[kind], id, kind)
	}
	s.counter(metricOpened, c.New, id)
	s.counter(metricEstablished, c.Established, id)
	s.counter(metricEvicted, c.Evicted, id)
}

// summed adds up the counts of one key, in the order in which the keys come
// first: a name that has been given to two ids, one of them leaving, would
// otherwise be told twice, which Prometheus refuses with everything else.
func summed[T any, K comparable](all []T, key func(T) K, add func(a, b T) T) []T {
	var out []T
	at := map[K]int{}
	for _, c := range all {
		if i, ok := at[key(c)]; ok {
			out[i] = add(out[i], c)
			continue
		}
		at[key(c)] = len(out)
		out = append(out, c)
	}
	return out
}

func serviceKey(c edge.ServiceCount) edge.ServiceID { return c.Service }

func addService(a, b edge.ServiceCount) edge.ServiceCount {
	by := maps.Clone(a.By)
	if by == nil {
		by = map[string]uint64{}
	}
	for k, n := range b.By {
		by[k] += n
	}
	a.Packets, a.Bytes, a.By = a.Packets+b.Packets, a.Bytes+b.Bytes, by
	a.New, a.Established, a.Evicted = a.New+b.New, a.Established+b.Established, a.Evicted+b.Evicted
	return a
}

func backendKey(c edge.BackendCount) [2]string {
	return [2]string{string(c.Service), string(c.Backend)}
}

func addBackend(a, b edge.BackendCount) edge.BackendCount {
	a.Packets, a.Bytes = a.Packets+b.Packets, a.Bytes+b.Bytes
	return a
}
