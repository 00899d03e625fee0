package nic

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/xdp/flows"
	"github.com/cilium/ebpf"
)

// mapSpecs compiles the program and returns the maps that it declares.
func mapSpecs(t *testing.T) map[string]*ebpf.MapSpec {
	t.Helper()
	obj := filepath.Join(t.TempDir(), "edge.o")
	cmd := exec.CommandContext(t.Context(), "clang-14", "-O2", "-g", "-mcpu=v3", "-fno-strict-aliasing", "-target", "bpfel",
		"-I/usr/include/x86_64-linux-gnu", "-c", "../bpf/edge.c", "-o", obj)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("clang: %v\n%s", err, out)
	}
	spec, err := ebpf.LoadCollectionSpec(obj)
	check(t, err)
	return spec.Maps
}

func planned(spec *ebpf.MapSpec) Map {
	m := Map{
		Name: spec.Name, Type: uint32(spec.Type), Flags: spec.Flags,
		Key: spec.KeySize, Value: spec.ValueSize, Entries: spec.MaxEntries,
	}
	if spec.InnerMap != nil {
		inner := planned(spec.InnerMap)
		m.Inner = &inner
	}
	return m
}

func sizesOf(specs map[string]*ebpf.MapSpec) Sizes {
	s := Sizes{Flows: 1_000_000, HalfFlows: 65536, Services: 100, Blocked: 50_000, CPUs: ebpf.MustPossibleCPU()}
	for name, spec := range specs {
		if !strings.HasPrefix(name, ".") {
			s.Maps = append(s.Maps, planned(spec))
		}
	}
	return s
}

// memlock is what the kernel says that a map takes.
func memlock(t *testing.T, m *ebpf.Map) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", m.FD()))
	check(t, err)
	found := regexp.MustCompile(`(?m)^memlock:\s*(\d+)$`).FindSubmatch(b)
	if found == nil {
		t.Fatalf("fdinfo of a map says no memlock:\n%s", b)
	}
	n, err := strconv.ParseInt(string(found[1]), 10, 64)
	check(t, err)
	return n
}

// TestMemoryAgreesWithKernel makes every map and asks the kernel what it takes.
func TestMemoryAgreesWithKernel(t *testing.T) {
	specs := mapSpecs(t)
	sizes := sizesOf(specs)
	plan := Memory(sizes)
	if len(plan.Rows) < 20 {
		t.Fatalf("the plan has %d maps only", len(plan.Rows))
	}
	var total int64
	for _, row := range plan.Rows {
		spec := specs[row.Map]
		inner := int64(0)
		switch row.Map {
		case flowMap, halfMap:
			spec.MaxEntries = uint32(row.Entries)
			if row.Map == flowMap {
				details := specs[detailMap]
				details.MaxEntries = spec.MaxEntries * flows.Ways
				m, err := ebpf.NewMap(details)
				check(t, err)
				inner = memlock(t, m)
				check(t, m.Close())
			}
		case serviceMap, filterMap:
			m, err := ebpf.NewMap(spec.InnerMap)
			check(t, err)
			inner = int64(row.Maps) * memlock(t, m)
			check(t, m.Close())
		}
		if row.Map == blocklistMap {
			continue // TestBlocklistMemory
		}
		m, err := ebpf.NewMap(spec)
		check(t, err)
		got := memlock(t, m) + inner
		check(t, m.Close())
		total += got
		// The kernel does not count that it gives out whole pages.
		if diff := row.Bytes - got; diff < -got/100 || diff > page+got/20 {
			t.Errorf("map %s: planned %d bytes, the kernel says %d", row.Map, row.Bytes, got)
		}
		t.Logf("%-14s %11d planned %11d kernel", row.Map, row.Bytes, got)
	}
	sizes.Blocked = 1 // more of them: TestBlocklistMemory
	if want := Memory(sizes).Total; want < total-total/100 || want > total+total/20 {
		t.Errorf("planned %d bytes, the kernel says %d", want, total)
	}
}

// Of a trie the kernel counts the prefixes, not the forks between them, so the
// plan must be more, but not more than forks and the allocator can explain.
func TestBlocklistMemory(t *testing.T) {
	spec := mapSpecs(t)[blocklistMap].InnerMap
	m, err := ebpf.NewMap(spec)
	check(t, err)
	defer m.Close()
	const n = 10_000
	keys, values := make([][20]byte, n), make([]uint32, n)
	for i := range keys {
		keys[i] = [20]byte{0: 128, 14: 0xff, 15: 0xff, 16: byte(i >> 8), 17: byte(i), 19: 1}
	}
	_, err = m.BatchUpdate(keys, values, nil)
	check(t, err)
	inner := planned(spec)
	inner.Entries = n
	got, want := memlock(t, m), inner.bytes(1)
	if each := got / n; each < 40 || each > trieEntry/2 {
		t.Errorf("the kernel counts %d bytes a prefix", each)
	}
	if want < 2*got || want > 4*got {
		t.Errorf("planned %d bytes, the kernel counts %d of prefixes alone", want, got)
	}
}

// The promise: a million flows in 128 MiB.
func TestMillionFlows(t *testing.T) {
	specs := mapSpecs(t)
	s := sizesOf(specs)
	for _, row := range Memory(s).Rows {
		if row.Map == flowMap && (row.Bytes > 128<<20 || row.Bytes < 100<<20) {
			t.Errorf("a million flows take %d bytes", row.Bytes)
		}
	}
	// The default limit is enough for the defaults and a full configuration.
	s.Services, s.Blocked, s.CPUs = 511, 1_000_000, 64
	if err := Memory(s).Check(1 << 30); err != nil {
		t.Error(err)
	}
}

func TestPlanString(t *testing.T) {
	got := Memory(Sizes{
		Maps: []Map{
			{Name: "backend", Type: 2, Key: 4, Value: 32, Entries: 16384},
			{Name: "flow", Type: 2, Key: 4, Value: 128, Flags: 1 << 10},
			{Name: "flow_detail", Type: 2, Key: 4, Value: 56, Flags: 1 << 10},
			{Name: "half", Type: 2, Key: 4, Value: 64, Flags: 1 << 10},
			{Name: "host", Type: 2, Key: 4, Value: 144, Entries: 1},
			{Name: "svc", Type: 12, Key: 4, Value: 4, Entries: 1024, Inner: &Map{Type: 2, Key: 4, Value: 262264, Entries: 1}},
			{Name: "block_filter", Type: 12, Key: 4, Value: 4, Entries: 1, Inner: &Map{Type: 2, Key: 4, Value: 8, Entries: 1 << 19, Flags: 1 << 10}},
			{Name: "blocklist", Type: 12, Key: 4, Value: 4, Entries: 1, Inner: &Map{Type: 11, Key: 20, Value: 4, Entries: 1 << 24}},
		},
		Flows: 1_000_000, HalfFlows: 65536, Services: 100, Blocked: 50_000, CPUs: 2,
	}).String()
	want := `flow            123.6 MiB  1,000,000 established flows
svc              50.8 MiB  100 services, old and new
blocklist        13.7 MiB  50,000 blocked prefixes, old and new
block_filter      8.0 MiB  filter of the blocked prefixes, old and new
half              8.0 MiB  65,536 half-open flows
others          516.4 KiB  2 small maps
total           204.6 MiB`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestCheckAdvice does what each piece of advice says: then it must fit.
func TestCheckAdvice(t *testing.T) {
	maps := sizesOf(mapSpecs(t)).Maps
	seen := map[string]int{}
	for range 2000 {
		s := Sizes{
			Maps: maps, Flows: 1024 + rand.IntN(1<<21), HalfFlows: 1024 + rand.IntN(1<<20),
			Services: rand.IntN(512), Blocked: rand.IntN(1 << 21), CPUs: 1 + rand.IntN(64),
		}
		plan := Memory(s)
		limit := plan.Total/2 + rand.Int64N(plan.Total)
		err := plan.Check(limit)
		if (err != nil) != (plan.Total > limit) {
			t.Fatalf("%d of %d: %v", plan.Total, limit, err)
		}
		if err == nil {
			continue
		}
		_, advice, _ := strings.Cut(err.Error(), "memory_limit is ")
		_, advice, _ = strings.Cut(advice, ": ")
		for _, a := range strings.Split(advice, ", or ") {
			then, l := s, limit
			var n, old int64
			switch {
			case scan(a, "raise it to %dMiB", &l):
				l <<= 20
				seen["limit"]++
			case scan(a, "lower node.forwarder.flows from %d to %d", &old, &n):
				then.Flows = int(n)
				seen["flows"]++
			case scan(a, "lower node.forwarder.half_flows from %d to %d", &old, &n):
				then.HalfFlows = int(n)
				seen["half"]++
			case scan(a, "have %d services instead of %d", &n, &old):
				then.Services = int(n)
				seen["services"]++
			case scan(a, "block %d prefixes instead of %d", &n, &old):
				then.Blocked = int(n)
				seen["blocked"]++
			default:
				t.Fatalf("what is %q of %q?", a, err)
			}
			if err := Memory(then).Check(l); err != nil {
				t.Fatalf("advice %q: %v", a, err)
			}
		}
	}
	if len(seen) != 5 {
		t.Errorf("only this advice was given: %v", seen)
	}
}

func scan(s, format string, into ...any) bool {
	n, err := fmt.Sscanf(s, format, into...)
	return err == nil && n == len(into)
}
