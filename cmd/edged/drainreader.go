package main

import (
	"fmt"
	"time"

	"github.com/catchment-dev/edge"
)

// How long the control loop waits for a look at the drain file that it has just
// started. A file that answers does so in far less. The first look at a path may
// take longer, since it comes before all decisions: a node that is drained by the
// file must not be announced for a moment after a reboot. For one that does not
// answer it is waited but once.
const (
	firstLook = time.Second
	nextLook  = 50 * time.Millisecond
)

// drainSilence is how long a look may take before that is an alarm.
const drainSilence = 3 * time.Second

// lastLook is how long an end of edged waits for a look.
const lastLook = 100 * time.Millisecond

// drainLook is what one look at the drain file has found.
type drainLook struct {
	path string
	// seen says that stamp is known, whole that a file of this stamp has nothing
	// else to say than list or err: it need not be read again.
	seen, whole bool
	stamp       fileStamp
	list        []edge.Drain // not to be changed
	err         error        // what is wrong with the file, or why it cannot be read
}

// drainReader looks at the drain file for the control loop, which alone may call
// it. Each look is a goroutine of its own: a file system that hangs (an NFS server
// that is gone) holds that, for as long as it likes, and not the loop. There is
// never more than one, since each costs a thread; so the next look, also at
// another path, is only after that one.
type drainReader struct {
	look        func(path string, before drainLook) drainLook // lookAt; a test injects faults
	first, next time.Duration                                 // firstLook, nextLook
	// path and since are of the look that is under way; since is zero: none is.
	path  string
	since time.Time
	got   chan drainLook // has room for that one's answer, so that none waits for the loop
	last  *drainLook     // nil: no look has come back yet
}

func newDrainReader() *drainReader {
	return &drainReader{look: lookAt, first: firstLook, next: nextLook, got: make(chan drainLook, 1)}
}

// ask looks at the file and says whether it has answered. While a look is under
// way no other is begun, and its answer, once it is there, is as good as a new
// one: what has changed since is seen at the next turn.
func (r *drainReader) ask(path string, now time.Time) (drainLook, bool) {
	if path == "" {
		return drainLook{seen: true}, true
	}
	var wait time.Duration
	for {
		if r.since.IsZero() {
			wait = r.start(path, now)
		}
		l, ok := r.receive(wait)
		if !ok {
			return drainLook{}, false
		}
		if l.path == path {
			return l, true
		} // else the configuration names another one meanwhile
	}
}

// start begins a look and returns how long to wait for it.
func (r *drainReader) start(path string, now time.Time) time.Duration {
	r.path, r.since = path, now
	before, wait := drainLook{}, r.first
	if r.last != nil && r.last.path == path {
		before, wait = *r.last, r.next
	}
	look, got := r.look, r.got
	go func() { got <- look(path, before) }()
	return wait
}

// receive takes the answer of the look that is under way, if it comes in time.
func (r *drainReader) receive(wait time.Duration) (l drainLook, ok bool) {
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case l = <-r.got:
	case <-late.C:
		select { // an answer that is there outranks a timer that is over
		case l = <-r.got:
		default:
			return l, false
		}
	}
	r.last, r.since = &l, time.Time{}
	return l, true
}

// silence says for how long there has been no answer, once that is too long.
func (r *drainReader) silence(path string, now time.Time) error {
	if r.since.IsZero() || now.Sub(r.since) < drainSilence {
		return nil
	}
	since := r.since.UTC().Format(time.DateTime)
	if r.path != path {
		return fmt.Errorf("drain file %s cannot be looked at: %s, which was node.drain_file, does not answer since %s: unmount that (umount -f), or restart edged", path, r.path, since)
	}
	return fmt.Errorf("drain file %s does not answer since %s", path, since)
}

// unheard says why nothing new may be announced; empty: the file has answered
// once. What it ordered before the start is known, but not what somebody has
// written there while this node was away, perhaps since he has his hands in the
// box. To stay off the air is what a drain would do; what is on the air stays. It
// has no time limit, for that would be a guess about those hands: an operator can
// end it, who names another file, or none, and reloads.
func (r *drainReader) unheard(path string) edge.Reason {
	if path == "" || r.last != nil && r.last.path == path {
		return ""
	}
	return edge.Reason(fmt.Sprintf("drain file %s has not answered since edged started, so nobody knows what it orders; if it never will, change node.drain_file and run edgectl reload", path))
}

// wait gives the last look the time to come back: what has not by then is held by
// the kernel.
func (r *drainReader) wait() {
	if !r.since.IsZero() {
		r.receive(lastLook)
	}
}

// lookAt reads the file, if it is not as it was before.
func lookAt(path string, before drainLook) drainLook {
	l := drainLook{path: path}
	if l.stamp, l.err = stampFile(path); l.err != nil {
		return l
	}
	l.seen = true
	if before.whole && before.stamp == l.stamp {
		l.whole, l.list, l.err = true, before.list, before.err
		return l
	}
	if l.stamp == (fileStamp{}) {
		l.whole = true
		return l
	}
	b, err := readDrainFile(path)
	if err != nil {
		l.err = err
		return l
	}
	l.whole = true
	if l.list, err = parseDrainFile(string(b)); err != nil {
		l.err = fmt.Errorf("%s: %w", path, err)
	}
	for i := range l.list {
		l.list[i].Since = l.stamp.changed
	}
	return l
}
