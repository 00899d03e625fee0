package nic

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/catchment-dev/edge/xdp/flows"
)

// String is the plan as a table for people, with the small maps in one line.
func (p Plan) String() string {
	var b strings.Builder
	var rest Row
	for _, r := range p.Rows {
		if r.Bytes < p.Total/100 {
			rest.Maps++
			rest.Bytes += r.Bytes
			continue
		}
		fmt.Fprintf(&b, "%-14s %10s  %s\n", r.Map, size(r.Bytes), p.what(r))
	}
	if rest.Maps > 0 {
		fmt.Fprintf(&b, "%-14s %10s  %d small maps\n", "others", size(rest.Bytes), rest.Maps)
	}
	fmt.Fprintf(&b, "%-14s %10s", "total", size(p.Total))
	return b.String()
}

// what says what a map has room for.
func (p Plan) what(r Row) string {
	switch r.Map {
	case flowMap:
		return number(p.sizes.Flows) + " established flows"
	case halfMap:
		return number(p.sizes.HalfFlows) + " half-open flows"
	case serviceMap:
		return number(p.sizes.Services) + " services, old and new"
	case blocklistMap:
		return number(p.sizes.Blocked) + " blocked prefixes, old and new"
	case filterMap:
		return "filter of the blocked prefixes, old and new"
	}
	return number(r.Entries) + " entries"
}

// leastFlows is what the configuration takes at least.
const leastFlows = 1024

// Check says what to change if the maps take more than limit, in bytes.
func (p Plan) Check(limit int64) error {
	over := p.Total - limit
	if over <= 0 {
		return nil
	}
	advice := []string{fmt.Sprintf("raise it to %dMiB", (p.Total+1<<20-1)>>20)}
	for _, r := range p.Rows {
		if r.Bytes < over {
			continue // not enough by itself
		}
		if a := p.lower(r, over); a != "" {
			advice = append(advice, a)
		}
	}
	return fmt.Errorf("the tables of the forwarder take %s, and node.forwarder.memory_limit is %s: %s",
		size(p.Total), size(limit), strings.Join(advice, ", or "))
}

// lower says how to have one map take so many bytes less; empty: it cannot.
func (p Plan) lower(r Row, over int64) string {
	// Headers and whole pages do not get less with the entries.
	left := max(0, r.Bytes-over-4*page)
	fits := func(n int) int { return int(left / (r.Bytes / max(1, int64(n)))) }
	switch r.Map {
	case flowMap:
		if n := flows.Room(fits(r.Entries)); n >= leastFlows {
			return fmt.Sprintf("lower node.forwarder.flows from %d to %d", p.sizes.Flows, n)
		}
	case halfMap:
		if n := flows.HalfRoom(fits(r.Entries)); n >= leastFlows {
			return fmt.Sprintf("lower node.forwarder.half_flows from %d to %d", p.sizes.HalfFlows, n)
		}
	case serviceMap:
		if n := fits(p.sizes.Services); n > 0 {
			return fmt.Sprintf("have %d services instead of %d", n, p.sizes.Services)
		}
	case blocklistMap:
		if n := fits(p.sizes.Blocked); n > 0 {
			return fmt.Sprintf("block %d prefixes instead of %d", n, p.sizes.Blocked)
		}
	}
	return ""
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
}

// number is a number for people, with commas.
func number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
