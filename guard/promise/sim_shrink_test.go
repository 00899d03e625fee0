package promise

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
)

// shrinker makes of a plan that fails a smaller one that fails in the same way.
type shrinker struct {
	bug  mutant
	kind string // of the violation
	left int    // runs that may still be made
}

// shrinkRuns bounds a shrinking: some seconds.
const shrinkRuns = 40_000

// shrink returns the least plan that was found, and what goes wrong in it: a
// violation of the same kind.
func shrink(p *plan, bug mutant, only string) (*plan, string) {
	first := play(p, bug, only).violation
	if first == "" {
		return p, ""
	}
	s := &shrinker{bug, first[:1], shrinkRuns}
	for again := true; again && s.left > 0; {
		again = false
		for i := 0; ; i++ {
			c, ok := simpler(p, i)
			if !ok {
				break
			}
			if c == nil {
				continue
			}
			if c = s.fails(c); c != nil {
				p, again = c, true
				i-- // what was the next is now in its place
			}
		}
	}
	if short := s.shorter(p, play(p, bug, s.kind).now+time.Millisecond); short != nil {
		p = short
	}
	return p, play(p, bug, s.kind).violation
}

// shorter is p without what comes after a time, if it still fails.
func (s *shrinker) shorter(p *plan, end time.Duration) *plan {
	c := *p
	c.For = min(p.For, end)
	if play(&c, s.bug, s.kind).violation == "" {
		return nil
	}
	return &c
}

// fails returns the plan with a seed with which it fails; nil: it does not. What
// a plan leaves open falls out differently once it is another, so some are tried.
func (s *shrinker) fails(p *plan) *plan {
	for i := range 40 {
		if s.left--; s.left < 0 {
			return nil
		}
		c := *p
		if i > 0 {
			c.Seed = uint64(i)
		}
		if w := play(&c, s.bug, s.kind); w.violation != "" {
			if short := s.shorter(&c, w.now+time.Second); short != nil { // with room for other seeds
				return short
			}
			return &c
		}
	}
	return nil
}

// simpler is the ith way to make p simpler: nil if there is nothing to that, not
// ok if there are no more ways. The greatest steps come first.
func simpler(p *plan, i int) (*plan, bool) {
	c := *p
	c.Faults, c.Confs = slices.Clone(p.Faults), slices.Clone(p.Confs)
	plain := []func(){
		func() { c.Faults = c.Faults[:len(c.Faults)/2] }, func() { c.Faults = c.Faults[len(c.Faults)/2:] },
		func() { c.oneNet(0) }, func() { c.oneNet(1) }, func() { c.oneNet(2) }, func() { c.Sites = min(p.Nodes, maxSites) }, func() { c.For /= 2 }, func() { c.Calm = 0 },
		func() { c.Skew = 0 }, func() { c.Loss = 0 }, func() { c.Twice = 0 }, func() { c.Late = 0 }, func() { c.Fails = 0 },
		func() { c.Slow = false }, func() { c.Orphans = false }, func() { c.Ends = false }, func() { c.Again = 0 },
		func() { c.DelayMin = 0 }, func() { c.DelayMax = c.DelayMin }, func() { c.DelayMax = c.DelayMin + (p.DelayMax-p.DelayMin)/2 },
		func() { c.unconf(len(p.Confs) - 1) },
	}
	if i < len(plain) {
		plain[i]()
		return changed(p, &c), true
	}
	i -= len(plain)
	if i < p.Nodes*len(nodeWays) {
		nodeWays[i%len(nodeWays)](&c, i/len(nodeWays))
		return changed(p, &c), true
	}
	i -= p.Nodes * len(nodeWays)
	if i < len(p.Faults)*len(faultWays) {
		faultWays[i%len(faultWays)](&c, i/len(faultWays))
		return changed(p, &c), true
	}
	i -= len(p.Faults) * len(faultWays)
	if i < len(p.Confs)*len(confWays) {
		confWays[i%len(confWays)](&c.Confs[i/len(confWays)])
		return changed(p, &c), true
	}
	return nil, false
}

var nodeWays = []func(p *plan, node int){
	func(p *plan, node int) { p.withoutSite(node); p.lower() },
	func(p *plan, node int) { p.withoutSite(node) },
	func(p *plan, node int) { p.without(node); p.lower() },
	func(p *plan, node int) { p.without(node) },
}

var faultWays = []func(p *plan, i int){
	func(p *plan, i int) { p.Faults = slices.Delete(p.Faults, i, i+1) },
	func(p *plan, i int) { p.Faults[i].For, p.Faults[i].Back = 0, 0 },
	func(p *plan, i int) { p.Faults[i].Worse = 0 },
	func(p *plan, i int) { p.Faults[i].At = p.Faults[i].At.Round(100 * time.Millisecond) },
}

var confWays = []func(*conf){
	func(c *conf) { c.Floor = max(1, c.Floor-1) }, func(c *conf) { c.Spare = 0 }, func(c *conf) { c.Healthy = 0 },
	func(c *conf) { c.Fraction = 0 }, func(c *conf) { c.Capacity = 0 }, func(c *conf) { c.Demand = false }, func(c *conf) { c.Region = 0 },
	func(c *conf) { c.Planned = 0 }, func(c *conf) { c.Leaves = 0 }, func(c *conf) { c.Out = 0 }, func(c *conf) { c.Moved = 0 }, func(c *conf) { c.NoNet = 0 },
	func(c *conf) { c.Lease = c.Lease.Round(time.Second) }, func(c *conf) { c.Ask = c.Ask.Round(100 * time.Millisecond) },
	func(c *conf) { c.BackOff = c.BackOff.Round(100 * time.Millisecond) },
}

// changed returns c if it is another plan than p, and one that can be played.
func changed(p, c *plan) *plan {
	if reflect.DeepEqual(p, c) || c.Nodes < 2 || c.Sites < 1 || len(c.Confs) == 0 {
		return nil
	}
	c.Sites = min(c.Sites, c.Nodes)
	for _, f := range c.Confs {
		if CheckPolicy(c.settings(&f).Policy) != nil || c.siteOf(&c.Confs[0], 0) < 0 {
			return nil
		}
	}
	return c
}

// without takes a node away, and what happens to it. The nodes behind it move up.
func (p *plan) without(node int) {
	p.Nodes--
	less := func(set uint32) uint32 { return set&(1<<node-1) | set>>(node+1)<<node }
	p.Faults = slices.DeleteFunc(p.Faults, func(f fault) bool {
		switch f.Kind {
		case faultCut, faultOneWay, faultDemand:
			return false
		}
		return f.Node == node
	})
	for i := range p.Faults {
		f := &p.Faults[i]
		f.From, f.To = less(f.From), less(f.To)
		if f.Node > node {
			f.Node--
		}
	}
	for i := range p.Confs {
		p.Confs[i].Out, p.Confs[i].Moved = less(p.Confs[i].Out), less(p.Confs[i].Moved)
	}
}

// withoutSite takes a site away. The nodes of the others stay where they are.
func (p *plan) withoutSite(site int) {
	if site >= p.Sites {
		return
	}
	if second := site + p.Sites; second < p.Nodes {
		p.without(second)
	}
	p.without(site)
	p.Sites--
}

// oneNet leaves only one prefix.
func (p *plan) oneNet(net int) {
	if net >= p.Nets {
		return
	}
	p.Nets = 1
	for i := range p.Faults {
		p.Faults[i].Nets = p.Faults[i].Nets >> net & 1
	}
	for i := range p.Confs {
		p.Confs[i].NoNet = p.Confs[i].NoNet >> net & 1
	}
}

// lower takes one off every floor.
func (p *plan) lower() {
	for i := range p.Confs {
		p.Confs[i].Floor = max(1, p.Confs[i].Floor-1)
	}
}

// unconf takes a configuration away.
func (p *plan) unconf(n int) {
	if n == 0 {
		return
	}
	p.Confs = p.Confs[:n]
	p.Faults = slices.DeleteFunc(p.Faults, func(f fault) bool { return f.Conf >= n })
}

// literal is a value as Go source, without what is zero.
func literal(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Struct:
		var fields []string
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				fields = append(fields, v.Type().Field(i).Name+": "+literal(v.Field(i)))
			}
		}
		return v.Type().Name() + "{" + strings.Join(fields, ", ") + "}"
	case reflect.Slice:
		var items []string
		for i := range v.Len() {
			items = append(items, "\t"+strings.TrimPrefix(literal(v.Index(i)), v.Type().Elem().Name()))
		}
		return "[]" + v.Type().Elem().Name() + "{\n" + strings.Join(items, ",\n") + ",\n}"
	}
	return fmt.Sprintf("%#v", v.Interface())
}

func (p *plan) String() string { return literal(reflect.ValueOf(*p)) }

// simKept is where plans that failed once are kept, and replayed for ever.
const simKept = "testdata/sim"

// keep writes the plan to the folder, with what has gone wrong; it returns the
// path.
func (p *plan) keep(dir, what string) (string, error) {
	p.What = what
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return "", err
	}
	h := fnv.New32a()
	h.Write(b)
	path := filepath.Join(dir, fmt.Sprintf("%.1s-%08x.json", what, h.Sum32()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, append(b, '\n'), 0o644)
}

// readPlan is the opposite of keep.
func readPlan(path string) (*plan, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p := &plan{}
	if err := json.Unmarshal(b, p); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return p, nil
}
