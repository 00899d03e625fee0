package maglev

import "math/bits"

// turn is when a walker may take a slot: the time in the upper bits, the
// position of the walker in the lower ones. They compare as they come.
type turn uint64

const whoBits = 17 // Size is below 1<<17

// newTurn makes one of a time below 1<<47.
func newTurn(time uint64, who int) turn { return turn(time<<whoBits | uint64(who)) }

func (t turn) who() int { return int(t & (1<<whoBits - 1)) }

// unit is the time between two turns of weight 1.
const unit = 1 << 36

// turns returns at least Size turns in their order. All walkers take their
// first one at once, so that nobody is left out. From then on they come at a
// walker's own pace, shifted by its own phase: in no stretch of time does one
// get a slot more or less than its share, and those that have the same weight
// do not get theirs all at the same time.
func turns(walkers []walker) []turn {
	if equal(walkers) {
		return rounds(walkers)
	}
	sum := uint64(0)
	for _, w := range walkers {
		sum += uint64(w.weight)
	}
	// Each walker gets its share of Size+N turns, less one at most.
	end := uint64(Size+len(walkers)) * unit / sum
	drop := max(0, bits.Len64(end)+whoBits-64)
	all := make([]turn, 0, Size+2*len(walkers))
	for i, w := range walkers {
		every := unit / uint64(w.weight)
		phase, _ := bits.Mul64(every, w.phase)
		all = append(all, newTurn(0, i))
		for at := every + phase; at < end; at += every {
			all = append(all, newTurn(at>>drop, i))
		}
	}
	sortTurns(all)
	return all
}

// equal says whether all have the same weight.
func equal(walkers []walker) bool {
	for _, w := range walkers {
		if w.weight != walkers[0].weight {
			return false
		}
	}
	return true
}

// rounds are the turns of walkers of the same weight: one after the other, since
// they come in the order of their phases.
func rounds(walkers []walker) []turn {
	all := make([]turn, 0, Size+len(walkers))
	for len(all) < Size {
		for i := range walkers {
			all = append(all, newTurn(0, i))
		}
	}
	return all
}

// digit is what one pass of sortTurns sorts by.
const digit = 11

// sortTurns puts the turns in order. Their times are spread evenly, so after
// two passes by the upper bits of the time, lower digit first, hardly any is
// not in its place. Any sort by comparisons takes longer than all else here.
func sortTurns(all []turn) {
	longest := turn(0)
	for _, t := range all {
		longest = max(longest, t)
	}
	shift := max(whoBits, bits.Len64(uint64(longest))-2*digit)
	other := make([]turn, len(all))
	scatter(other, all, shift)
	scatter(all, other, shift+digit)
	for i := 1; i < len(all); i++ {
		t, at := all[i], i
		for at > 0 && all[at-1] > t {
			all[at] = all[at-1]
			at--
		}
		all[at] = t
	}
}

// scatter copies the turns in the order of one digit; those that agree in it
// stay in the order they had.
func scatter(to, from []turn, shift int) {
	var at [1 << digit]uint32
	for _, t := range from {
		at[t>>shift&(1<<digit-1)]++
	}
	start := uint32(0)
	for i, n := range at {
		at[i], start = start, start+n
	}
	for _, t := range from {
		i := t >> shift & (1<<digit - 1)
		to[at[i]] = t
		at[i]++
	}
}
