package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
)

// outlook is how the fleet stands with the prefixes, as it was a moment ago: to look
// at what hundreds of nodes say of a thousand prefixes takes its time.
type outlook struct {
	at   time.Time
	list []edge.GuardedPrefix
}

const outlookEvery = time.Second

// guardState is what the guard shows of itself, and what this process knows beside.
func (d *daemon) guardState(s sight) edge.GuardState {
	st, c := d.guard.State(), d.config()
	if o := &d.outlook; s.now.Sub(o.at) >= outlookEvery || len(st.Asking) > 0 {
		o.at, o.list = s.now, d.guard.Outlook(prefixesOf(c))
	}
	st.Prefixes = d.outlook.list
	st.Suspects, st.Forced = d.suspects(s), d.forced.own
	for _, t := range d.trusts {
		if t.Holds(s.now) {
			st.Trust = append(st.Trust, t)
		}
	}
	for _, n := range c.Fleet.Nodes {
		if n.PublicKey != (edge.NodeKey{}) {
			if st.NodeKeys == nil {
				st.NodeKeys = map[edge.NodeID]string{}
			}
			st.NodeKeys[n.ID] = keyName(n.PublicKey)
		}
	}
	return st
}

// keyName is short, to compare two boxes by eye.
func keyName(k edge.NodeKey) string {
	sum := sha256.Sum256(k[:])
	return hex.EncodeToString(sum[:6])
}

func prefixesOf(c *edge.Config) []netip.Prefix {
	out := make([]netip.Prefix, len(c.Fleet.Prefixes))
	for i, p := range c.Fleet.Prefixes {
		out[i] = p.Net
	}
	return out
}

// guardAlarms are those about what the guard does, and those that it cannot do.
func (d *daemon) guardAlarms(st *edge.SystemStatus) []string {
	var out []string
	for _, s := range st.Guard.Suspects {
		if s.Trusted {
			continue
		}
		what := "it takes no prefix away; if it is right, edgectl guard trust " + string(s.Cause.Check())
		if s.Here {
			what = "it fails here too, and the site is degraded and stays; if it is right, edgectl guard trust " + string(s.Cause.Check())
		}
		out = append(out, fmt.Sprintf("%s: %s", s, what))
	}
	return append(out, d.forced.alarms(st.Time, st.Node)...)
}

// serveDecisions answers all rounds that are remembered.
func (d *daemon) serveDecisions(w http.ResponseWriter, _ *http.Request) {
	past := d.guard.Past()
	if past == nil {
		past = []edge.GuardDecision{}
	}
	socket.JSON(w, http.StatusOK, past)
}

// serveGuardWhatIf answers what the guard would allow: GET
// /v1/guard/what-if?withdraw=SITE&withdraw=SITE. It asks nobody.
func (d *daemon) serveGuardWhatIf(w http.ResponseWriter, r *http.Request) {
	c := d.config()
	var sites []edge.SiteID
	for _, name := range r.URL.Query()["withdraw"] {
		id := edge.SiteID(name)
		if !slices.ContainsFunc(c.Fleet.Sites, func(s edge.Site) bool { return s.ID == id }) {
			socket.Fail(w, http.StatusBadRequest, fmt.Errorf("%q is not a site of the configuration", name))
			return
		}
		if !slices.Contains(sites, id) {
			sites = append(sites, id)
		}
	}
	if len(sites) == 0 {
		socket.Fail(w, http.StatusBadRequest, errors.New("no site is named"))
		return
	}
	socket.JSON(w, http.StatusOK, edge.GuardWhatIf{
		Withdraw: sites, Prefixes: d.guard.WhatIf(prefixesOf(c), sites),
		Notes: []string{"by what this node has heard: whether the others promise is known only when they are asked"},
	})
}
