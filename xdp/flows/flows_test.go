package flows

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var sameAddrs = cmpopts.EquateComparable(netip.AddrPort{})

// aligned is so much memory, aligned as mapped memory is.
func aligned(n int) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), n)
}

// memory is a table of n buckets and what it lies in.
func memory(t testing.TB, n int) (buckets, details []byte, table Table) {
	t.Helper()
	buckets, details = aligned(n*BucketSize), aligned(n*Ways*DetailSize)
	table, err := Over(buckets, details, n)
	if err != nil {
		t.Fatal(err)
	}
	return buckets, details, table
}

// TestLayout: the compiler of the program agrees with every offset.
func TestLayout(t *testing.T) {
	bpf, err := filepath.Abs("../bpf")
	if err != nil {
		t.Fatal(err)
	}
	var b bucket
	var d detail
	var h halfFlow
	lines := []string{"#include <linux/bpf.h>", "#include <stddef.h>", "#include <bpf/bpf_helpers.h>", `#include "maps.h"`}
	same := func(c string, n uintptr) {
		lines = append(lines, fmt.Sprintf("_Static_assert(%s == %d, %q);", c, n, c))
	}
	same("WAYS", Ways)
	same("TICK_SHIFT", tickShift)
	same("sizeof(struct flow_bucket)", uintptr(BucketSize))
	same("ID_BITS", idBits)
	same("sizeof(struct flow_term)", unsafe.Sizeof(b.term[0]))
	same("offsetof(struct flow_bucket, flow)", unsafe.Offsetof(b.flow))
	same("offsetof(struct flow_bucket, term)", unsafe.Offsetof(b.term))
	same("offsetof(struct flow_term, until)", 0)
	same("offsetof(struct flow_term, generation)", 4)
	same("sizeof(struct flow_detail)", uintptr(DetailSize))
	same("sizeof(struct flow_tuple)", unsafe.Sizeof(d.tuple))
	same("offsetof(struct flow_detail, hash)", unsafe.Offsetof(d.hash))
	same("offsetof(struct flow_detail, svc)", unsafe.Offsetof(d.svc))
	same("offsetof(struct flow_detail, tuple)", unsafe.Offsetof(d.tuple))
	same("sizeof(struct half_flow)", uintptr(HalfSize))
	same("offsetof(struct half_flow, check)", unsafe.Offsetof(h.check))
	same("offsetof(struct half_flow, life)", unsafe.Offsetof(h.life))
	same("offsetof(struct half_flow, until)", unsafe.Offsetof(h.untilSvc))
	same("offsetof(struct half_flow, svc)", unsafe.Offsetof(h.untilSvc)+4)
	same("offsetof(struct half_flow, tuple)", unsafe.Offsetof(h.tuple))
	for i, field := range []string{"src", "dst", "sport", "dport", "proto"} {
		same("offsetof(struct flow_tuple, "+field+")", []uintptr{0, 16, 32, 34, 36}[i])
	}
	src := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(src, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "clang-14", "-target", "bpf", "-fsyntax-only", "-Wno-unknown-attributes",
		"-I", bpf, "-idirafter", "/usr/include/x86_64-linux-gnu", src)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestBytes: an entry in memory, byte for byte.
func TestBytes(t *testing.T) {
	buckets, details, table := memory(t, 2)
	half := aligned(3 * HalfSize)
	h, err := HalfOver(half, 3)
	if err != nil {
		t.Fatal(err)
	}
	const hash = 0x8122334455667788
	e := Entry{Backend: 7, Generation: 9, Until: 0xfffffff0, Service: 3, Tuple: Tuple{
		Src: netip.MustParseAddrPort("192.0.2.1:40000"), Dst: netip.MustParseAddrPort("198.51.100.10:443"), Protocol: 6,
	}}
	table.Put(hash, e, 0xfffffff0)
	h.Put(hash, e)
	le := binary.LittleEndian
	tuple := make([]byte, 40)
	copy(tuple[10:], "\xff\xff\xc0\x00\x02\x01")
	copy(tuple[16+10:], "\xff\xff\xc6\x33\x64\x0a")
	copy(tuple[32:], "\x9c\x40\x01\xbb\x06")
	wantBuckets, wantDetails, wantHalf := make([]byte, 2*BucketSize), make([]byte, 2*Ways*DetailSize), make([]byte, 3*HalfSize)
	b := wantBuckets[BucketSize:]
	le.PutUint64(b, 0x3344556677880007)
	le.PutUint32(b[64:], 0xfffffff0)
	le.PutUint32(b[68:], 9)
	b = wantDetails[Ways*DetailSize:]
	le.PutUint64(b, hash)
	le.PutUint32(b[8:], 3)
	copy(b[16:], tuple)
	b = wantHalf[HalfSize:]
	le.PutUint64(b, hash^(9<<32|7))
	le.PutUint64(b[8:], 9<<32|7)
	le.PutUint32(b[16:], 0xfffffff0)
	le.PutUint32(b[20:], 3)
	copy(b[24:], tuple)
	for name, c := range map[string]struct{ want, got []byte }{
		"buckets": {wantBuckets, buckets}, "details": {wantDetails, details}, "half": {wantHalf, half},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	_, _, table := memory(t, 64)
	at := netip.MustParseAddrPort
	want := map[uint64]Entry{
		1:       {Backend: 1, Generation: 1, Until: 60, Service: 1, Tuple: Tuple{Src: at("192.0.2.1:1"), Dst: at("198.51.100.10:65535"), Protocol: 17}},
		1 << 63: {Backend: 2, Generation: 1<<32 - 1, Until: 60, Service: 2, Tuple: Tuple{Src: at("[2001:db8::1]:443"), Dst: at("[2001:db8::2]:0"), Protocol: 50}},
		12345:   {Backend: 3, Until: 60, Tuple: Tuple{Src: at("192.0.2.7:0")}}, // client-ip-no-destination
	}
	for hash, e := range want {
		if table.Put(hash, e, 0) {
			t.Errorf("put %d evicts", hash)
		}
	}
	got := map[uint64]Entry{}
	for hash, e := range table.All() {
		got[hash] = e
		if found, ok := table.Find(hash, 60); !ok || found != e {
			t.Errorf("find %d: %v %v", hash, found, ok)
		}
		if _, ok := table.Find(hash, 61); ok {
			t.Errorf("find %d: counts after its time", hash)
		}
	}
	if diff := cmp.Diff(want, got, sameAddrs); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	table.Clear()
	for hash := range table.All() {
		t.Errorf("%d is there after clear", hash)
	}
}

// TestTorn: what belongs to two flows is nobody's, and is written over.
func TestTorn(t *testing.T) {
	buckets, details, table := memory(t, 1)
	table.Put(5, Entry{Backend: 1, Until: 60}, 0)
	for name, hash := range map[string]byte{"being written": 0, "another's detail": 6} {
		details[0] = hash
		if _, ok := table.Find(5, 0); ok {
			t.Errorf("%s: found", name)
		}
		for range table.All() {
			t.Errorf("%s: listed", name)
		}
	}
	table.Put(5, Entry{Backend: 2, Until: 60}, 0)
	if e, ok := table.Find(5, 0); !ok || e.Backend != 2 || binary.LittleEndian.Uint64(buckets[8:]) != 0 {
		t.Errorf("written over: %v %v, buckets %x", e, ok, buckets)
	}
}

// TestTwice: of a flow that is there twice, the one that counts is found and
// written.
func TestTwice(t *testing.T) {
	_, _, table := memory(t, 1)
	table.write(2, 5, Entry{Backend: 1, Until: 60})
	table.write(6, 5, Entry{Backend: 2, Until: 90})
	if e, _ := table.Find(5, 70); e.Backend != 2 {
		t.Errorf("found %v", e)
	}
	table.Put(5, Entry{Backend: 3, Until: 90}, 70)
	if e, _ := table.Find(5, 70); e.Backend != 3 {
		t.Errorf("found %v", e)
	}
	if _, e, _ := table.read(2); e.Backend != 1 {
		t.Errorf("the one that counts no more is %v", e)
	}
}

// TestHalf: a flow has one place there, and who comes later takes it.
func TestHalf(t *testing.T) {
	h, err := HalfOver(aligned(16*HalfSize), 16)
	if err != nil {
		t.Fatal(err)
	}
	const a, b, c = 3<<60 | 1, 3<<60 | 2, 4<<60 | 1
	at := func(hash uint64) uint32 {
		e, _ := h.Find(hash, 60)
		return e.Backend
	}
	h.Put(a, Entry{Backend: 1, Until: 60})
	h.Put(c, Entry{Backend: 2, Until: 60})
	if at(a) != 1 || at(b) != 0 || at(c) != 2 {
		t.Errorf("a, b, c are at %d, %d, %d", at(a), at(b), at(c))
	}
	h.Put(b, Entry{Backend: 3, Until: 60})
	if at(a) != 0 || at(b) != 3 || at(c) != 2 {
		t.Errorf("a, b, c are at %d, %d, %d", at(a), at(b), at(c))
	}
	got := map[uint64]uint32{}
	for hash, e := range h.All() {
		got[hash] = e.Backend
	}
	if diff := cmp.Diff(map[uint64]uint32{b: 3, c: 2}, got); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	if _, ok := h.Find(b, 61); ok {
		t.Error("counts after its time")
	}
	h.places[3].life++
	if at(b) != 0 {
		t.Error("a torn entry is found")
	}
	h.Clear()
	for hash := range h.All() {
		t.Errorf("%x is there after clear", hash)
	}
}

// TestTicks: times are compared over the wrap of the clock.
func TestTicks(t *testing.T) {
	if got := TickAt(61 * time.Second); got != 56 {
		t.Errorf("61 s are tick %d", got)
	}
	for _, c := range []struct {
		until, now Tick
		alive      bool
		left       time.Duration
	}{
		{10, 10, true, 0}, {10, 11, false, 0}, {11, 10, true, 1 << 30}, {5, 0xfffffffb, true, 10 << 30}, {0xfffffffb, 5, false, 0},
	} {
		e := Entry{Until: c.until}
		if e.Alive(c.now) != c.alive || e.Left(c.now) != c.left {
			t.Errorf("until %d at %d: alive %t, left %s", c.until, c.now, e.Alive(c.now), e.Left(c.now))
		}
	}
}

func TestOver(t *testing.T) {
	buckets, details := aligned(2*BucketSize+8), aligned(2*Ways*DetailSize+8)
	for i, c := range []struct {
		n                int
		buckets, details []byte
	}{
		{0, buckets, details}, {-1, buckets, details}, {3, buckets, details}, {1, buckets[1:], details}, {1, buckets, details[1:]},
		{2, buckets[:2*BucketSize-1], details}, {2, buckets, details[:2*Ways*DetailSize-1]},
	} {
		if _, err := Over(c.buckets, c.details, c.n); err == nil {
			t.Errorf("case %d: %d buckets over %d and %d bytes are taken", i, c.n, len(c.buckets), len(c.details))
		}
	}
	if table, err := Over(buckets, details, 2); err != nil || table.Len() != 16 {
		t.Errorf("two buckets: %d, %v", table.Len(), err)
	}
	places := aligned(3*HalfSize - 1)
	if _, err := HalfOver(places, 3); err == nil {
		t.Error("a place too many is taken")
	}
	if h, err := HalfOver(places, 2); err != nil || h.Len() != 2 {
		t.Errorf("half: %d, %v", h.Len(), err)
	}
	var none Table
	if _, ok := none.Find(1, 0); ok || none.Put(1, Entry{}, 0) || none.Len() != 0 {
		t.Error("the zero Table has something")
	}
	none.Clear()
	var half Half
	half.Put(1, Entry{Backend: 1})
	if _, ok := half.Find(1, 0); ok || half.Len() != 0 {
		t.Error("the zero Half has something")
	}
	half.Clear()
}

// TestPlacement: where a flow goes, way by way. Of 16 buckets, hash
// 3<<60 | 1 names the buckets 3 and 9.
func TestPlacement(t *testing.T) {
	const a, b = 3, 9
	hash := func(i uint64) uint64 { return a<<60 | i<<32 | 1 }
	for _, c := range []struct {
		name         string
		inA, inB     []Tick // until of what is there
		bucket, way  int
		evicts       bool
		already, now Tick // already: way+1 of A that has the hash
	}{
		{name: "empty", bucket: a},
		{name: "more room in B", inA: []Tick{9}, bucket: b},
		{name: "as much room", inA: []Tick{9}, inB: []Tick{9}, bucket: a, way: 1},
		{name: "dead ones are room", inA: []Tick{9, 4, 4}, inB: []Tick{9, 9}, now: 5, bucket: a, way: 1},
		{name: "only B", inA: []Tick{9, 9, 9, 9, 9, 9, 9, 9}, inB: []Tick{9, 9, 9, 9, 9, 9, 9}, bucket: b, way: 7},
		{name: "full", inA: []Tick{9, 8, 9, 9, 9, 9, 9, 9}, inB: []Tick{9, 9, 9, 9, 9, 7, 9, 7}, bucket: b, way: 5, evicts: true},
		{name: "full, as old", inA: []Tick{9, 9, 7, 9, 9, 9, 9, 9}, inB: []Tick{9, 7, 9, 9, 9, 9, 9, 9}, bucket: a, way: 2, evicts: true},
		{name: "over the wrap", inA: []Tick{1, 1, 1, 1, 1, 1, 1, 1}, inB: []Tick{1, 1, 1, 1, 0xfffffffe, 1, 1, 1}, now: 0xfffffffd, bucket: b, way: 4, evicts: true},
		{name: "there already", inA: []Tick{9, 9, 9}, inB: nil, already: 2, bucket: a, way: 1},
		{name: "there already and dead", inA: []Tick{9, 1, 9}, inB: nil, already: 2, now: 5, bucket: a, way: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, table := memory(t, 16)
			for i, until := range c.inA {
				table.write(a*Ways+i, hash(uint64(i)+100), Entry{Backend: 1, Until: until})
			}
			for i, until := range c.inB {
				table.write(b*Ways+i, hash(uint64(i)+200), Entry{Backend: 1, Until: until})
			}
			if c.already > 0 {
				table.write(a*Ways+int(c.already-1), hash(0), Entry{Backend: 1, Until: c.inA[c.already-1]})
			}
			evicted := table.Put(hash(0), Entry{Backend: 77, Until: c.now + 3}, c.now)
			got, e, ok := table.read(c.bucket*Ways + c.way)
			if got != hash(0) || !ok || e.Backend != 77 || evicted != c.evicts {
				t.Errorf("bucket %d way %d has %x %v %t, evicted %t", c.bucket, c.way, got, e, ok, evicted)
			}
		})
	}
}

// TestTwoBuckets: which they are, worked out by hand, and that they are two.
func TestTwoBuckets(t *testing.T) {
	for _, c := range []struct {
		n    int
		hash uint64
		a, b int
	}{
		{16, 0x30000000_00000001, 3, 9}, {16, 0xffffffff_00000000, 15, 0}, {16, 0x90000000_00000001, 9, 10}, {16, 0xf0000000_ffffffff, 15, 6},
		{16, 0xffffffff_00000001, 15, 9}, {1, 5, 0, 0}, {10, 0, 0, 1},
	} {
		_, _, table := memory(t, c.n)
		if got := table.two(c.hash); got != [2]int{c.a, c.b} {
			t.Errorf("%d buckets, hash %x: %v, want %d and %d", c.n, c.hash, got, c.a, c.b)
		}
	}
}

// TestConcurrent: while one writes, another never reads a mix, though all flows
// have the same backend.
func TestConcurrent(t *testing.T) {
	of := func(hash uint64) Entry {
		return Entry{
			Backend: 1, Generation: 1, Service: uint32(hash), Until: Tick(hash),
			Tuple: Tuple{Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(hash >> 8), byte(hash)}), uint16(hash))},
		}
	}
	_, _, table := memory(t, 2)
	half, err := HalfOver(aligned(2*HalfSize), 2)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		puts int
		put  func(hash uint64)
		all  iter.Seq2[uint64, Entry]
	}{
		"table": {200_000, func(hash uint64) { table.Put(hash, of(hash), 0) }, table.All()},
		"half":  {2_000_000, func(hash uint64) { half.Put(hash, of(hash)) }, half.All()},
	} {
		t.Run(name, func(t *testing.T) {
			var wg sync.WaitGroup
			defer wg.Wait()
			done := make(chan struct{})
			wg.Go(func() {
				defer close(done)
				for i := range uint64(c.puts) {
					c.put(i*0x9e3779b97f4a7c15 + 1)
				}
			})
			seen := 0
			for running := true; running; {
				select {
				case <-done:
					running = false
				default:
				}
				for hash, e := range c.all {
					if e != of(hash) {
						t.Fatalf("hash %d has %+v", hash, e)
					}
					seen++
				}
			}
			if seen == 0 {
				t.Error("nothing was ever read")
			}
		})
	}
}

// FuzzTable: whatever is in the memory, it is read within its bounds, and what
// is put is found.
func FuzzTable(f *testing.F) {
	f.Add([]byte{}, uint64(1), uint32(0))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0}, uint64(1), uint32(0xffffffff))
	f.Fuzz(func(t *testing.T, b []byte, hash uint64, now uint32) {
		buckets, details, table := memory(t, 3)
		places := aligned(3 * HalfSize)
		half, err := HalfOver(places, 3)
		if err != nil {
			t.Fatal(err)
		}
		copy(places, b)
		copy(details, b[copy(buckets, b):])
		for hash, e := range table.All() {
			if hash == 0 {
				t.Error("an entry without a hash")
			}
			_ = e.Left(Tick(now))
		}
		for hash := range half.All() {
			if hash == 0 {
				t.Error("an entry without a hash")
			}
		}
		if hash == 0 {
			return
		}
		e := Entry{Backend: 5, Generation: 6, Until: Tick(now), Service: 1}
		table.Put(hash, e, Tick(now))
		if got, ok := table.Find(hash, Tick(now)); !ok || got != e {
			t.Errorf("put %v, found %v %t", e, got, ok)
		}
		half.Put(hash, e)
		if got, ok := half.Find(hash, Tick(now)); !ok || got != e {
			t.Errorf("half: put %v, found %v %t", e, got, ok)
		}
	})
}
