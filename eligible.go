package edge

import (
	"fmt"
	"slices"
)

// Candidate is a backend of a service to a node that has to choose who gets new
// flows.
type Candidate struct {
	ID BackendID
	// State is that of its check: one without a check is Up, one whose check has
	// not run yet is Unknown.
	State ProbeState
	// Weight is its share, 0 to MaxWeight; 0 wants no new flows.
	Weight int
	// Failover puts it into the failover pool; without a policy it does not count.
	Failover bool
}

// Choice is who of the backends of a service gets new flows.
type Choice struct {
	// Shares has for each candidate, in the order given, its weight in the ring;
	// 0: it gets no new flows.
	Shares []int
	// Pool is the one of all who get new flows; PoolPrimary if nobody gets any.
	Pool Pool
	// Dropped says that the failover policy wants new flows dropped now.
	Dropped bool
	// Reason says why it is not simply the healthy primaries; empty: it is.
	Reason Reason
}

// Eligible chooses who gets new flows: the first set that is not empty, with
// shares by weight. A set of weight 0 shares alike, since a ring without weight
// would be empty. The order of the candidates does not matter.
//
// Without failover (f is nil) the sets are: healthy with a weight, unhealthy
// with a weight, healthy of weight 0, unhealthy of weight 0. Weights that are
// all alike and above 0 are no weights: the healthy, else all, is what these
// rules then give.
//
// With failover, of those with a weight: the healthy primaries, but after the
// healthy failovers while fewer than the ratio of the primaries are healthy; the
// healthy failovers; nobody, if the policy drops (then those of weight 0 are not
// asked either: they want no new flows). Else the unhealthy primaries, and the
// unhealthy failovers; and of weight 0: the healthy primaries, the healthy
// failovers, the unhealthy primaries, the unhealthy failovers. Both lists are
// those of Google's passthrough load balancer.
//
// Unknown stands between healthy and unhealthy. A backend that has not been
// probed gets no new flows while a healthy one with a weight can take them. It
// does before one that is down, and before new flows are dropped. It is not
// counted in the ratio, else to add backends would be a failover.
func Eligible(in []Candidate, f *Failover) Choice {
	n := map[class]int{}
	for _, c := range in {
		n[c.class(f)]++
	}
	for _, cl := range ranking(n, f) {
		if n[cl] > 0 {
			return Choice{Shares: shares(in, f, cl), Pool: cl.pool, Reason: cl.reason(n, f)}
		}
	}
	c := Choice{Shares: make([]int, len(in)), Reason: "there is no backend"}
	if len(in) > 0 {
		c.Dropped, c.Reason = true, "no backend with a weight is up, and the failover policy drops new flows then"
	}
	return c
}

// class is the candidates that are alike to the rules.
type class struct {
	weighted bool
	state    ProbeState
	pool     Pool
}

func (c Candidate) class(f *Failover) class {
	cl := class{c.Weight > 0, c.State, PoolPrimary}
	if f != nil && c.Failover {
		cl.pool = PoolFailover
	}
	return cl
}

// The class of healthy primaries with a weight is what a service runs on.
func planned() class { return class{true, Up, PoolPrimary} }

// ranking returns the classes in the order in which they are tried.
func ranking(n map[class]int, f *Failover) []class {
	out := []class{planned(), {true, Up, PoolFailover}}
	if f != nil && belowRatio(n, f) {
		slices.Reverse(out)
	}
	out = append(out, class{true, Unknown, PoolPrimary}, class{true, Unknown, PoolFailover})
	if f != nil && f.DropIfNone {
		return out
	}
	out = append(out, class{true, Down, PoolPrimary}, class{true, Down, PoolFailover})
	for _, s := range []ProbeState{Up, Unknown, Down} {
		out = append(out, class{false, s, PoolPrimary}, class{false, s, PoolFailover})
	}
	return out
}

// belowRatio says that fewer primaries are healthy than the ratio wants. It divides,
// and does not multiply: 14.0/25 is exactly the number that is written 0.56, but
// 0.56*25 is more than 14.
func belowRatio(n map[class]int, f *Failover) bool {
	up, down := n[planned()], n[class{true, Down, PoolPrimary}]
	return up+down > 0 && float64(up)/float64(up+down) < f.Ratio
}

func shares(in []Candidate, f *Failover, cl class) []int {
	out := make([]int, len(in))
	for i, c := range in {
		if c.class(f) == cl {
			out[i] = max(c.Weight, 1)
		}
	}
	return out
}

// reason says why new flows go to cl and not to the healthy primaries.
func (cl class) reason(n map[class]int, f *Failover) Reason {
	what := map[ProbeState]string{Up: "up", Unknown: "not yet known to be up", Down: "down"}[cl.state]
	who := "backend"
	switch {
	case cl == planned():
		return ""
	case cl.pool == PoolFailover && cl.state == Up && cl.weighted && n[planned()] > 0:
		up := n[planned()]
		return Reason(fmt.Sprintf("%d of %d primary backends are up, less than the failover ratio of %g", up, up+n[class{true, Down, PoolPrimary}], f.Ratio))
	case cl.pool == PoolFailover && cl.state == Up && cl.weighted:
		return "no primary backend with a weight is up"
	case f != nil && cl.pool == PoolPrimary:
		who = "primary backend"
	case f != nil:
		who = "failover backend"
	}
	weight := "with a weight"
	if !cl.weighted {
		weight = "of weight 0"
	}
	return Reason(fmt.Sprintf("no backend with a weight is up: each %s %s that is %s is tried", who, weight, what))
}

// WeighByCheck returns the candidates with the weights that their checks have
// said, and why if those do not count. said has for each candidate, in the same
// order, what its last good answer said, nil if that was nothing usable.
//
// If a backend that is up has said nothing usable, all count alike, as weight 1:
// a number and the lack of one cannot be compared. One that is not up and has
// said nothing (it may never have answered) does not do that to the others: it
// counts as weight 1, which matters only where nobody is up. One that went down
// counts with what it said last. A configured weight of 0 stays: it is the
// operator's word, any other configured weight is not used.
func WeighByCheck(in []Candidate, said []*int) ([]Candidate, Reason) {
	usable := func(w *int) bool { return w != nil && *w >= 0 && *w <= MaxWeight }
	var why Reason
	for i, c := range in {
		if c.State == Up && c.Weight > 0 && !usable(said[i]) {
			why = Reason(fmt.Sprintf("all weights count alike: the check of backend %s says no weight from 0 to %d", c.ID, MaxWeight))
			break
		}
	}
	out := slices.Clone(in)
	for i := range out {
		switch {
		case out[i].Weight == 0:
		case why != "" || !usable(said[i]):
			out[i].Weight = 1
		default:
			out[i].Weight = *said[i]
		}
	}
	return out, why
}
