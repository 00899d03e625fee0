package backbone

import (
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/catchment-dev/edge"
)

// dialErrors is how many connects in a row may fail before the upstream is
// down without waiting for its check.
const dialErrors = 3

// Choice is where a request goes.
type Choice struct {
	Region   edge.RegionID
	Upstream edge.Upstream
	// Spill says why it is not the nearest region, or why it is more than this
	// node's allowance; empty if it is neither.
	Spill edge.Reason
	// Done must be called when the request is over, with an error only if the
	// upstream could not be connected to. Calls after the first do nothing.
	Done func(err error)
}

// Pick returns an upstream of the nearest of the allowed regions (empty: of
// all) that is up and has room, leaving out the upstreams in tried: those that
// could not be connected to for this request. The error is ErrDown or ErrFull.
func (s *Selector) Pick(allowed []edge.RegionID, tried []edge.UpstreamID) (Choice, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(tried) == 0 {
		s.offered++ // a second try is no second request
	}
	now := s.now()
	err := ErrDown
	var spill edge.Reason
	for _, r := range s.order {
		if !r.isIn(allowed) {
			continue
		}
		u := r.leastBusy(tried)
		switch {
		case u == nil:
			spill = firstOf(spill, "region "+edge.Reason(r.ID)+" is down")
		case !r.bucket.take(now):
			spill = firstOf(spill, "region "+edge.Reason(r.ID)+" has no room")
			err = ErrFull
		default:
			return s.choose(r, u, spill), nil
		}
	}
	if c, ok := s.overdraw(allowed, tried); ok {
		return c, nil
	}
	s.refused[err]++
	return Choice{}, err
}

// overdraw is for when this node has used up its allowances everywhere: before
// a request is refused, it may take from what a region has left when all known
// demand is served, and which its own allowance is only one share of. To refuse
// is right when the fleet is full, not when one node's share is. Nodes whose
// demand begins within the same second or two may so send a region more than
// its capacity, until they have heard of each other; a node alone never does.
// The caller holds s.mu.
func (s *Selector) overdraw(allowed []edge.RegionID, tried []edge.UpstreamID) (Choice, bool) {
	now := s.now()
	for _, r := range s.order {
		if !r.isIn(allowed) {
			continue
		}
		if u := r.leastBusy(tried); u != nil && r.spare.take(now) {
			return s.choose(r, u, "this node's share of every region is used up"), true
		}
	}
	return Choice{}, false
}

func (s *Selector) choose(r *region, u *upstream, spill edge.Reason) Choice {
	r.sent++
	u.busy++
	return Choice{Region: r.ID, Upstream: u.Upstream, Spill: spill, Done: s.done(u)}
}

// isIn says whether the region is one of the allowed; no list allows all.
func (r *region) isIn(allowed []edge.RegionID) bool {
	return len(allowed) == 0 || slices.Contains(allowed, r.ID)
}

func firstOf(a, b edge.Reason) edge.Reason {
	if a != "" {
		return a
	}
	return b
}

// leastBusy takes the less busy one of two upstreams chosen at random, from
// those that are not down: as good as looking at all of them, and without the
// herd that follows a single best one. Nil if there is none.
func (r *region) leastBusy(tried []edge.UpstreamID) *upstream {
	var usable []*upstream
	for _, u := range r.upstreams {
		if u.state != edge.Down && !slices.Contains(tried, u.ID) {
			usable = append(usable, u)
		}
	}
	if len(usable) == 0 {
		return nil
	}
	i := rand.IntN(len(usable))
	if len(usable) == 1 {
		return usable[i]
	}
	j := rand.IntN(len(usable) - 1)
	if j >= i {
		j++
	}
	if usable[j].busy < usable[i].busy {
		return usable[j]
	}
	return usable[i]
}

// done returns the end of a request at u.
func (s *Selector) done(u *upstream) func(error) {
	var once sync.Once
	return func(err error) { once.Do(func() { s.over(u, err) }) }
}

func (s *Selector) over(u *upstream, err error) {
	s.mu.Lock()
	before := u.state
	u.busy--
	if err == nil {
		u.dialErrs = 0
	} else {
		u.dialErrs++
		u.lastErr = err.Error()
		if u.dialErrs >= dialErrors && u.state != edge.Down {
			s.turn(u, edge.Down)
		}
	}
	after := u.state
	s.mu.Unlock()
	s.logTurn(u, before, after, err)
}
