// Package backbone chooses, for each request, the nearest region that has room
// and an upstream in it.
//
// It owns the measuring of the regions (the connect RTT of each upstream, and
// when its check runs), this node's demand, and the waterfall that divides the
// capacity of the regions among the nodes: a pure function of what all nodes
// know, so that they need no controller. It never speaks HTTP (the check is its
// Options' Probe), never talks to other nodes (edged brings their rows), never
// carries a request and never decides what is announced. It runs in edgeproxy.
//
// A node may send a region its allowance, one second's worth of it at once.
// When its allowances are used up everywhere it takes, rather than refuse, from
// what the waterfall has left for the growth of the other nodes. The sum over
// all nodes stays within the capacity of a region as long as each knows the
// demand of the others; a demand is known to them, and its growth at once, by
// the next round and gossip. Until then a region can get at most its allowances
// and, from each node whose demand grows, that rest.
package backbone

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge"
)

const (
	// roundEvery is how often demand is measured and the allowances follow.
	roundEvery = time.Second
	// smoothing is the time constant of the demand and of what is sent.
	smoothing = 1500 * time.Millisecond
	// settleRounds is how many rounds a higher allowance must have stood
	// before it is used: until then other nodes may still count on the room
	// (their rows of us are up to two rounds old). A lower one holds at once.
	settleRounds = 2
	// rowHold is how long the demand of a row that is not renewed is believed
	// whole; it then goes down to nothing within rowFade.
	rowHold = 10 * time.Second
	rowFade = 30 * time.Second
)

// Options are what New needs.
type Options struct {
	// Node is this node: a row of this name from others is ignored.
	Node    edge.NodeID
	Regions []edge.Region
	// Probe runs a check that is more than a connect (kind http): p has its URL
	// and Addr filled in, ctx the deadline. Errors that wrap edge.ErrUnknown
	// change nothing, all others are failures. It is called by one goroutine
	// for each upstream. Required.
	Probe func(ctx context.Context, p edge.Probe) error
	Log   *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Selector chooses regions. Its methods may be called concurrently. Pick works
// before Run has begun and after it has ended, by what is known then.
type Selector struct {
	node  edge.NodeID
	log   *slog.Logger
	now   func() time.Time
	check func(ctx context.Context, p edge.Probe) error
	dial  dialFunc
	ready chan struct{}
	// changed tells Run that the set of upstreams is another one; size 1.
	changed chan struct{}

	mu      sync.Mutex
	regions []*region             // in the order of the configuration
	order   []*region             // nearest first
	fleet   map[edge.NodeID]heard // the other nodes
	offered int                   // requests since the last round
	demand  float64
	roundAt time.Time
	refused map[error]uint64
}

// region is what is known of one region.
type region struct {
	edge.Region
	upstreams []*upstream
	rtt       time.Duration // as published; 0: not measured
	bucket    bucket
	sent      int // since the last round
	sentRate  float64
	computed  []float64 // allowances of the last rounds, newest last
	spare     bucket    // what nobody is known to need and bucket does not have
}

// New returns a Selector that may already pick: by the order of the
// configuration until there is an RTT, and with nobody else in the fleet.
func New(o Options) *Selector {
	s := &Selector{
		node: o.Node, log: o.Log, now: o.Now, check: o.Probe, dial: dialUpstream,
		ready: make(chan struct{}), changed: make(chan struct{}, 1), refused: map[error]uint64{}, fleet: map[edge.NodeID]heard{},
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.roundAt = s.now()
	s.SetRegions(o.Regions)
	return s
}

// String implements task.Task.
func (s *Selector) String() string { return "backbone" }

// Ready is closed when every upstream is being measured.
func (s *Selector) Ready() <-chan struct{} { return s.ready }

// Run measures until ctx ends, then returns nil.
func (s *Selector) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.checkAll(ctx) })
	g.Go(func() error {
		tick := time.NewTicker(roundEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.round()
			case <-ctx.Done():
				return nil
			}
		}
	})
	return g.Wait()
}

// SetRegions replaces the regions. What is known of an upstream that stays the
// same is kept.
func (s *Selector) SetRegions(list []edge.Region) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := map[edge.RegionID]*region{}
	for _, r := range s.regions {
		old[r.ID] = r
	}
	s.regions = nil
	for _, cfg := range list {
		r := &region{Region: cfg}
		if before := old[cfg.ID]; before != nil {
			r.rtt, r.bucket, r.spare = before.rtt, before.bucket, before.spare
			r.sent, r.sentRate = before.sent, before.sentRate
		}
		for _, u := range cfg.Upstreams {
			r.upstreams = append(r.upstreams, keepUpstream(old[cfg.ID], u, cfg))
		}
		s.regions = append(s.regions, r)
	}
	s.sortRegions()
	s.allot(true)
	select {
	case s.changed <- struct{}{}:
	default: // Run has not seen the last one yet: it will see both
	}
}

// SetFleet tells what the other nodes have said. A node that is not among them
// is not forgotten: its row grows old. Gossip that is lost, or an edged that has
// just started, must not look like room. A row without regions is that of a node
// whose proxy has not been asked yet: it says nothing.
func (s *Selector) SetFleet(f edge.FleetLoad) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, row := range f.Rows {
		h := heard{row.Load, now.Add(-max(row.Age, 0))} // what is said tomorrow would stay for ever
		if row.Node != s.node && len(row.Load.Regions) > 0 && !h.at.Before(s.fleet[row.Node].at) {
			s.fleet[row.Node] = h
		}
	}
}

// heard is what a node has said, and when.
type heard struct {
	load edge.LoadRow
	at   time.Time
}

// Load returns this node's demand and view: what the other nodes need for
// their waterfall.
func (s *Selector) Load() edge.LoadRow {
	s.mu.Lock()
	defer s.mu.Unlock()
	row := edge.LoadRow{Demand: s.demand, Regions: []edge.RegionView{}}
	for _, r := range s.regions {
		v := edge.RegionView{Region: r.ID, RTT: r.rtt, Of: len(r.upstreams), Sent: r.sentRate, Allowance: r.bucket.rate}
		for _, u := range r.upstreams {
			if u.state == edge.Up {
				v.Up++
			} else if u.lastErr != "" {
				v.LastErr = string(u.ID) + ": " + u.lastErr
			}
		}
		row.Regions = append(row.Regions, v)
	}
	return row
}

// round measures the demand and divides the capacity anew.
func (s *Selector) round() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	dt := now.Sub(s.roundAt).Seconds()
	if dt <= 0 {
		return
	}
	s.roundAt = now
	s.demand, s.offered = rise(s.demand, s.offered, dt), 0
	for _, r := range s.regions {
		r.sentRate, r.sent = smooth(r.sentRate, r.sent, dt), 0
		r.publishRTT()
	}
	s.sortRegions()
	s.allot(false)
}

// rise is smooth that follows an increase almost at once: the other nodes have
// to hear of a demand before they may claim the same room, and to hear of a
// little too much for a moment does no harm. A round that comes early is too
// short to tell a rate: two requests in a millisecond are not 2,000 a second.
func rise(rate float64, n int, dt float64) float64 {
	return max(smooth(rate, n, dt), 0.9*float64(n)/max(dt, roundEvery.Seconds()))
}

// smooth is an exponentially weighted mean of a rate over uneven intervals. It
// ends at 0 instead of becoming ever smaller.
func smooth(rate float64, n int, dt float64) float64 {
	rate += (1 - math.Exp(-dt/smoothing.Seconds())) * (float64(n)/dt - rate)
	if rate < 0.001 {
		return 0
	}
	return rate
}

// sortRegions puts the nearest first; those without an RTT come last, in the
// order of the configuration.
func (s *Selector) sortRegions() {
	s.order = slices.Clone(s.regions)
	slices.SortStableFunc(s.order, func(a, b *region) int {
		if a.rtt == 0 || b.rtt == 0 {
			return cmp.Compare(b2i(a.rtt == 0), b2i(b.rtt == 0))
		}
		return cmp.Compare(a.rtt, b.rtt)
	})
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// allot gives each region its allowance by the waterfall. afresh forgets the
// rounds before: what this node can reach has changed, and the load of a
// region that has died cannot wait.
func (s *Selector) allot(afresh bool) {
	now := s.now()
	var list []edge.Region
	for _, r := range s.regions {
		list = append(list, r.Region)
	}
	allowances, spare := divide(list, s.rows(now))
	mine := allowances[s.node]
	for _, r := range s.regions {
		if afresh {
			r.computed = nil
		}
		r.computed = append(r.computed, mine[r.ID])
		if extra := len(r.computed) - settleRounds - 1; extra > 0 {
			r.computed = r.computed[extra:]
		}
		use := slices.Min(r.computed)
		r.bucket.setRate(now, use)
		// What is computed but not in use yet is room as well.
		r.spare.setRate(now, spare[r.ID]+mine[r.ID]-use)
	}
}

// rows returns this node's row and those of the others, aged.
func (s *Selector) rows(now time.Time) []Row {
	own := Row{Node: s.node, Load: edge.LoadRow{Demand: s.demand}}
	for _, r := range s.regions {
		v := edge.RegionView{Region: r.ID, RTT: r.rtt, Of: len(r.upstreams)}
		for _, u := range r.upstreams {
			// Not checked yet counts: a start must not refuse.
			v.Up += b2i(u.state != edge.Down)
		}
		own.Load.Regions = append(own.Load.Regions, v)
	}
	rows := []Row{own}
	for node, h := range s.fleet {
		left := remains(now.Sub(h.at))
		if left <= 0 {
			delete(s.fleet, node)
			continue
		}
		h.load.Demand *= left
		rows = append(rows, Row{Node: node, Load: h.load})
	}
	return rows
}

// remains says how much of a row of this age is believed: 1 to 0.
func remains(age time.Duration) float64 {
	if age <= rowHold {
		return 1
	}
	return 1 - float64(age-rowHold)/float64(rowFade)
}

// The errors of Pick.
var (
	// ErrDown: none of the allowed regions can be reached.
	ErrDown = errors.New("no region is up")
	// ErrFull: those that can be reached have no room.
	ErrFull = errors.New("no region has room")
)
