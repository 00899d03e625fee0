package main

import (
	"slices"

	"github.com/catchment-dev/edge"
)

// withBackends returns c with one hard need more for each service whose backends
// are all checked: that one of them is up. A prefix whose services cannot be
// served is not to be announced, whether somebody thought of a probe or not.
func withBackends(c *edge.Config) *edge.Config {
	out := *c
	out.Fleet.Services = slices.Clone(c.Fleet.Services)
	out.Fleet.Health.Groups = slices.Clone(c.Fleet.Health.Groups)
	for i, s := range out.Fleet.Services {
		g := edge.Group{ID: edge.ProbeID(s.ID) + "/backends", Mode: edge.Any} // no name of the file has a slash
		for _, t := range targets(c, s) {
			if t.check.Kind == "" {
				g.Of = nil // it counts as up
				break
			}
			g.Of = append(g.Of, t.probe)
		}
		if len(g.Of) == 0 {
			continue
		}
		out.Fleet.Health.Groups = append(out.Fleet.Health.Groups, g)
		out.Fleet.Services[i].Needs = append(slices.Clone(s.Needs), edge.Need{On: g.ID, Class: edge.Hard})
	}
	return &out
}
