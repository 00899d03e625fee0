package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

const (
	drainsFile = "drains.json"
	// byFileFile keeps what the drain file ordered last: while that cannot be
	// read, or is wrong, its orders stay in force, also over a restart.
	byFileFile = "drains-by-file.json"
)

// drains are the operator's orders to leave. They are kept on disk, since an
// order must outlive this process and the box's reboot. Those of the drain file
// are kept by that file instead.
type drains struct {
	keeper *keeper
	list   []edge.Drain
	// asked are the changes of list that are not known to be on the disk, in the
	// order in which they came. None is in force before it is.
	asked []drainChange
	// byFile is what the drain file says; fileErr what is wrong with it, and then
	// byFile is what it said before.
	byFile  []edge.Drain
	fileErr error
	// stop is the order that edgebgp gives by saying that it is to stop; nil: it is not.
	// It is kept by nobody: it ends with another process there that says nothing of it.
	stop *edge.Drain
	// file looks at the drain file; seen is that as it was first seen at seenAt.
	file   *drainReader
	seen   fileStamp
	seenAt time.Time
}

// drainChange is an order that is given, or one that is taken back.
type drainChange struct {
	edge.Drain
	back bool
	kept *receipt
}

func (c drainChange) on(list []edge.Drain) []edge.Drain {
	out := slices.DeleteFunc(slices.Clone(list), func(o edge.Drain) bool { return o.Prefix == c.Prefix && o.Service == c.Service })
	if !c.back {
		out = append(out, c.Drain)
	}
	return out
}

// openDrains reads what an earlier process kept. A file that cannot be read is
// an error: to ignore it would announce a prefix that an operator took out.
func openDrains(k *keeper) (*drains, error) {
	d := &drains{keeper: k, file: newDrainReader()}
	err := readState(k.dir, drainsFile, "drains", &d.list)
	return d, errors.Join(err, readState(k.dir, byFileFile, "drains by file", &d.byFile))
}

// all are the orders by command and by file, then that of edgebgp: an operator's reason
// is the better one.
func (d *drains) all() []edge.Drain {
	all := d.byOperator()
	if d.stop != nil {
		all = append(all, *d.stop)
	}
	return all
}

func (d *drains) byOperator() []edge.Drain { return slices.Concat(d.list, d.byFile) }

// of returns the order that concerns p: its own, else that for a service in it,
// else that for the whole node. vipOf tells where a service is: each prefix that
// attracts its packets is concerned.
func (d *drains) of(p netip.Prefix, vipOf func(edge.ServiceID) netip.Addr) *edge.Drain {
	var found *edge.Drain
	best := 0
	for _, o := range d.all() {
		rank := 0
		switch {
		case o.Prefix == p:
			rank = 3
		case o.Service != "" && p.Contains(vipOf(o.Service)):
			rank = 2
		case o.Service == "" && o.Prefix == netip.Prefix{}:
			rank = 1
		}
		if rank > best {
			found, best = &o, rank
		}
	}
	if found != nil && found.Service != "" {
		found.Reason = fmt.Sprintf("service %s: %s", found.Service, found.Reason)
	}
	return found
}

// node says whether an operator wants the whole node out. That edgebgp is to stop does
// not count: it says good-bye by BFD itself, and the next one is not to begin with it.
func (d *drains) node() bool {
	return slices.ContainsFunc(d.byOperator(), func(o edge.Drain) bool { return o.Service == "" && o.Prefix == netip.Prefix{} })
}

// expire forgets the orders by command that have ended, and reports them.
func (d *drains) expire(now time.Time) []edge.Drain {
	left := unended(d.list, now)
	if len(left) == len(d.list) {
		return nil
	}
	ended := slices.DeleteFunc(d.list, func(o edge.Drain) bool { return o.Until.IsZero() || now.Before(o.Until) })
	d.list = left
	d.keep()
	return ended
}

// add asks for an order, remove for the end of one; an order for the same is
// replaced. The receipt says whether it is on the disk; at the next settle after
// that it is in force. If it cannot be kept it never is.
func (d *drains) add(o edge.Drain) *receipt { return d.ask(drainChange{Drain: o}) }

// remove also says whether there is such an order.
func (d *drains) remove(p netip.Prefix, s edge.ServiceID) (*receipt, bool) {
	c := drainChange{Drain: edge.Drain{Prefix: p, Service: s}, back: true}
	if list := d.wanted(); len(c.on(list)) == len(list) {
		return nil, false
	}
	return d.ask(c), true
}

func (d *drains) ask(c drainChange) *receipt {
	d.asked = append(d.asked, c)
	c.kept = d.keeper.order(drainsFile, keptDrains, d.wanted())
	d.asked[len(d.asked)-1] = c
	return c.kept
}

// settle puts in force, and reports, what has been asked for and is on the disk now.
func (d *drains) settle() []drainChange {
	var in []drainChange
	refused := false
	for len(d.asked) > 0 && d.asked[0].kept.over() {
		c := d.asked[0]
		d.asked = d.asked[1:]
		if c.kept.err != nil {
			refused = true
			continue
		}
		d.list = c.on(d.list)
		in = append(in, c)
	}
	if refused { // it is perhaps on the disk all the same, or on its way
		d.keep()
	}
	return in
}

// wanted are the orders by command as the file has them: with what is asked for, so that
// no write takes out what the one before has put in.
func (d *drains) wanted() []edge.Drain {
	list := d.list
	for _, c := range d.asked {
		list = c.on(list)
	}
	return list
}

const keptDrains = "orders to drain"

func (d *drains) keep() { d.keeper.keep(drainsFile, keptDrains, d.wanted()) }
