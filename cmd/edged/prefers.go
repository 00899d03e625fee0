package main

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
)

const prefersFile = "prefers.json"

// defaultPrefer is how long an order to move traffic holds that names no end.
const defaultPrefer = time.Hour

// openPrefers reads the orders that this node knew of before.
func openPrefers(dir string) ([]edge.Preference, error) {
	var list []edge.Preference
	err := readState(dir, prefersFile, "orders to move traffic", &list)
	return list, err
}

// followPrefers takes in what the other nodes say of orders to move traffic, and
// forgets what has ended. They are kept on disk: an edged that restarts must not
// move the traffic back until it has heard of the order again.
func (d *daemon) followPrefers(now time.Time, members []edge.MemberState) {
	lists := [][]edge.Preference{d.prefers}
	for _, m := range members {
		if m.Age >= 0 {
			lists = append(lists, m.Report.Prefer)
		}
	}
	if next := edge.MergePreferences(now, d.hasPrefix, lists...); d.setPrefers(next) {
		d.keeper.keep(prefersFile, keptPrefers, next)
	}
}

const keptPrefers = "orders to move traffic"

func (d *daemon) hasPrefix(p netip.Prefix) bool { return has(d.config().Fleet.Prefixes, p) }

// setPrefers puts the orders in force and says whether they are others than before.
func (d *daemon) setPrefers(next []edge.Preference) bool {
	if slices.EqualFunc(next, d.prefers, edge.Preference.Equal) {
		return false
	}
	for _, o := range next {
		if !slices.ContainsFunc(d.prefers, o.Equal) {
			d.noteOrder("prefer", allOr(o.Prefix), "-", preferWord(o), fmt.Sprintf("by %s: %s", o.By, o.Reason))
		}
	}
	d.prefers = next
	return true
}

// servePrefer takes an order to move traffic; one without sites takes the one
// before back.
func (d *daemon) servePrefer(w http.ResponseWriter, r *http.Request) {
	var o edge.Preference
	if err := socket.Read(r, &o); err != nil {
		socket.Fail(w, http.StatusBadRequest, err)
		return
	}
	o.By, o.Since = d.config().Local.ID, time.Now().UTC()
	if o.Until.IsZero() {
		o.Until = o.Since.Add(defaultPrefer)
	}
	if o.Reason == "" {
		o.Reason = "no reason given"
	}
	if err := o.Check(); err != nil {
		socket.Fail(w, http.StatusBadRequest, err)
		return
	}
	d.change(w, r, func(context.Context) (*receipt, error) { return d.prefer(o) })
}

// prefer puts an order in force at once: the others keep it too, and tell it again.
func (d *daemon) prefer(o edge.Preference) (*receipt, error) {
	if err := d.known(o.Prefix, ""); err != nil {
		return nil, err
	}
	fleet := &d.config().Fleet
	for _, id := range o.Sites {
		if !slices.ContainsFunc(fleet.Sites, func(s edge.Site) bool { return s.ID == id }) {
			return nil, fmt.Errorf("%s is not a site of the configuration", id)
		}
	}
	if len(o.Sites) == 0 && !slices.ContainsFunc(d.prefers, func(p edge.Preference) bool { return p.Prefix == o.Prefix && p.Holds(time.Now()) }) {
		return nil, fmt.Errorf("there is no order to move traffic for %s", allOr(o.Prefix))
	}
	// Also where another node's clock is ahead: the last word counts.
	for _, was := range d.prefers {
		if was.Prefix == o.Prefix && !o.Since.After(was.Since) {
			o.Since = was.Since.Add(time.Nanosecond)
		}
	}
	if err := o.Check(); err != nil {
		return nil, fmt.Errorf("%w (another node's clock is ahead: the order before is of %s)", err, o.Since.Format(time.RFC3339))
	}
	next := edge.MergePreferences(time.Now(), d.hasPrefix, d.prefers, []edge.Preference{o})
	if !d.setPrefers(next) {
		return nil, nil
	}
	kept := d.keeper.order(prefersFile, keptPrefers, next)
	kept.despite = "the order is in force, but a restart of this node may forget it"
	return kept, nil
}

// preferWord says what an order orders.
func preferWord(o edge.Preference) string {
	if len(o.Sites) == 0 {
		return "as configured"
	}
	return fmt.Sprintf("to %v until %s: the others prepend %d, med %d", o.Sites, o.Until.UTC().Format(time.DateTime), o.Prepend, o.MED)
}

func allOr(p netip.Prefix) string {
	if p == (netip.Prefix{}) {
		return "all prefixes"
	}
	return p.String()
}
