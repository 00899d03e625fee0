package nic

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/catchment-dev/edge/xdp/flows"
	"golang.org/x/sys/unix"
)

// Map is a BPF map as it is going to be made.
type Map struct {
	Name string
	// Type is the kernel's number of it (linux/bpf.h, enum bpf_map_type).
	Type uint32
	// Key and Value are sizes in bytes; of a ring buffer both are 0.
	Key, Value uint32
	// Entries is how many there is room for; of a ring buffer, bytes.
	Entries uint32
	Flags   uint32
	// Inner is what the maps in an array of maps are like.
	Inner *Map
}

// The maps of xdp/bpf/maps.h of which Sizes says how large they are.
const (
	flowMap      = "flow"
	detailMap    = "flow_detail" // reckoned with flow
	halfMap      = "half"
	serviceMap   = "svc"
	blocklistMap = "blocklist"
	filterMap    = "block_filter"
)

// Sizes is what decides how much memory the maps take.
type Sizes struct {
	// Maps are all maps of the program. Of the flow tables Entries is not used:
	// Flows and HalfFlows say it.
	Maps []Map
	// Flows and HalfFlows are how many flows there is to be room for.
	Flows, HalfFlows int
	// Services is how many there are, Blocked how many source prefixes are blocked.
	Services, Blocked int
	// CPUs is how many the kernel has room for, running or not.
	CPUs int
}

// Row is what one map takes, with all maps in it. The row of flow has
// flow_detail in it.
type Row struct {
	Map string
	// Maps is how many there are, Entries how many entries each of them has.
	Maps, Entries int
	Bytes         int64
}

// Plan is what the maps of the program will take.
type Plan struct {
	// Rows are the maps, the largest first.
	Rows []Row
	// Total is their sum in bytes.
	Total int64

	sizes Sizes
}

// Memory works out what the maps take, before any is made. Services and the
// blocklist are changed by putting new maps beside the old ones, so each counts
// twice. It is pure, and agrees with what the kernel says of each map
// (fdinfo, memlock) except for the blocklist, of which the kernel counts only a
// part.
func Memory(s Sizes) Plan {
	p := Plan{sizes: s}
	details := int64(0)
	for _, m := range s.Maps {
		r := Row{Map: m.Name, Maps: 1, Entries: int(m.Entries)}
		switch m.Name {
		case flowMap:
			r.Entries = flows.Buckets(s.Flows)
		case detailMap:
			r.Entries = flows.Buckets(s.Flows) * flows.Ways
		case halfMap:
			r.Entries = flows.Places(s.HalfFlows)
		}
		m.Entries = uint32(r.Entries)
		r.Bytes = m.bytes(s.CPUs)
		if m.Inner != nil {
			inner := *m.Inner
			r.Maps = 2
			switch m.Name {
			case serviceMap:
				r.Maps = 2 * s.Services
			case blocklistMap:
				inner.Entries = uint32(s.Blocked)
			case filterMap:
				r.Maps = 2 * min(1, s.Blocked) // an empty list has none
			}
			r.Entries = int(inner.Entries)
			r.Bytes += int64(r.Maps) * inner.bytes(s.CPUs)
		}
		p.Total += r.Bytes
		if m.Name == detailMap {
			details = r.Bytes
			continue
		}
		p.Rows = append(p.Rows, r)
	}
	if i := slices.IndexFunc(p.Rows, func(r Row) bool { return r.Map == flowMap }); i >= 0 {
		p.Rows[i].Bytes += details
	}
	slices.SortStableFunc(p.Rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Map, b.Map))
	})
	return p
}

// What the kernel puts around entries, in bytes (Linux 6.18, kernel/bpf; other
// versions differ by little).
const (
	page        = 4096
	kmallocMost = 8 * page // more than this is whole pages

	arrayHeader   = 312 // struct bpf_array
	hashHeader    = 832 // struct bpf_htab
	hashElement   = 48  // struct htab_elem
	hashBucket    = 16  // struct bucket
	ringHeader    = 304 // struct bpf_ringbuf_map
	ringMetaPages = 3
	trieHeader    = 400 // struct lpm_trie

	// A prefix of a trie is a leaf and, if the prefixes have nothing to do with
	// each other, nearly always a fork above it: two times 64 bytes with 8 of
	// bookkeeping. Measured with 500,000 IPv4 addresses: 142 bytes each, where
	// the kernel says 44.
	trieEntry = 144
)

// bytes is what one map takes, without the maps in it.
func (m Map) bytes(cpus int) int64 {
	n, per := int64(m.Entries), int64(cpus)
	key, value := round8(m.Key), round8(m.Value)
	switch m.Type {
	case unix.BPF_MAP_TYPE_PERCPU_ARRAY:
		return allocated(arrayHeader+8*n) + n*value*per
	case unix.BPF_MAP_TYPE_HASH:
		return hashHeader + allocated(hashBucket*power2(n)) + allocated((hashElement+key+value)*(n+per)) + 8*per
	case unix.BPF_MAP_TYPE_LRU_HASH:
		return hashHeader + allocated(hashBucket*power2(n)) + allocated((hashElement+key+value)*n) + 32*per
	case unix.BPF_MAP_TYPE_LPM_TRIE:
		return trieHeader + trieEntry*n
	case unix.BPF_MAP_TYPE_RINGBUF:
		pages := n/page + ringMetaPages
		return ringHeader + pages*page + 8*(pages+n/page)
	}
	if m.Flags&unix.BPF_F_MMAPABLE != 0 {
		return pages(arrayHeader) + pages(n*value)
	}
	return allocated(arrayHeader + n*value)
}

func round8(n uint32) int64 { return (int64(n) + 7) &^ 7 }

func pages(n int64) int64 { return (n + page - 1) &^ (page - 1) }

// allocated is what the kernel uses up for a piece of memory.
func allocated(n int64) int64 {
	if n > kmallocMost {
		return pages(n)
	}
	return n
}

// power2 is the power of two that is at least n.
func power2(n int64) int64 {
	if n < 2 {
		return 1
	}
	return 1 << bits.Len64(uint64(n-1))
}
