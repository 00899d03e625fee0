package backbone

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

const (
	// rttWindow is of how many samples the least is taken before smoothing:
	// what delays a connect is noise, nothing makes it faster than the path.
	rttWindow = 5
	// rttWeight is the weight of a new value in the smoothed RTT.
	rttWeight = 0.3
	// rttStep and rttFloor are the least change of the published RTT: regions
	// that are equally near must not swap places every second.
	rttStep  = 0.1
	rttFloor = 50 * time.Microsecond
)

// upstream is what is known of one upstream.
type upstream struct {
	edge.Upstream
	region edge.RegionID
	check  edge.Probe

	state    edge.ProbeState
	streak   int // results in a row that disagree with state
	lastErr  string
	dialErrs int // connects in a row that failed in band
	busy     int // requests that are there now
	samples  []time.Duration
	rtt      time.Duration
}

// keepUpstream returns the upstream of before that u still is, or a new one.
func keepUpstream(before *region, u edge.Upstream, cfg edge.Region) *upstream {
	if before != nil {
		for _, old := range before.upstreams {
			if old.Upstream == u && old.check == cfg.Check {
				return old
			}
		}
	}
	return &upstream{Upstream: u, region: cfg.ID, check: cfg.Check}
}

// checkAll runs the check of each upstream in a goroutine, and follows the
// changes of the configuration.
func (s *Selector) checkAll(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	running := map[*upstream]context.CancelFunc{}
	for first := true; ; first = false {
		now := s.upstreams()
		for u, cancel := range running {
			if !slices.Contains(now, u) {
				cancel()
				delete(running, u)
			}
		}
		for _, u := range now {
			if running[u] == nil {
				ctx, cancel := context.WithCancel(ctx)
				running[u] = cancel
				g.Go(func() error {
					defer cancel()
					s.checkOne(ctx, u)
					return nil
				})
			}
		}
		if first {
			close(s.ready)
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return g.Wait()
		}
	}
}

func (s *Selector) upstreams() []*upstream {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*upstream
	for _, r := range s.regions {
		out = append(out, r.upstreams...)
	}
	return out
}

// checkOne measures u until ctx ends.
func (s *Selector) checkOne(ctx context.Context, u *upstream) {
	tick := time.NewTicker(orDefault(u.check.Interval, time.Second))
	defer tick.Stop()
	for {
		one, cancel := context.WithTimeout(ctx, orDefault(u.check.Timeout, 500*time.Millisecond))
		rtt, err := s.measure(one, u)
		cancel()
		if ctx.Err() != nil {
			return
		}
		s.observe(u, rtt, err)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

// observe takes in one result. An RTT of 0 is none; there can be one although
// the check failed. A check that could not run (edge.ErrUnknown) changes
// nothing.
func (s *Selector) observe(u *upstream, rtt time.Duration, err error) {
	s.mu.Lock()
	before := u.state
	if rtt > 0 {
		u.sample(rtt)
	}
	want, need := edge.Up, u.check.Rise
	if err != nil {
		u.lastErr = err.Error()
		want, need = edge.Down, u.check.Fall
	}
	switch {
	case errors.Is(err, edge.ErrUnknown):
	case u.state == want:
		u.streak = 0
	case u.state == edge.Unknown: // the first result decides
		s.turn(u, want)
	default:
		if u.streak++; u.streak >= need {
			s.turn(u, want)
		}
	}
	after := u.state
	s.mu.Unlock()
	s.logTurn(u, before, after, err)
}

// turn changes the state of u. Its region's load moves at once.
func (s *Selector) turn(u *upstream, to edge.ProbeState) {
	u.state, u.streak, u.dialErrs = to, 0, 0
	for _, r := range s.regions {
		if r.rtt == 0 {
			r.publishRTT() // the first one need not wait for the round
		}
	}
	s.sortRegions()
	s.allot(true)
}

// logTurn logs a change of state. It is called without the lock: a log that
// blocks must not hold up requests.
func (s *Selector) logTurn(u *upstream, before, after edge.ProbeState, err error) {
	if before != after {
		attrs := []any{"region", u.region, "upstream", u.ID, "address", u.Addr}
		if err != nil {
			attrs = append(attrs, "reason", err)
		}
		s.log.Info("upstream is "+after.String(), attrs...)
	}
}

func (u *upstream) sample(rtt time.Duration) {
	u.samples = append(u.samples, rtt)
	if extra := len(u.samples) - rttWindow; extra > 0 {
		u.samples = u.samples[extra:]
	}
	least := slices.Min(u.samples)
	if u.rtt == 0 {
		u.rtt = least
		return
	}
	u.rtt += time.Duration(rttWeight * float64(least-u.rtt))
}

// publishRTT takes the RTT of the nearest upstream for that of the region, if
// it differs enough from the last one.
func (r *region) publishRTT() {
	var best time.Duration
	for _, u := range r.upstreams {
		if u.state != edge.Down && u.rtt > 0 && (best == 0 || u.rtt < best) {
			best = u.rtt
		}
	}
	step := max(time.Duration(rttStep*float64(r.rtt)), rttFloor)
	if best > 0 && (r.rtt == 0 || (best-r.rtt).Abs() > step) {
		r.rtt = best
	}
}

// dialFunc opens a TCP connection and returns how long that took.
type dialFunc func(ctx context.Context, at netip.AddrPort) (time.Duration, error)

// measure connects to u and has its check run over a connection of the
// check's own. For a check of kind tcp the connect is the check.
func (s *Selector) measure(ctx context.Context, u *upstream) (time.Duration, error) {
	p := u.check
	rtt, err := s.dial(ctx, u.Addr)
	if err != nil || p.Kind == edge.ProbeTCP || p.Kind == "" {
		return rtt, err
	}
	p.Addr = u.Addr
	p.URL = "http://" + u.Addr.String() + p.Path
	return rtt, s.check(ctx, p)
}

// dialUpstream is the dialFunc of the real network.
func dialUpstream(ctx context.Context, at netip.AddrPort) (time.Duration, error) {
	d := net.Dialer{KeepAlive: -1} // it does not live that long
	start := time.Now()
	c, err := d.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return 0, fmt.Errorf("connect: %w", cause(err))
	}
	rtt := time.Since(start)
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0) // a reset: no port is kept for a minute by each measurement
	}
	c.Close() // nothing was sent
	return rtt, nil
}

// cause shortens a network error to what an operator needs, and marks those
// that say nothing about the upstream: this box has no files or ports left.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err // without the addresses: they are known
	}
	var sys *os.SyscallError
	if !errors.As(err, &sys) {
		return err
	}
	if sys.Syscall != "connect" || isLocal(sys.Err) {
		return fmt.Errorf("%w: %w", edge.ErrUnknown, sys.Err)
	}
	return sys.Err
}

// isLocal says whether an error of connect(2) is about this box. EAGAIN is: no
// entry in the routing cache, or no port.
func isLocal(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOMEM, unix.ENOBUFS, unix.EADDRNOTAVAIL, unix.EAGAIN}, func(e error) bool {
		return errors.Is(err, e)
	})
}
