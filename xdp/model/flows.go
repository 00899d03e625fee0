package model

import (
	"time"

	"github.com/catchment-dev/edge"
)

// FlowTable remembers flows by their hash. One may forget flows before their
// time, as one of the kernel does that is full.
type FlowTable interface {
	// Get returns the entry of a flow, also one that has ended.
	Get(hash uint64) (FlowEntry, bool)
	// Put writes the entry of a flow over one that it has.
	Put(hash uint64, e FlowEntry)
	// Delete forgets a flow.
	Delete(hash uint64)
}

// FlowEntry is what is remembered of a flow.
type FlowEntry struct {
	Backend uint32
	// Generation is that of the backend which was meant.
	Generation uint32
	Service    uint32
	// Until is the last tick at which it is followed.
	Until uint32
}

// Flows is a FlowTable that takes any number of flows.
type Flows map[uint64]FlowEntry

// Get implements FlowTable.
func (f Flows) Get(hash uint64) (FlowEntry, bool) {
	e, ok := f[hash]
	return e, ok
}

// Put implements FlowTable.
func (f Flows) Put(hash uint64, e FlowEntry) { f[hash] = e }

// Delete implements FlowTable.
func (f Flows) Delete(hash uint64) { delete(f, hash) }

// limits are the states of the rate limits: when the next one is due, of those
// that have been asked for.
type limits struct {
	service map[uint32]time.Duration
	source  map[sourceKey]time.Duration
	tooBig  time.Duration
}

// sourceKey is one source of a service: an IPv4 address, an IPv6 /64.
type sourceKey struct {
	service uint32
	addr    [16]byte
}

// limitSlack is how far ahead of what a limit allows it has been used and not
// another one.
const limitSlack = time.Millisecond

// pass says whether one more is within the limit, and when the next one is due.
func (l Limit) pass(due, now time.Duration) (next time.Duration, ok bool) {
	due = max(due, now)
	if due-now > l.Burst+l.Interval+limitSlack {
		due = now + l.Burst // another limit, a slower one, has left it
	}
	if due-now > l.Burst {
		return due, false
	}
	return due + l.Interval, true
}

// limit judges a SYN: first the source, so that one source does not use up what
// all may open.
func (d *decision) limit() Verdict {
	if !d.p.syn {
		return Undecided
	}
	if d.w.due.service == nil {
		d.w.due.service, d.w.due.source = map[uint32]time.Duration{}, map[sourceKey]time.Duration{}
	}
	key := sourceKey{d.Service, d.p.tuple.Src}
	if d.p.tuple.V6 {
		clear(key.addr[8:])
	}
	if !pass(d.w.due.source, key, d.svc.SYNSource, d.now) {
		return d.limited(DropSYNLimitSource, "its source may open no more connections for now")
	}
	if !pass(d.w.due.service, d.Service, d.svc.SYN, d.now) {
		return d.limited(DropSYNLimitService, "the service takes no more connections for now")
	}
	return Undecided
}

func (d *decision) limited(v Verdict, why edge.Reason) Verdict {
	d.Limited = true
	d.say("limit", why, 0)
	return v
}

// pass asks the limit of one key, and keeps when its next one is due.
func pass[K comparable](due map[K]time.Duration, key K, l Limit, now time.Duration) bool {
	if l.Interval == 0 {
		return true
	}
	next, ok := l.pass(due[key], now)
	due[key] = next
	return ok
}

// tellTooBig says whether one more sender may be told.
func (w *World) tellTooBig(now time.Duration) bool {
	if w.TooBig.Interval == 0 {
		return false
	}
	next, ok := w.TooBig.pass(w.due.tooBig, now)
	w.due.tooBig = next
	return ok
}
