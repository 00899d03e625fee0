package xdp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/maglev"
	"github.com/cilium/ebpf"
	peermaglev "github.com/kkdai/maglev"
)

const mib = 1 << 20

// reportSizes tells how much the verifier had to look at, and what a flow takes.
func (d device) reportSizes(b *testing.B, p peers) {
	info, err := d.program().Info()
	check(b, err)
	n, ok := info.VerifiedInstructions()
	if !ok {
		b.Fatal("the kernel does not tell how many instructions were verified")
	}
	report(b, "verifier", figure{value: float64(n), unit: "insns"})
	ours, theirs := memlock(b, p.Flow)+memlock(b, p.Detail), memlock(b, p.LRU)
	report(b, "flow_memory", figure{ours / benchFlows, "B/flow", "lru_hash", theirs / benchFlows})
	report(b, "flows_1m", figure{ours / mib, "MiB", "lru_hash", theirs / mib})
}

// memlock is what the kernel has charged for a map, in bytes.
func memlock(b *testing.B, m *ebpf.Map) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", m.FD()))
	check(b, err)
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "memlock:"); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			check(b, err)
			return n
		}
	}
	b.Fatalf("no memlock in %q", text)
	return 0
}

// benchBlocked is the size of the blocklist.
const benchBlocked = 1_000_000

// blocklist is many prefixes, close together: a search goes deep.
func blocklist() []netip.Prefix {
	rnd := rand.New(rand.NewPCG(5, 6))
	list := make([]netip.Prefix, benchBlocked)
	for i := range list {
		a := netip.AddrFrom4([4]byte{byte(1 + rnd.IntN(90)), byte(rnd.Uint32()), byte(rnd.Uint32()), byte(rnd.Uint32())})
		list[i] = netip.PrefixFrom(a, 24+rnd.IntN(9)).Masked()
	}
	return list
}

func (d device) loadBlocklist(b *testing.B, list []netip.Prefix) {
	start := time.Now()
	check(b, d.Block(b.Context(), list))
	report(b, "block_1m", figure{value: time.Since(start).Seconds() * 1e3, unit: "ms"})
}

// reportChanges tells how long it takes to change 100 services at once: to
// apply the table, and the part of it in which packets meet the change. Either
// each service has a set of backends of its own, or all have the same.
func (d device) reportChanges(b *testing.B) {
	whole, swap := d.change100(b, func(service int) string { return fmt.Sprint("-", service) })
	report(b, "apply_100_services", figure{value: whole, unit: "ms"})
	report(b, "swap_100_services", figure{swap, "ms", "apply_100_services", whole})
	same, _ := d.change100(b, func(int) string { return "" })
	report(b, "apply_100_alike", figure{same, "ms", "apply_100_services", whole})
}

func (d device) change100(b *testing.B, suffix func(service int) string) (allMS, swapMS float64) {
	table := benchTableOf()
	for i := range 100 {
		s := benchService(fmt.Sprint("s", i), fmt.Sprintf("192.0.2.100:%d", 1000+i), edge.TCP, benchPool(50, benchBackend4))
		for j := range s.Backends {
			s.Backends[j].ID += edge.BackendID(suffix(i))
		}
		table.Services = append(table.Services, s)
	}
	apply(b, d.Forwarder, table)
	var whole, swap []float64
	for round := range 7 {
		for i := range table.Services {
			table.Services[i].Backends = slices.Clone(table.Services[i].Backends)
			table.Services[i].Backends[round].Weight++
		}
		start := time.Now()
		p, err := d.state.plan(table, start)
		check(b, err)
		tables, err := d.buildTables(b.Context(), p)
		check(b, err)
		if len(tables) != 100 {
			b.Fatalf("%d services change, want 100", len(tables))
		}
		built := time.Now()
		check(b, d.commit(p, tables))
		swap = append(swap, time.Since(built).Seconds()*1e3)
		whole = append(whole, time.Since(start).Seconds()*1e3)
		closeMaps(tables)
	}
	return median(whole), median(swap)
}

// reportRing tells how long the ring of many backends takes, how even it is and
// how much of it moves when one leaves.
func reportRing(b *testing.B) {
	equal := func(int) int { return 1 }
	mixed := func(i int) int { return 1 + i*7919%maglev.MaxWeight }
	for name, all := range map[string][]maglev.Backend{
		"ring_build_4000": ringBackends(4000, equal), "ring_build_4000_weights": ringBackends(4000, mixed),
	} {
		wall, cpu := ringTime(b, all)
		report(b, name, figure{value: wall, unit: "ms"})
		report(b, name+"_cpu", figure{value: cpu, unit: "ms"})
	}
	wall, _ := ringTime(b, ringBackends(1000, equal))
	report(b, "ring_build_1000", figure{wall, "ms", "kkdai_maglev", peerRingTime(b, 1000)})
	for _, n := range []int{100, 300, 1000, 4000} {
		all := ringBackends(n, equal)
		ring, err := maglev.Build(testSeed, all)
		check(b, err)
		report(b, fmt.Sprint("ring_disruption_", n), figure{value: 100 * ringDisruption(b, ring, all), unit: "%"})
		report(b, fmt.Sprint("ring_imbalance_", n), figure{value: 100 * ringImbalance(ring, n), unit: "%"})
	}
}

func ringBackends(n int, weight func(int) int) []maglev.Backend {
	all := make([]maglev.Backend, n)
	for i := range all {
		all[i] = maglev.Backend{Name: fmt.Sprint("backend-", i), Weight: weight(i)}
	}
	return all
}

func ringTime(b *testing.B, all []maglev.Backend) (wall, cpu float64) {
	return medianTime(b, 25, func() {
		_, err := maglev.Build(testSeed, all)
		check(b, err)
	})
}

func peerRingTime(b *testing.B, n int) float64 {
	var names []string
	for _, x := range ringBackends(n, func(int) int { return 1 }) {
		names = append(names, x.Name)
	}
	wall, _ := medianTime(b, 3, func() {
		_, err := peermaglev.NewMaglev(names, maglev.Size)
		check(b, err)
	})
	return wall
}

// medianTime returns how long f takes, and how long this thread works for it, in
// milliseconds.
func medianTime(b *testing.B, n int, f func()) (wall, cpu float64) {
	var walls, cpus []float64
	for range n {
		start, busy := time.Now(), threadTime(b)
		f()
		walls = append(walls, time.Since(start).Seconds()*1e3)
		cpus = append(cpus, (threadTime(b)-busy).Seconds()*1e3)
	}
	return median(walls), median(cpus)
}

// ringDisruption is the mean part of the others' slots that moves with one.
func ringDisruption(b *testing.B, ring []int32, all []maglev.Backend) float64 {
	sum, tries := 0.0, 5
	for try := range tries {
		gone := try * len(all) / tries
		rest := slices.Delete(slices.Clone(all), gone, gone+1)
		after, err := maglev.Build(testSeed, rest)
		check(b, err)
		moved, others := 0.0, 0.0
		for slot, at := range ring {
			if int(at) == gone {
				continue
			}
			others++
			if rest[after[slot]].Name != all[at].Name {
				moved++
			}
		}
		sum += moved / others
	}
	return sum / float64(tries)
}

// ringImbalance is by which part the largest share is above its ideal.
func ringImbalance(ring []int32, n int) float64 {
	count := make([]int, n)
	for _, at := range ring {
		count[at]++
	}
	return float64(slices.Max(count))*float64(n)/maglev.Size - 1
}
