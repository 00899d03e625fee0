package health

import "github.com/catchment-dev/edge"

// damper is the damping of one probe: the state changes to Down after fall fails
// in a row, and to Up or Full after rise results in a row that are no fail, from
// Unknown as from any other state. Which of the two is what the last of them
// says; between the two, rise of the other kind in a row are needed, so that
// one odd answer changes nothing. It is pure; its zero value is that of a probe
// that has never run.
type damper struct {
	// state is what is shown.
	state edge.ProbeState
	// decided is false until rise or fall results of the present definition
	// have come in: state is then Unknown or what an older definition left.
	decided bool
	// last is Up, Full or Down as the last result was, run how often in a row.
	last edge.ProbeState
	run  int
	// alive is how many results in a row were no fail.
	alive int
}

// add takes in Up (a pass), Full or Down (a fail) and says whether the state
// has changed. A run that is unknown is not added: it neither counts nor breaks
// a streak.
func (d *damper) add(result edge.ProbeState, rise, fall int) bool {
	if result != d.last {
		d.last, d.run = result, 0
	}
	d.run++
	d.alive++
	enough := d.alive >= rise
	if result == edge.Down {
		d.alive, enough = 0, d.run >= fall
	}
	if !enough {
		return false
	}
	d.decided = true
	if d.state == result || d.state.Alive() && result.Alive() && d.run < rise {
		return false
	}
	d.state = result
	return true
}

// streak returns how many results in a row disagree with the state.
func (d *damper) streak() int {
	switch {
	case d.last == d.state:
		return 0
	case d.last.Alive() && !d.state.Alive():
		return d.alive
	}
	return d.run
}
