package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
	"github.com/catchment-dev/edge/health"
)

// jury is all that is known of the checks that fail in the fleet, by this node and by
// what the others say. It is for one turn.
func (d *daemon) jury(s sight) health.Jury {
	c := d.config()
	j := health.Jury{Trusted: func(id edge.ProbeID) bool {
		return slices.ContainsFunc(d.trusts, func(t edge.Trust) bool { return t.Check == id && t.Holds(s.now) })
	}}
	for _, n := range c.Fleet.Nodes {
		if !slices.Contains(j.Sites, n.Site) {
			j.Sites = append(j.Sites, n.Site)
		}
	}
	j.Witnesses = append(j.Witnesses, witness(c.Self().Site, true, 0, s.failing))
	for _, m := range s.members {
		if m.Age >= 0 && m.Node != c.Local.ID {
			j.Witnesses = append(j.Witnesses, witness(m.Site, m.Age <= freshOf(c), m.Said, m.Report.Failing))
		}
	}
	return j
}

// witness is a node whose report was made so long ago.
func witness(site edge.SiteID, heard bool, age time.Duration, failing []edge.Failure) health.Witness {
	w := health.Witness{Site: site, Heard: heard}
	for _, f := range failing {
		if w.Fails == nil {
			w.Fails = map[edge.Cause]time.Duration{}
		}
		w.Fails[f.Cause] = f.Age + age
	}
	return w
}

// maxSuspects bounds what the status shows.
const maxSuspects = 64

// suspects are the checks that are not to be held against a site, or would not be but
// for an operator's order: those that fail here, and those that are known to.
func (d *daemon) suspects(s sight) []edge.Suspect {
	j, here := d.jury(s), map[edge.Cause]bool{}
	for _, f := range s.failing {
		here[f.Cause] = true
	}
	tried := map[edge.Cause]bool{}
	var out []edge.Suspect
	for _, w := range j.Witnesses {
		for c := range w.Fails {
			if tried[c] {
				continue
			}
			tried[c] = true
			v := j.Try(c)
			v.Here = here[c]
			trusted := v.Trusted
			v.Trusted = false
			if v.Known() || v.Here && v.Holds() {
				v.Trusted = trusted
				out = append(out, v)
			}
		}
	}
	slices.SortFunc(out, func(a, b edge.Suspect) int { return cmp.Compare(a.Cause, b.Cause) })
	return out[:min(len(out), maxSuspects)]
}

// worse finds, for a prefix that is off the air here, the site for which it had better
// come back: see edge.WorseElsewhere. Those that had better do it go first.
func (d *daemon) worse(now time.Time, members []edge.MemberState) func(netip.Prefix, int) edge.Worse {
	return func(p netip.Prefix, severity int) edge.Worse {
		c := d.config()
		w, better := edge.WorseElsewhere(p, c.Self().Site, severity, members, freshOf(c))
		if w == (edge.Worse{}) {
			delete(d.swaps, p)
			return w
		}
		if d.swaps == nil {
			d.swaps = map[netip.Prefix]edge.Swap{}
		}
		if d.swaps[p] = d.swaps[p].Next(now, better); !d.swaps[p].Over(now) {
			return edge.Worse{}
		}
		return w
	}
}

const (
	trustsFile = "trusts.json"
	keptTrusts = "orders to trust a check"
)

// openTrusts reads the orders that this node knew of before.
func openTrusts(dir string) ([]edge.Trust, error) {
	var list []edge.Trust
	err := readState(dir, trustsFile, keptTrusts, &list)
	return list, err
}

// followTrusts takes in what the other nodes say of orders to trust a check.
func (d *daemon) followTrusts(now time.Time, members []edge.MemberState) {
	lists := [][]edge.Trust{d.trusts}
	for _, m := range members {
		if m.Age >= 0 && len(m.Report.Trust) > 0 {
			lists = append(lists, m.Report.Trust)
		}
	}
	if next := edge.MergeTrusts(now, lists...); d.setTrusts(next) {
		d.keeper.keep(trustsFile, keptTrusts, next)
	}
}

func (d *daemon) setTrusts(next []edge.Trust) bool {
	if slices.EqualFunc(next, d.trusts, edge.Trust.Equal) {
		return false
	}
	for _, t := range next {
		if !slices.ContainsFunc(d.trusts, t.Equal) {
			to := "as the fleet says"
			if t.Until.After(t.Since) {
				to = "trusted until " + t.Until.UTC().Format(time.DateTime)
			}
			d.noteOrder("trust", string(t.Check), "-", to, fmt.Sprintf("by %s: %s", t.By, t.Reason))
		}
	}
	d.trusts = next
	return true
}

// serveTrust takes an order to trust a check; one without an end takes the one before
// back.
func (d *daemon) serveTrust(w http.ResponseWriter, r *http.Request) {
	var t edge.Trust
	if err := socket.Read(r, &t); err != nil {
		socket.Fail(w, http.StatusBadRequest, err)
		return
	}
	t.By, t.Since = d.config().Local.ID, time.Now().UTC()
	if t.Until.IsZero() {
		t.Until = t.Since
	}
	if err := t.Validate(); err != nil {
		socket.Fail(w, http.StatusBadRequest, err)
		return
	}
	d.change(w, r, func(context.Context) (*receipt, error) { return d.trust(t) })
}

func (d *daemon) trust(t edge.Trust) (*receipt, error) {
	if !d.checks(t.Check) {
		return nil, fmt.Errorf("%s is not a check of the configuration: edgectl guard names those that are suspect", t.Check)
	}
	i := slices.IndexFunc(d.trusts, func(o edge.Trust) bool { return o.Check == t.Check })
	switch {
	case !t.Until.After(t.Since) && (i < 0 || !d.trusts[i].Holds(t.Since)):
		return nil, fmt.Errorf("%s is not trusted by an order", t.Check)
	case i >= 0 && !t.Since.After(d.trusts[i].Since): // another node's clock is ahead: the last word counts
		back := !t.Until.After(t.Since)
		if t.Since = d.trusts[i].Since.Add(time.Nanosecond); back {
			t.Until = t.Since
		}
		if err := t.Validate(); err != nil {
			return nil, fmt.Errorf("%w (another node's clock is ahead: the order before is of %s)", err, t.Since.Format(time.RFC3339))
		}
	}
	next := edge.MergeTrusts(time.Now(), d.trusts, []edge.Trust{t})
	if !d.setTrusts(next) {
		return nil, nil
	}
	kept := d.keeper.order(trustsFile, keptTrusts, next)
	kept.despite = "the order is in force, but a restart of this node may forget it"
	return kept, nil
}

// checks says whether a check of this name is in the configuration.
func (d *daemon) checks(id edge.ProbeID) bool {
	f := &d.config().Fleet
	return slices.ContainsFunc(f.Health.Probes, func(p edge.Probe) bool { return p.ID == id }) ||
		slices.ContainsFunc(f.Services, func(s edge.Service) bool { return id == edge.ProbeID(s.ID)+"/backends" })
}
