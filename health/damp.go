package health

import "github.com/catchment-dev/edge"

// damper is the damping of one probe: the state changes to Up after rise passes
// in a row, to Down after fall fails in a row, from Unknown as from any other
// state. It is pure; its zero value is that of a probe that has never run.
type damper struct {
	// state is what is shown.
	state edge.ProbeState
	// decided is false until rise or fall results of the present definition
	// have come in: state is then Unknown or what an older definition left.
	decided bool
	// last is Up or Down as the last result was, run how often in a row.
	last edge.ProbeState
	run  int
}

// add takes in a pass or a fail and says whether the state has changed. A run
// that is unknown is not added: it neither counts nor breaks a streak.
func (d *damper) add(pass bool, rise, fall int) bool {
	result, need := edge.Down, fall
	if pass {
		result, need = edge.Up, rise
	}
	if result != d.last {
		d.last, d.run = result, 0
	}
	d.run++
	if d.run < need {
		return false
	}
	d.decided = true
	changed := d.state != result
	d.state = result
	return changed
}

// streak returns how many results in a row disagree with the state.
func (d *damper) streak() int {
	if d.last == d.state {
		return 0
	}
	return d.run
}
