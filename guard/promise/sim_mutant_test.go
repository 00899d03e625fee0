package promise

import (
	"cmp"
	"time"

	"github.com/catchment-dev/edge"
)

// mutant is a way to break the protocol on purpose, done to the nodes from
// outside: the simulator must notice each, or it could not notice anything.
type mutant int

const (
	none           mutant = iota
	noNonce               // an answer to an old round is taken for the current
	goneStays             // a withdrawn site promises to stay
	fromAnswer            // the lease is counted from the answer
	ignoresBinding        // a bound site leaves
	forgets               // a restarted site may leave at once
	countsItself          // the site that asks is one of those that stay
	ignoresTerms          // only the floor counts
	floorFollows          // an open round takes the lower floor
	countsNodes           // two nodes of one site count twice
	earlyRelease          // the promises are given back before the withdrawal is confirmed
	forgetsLease          // a restarted site knows of no longer lease than its own
	hasty                 // a restarted site promises at once
	sureOfFailure         // a withdrawal that has failed is taken for none
	believesView          // what was read back before the withdrawal counts
	ordersFirst           // orders do not wait for sickness
	unlimited             // any number of orders are carried out at a time
	takesSilence          // who does not answer is taken to have promised
	thinView              // the floor is only as high as sites are heard of
	wishesOn              // the end of a wish is not told
	neverBack             // who has withdrawn counts as withdrawn for ever
	asksToReturn          // who is bound does not announce again
	givesUp               // a round that fails is the last
	degradeLeaves         // the speaker takes a degraded prefix off the air
	forgetsForce          // a restarted site does not know that it was forced
	sameRounds            // two processes of a node may have the same boot id
	mixesProcesses        // the release of one process frees of what was promised to another
	atOnce                // a prefix that is announced again is promised at once
	mutants
)

// proofs are the names of the mutants, and the violations that must show each: that
// of the floor itself, unless something before it shows so much more often.
var proofs = [mutants]struct{ name, kinds string }{
	none:           {"none", ""},
	noNonce:        {"no round number", "a"},
	goneStays:      {"withdrawn site promises", "a"},
	fromAnswer:     {"lease counted from the answer", "b"},
	ignoresBinding: {"own binding not checked", "cs"},
	forgets:        {"forgets on restart", "ac"},
	countsItself:   {"counts itself", "a"},
	ignoresTerms:   {"ignores terms", "g"},
	floorFollows:   {"floor lowered in an open round", "b"},
	countsNodes:    {"two nodes of a site count twice", "a"},
	earlyRelease:   {"release before the withdrawal is confirmed", "b"},
	forgetsLease:   {"forgets the longer lease on restart", "a"},
	hasty:          {"promises at once after a restart", "c"},
	sureOfFailure:  {"failed withdrawal taken for none", "j"},
	believesView:   {"old read-back believed", "a"},
	ordersFirst:    {"orders do not wait for sickness", "o"},
	unlimited:      {"any number of orders at a time", "o"},
	takesSilence:   {"silence taken for a promise", "abd"},
	thinView:       {"thin view shrinks the floor", "e"},
	wishesOn:       {"end of a wish not told", "f"},
	neverBack:      {"announces again and is not believed", "f"},
	asksToReturn:   {"bound site may not come back", "r"},
	givesUp:        {"gives up after one round", "l"},
	degradeLeaves:  {"degrade withdraws", "k"},
	forgetsForce:   {"forgets on restart that it was forced", "j"},
	sameRounds:     {"same boot id after two restarts", "b"},
	mixesProcesses: {"release of another process", "b"},
	atOnce:         {"promises at once what it announces again", "j"},
}

func (m mutant) String() string { return proofs[m].name }

// suits makes a plan one in which the mutant matters: where a kind of trouble is
// the whole point, a plan without shows nothing.
func (m mutant) suits(p *plan) *plan {
	switch m {
	case noNonce, goneStays, forgets, countsItself, forgetsLease, forgetsForce, sameRounds, mixesProcesses, hasty, fromAnswer, believesView:
		p.tighten()
	}
	c := &p.Confs[0]
	switch m {
	case noNonce:
		p.Late = 0.3
	case fromAnswer:
		p.DelayMin, p.DelayMax, p.Slow = 20*time.Millisecond, 1200*time.Millisecond, true
		c.Lease, c.Ask = 2*time.Second, 1500*time.Millisecond
	case forgets, forgetsLease:
		p.Slow, c.Lease = true, 8*time.Second
		p.crashEach(time.Second)
	case hasty:
		p.Orphans, p.Slow, c.Lease = true, true, 8*time.Second
		p.DelayMax, p.Late = min(p.DelayMax, 50*time.Millisecond), 0
		p.crashEach(600 * time.Millisecond)
	case sureOfFailure:
		p.Fails, p.Slow = 0.8, true
	case takesSilence, thinView:
		d := newDraw(p.Seed)
		d.parts(p)
	case wishesOn:
		for i := range p.Faults {
			p.Faults[i].For = min(cmp.Or(p.Faults[i].For, time.Second), time.Second)
		}
	case unlimited:
		d := newDraw(p.Seed)
		d.operators(p)
		c.Planned = 1
	case forgetsForce:
		p.Orphans, p.Slow, c.Lease, c.Ask = true, true, time.Second, 300*time.Millisecond
		p.forceEach(200 * time.Millisecond)
	case sameRounds, mixesProcesses:
		c.Lease, c.Ask, p.Twice, p.Again, p.For = time.Second, 300*time.Millisecond, 0.9, 8*time.Second, 26*time.Second
		for node := range p.Nodes {
			for i := range time.Duration(3) {
				p.hit(fault{At: 2*time.Second + i*6*time.Second, Kind: faultCrash, Node: node, For: 50 * time.Millisecond, Back: time.Minute})
			}
		}
	case givesUp:
		p.Calm, p.For = 4*time.Second, 40*time.Second
	}
	if m == forgetsLease {
		p.Confs = append(p.Confs, *c)
		p.Confs[1].Lease = 1500 * time.Millisecond
		for node := range p.Nodes {
			p.Faults = append(p.Faults, fault{At: 2 * time.Second, Kind: faultConf, Node: node, Conf: 1})
		}
	}
	return p
}

// crashEach ends every process that long after it has fallen sick.
func (p *plan) crashEach(after time.Duration) {
	for i := range p.Nodes {
		f := p.Faults[i]
		p.Faults = append(p.Faults, fault{At: f.At + after, Kind: faultCrash, Node: f.Node, For: 50 * time.Millisecond})
	}
}

// forceEach has an operator force out every node, and ends its process that long after.
func (p *plan) forceEach(after time.Duration) {
	for i := range p.Nodes {
		at := time.Duration(i) * 400 * time.Millisecond
		p.hit(fault{At: at, Kind: faultForce, Node: i, Nets: 1<<p.Nets - 1})
		p.hit(fault{At: at + after, Kind: faultCrash, Node: i, For: 50 * time.Millisecond})
	}
}

// tighten makes p a small fleet, of which all want out and hardly any may go.
func (p *plan) tighten() {
	d := newDraw(p.Seed)
	p.Sites = 3 + p.Sites%3
	p.Nodes, p.Nets, p.Calm, p.Loss, p.For = p.Sites, 1, 0, 0, 10*time.Second
	p.DelayMin, p.DelayMax = min(p.DelayMin, 20*time.Millisecond), min(p.DelayMax, 1200*time.Millisecond)
	c := p.Confs[0]
	p.Confs = []conf{{Floor: p.Sites - 2, Lease: c.Lease, Ask: min(c.Ask, 800*time.Millisecond), BackOff: c.BackOff}}
	p.Faults = nil
	for node := range p.Nodes {
		p.Faults = append(p.Faults, fault{At: d.upTo(4 * time.Second), Kind: faultSick, Node: node, Nets: 1})
	}
}

func (m mutant) settings(s Settings) Settings {
	switch m {
	case countsNodes:
		for i := range s.Roster {
			s.Roster[i].Site = edge.SiteID(s.Roster[i].ID)
		}
	case ignoresTerms:
		p := s.Policy
		s.Policy = edge.Guard{PromiseLease: p.PromiseLease, AskTimeout: p.AskTimeout, BackOff: p.BackOff}
	case unlimited:
		s.Policy.MaxPlanned = 0
	}
	return s
}

func (m mutant) options(o Options) Options {
	if m == forgetsLease {
		o.LeaseBefore = 0
	}
	return o
}

// spoil applies the mutant to a node that is about to look whether it may leave.
func (w *world) spoil(b *box, s *seat) {
	switch {
	case w.bug == ignoresBinding:
		clear(s.bound)
	case w.bug == believesView:
		s.left = false
	case w.bug == hasty:
		b.node.blind = time.Time{}
	case w.bug == neverBack:
		s.left = s.left || b.spots[netOf(s.prefix)].lostAt > 0
	case w.bug == givesUp && s.refused != "":
		s.next = b.clock(w.For)
	case s.round == nil:
	case w.bug == takesSilence && w.now-b.spots[netOf(s.prefix)].asks.at > b.node.policy.AskTimeout/2:
		for id, at := range s.round.asked {
			if !s.round.heard(id) {
				s.round.promised[id] = promised{at.Add(Span(b.node.policy.PromiseLease)), true}
			}
		}
	case w.bug == thinView:
		heard := 0
		for x := range w.Nodes {
			if w.shut[x][b.n] < 0 && x != b.n {
				heard++
			}
		}
		s.round.terms.sites = min(s.round.terms.sites, heard)
		s.floor = min(b.spots[netOf(s.prefix)].floor, heard)
	case w.bug == countsItself:
		b.node.sites[b.id], s.round.sites[b.id] = "self", "self"
		s.round.promised[b.id] = promised{b.clock(w.now).Add(time.Minute), true}
	}
}

// mutate applies the mutant to a message on its way to b; true swallows it.
func (w *world) mutate(b *box, m *Message) bool {
	s := b.node.seats[m.Prefix]
	if s == nil {
		return false
	}
	switch {
	case w.bug == goneStays && m.Kind == Intent && !b.spots[netOf(m.Prefix)].onAir:
		lease := w.Confs[b.conf].Lease
		b.spots[netOf(m.Prefix)].owes[numberOf(m.From)] = owed{round: m.Round, until: b.clock(w.now).Add(lease)}
		w.post(&Message{Kind: Promise, From: b.id, To: m.From, Prefix: m.Prefix, Round: m.Round, Lease: lease}, w.delay())
		return true
	case w.bug == noNonce && m.Kind == Promise && s.round != nil:
		m.Round = s.round.id
	case w.bug == fromAnswer && m.Kind == Promise && s.round != nil && s.round.id == m.Round:
		s.round.asked[m.From] = b.clock(w.now)
	case w.bug == atOnce && m.Kind == Intent && b.node.held(m.Prefix):
		s.heldFrom = b.clock(w.now).Add(-time.Hour)
	case w.bug == mixesProcesses && m.Kind == Intent:
		if o, ok := s.bound[m.From]; ok {
			o.round.Boot = m.Round.Boot
			s.bound[m.From] = o
		}
	case w.bug == ordersFirst && m.Kind == Intent:
		m.Severity = max(m.Severity, edge.SeveritySick)
	}
	return false
}
