package flows

import (
	"iter"
	"slices"
	"sync/atomic"
)

// Table is a view of the table of established flows; the zero Table has none.
// The program may change it meanwhile, and so may other goroutines: an entry is
// read and written whole, or not seen.
type Table struct {
	buckets []bucket
	details []detail // Ways for each bucket
}

// Over returns the view of n buckets, at least 1, at the start of buckets, and of
// what belongs to them at the start of details. Both are aligned to 8 bytes, as
// mapped memory is, and may be longer. The view is good as long as they are.
func Over(buckets, details []byte, n int) (t Table, err error) {
	if t.buckets, err = over[bucket](buckets, n, "buckets of flow table"); err != nil {
		return Table{}, err
	}
	if t.details, err = over[detail](details, n*Ways, "details of flow table"); err != nil {
		return Table{}, err
	}
	return t, nil
}

// Len returns the number of entries that the table has room for at most.
func (t Table) Len() int { return len(t.details) }

// All returns every entry with its hash, those that count no more included. One
// that is being written is left out. In no order that means anything.
func (t Table) All() iter.Seq2[uint64, Entry] {
	return func(yield func(uint64, Entry) bool) {
		for place := range t.details {
			hash, e, ok := t.read(place)
			if ok && !yield(hash, e) {
				return
			}
		}
	}
}

// Find returns the entry of hash that counts at now.
func (t Table) Find(hash uint64, now Tick) (Entry, bool) {
	for _, place := range t.places(hash) {
		if found, e, ok := t.read(place); ok && found == hash && e.Alive(now) {
			return e, true
		}
	}
	return Entry{}, false
}

// places returns where flows like that of hash are.
func (t Table) places(hash uint64) (all []int) {
	if len(t.buckets) == 0 {
		return nil
	}
	for _, b := range t.two(hash) {
		for w := range Ways {
			if isOf(atomic.LoadUint64(&t.buckets[b].flow[w]), hash) {
				all = append(all, b*Ways+w)
			}
		}
	}
	return all
}

// Put remembers e as the flow of hash, which is not 0, in place of what was
// remembered of it. It says whether another live flow has lost its place for it.
// One goroutine at a time may put.
func (t Table) Put(hash uint64, e Entry, now Tick) (evicted bool) {
	if len(t.buckets) == 0 {
		return false
	}
	if there := t.places(hash); len(there) > 0 {
		// A flow that came back after its time may be there twice.
		i := max(0, slices.IndexFunc(there, func(place int) bool { return t.buckets[place/Ways].left(place%Ways, now) >= 0 }))
		t.write(there[i], hash, e)
		return false
	}
	at := t.two(hash)
	a, b := t.buckets[at[0]].room(now), t.buckets[at[1]].room(now)
	switch {
	case a.free == 0 && b.free == 0 && a.left <= b.left, a.free > 0 && a.free >= b.free:
		t.write(at[0]*Ways+a.way, hash, e)
	default:
		t.write(at[1]*Ways+b.way, hash, e)
	}
	return a.free == 0 && b.free == 0
}

// Clear forgets all flows.
func (t Table) Clear() {
	for place := range t.details {
		atomic.StoreUint64(&t.buckets[place/Ways].flow[place%Ways], 0)
	}
}

// two returns the buckets in which a hash may be: the upper half of it names
// the first, the lower half the second.
func (t Table) two(hash uint64) [2]int {
	n := len(t.buckets)
	a, b := oneOf(hash, n), oneOf(uint64(uint32(hash)*0x9e3779b1)<<32, n)
	if a == b {
		b = (a + 1) % n
	}
	return [2]int{a, b}
}

// read returns the entry at a place, if there is one and it is whole: the hash of
// its detail is read first and last, since it goes before anything else is written.
func (t Table) read(place int) (hash uint64, e Entry, ok bool) {
	b, way, d := &t.buckets[place/Ways], place%Ways, &t.details[place]
	word := atomic.LoadUint64(&b.flow[way])
	if word == 0 {
		return 0, e, false // without its detail: most are free
	}
	hash = atomic.LoadUint64(&d.hash)
	if hash == 0 || !isOf(word, hash) || atomic.LoadUint64(&b.flow[way]) != word {
		return 0, e, false
	}
	e.Backend = uint32(word & (1<<idBits - 1))
	e.Until, e.Generation = split(atomic.LoadUint64(&b.term[way]))
	svc, _ := split(atomic.LoadUint64(&d.svc))
	e.Service, e.Tuple = uint32(svc), loadTuple(&d.tuple)
	if atomic.LoadUint64(&d.hash) != hash {
		return 0, Entry{}, false
	}
	return hash, e, true
}

// write writes a flow at a place, in the order of the program.
func (t Table) write(place int, hash uint64, e Entry) {
	b, way, d := &t.buckets[place/Ways], place%Ways, &t.details[place]
	atomic.StoreUint64(&d.hash, 0)
	atomic.StoreUint64(&b.term[way], join(e.Until, e.Generation))
	atomic.StoreUint64(&b.flow[way], hash<<idBits|uint64(e.Backend))
	atomic.StoreUint64(&d.svc, join(Tick(e.Service), 0))
	storeTuple(&d.tuple, e.Tuple)
	atomic.StoreUint64(&d.hash, hash)
}

// bucket is struct flow_bucket.
type bucket struct {
	flow [Ways]uint64 // hash << idBits | backend id; 0: free
	term [Ways]uint64 // until and generation
}

const idBits = 16 // ID_BITS of maps.h

// detail is struct flow_detail.
type detail struct {
	hash  uint64 // 0: being written
	svc   uint64
	tuple [5]uint64
}

// isOf says whether a word of a bucket is that of a flow.
func isOf(word, hash uint64) bool { return (word^hash<<idBits)>>idBits == 0 }

// left is how many ticks a way has; below 0, it is free.
func (b *bucket) left(way int, now Tick) int32 {
	until, _ := split(atomic.LoadUint64(&b.term[way]))
	return int32(until - now)
}

// room is what a bucket has for a flow that is not in it.
type room struct {
	free int   // ways
	way  int   // a free one, else the one to evict
	left int32 // ticks that the one to evict has
}

func (b *bucket) room(now Tick) room {
	r := room{left: 1<<31 - 1}
	for i := range Ways {
		left := b.left(i, now)
		switch {
		case atomic.LoadUint64(&b.flow[i]) == 0 || left < 0:
			if r.free == 0 {
				r.way = i
			}
			r.free++
		case r.free == 0 && left < r.left:
			r.way, r.left = i, left
		}
	}
	return r
}
