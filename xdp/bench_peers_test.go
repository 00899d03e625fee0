package xdp

import (
	"encoding/binary"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/catchment-dev/edge/xdp/flows"
	"github.com/cilium/ebpf"
)

// benchFlows is the size of all flow tables here, ours and the peer's;
// benchHalfFlows that of our table of half-open ones. Both are the defaults.
const (
	benchFlows     = 1_000_000
	benchHalfFlows = 65_536
)

// peers are the programs of testdata/peers.c, for backends behind up0.
type peers struct {
	Bare    *ebpf.Program `ebpf:"bare"`
	Lower4  *ebpf.Program `ebpf:"lower_bound_v4"`
	Lower6  *ebpf.Program `ebpf:"lower_bound_v6"`
	LRUFind *ebpf.Program `ebpf:"lru_find"`
	LRUPut  *ebpf.Program `ebpf:"lru_put"`
	Find    *ebpf.Program `ebpf:"table_find"`
	Put     *ebpf.Program `ebpf:"table_put"`
	LRU     *ebpf.Map     `ebpf:"lru"`
	Flow    *ebpf.Map     `ebpf:"flow"`
	Detail  *ebpf.Map     `ebpf:"flow_detail"`
}

func loadPeers(b *testing.B) peers {
	b.Helper()
	object := filepath.Join(b.TempDir(), "peers.o")
	out, err := exec.CommandContext(b.Context(), "clang-14", "-O2", "-g", "-mcpu=v3", "-target", "bpf", "-Wall", "-Werror",
		"-fno-strict-aliasing", "-I/usr/include/x86_64-linux-gnu", "-c", "testdata/peers.c", "-o", object).CombinedOutput()
	if err != nil {
		b.Fatalf("compile peers: %v: %s", err, out)
	}
	spec, err := ebpf.LoadCollectionSpec(object)
	check(b, err)
	n := uint32(flows.Buckets(benchFlows))
	spec.Maps["flow"].MaxEntries, spec.Maps["flow_detail"].MaxEntries = n, n*flows.Ways
	spec.Maps["lru"].MaxEntries = benchFlows
	src4, dst4 := addr(node4).As4(), addr(benchBackend4(5)).As4()
	for name, value := range map[string]any{
		"flow_buckets": n,
		"src4":         binary.NativeEndian.Uint32(src4[:]), "dst4": binary.NativeEndian.Uint32(dst4[:]),
		"src6": addr(node6).As16(), "dst6": addr(benchBackend6(5)).As16(),
	} {
		check(b, spec.Variables[name].Set(value))
	}
	var p peers
	check(b, spec.LoadAndAssign(&p, nil))
	b.Cleanup(func() {
		for _, x := range []interface{ Close() error }{p.Bare, p.Lower4, p.Lower6, p.LRUFind, p.LRUPut, p.Find, p.Put, p.LRU, p.Flow, p.Detail} {
			x.Close()
		}
	})
	return p
}

// cases measures the parts, each net of a program that does nothing.
func (p peers) cases() []*benchCase {
	tcp := tcpPacket(client4+":1000", vip4+":80").frame()
	tcp6 := tcpPacket("["+client6+"]:1000", "["+vip6+"]:80").frame()
	bare := &benchCase{name: "bare", prog: p.Bare, frame: always(tcp), xdp: 2}
	known := otherSource(tcp)
	spread := func(i int) []byte { return known(i * 7919 % benchKnown) }
	fresh := func(i int) []byte { return known(benchKnown + i) }
	return []*benchCase{
		bare,
		{name: "lower_bound_v4", prog: p.Lower4, floor: bare, frame: always(tcp), xdp: 3},
		{name: "lower_bound_v6", prog: p.Lower6, floor: bare, frame: always(tcp6), xdp: 3},
		{name: "table_find", prog: p.Find, floor: bare, frame: always(known(0)), xdp: 1, against: "lru_find"},
		{name: "lru_find", prog: p.LRUFind, floor: bare, frame: always(known(0)), xdp: 1},
		{name: "table_find_spread", prog: p.Find, floor: bare, frame: spread, xdp: 1, against: "lru_find_spread"},
		{name: "lru_find_spread", prog: p.LRUFind, floor: bare, frame: spread, xdp: 1},
		{name: "table_put", prog: p.Put, floor: bare, frame: fresh, xdp: 1, against: "lru_put"},
		{name: "lru_put", prog: p.LRUPut, floor: bare, frame: fresh, xdp: 1},
	}
}

// benchKnown is how many flows the tables hold already.
const benchKnown = 100_000

// learn puts the known flows into both tables.
func (p peers) learn(b *testing.B, ingress int) {
	known := otherSource(tcpPacket(client4+":1000", vip4+":80").frame())
	for i := range benchKnown {
		newCall(p.Put, known(i), ingress).run(b)
		newCall(p.LRUPut, known(i), ingress).run(b)
	}
}
