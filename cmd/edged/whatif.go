package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
	"github.com/catchment-dev/edge/health"
)

// serveWhatIf answers what would be announced if probes had other states:
// GET /v1/what-if?PROBE=STATE. It changes nothing.
func (d *daemon) serveWhatIf(w http.ResponseWriter, r *http.Request) {
	changes := map[edge.ProbeID]edge.ProbeState{}
	for id, values := range r.URL.Query() {
		var s edge.ProbeState
		if err := s.UnmarshalText([]byte(values[len(values)-1])); err != nil {
			socket.Fail(w, http.StatusBadRequest, fmt.Errorf("%s: %w", id, err))
			return
		}
		changes[edge.ProbeID(id)] = s
	}
	var out edge.WhatIf
	err := d.order(r.Context(), func(context.Context) (err error) {
		in := d.inputs(d.sees(time.Now(), d.guard.Members()))
		out, err = d.loop.whatIf(in, changes)
		return err
	})
	if err != nil {
		socket.Fail(w, refusal(err), err)
		return
	}
	socket.JSON(w, http.StatusOK, out)
}

// whatIf works out the decisions with the states of some probes changed. It acts
// on nothing. The damping is taken as over: a probe that is said to be down has
// been so for long enough.
func (l *loop) whatIf(in inputs, changes map[edge.ProbeID]edge.ProbeState) (edge.WhatIf, error) {
	statuses, err := changed(in.statuses, changes)
	if err != nil {
		return edge.WhatIf{}, err
	}
	if !l.adopted {
		return edge.WhatIf{}, errors.New("edgebgp has not yet said what it announces: there is nothing to compare with")
	}
	out := edge.WhatIf{Changed: changes, Now: l.decisions()}
	then := *l // its maps are read only
	// What is down has been so for long enough to count.
	then.conditions = health.Evaluate(l.graph(in.config), statuses, in.view(in.now.Add(time.Hour)))
	for _, p := range in.config.Fleet.Prefixes {
		c := then.conditions[p.Net]
		c.Since = in.now
		out.Health = append(out.Health, edge.PrefixHealth{Prefix: p.Net, MinSites: p.MinSites, Condition: c})
		f := then.facts(p, in)
		f.Hold, f.SickDrainTime = 0, 0 // are over
		dec := edge.Decide(p.Net, f)
		out.Then = append(out.Then, dec)
		if dec.Rung.WantsOut() {
			out.Notes = append(out.Notes, leaveNote(p, f))
		}
	}
	slices.SortFunc(out.Then, func(a, b edge.Decision) int { return a.Prefix.Compare(b.Prefix) })
	return out, nil
}

func leaveNote(p edge.Prefix, f edge.Facts) string {
	if p.MinSites == 0 {
		return fmt.Sprintf("%s: its floor is 0: the guard would let it go at once", p.Net)
	}
	verdict := "it would be withdrawn if so many of them promise to stay"
	if f.Others >= 0 && f.Others < p.MinSites {
		verdict = "it would stay, as a last resort"
	}
	sites := "other sites"
	if p.MinSites == 1 {
		sites = "other site"
	}
	return fmt.Sprintf("%s: %d %s must promise to stay, %s announce it now: %s", p.Net, p.MinSites, sites, others(f.Others), verdict)
}

func others(n int) string {
	switch {
	case n < 0:
		return "an unknown number"
	case n > 1<<20:
		return "another node of this site and perhaps others"
	}
	return fmt.Sprint(n)
}

// changed returns a copy of statuses with the states of some replaced.
func changed(statuses []edge.Status, changes map[edge.ProbeID]edge.ProbeState) ([]edge.Status, error) {
	out := slices.Clone(statuses)
	var strange []string
	for id, state := range changes {
		i := slices.IndexFunc(out, func(s edge.Status) bool { return s.Probe == id })
		if i < 0 {
			strange = append(strange, string(id))
			continue
		}
		if out[i].State != state {
			out[i].LastErr = "assumed"
		}
		out[i].State, out[i].Since = state, time.Time{}
	}
	if len(strange) > 0 {
		slices.Sort(strange)
		return nil, fmt.Errorf("there is no probe %s here; a group follows from its members", strings.Join(strange, ", "))
	}
	return out, nil
}
