package xdp

import "testing"

// benchRounds is how often each case is measured, a batch at a time.
const benchRounds = 300

// BenchmarkXDP measures the data plane, and what it is compared with, in one
// run. Each figure is a sub-benchmark that only tells it: a figure of packets is
// the median of many short rounds, in which each case follows its own floor.
// make bench-xdp writes them to out/bench/xdp.json; docs/performance.md says how
// to read them. A metric whose unit ends in :NAME is the value of NAME, which the
// one before it is compared with.
func BenchmarkXDP(b *testing.B) {
	d := benchBox(b, benchFlows, benchHalfFlows)
	p := loadPeers(b)
	results := map[string]cost{}
	in(b, d.ns, func() {
		p.learn(b, d.ingress)
		d.establish(b)
		all := append(p.cases(), d.verified(b, d.forwarderCases())...)
		d.packets(b, all, results)
		list := blocklist()
		d.loadBlocklist(b, list)
		d.packets(b, d.verified(b, d.blocklistCases(list)), results)
	})
	d.reportSizes(b, p)
	d.reportChanges(b)
	reportRing(b)
}

// packets measures cases and tells what came out.
func (d device) packets(b *testing.B, cases []*benchCase, results map[string]cost) {
	rounds(b, benchRounds, cases, d.ingress)
	for _, c := range cases {
		results[c.name] = c.result()
	}
	for _, c := range cases {
		reportPackets(b, c, results)
	}
}

func (d device) verified(b *testing.B, cases []*forwarderCase) []*benchCase {
	var all []*benchCase
	for _, c := range cases {
		d.verify(b, c)
		all = append(all, &c.benchCase)
	}
	return all
}

// reportPackets tells what a packet costs. That of a floor is whole, that of
// every other case net of it.
func reportPackets(b *testing.B, c *benchCase, results map[string]cost) {
	mine, peer := results[c.name], results[c.against]
	report(b, c.name, figure{mine.kernel, "ns/packet", c.against, peer.kernel})
	report(b, c.name+"_cpu", figure{mine.cpu, "ns/call", c.against, peer.cpu})
}

// figure is a value, and what it is compared with.
type figure struct {
	value   float64
	unit    string
	against string
	peer    float64
}

func report(b *testing.B, name string, f figure) {
	b.Run(name, func(b *testing.B) {
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(f.value, f.unit)
		if f.against != "" {
			b.ReportMetric(f.peer, f.unit+":"+f.against)
		}
	})
}
