package flows

import (
	"iter"
	"sync/atomic"
)

// Half is a view of the table of half-open flows, which have shown one packet;
// the zero Half has none. A flow has one place there, and who comes later takes
// it. The program may change it meanwhile, as it may a Table.
type Half struct{ places []halfFlow }

// HalfOver returns the view of n places, at least 1, at the start of mem, as Over
// does.
func HalfOver(mem []byte, n int) (Half, error) {
	places, err := over[halfFlow](mem, n, "table of half-open flows")
	return Half{places}, err
}

// Len returns the number of places.
func (h Half) Len() int { return len(h.places) }

// All returns every entry as Table.All does.
func (h Half) All() iter.Seq2[uint64, Entry] {
	return func(yield func(uint64, Entry) bool) {
		for i := range h.places {
			hash, e, ok := h.places[i].read()
			if ok && oneOf(hash, len(h.places)) == i && !yield(hash, e) {
				return
			}
		}
	}
}

// Find returns the entry of hash that counts at now.
func (h Half) Find(hash uint64, now Tick) (Entry, bool) {
	if len(h.places) == 0 {
		return Entry{}, false
	}
	found, e, ok := h.places[oneOf(hash, len(h.places))].read()
	if !ok || found != hash || !e.Alive(now) {
		return Entry{}, false
	}
	return e, true
}

// Put remembers e as the flow of hash, which is not 0, in place of whatever is
// there. One goroutine at a time may put.
func (h Half) Put(hash uint64, e Entry) {
	if len(h.places) > 0 {
		h.places[oneOf(hash, len(h.places))].write(hash, e)
	}
}

// Clear forgets all flows.
func (h Half) Clear() {
	for i := range h.places {
		h.places[i].clear()
	}
}

// halfFlow is struct half_flow; untilSvc are until and svc.
type halfFlow struct {
	check, life, untilSvc uint64
	tuple                 [5]uint64
}

// read returns what a place says, if it is whole, and the hash that fits: the
// check is read first and last, since it changes before anything else is written.
func (f *halfFlow) read() (hash uint64, e Entry, ok bool) {
	check := atomic.LoadUint64(&f.check)
	life := atomic.LoadUint64(&f.life)
	hash = check ^ life
	if life == 0 || hash == 0 {
		return 0, Entry{}, false
	}
	e = Entry{Backend: uint32(life), Generation: uint32(life >> 32)}
	e.Until, e.Service = split(atomic.LoadUint64(&f.untilSvc))
	e.Tuple = loadTuple(&f.tuple)
	return hash, e, atomic.LoadUint64(&f.check) == check
}

// write writes a place. The life is taken away first and put back last: who looks
// in between finds nothing.
func (f *halfFlow) write(hash uint64, e Entry) {
	life := uint64(e.Generation)<<32 | uint64(e.Backend)
	f.clear()
	atomic.StoreUint64(&f.check, hash^life)
	atomic.StoreUint64(&f.untilSvc, join(e.Until, e.Service))
	storeTuple(&f.tuple, e.Tuple)
	atomic.StoreUint64(&f.life, life)
}

func (f *halfFlow) clear() { atomic.StoreUint64(&f.life, 0) }
