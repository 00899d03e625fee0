package health

import (
	"sync"

	"github.com/catchment-dev/edge"
)

// ringSize is how many events a Ring keeps.
const ringSize = 4096

// Ring keeps the last 4096 events. The zero value is ready; all its methods may
// be called by several goroutines at once. It does not survive the process.
type Ring struct {
	mu   sync.Mutex
	kept []edge.Event // grows up to ringSize; then event n is at n%ringSize
	next uint64       // number of the next event; the first has 0
}

// Add appends e, in place of the oldest if there is no room.
func (r *Ring) Add(e edge.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) < ringSize {
		r.kept = append(r.kept, e)
	} else {
		r.kept[r.next%ringSize] = e
	}
	r.next++
}

// Since returns the events with the number since and higher that are still
// kept, oldest first, and the number to ask for next time. Numbers begin with 0
// and have no gaps: what is missing in front has been overwritten. One that is
// higher than any given out is of an earlier process, and gets everything.
func (r *Ring) Since(since uint64) (list []edge.Event, next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since > r.next {
		since = 0
	}
	since = max(since, r.next-uint64(len(r.kept)))
	list = make([]edge.Event, 0, r.next-since)
	for n := since; n < r.next; n++ {
		list = append(list, r.kept[n%ringSize])
	}
	return list, r.next
}
