// Package firewall is the packet filter of a whole box: what its configuration
// needs is let in, the rest is not, and a counter says of each reason how often.
//
// It owns one table, "inet edge_host", and replaces it as a whole. It never touches
// another one, above all not edged's "inet catchment", which goes first: nothing
// that is dropped there is let in here. Build is pure; Apply writes by netlink, and
// the rules stay when the process ends. `edgectl appliance firewall` runs it, at
// boot and whenever the configuration changes; edged asks Judge what the rules do.
//
// What the box serves is judged packet by packet and not tracked: a flood of it
// cannot fill the table of connection tracking, and no connection is cut by new
// rules that let it in too. Tracked is only what the box begins itself.
package firewall

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/catchment-dev/edge"
)

// Table is the name of the table, in the family inet.
const Table = "edge_host"

// Ruleset is what the table has in it. The zero value is not one: see Build.
type Ruleset struct {
	layout layout
	links  []string // interfaces that some packets have to come by
}

func newRuleset(p plan) Ruleset { return Ruleset{p.layout(), p.links()} }

// Build makes the rules for a box with these configurations, in any order but the
// first: that says how the box is managed. What any of them needs is let in: while
// a change is brought about, edged still serves what the new one has no more.
//
// Without any, it is Rescue.
func Build(all ...*edge.Config) Ruleset {
	if len(all) == 0 {
		return Rescue()
	}
	return newRuleset(newPlan(&all[0].Local, all))
}

// Rescue makes the rules for a box in rescue: ssh from everywhere, since its
// addresses are not those of its configuration, ICMP, and the answers to what the
// box asks itself. Nothing else is let in, but what these configurations need:
// those which daemons that are still to be stopped go by.
func Rescue(serving ...*edge.Config) Ruleset {
	return newRuleset(newPlan(nil, serving))
}

// Apply replaces the table in one transaction: a packet meets the rules of before
// or these. The counters go on. It needs CAP_NET_ADMIN and works in the network
// namespace of the calling thread.
func (r Ruleset) Apply() error {
	if err := r.layout.write(); err != nil {
		return wrap(err)
	}
	return nil
}

// Applied says whether the table is there.
func Applied() (bool, error) {
	t, err := tableNow()
	return t != nil, wrap(err)
}

// Remove takes the table away. It is no error if there is none.
func Remove() error {
	switch t, err := tableNow(); {
	case err != nil:
		return wrap(err)
	case t == nil:
		return nil
	}
	if err := deleteTable(); err != nil && !errors.Is(err, syscall.ENOENT) {
		return wrap(err)
	}
	return nil
}

// wrap names the table, and what a kernel lacks that has no such thing.
func wrap(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("replace table inet %s: %w: the kernel lacks a part of nf_tables (modules nft_ct, nft_limit, nf_conntrack)", Table, err)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("replace table inet %s: %w: it takes root, or CAP_NET_ADMIN", Table, err)
	}
	return fmt.Errorf("replace table inet %s: %w", Table, err)
}
