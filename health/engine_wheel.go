package health

import "time"

// The wheel's slots: as wide as the shortest sleep of the schedule, and as many
// as make more than two seconds.
const (
	slotWidth = slack
	slots     = 512
)

// wheel is a timer of entries: putting one in, taking it out and taking what is
// due cost the same however many there are. An entry is in the slot of its time,
// modulo the length of the wheel; so a slot also holds those of later rounds.
type wheel struct {
	base time.Time
	slot [slots][]*entry
	hand int64 // the slot, counted from base, before which all is empty
	n    int
}

// put adds e; a time that is past counts as the present.
func (w *wheel) put(e *entry, at time.Time) {
	e.at, e.wheel = at, w
	e.slot = int(max(w.hand, w.count(at)) % slots)
	s := &w.slot[e.slot]
	e.index = len(*s)
	*s = append(*s, e)
	w.n++
}

func (w *wheel) count(at time.Time) int64 { return int64(at.Sub(w.base) / slotWidth) }

// remove takes e out.
func (w *wheel) remove(e *entry) {
	s := w.slot[e.slot]
	last := len(s) - 1
	s[e.index] = s[last]
	s[e.index].index = e.index
	s[last] = nil
	w.slot[e.slot] = s[:last]
	e.wheel, e.index = nil, -1
	w.n--
}

// take removes the entries whose time is not after now, and appends them to out.
func (w *wheel) take(now time.Time, out []*entry) []*entry {
	end := w.count(now)
	for i := max(w.hand, end-slots+1); i <= end; i++ {
		s := &w.slot[i%slots]
		for k := 0; k < len(*s); {
			if e := (*s)[k]; e.at.After(now) {
				k++
			} else {
				w.remove(e) // and the last of the slot is at k
				out = append(out, e)
			}
		}
	}
	w.hand = max(w.hand, end)
	return out
}

// next returns the time of the first entry; false if there is none.
func (w *wheel) next() (at time.Time, ok bool) {
	if w.n == 0 {
		return at, false
	}
	for i := w.hand; i < w.hand+slots; i++ {
		for _, e := range w.slot[i%slots] {
			if !ok || e.at.Before(at) {
				at, ok = e.at, true
			}
		}
		if ok && w.count(at) <= i { // else it is of a later round
			break
		}
	}
	return at, ok
}
