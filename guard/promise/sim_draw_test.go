package promise

import (
	"math/rand/v2"
	"time"
)

// draw makes plans.
type draw struct{ *rand.Rand }

func newDraw(seed uint64) draw { return draw{rand.New(rand.NewPCG(seed, 2))} }

func (d draw) upTo(most time.Duration) time.Duration { return time.Duration(d.Int64N(int64(most) + 1)) }
func (d draw) oneIn(n int) bool                      { return d.IntN(n) == 0 }

// nodes is any set of nodes.
func (d draw) nodes(p *plan) uint32 { return d.Uint32() & (1<<p.Nodes - 1) }

// few is any set of about a quarter of the nodes.
func (d draw) few(p *plan) uint32 { return d.Uint32() & d.nodes(p) }

// conf draws a configuration.
func (d draw) conf(p *plan) conf {
	c := conf{
		Floor: 1 + d.IntN(min(8, p.Sites-1)), Lease: 2*time.Second + d.upTo(2*time.Second),
		Ask: 300*time.Millisecond + d.upTo(500*time.Millisecond), BackOff: 200*time.Millisecond + d.upTo(400*time.Millisecond),
	}
	if d.oneIn(2) {
		c.Floor = 1 + d.IntN(min(c.Floor, 3)) // where a few may leave
	}
	switch d.IntN(10) {
	case 0:
		c.Lease += d.upTo(6 * time.Second)
	case 1:
		c.Lease, c.Ask = time.Second, 300*time.Millisecond // the least that the configuration takes
	}
	if d.oneIn(40) {
		c.Floor = 0
	}
	if d.oneIn(4) {
		d.terms(&c)
	}
	if d.oneIn(3) {
		c.Planned = 1 + d.IntN(2)
	}
	return c
}

// terms draws what must stay beside the floor.
func (d draw) terms(c *conf) {
	if d.oneIn(2) {
		c.Spare = 1 + d.IntN(2)
	}
	if d.oneIn(2) {
		c.Healthy = 1 + d.IntN(2)
	}
	if d.oneIn(2) {
		c.Fraction = []float64{0.3, 0.5, 2. / 3}[d.IntN(3)]
	}
	if d.oneIn(2) {
		c.Capacity = float64(50 * (1 + d.IntN(4)))
	}
	if d.oneIn(2) {
		c.Region = 1 + d.IntN(2)
	}
	c.Demand = d.oneIn(4)
	if d.oneIn(4) {
		c.Leaves = d.Float64()
	}
}

// sickness draws who wants to leave, all within a few seconds.
func (d draw) sickness(p *plan) {
	spread := d.upTo(3 * time.Second)
	order := d.Perm(p.Nodes)
	sick := 1 + d.IntN(p.Nodes)
	if d.oneIn(2) {
		sick = 1 + d.IntN(min(3, p.Nodes))
	}
	heal := d.oneIn(3)
	for i, node := range order {
		kind := faultSick
		switch {
		case i >= sick && d.oneIn(2):
			continue
		case i >= sick:
			kind = faultDrain
			if d.oneIn(3) {
				kind = faultUnfit
			}
		}
		f := fault{At: d.upTo(spread), Kind: kind, Node: node, Nets: 1<<p.Nets - 1}
		if p.Nets > 1 && d.oneIn(3) {
			f.Nets = 1 + d.Uint32N(f.Nets)
		}
		if heal {
			f.For = time.Second + d.upTo(3*time.Second)
		}
		p.Faults = append(p.Faults, f)
		if heal && d.oneIn(2) { // and again
			f.At += f.For + d.upTo(2*time.Second)
			p.Faults = append(p.Faults, f)
		}
		if d.oneIn(8) { // or for another cause, soon
			f.At, f.Kind = f.At+d.upTo(time.Second), []string{faultSick, faultDrain}[d.IntN(2)]
			p.Faults = append(p.Faults, f)
		}
	}
}

// shorten makes the configuration one with a much shorter lease, and has some
// nodes restart with it, which may have promised or asked by the longer.
func (d draw) shorten(p *plan, conf int, at time.Duration) {
	p.Confs[0].Lease = 5*time.Second + d.upTo(4*time.Second)
	p.Confs[conf].Lease = 1500*time.Millisecond + d.upTo(500*time.Millisecond)
	for node := range p.Nodes {
		if d.oneIn(2) {
			p.Faults = append(p.Faults, fault{At: at + d.upTo(2500*time.Millisecond), Kind: faultCrash, Node: node, For: d.upTo(500 * time.Millisecond)})
		}
	}
}

// trouble draws what happens to the network and the boxes.
func (d draw) trouble(p *plan) {
	any := func() time.Duration { return d.upTo(p.For) }
	few := func(in, most int) int {
		if !d.oneIn(in) {
			return 0
		}
		return 1 + d.IntN(most)
	}
	for range few(2, 3) {
		p.Faults = append(p.Faults, fault{At: any(), Kind: faultCut, To: d.nodes(p), For: d.upTo(6 * time.Second)})
	}
	for range few(4, 3) {
		p.Faults = append(p.Faults, fault{At: any(), Kind: faultOneWay, From: d.nodes(p), To: d.nodes(p), For: d.upTo(6 * time.Second)})
	}
	for range few(2, p.Nodes+1) {
		f := fault{At: any(), Kind: faultCrash, Node: d.IntN(p.Nodes), For: 300*time.Millisecond + d.upTo(1500*time.Millisecond)}
		if d.oneIn(3) {
			f.Back = d.upTo(time.Minute)
		}
		p.Faults = append(p.Faults, f)
	}
	for range few(4, 2) {
		p.Faults = append(p.Faults, fault{At: any(), Kind: faultDie, Node: d.IntN(p.Nodes), For: time.Second + d.upTo(5*time.Second)})
	}
	for range few(4, 2) {
		p.Faults = append(p.Faults, fault{At: any(), Kind: faultDark, Node: d.IntN(p.Nodes), For: d.upTo(5 * time.Second)})
	}
	for range few(12, 2) {
		p.Faults = append(p.Faults, fault{At: any(), Kind: faultForce, Node: d.IntN(p.Nodes), Nets: 1<<p.Nets - 1})
	}
	if p.Confs[0].Demand {
		for range 1 + d.IntN(3) {
			p.Faults = append(p.Faults, fault{At: any(), Kind: faultDemand, Load: float64(50*d.IntN(8) - 50)})
		}
	}
}

// change draws further configurations, which do not come to all nodes at once,
// and not to all in the same order.
func (d draw) change(p *plan) {
	for i := range 1 + d.IntN(2) {
		c := p.Confs[0]
		if d.oneIn(3) {
			c = d.conf(p)
		}
		if d.oneIn(2) {
			c.Floor = d.IntN(min(8, p.Sites-1)) + 1
		}
		if d.oneIn(3) {
			c.Lease = 1500*time.Millisecond + d.upTo(5*time.Second)
		}
		if d.oneIn(4) {
			c.Out = d.few(p)
		}
		if d.oneIn(4) {
			c.Moved = d.few(p)
		}
		if d.oneIn(6) {
			c.NoNet = 1 << d.IntN(p.Nets)
		}
		p.Confs = append(p.Confs, c)
		at := d.upTo(p.For)
		if d.oneIn(6) {
			d.shorten(p, i+1, at)
		}
		for node := range p.Nodes {
			if !d.oneIn(8) {
				p.Faults = append(p.Faults, fault{At: at + d.upTo(2*time.Second), Kind: faultConf, Node: node, Conf: i + 1})
			}
		}
	}
}
