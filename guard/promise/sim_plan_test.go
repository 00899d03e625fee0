package promise

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
)

// A plan is one schedule of the simulator: all that goes wrong, and when. What
// a plan leaves open (how long each message takes, which are lost) its seed
// decides. The zero values are a perfect network.
type plan struct {
	// What has gone wrong in it: of one that is kept.
	What string `json:"what,omitempty"`
	Seed uint64 `json:"seed"`
	// Node i is of site i modulo Sites; more nodes than sites: some sites have
	// several.
	Sites int           `json:"sites"`
	Nodes int           `json:"nodes"`
	Nets  int           `json:"nets"`
	For   time.Duration `json:"for_ns"`
	// A message takes between the two, or up to thirty seconds.
	DelayMin time.Duration `json:"delay_min_ns,omitempty"`
	DelayMax time.Duration `json:"delay_max_ns,omitempty"`
	Late     float64       `json:"late,omitempty"`
	Loss     float64       `json:"loss,omitempty"`
	// The second copy of one that comes twice is up to Again later; 0: four seconds.
	Twice float64       `json:"twice,omitempty"`
	Again time.Duration `json:"again_ns,omitempty"`
	// Skew is by how much the rates of the clocks differ from one, either way.
	// Ends: each is at one end, or right.
	Skew float64 `json:"skew,omitempty"`
	Ends bool    `json:"ends,omitempty"`
	// Fails is the share of withdrawals that end in an error, whether they took
	// effect or not. Slow: some take as long as their permit lets them. Orphans:
	// one that is under way outlives the process that has ordered it.
	Fails   float64 `json:"fails,omitempty"`
	Slow    bool    `json:"slow,omitempty"`
	Orphans bool    `json:"orphans,omitempty"`
	// Calm is when the network becomes perfect and all faults but sickness end:
	// from then on to the end everybody who may leave must get out. 0: never.
	Calm time.Duration `json:"calm_ns,omitempty"`
	// Confs are the configurations: all start with the first.
	Confs  []conf  `json:"confs"`
	Faults []fault `json:"faults"`
}

// conf is one configuration of the fleet.
type conf struct {
	Floor   int           `json:"floor"`
	Lease   time.Duration `json:"lease_ns"`
	Ask     time.Duration `json:"ask_ns"`
	BackOff time.Duration `json:"back_off_ns"`

	Spare    int     `json:"spare,omitempty"`
	Healthy  int     `json:"healthy,omitempty"`
	Fraction float64 `json:"fraction,omitempty"`
	Capacity float64 `json:"capacity,omitempty"`
	Demand   bool    `json:"demand,omitempty"`
	Region   int     `json:"region,omitempty"` // how many sites of region r0 must stay
	Planned  int     `json:"planned,omitempty"`
	Leaves   float64 `json:"leaves,omitempty"`

	// Out are the nodes that are not in the roster, Moved those that are of the
	// next site, as bits; NoNet are the prefixes that are not configured.
	Out   uint32 `json:"out,omitempty"`
	Moved uint32 `json:"moved,omitempty"`
	NoNet uint32 `json:"no_net,omitempty"`
}

// The kinds of fault.
const (
	faultSick   = "sick"    // Node wants out of the Nets, as it cannot serve
	faultDrain  = "drain"   // Node wants out of the Nets by an order
	faultUnfit  = "unfit"   // Node stays, but not at its best
	faultCut    = "cut"     // up to four parts, by whether a node is in To and in From, do not reach each other
	faultOneWay = "one-way" // what From sends does not reach To
	faultCrash  = "crash"   // the process of Node ends, and the speaker goes on
	faultDie    = "die"     // the whole box of Node is gone
	faultDark   = "dark"    // the sessions of Node are down, its routes are lost
	faultConf   = "conf"    // Node gets Confs[Conf]
	faultForce  = "force"   // an operator takes the Nets of Node off the air, whatever the guard says
	faultBack   = "back"    // Node announces the Nets again, though it is as sick as before
	faultDemand = "demand"  // the fleet's demand is Load, or not known below 0
)

// fault is one thing that goes wrong.
type fault struct {
	At   time.Duration `json:"at_ns"`
	Kind string        `json:"kind"`
	Node int           `json:"node,omitempty"`
	// For is how long it lasts; 0: to the end.
	For  time.Duration `json:"for_ns,omitempty"`
	Nets uint32        `json:"nets,omitempty"`
	From uint32        `json:"from,omitempty"`
	To   uint32        `json:"to,omitempty"`
	Conf int           `json:"conf,omitempty"`
	// Worse (sick) is by how much it is worse than the least that is sick.
	Worse int `json:"worse,omitempty"`
	// Back (crash, die) sets the wall clock back over the restart; below 0, forth.
	Back time.Duration `json:"back_ns,omitempty"`
	Load float64       `json:"load,omitempty"`
}

const (
	maxSites = 12
	maxNodes = 16
	maxNets  = 16
)

// simNets: the first covers the second.
var simNets = func() []netip.Prefix {
	out := []netip.Prefix{netip.MustParsePrefix("192.0.0.0/16"), netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/48")}
	for i := len(out); i < maxNets; i++ {
		out = append(out, netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", i)))
	}
	return out
}()

var simIDs, simSites = func() (ids []edge.NodeID, sites []edge.SiteID) {
	for i := range maxNodes {
		ids = append(ids, edge.NodeID(fmt.Sprintf("n%02d", i)))
		sites = append(sites, edge.SiteID(fmt.Sprintf("s%02d", i)))
	}
	return ids, sites
}()

// numberOf is the opposite of simIDs.
func numberOf(id edge.NodeID) int { return int(id[1]-'0')*10 + int(id[2]-'0') }

func bit(set uint32, i int) bool { return set>>i&1 == 1 }

// siteOf is the site of a node by c; -1: it is not in the roster.
func (p *plan) siteOf(c *conf, node int) int {
	switch {
	case bit(c.Out, node):
		return -1
	case bit(c.Moved, node):
		return (node + 1) % p.Sites
	}
	return node % p.Sites
}

// capacityOf and inRegion are what the sites are like, whatever the plan.
func capacityOf(site int) float64 { return float64(50 * (site % 3)) }
func inRegion(site int) bool      { return site%2 == 0 }

// settings are c as a node reads it.
func (p *plan) settings(c *conf) Settings {
	s := Settings{Policy: edge.Guard{
		PromiseLease: c.Lease, AskTimeout: c.Ask, BackOff: c.BackOff,
		SpareSites: c.Spare, MinHealthy: c.Healthy, MinFraction: c.Fraction, MinCapacity: c.Capacity, CoverDemand: c.Demand,
		MaxPlanned: c.Planned, MaxLeaves: c.Leaves,
	}}
	if c.Region > 0 {
		s.Policy.Regions = []edge.RegionFloor{{Region: "r0", MinSites: c.Region}}
	}
	for i := range p.Nodes {
		if site := p.siteOf(c, i); site >= 0 {
			s.Roster = append(s.Roster, edge.Node{ID: simIDs[i], Site: simSites[site]})
		}
	}
	for i := range p.Sites {
		region := edge.RegionID("r1")
		if inRegion(i) {
			region = "r0"
		}
		s.Sites = append(s.Sites, edge.Site{ID: simSites[i], Region: region, Capacity: capacityOf(i)})
	}
	for i := range p.Nets {
		if !bit(c.NoNet, i) {
			s.Prefixes = append(s.Prefixes, edge.Prefix{Net: simNets[i], MinSites: c.Floor})
		}
	}
	return s
}

// randomPlan draws a plan that may contain every kind of fault. Small fleets
// come more often: what can go wrong mostly can with few, and sooner.
func randomPlan(seed uint64) *plan {
	d := newDraw(seed)
	p := &plan{Seed: seed, Sites: 3 + min(d.IntN(maxSites-2), d.IntN(maxSites-2)), Nets: 1, For: 4*time.Second + d.upTo(4*time.Second)}
	if !d.oneIn(4) {
		p.Sites, p.For = 3+min(p.Sites-3, d.IntN(maxSites-2)), p.For/2
	}
	p.Nodes = p.Sites
	if d.oneIn(4) {
		p.Nodes = min(maxNodes, p.Sites+1+d.IntN(p.Sites))
	}
	if d.oneIn(5) {
		p.Nets = 2 + d.IntN(2)
	}
	p.DelayMin = d.upTo(20 * time.Millisecond)
	p.DelayMax = p.DelayMin + d.upTo(300*time.Millisecond)
	if d.oneIn(4) {
		p.DelayMax += d.upTo(900 * time.Millisecond)
	}
	if d.oneIn(2) {
		p.Loss, p.Twice, p.Late = d.Float64()*0.3, d.Float64()*0.2, d.Float64()*0.1
	}
	p.Skew = d.Float64() * 0.01
	p.Fails = []float64{0, 0, 0.1, 0.5}[d.IntN(4)]
	p.Slow, p.Orphans = d.oneIn(2), d.oneIn(2)
	p.Confs = []conf{d.conf(p)}
	d.sickness(p)
	d.trouble(p)
	if d.oneIn(3) {
		d.change(p)
	}
	d.corners(p)
	if d.oneIn(12) {
		p.Calm = p.For
		p.For += 15*time.Second + 2*p.longestLease()
	}
	return p
}

func (p *plan) longestLease() (most time.Duration) {
	for _, c := range p.Confs {
		most = max(most, c.Lease)
	}
	return most
}
