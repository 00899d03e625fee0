package xdp

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/catchment-dev/edge"
)

// fleetTable is one table of all policies, both families and weights, in the
// order of one node's configuration.
func fleetTable(rnd *rand.Rand, b []edge.TableBackend) edge.Table {
	weighted := slices.Clone(b)
	for i := range weighted {
		weighted[i].Weight = 1 + i*37%1000
	}
	services := policies(weighted...)
	for i := range services {
		own := services[i].Backends[i : i+11] // another set each
		services[i].Backends = slices.Clone(own)
		rnd.Shuffle(len(own), func(x, y int) {
			s := services[i].Backends
			s[x], s[y] = s[y], s[x]
		})
	}
	rnd.Shuffle(len(services), func(x, y int) { services[x], services[y] = services[y], services[x] })
	return tableOf(services...)
}

// Two nodes that know of no flow, whose configurations are in another order and
// whose ids have another history, choose the same backend for each of 10,000
// flows of every protocol: all affinities, trackings, families, with weights.
func TestTwoNodesChooseAlike(t *testing.T) {
	const flows = 10_000
	one, other := policyBox(t, 1<<12), policyBox(t, 1<<12) // this thread is in the second now
	nodes := []device{one, other}
	frames := func(vip string, i int) [][]byte {
		return [][]byte{
			from(tcpTo(withPort(vip, 80), flagSYN), i), from(tcpTo(withPort(vip, 80), flagACK), flows+i),
			from(udpTo(withPort(vip, 53)), 2*flows+i), from(firstFragment(vip, 17), 3*flows+i),
		}
	}
	var chosen [2][]int
	for n, d := range nodes {
		in(t, d.ns, func() {
			b := pool(t, 30)
			if n == 1 { // a past of its own
				apply(t, d.Forwarder, tableOf(service("past", "192.0.2.99:80", edge.TCP, b[7:]...), ofAll("192.0.2.13:0", b[3:9]...)))
			}
			table := fleetTable(rand.New(rand.NewPCG(1, uint64(n))), b)
			apply(t, d.Forwarder, table)
			vips := make([]string, len(table.Services))
			for i, svc := range table.Services {
				vips[i] = svc.VIP.String()
			}
			slices.Sort(vips)
			feed := d.feeder()
			for i := range flows {
				for _, f := range frames(vips[i%len(vips)], i) {
					chosen[n] = append(chosen[n], feed.to(t, f))
				}
			}
			balanced(t, d.Forwarder)
		})
	}
	for i, to := range chosen[0] {
		if to != chosen[1][i] || to == nowhere {
			t.Fatalf("packet %d of flow %d went to b%d and to b%d", i%4, i/4, to, chosen[1][i])
		}
	}
	if all := len(slices.Compact(slices.Sorted(slices.Values(chosen[0])))); all != 30 {
		t.Errorf("only %d backends were chosen", all)
	}
	t.Logf("%d packets of %d flows of a kind went alike", len(chosen[0]), flows)
}

// R12: an ICMP error about a flow of one node comes to another, which has never
// seen that flow: it goes to the same backend.
func TestErrorReachesAnotherNode(t *testing.T) {
	one, other := policyBox(t, 1<<12), policyBox(t, 1<<12)
	protocols := []uint8{6, 17, protoESP}
	var at, told []int
	for n, d := range []device{one, other} {
		in(t, d.ns, func() {
			table := fleetTable(rand.New(rand.NewPCG(2, uint64(n))), pool(t, 30))
			apply(t, d.Forwarder, table)
			feed := d.feeder()
			slices.SortFunc(table.Services, func(a, b edge.TableService) int { return a.VIP.Compare(b.VIP) })
			for _, svc := range table.Services {
				for i := range 50 {
					for _, proto := range protocols {
						p := packetOf(withPort(svc.VIP.String(), 80), i, proto)
						if n == 0 {
							at = append(at, feed.to(t, p.frame()))
						} else {
							told = append(told, feed.to(t, errorAbout(p, errorTypes(p.dst.String())[0], 8)))
						}
					}
				}
			}
		})
	}
	if !slices.Equal(at, told) || slices.Contains(at, nowhere) {
		t.Errorf("flows of one node went to\n%v, errors about them of the other to\n%v", at, told)
	}
}
