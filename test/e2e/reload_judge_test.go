package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
)

// watched is one prefix at one router.
type watched struct {
	*lab.RouteWatch
	name string
	// blinks: the router replaces a route by taking it away first.
	blinks bool
}

// watch records both prefixes at both routers.
func (s *storm) watch() (list []watched, err error) {
	for _, p := range s.peers {
		for _, prefix := range []netip.Prefix{lab.Prefix4, lab.Prefix6} {
			w, err := p.router.Watch(prefix)
			if err != nil {
				return nil, err
			}
			list = append(list, watched{w, fmt.Sprintf("%s, %s", p.router.Name(), prefix), p.id == "r-b" && prefix.Addr().Is6()})
		}
	}
	return list, nil
}

// blink is how long FRR may take to replace an IPv6 route: it has the kernel
// remove the old one and add the new one, in one message, whenever an attribute
// has changed. That is no doing of the box, whose withdraws are counted. It takes a
// few milliseconds, and the watch may see the end of it late.
const blink = time.Second

// neverGone is an error if a router was without the prefix.
func (s *storm) neverGone(w watched) error {
	events, err := w.Events()
	if err != nil {
		return err
	}
	var gone time.Time
	blinks := 0
	for _, e := range events {
		switch {
		case e.Left == 0 && gone.IsZero():
			gone = e.At
		case e.Left > 0 && !gone.IsZero():
			if took := e.At.Sub(gone); !w.blinks || took > blink {
				return fmt.Errorf("%s: gone at %s, for %s", w.name, gone.Format("15:04:05.000"), took)
			}
			gone, blinks = time.Time{}, blinks+1
		}
	}
	if !gone.IsZero() {
		return fmt.Errorf("%s: gone at %s, for good", w.name, gone.Format("15:04:05.000"))
	}
	s.Say("%s: %d changes in its kernel, never gone; seen while it was replaced: %d times", w.name, len(events), blinks)
	return nil
}

// sessions looks at the routers: the sessions are those of before, and every
// update is accounted for.
func (s *storm) sessions(ctx context.Context) error {
	var errs []error
	for _, p := range s.peers {
		now, err := p.router.Session(ctx, p.from)
		if err != nil {
			return err
		}
		updates, withdraws := now.Updates-p.first.Updates, now.Withdraws-p.first.Withdraws
		s.Say("%s: the session is up for %.0f s; since the storm began %d updates and %d withdraws received, %d updates called for by changes of policy",
			p.router.Name(), time.Since(now.Since).Seconds(), updates, withdraws, p.updates)
		// FRR says for how long it has been, and the answer may be late; but it counts
		// sessions. BIRD reckons the time from its own clock each time it is asked, so it
		// moves with what the machine's is steered by; another session is a second later.
		moved := now.Since.Sub(p.first.Since).Abs()
		if !now.Established || now.Opened != p.first.Opened || moved > 5*time.Second || now.Opened == 0 && moved > 700*time.Millisecond {
			errs = append(errs, fmt.Errorf("%s: the session is %+v, before it was %+v", p.router.Name(), now, p.first))
		}
		if updates != p.updates || withdraws != 0 || now.Paths != 2 || p.updates == 0 {
			errs = append(errs, fmt.Errorf("%s: received %d updates and %d withdraws, holds %d; want %d, more than 0, then 0 and 2", p.router.Name(), updates, withdraws, now.Paths, p.updates))
		}
	}
	return errors.Join(errs...)
}

// speaker compares what edgebgp says of both sessions with what it said before.
func (s *storm) speaker(ctx context.Context, before edge.SpeakerState) error {
	after, err := speaker(ctx, s.box)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range s.peers {
		is := func(st edge.PeerState) bool { return string(st.ID) == p.id }
		i, j := slices.IndexFunc(before.Peers, is), slices.IndexFunc(after.Peers, is)
		if i < 0 || j < 0 {
			return fmt.Errorf("edgebgp had %+v and has %+v", before.Peers, after.Peers)
		}
		was, now := before.Peers[i], after.Peers[j]
		sent := int(now.Messages.UpdatesSent - was.Messages.UpdatesSent)
		if !now.Since.Equal(was.Since) || now.Session != was.Session || now.Flaps != was.Flaps || sent != p.updates || now.Messages.WithdrawsSent != was.Messages.WithdrawsSent {
			errs = append(errs, fmt.Errorf("edgebgp says %+v of %s, before it was %+v; want %d updates more", now, p.id, was, p.updates))
		}
	}
	return errors.Join(errs...)
}

// footprint is what a daemon has open and in memory.
type footprint struct {
	files int
	mib   int
}

// footprints are those of the daemons of the box.
func (s *storm) footprints() (map[string]footprint, error) {
	out := map[string]footprint{}
	for _, name := range []string{lab.Speaker, lab.Proxy, lab.Control} {
		proc := fmt.Sprintf("/proc/%d/", s.box.Daemon(name).PID())
		open, err := os.ReadDir(proc + "fd")
		if err != nil {
			return nil, fmt.Errorf("count files of %s: %w", name, err)
		}
		text, err := os.ReadFile(proc + "statm")
		if err != nil {
			return nil, fmt.Errorf("read memory of %s: %w", name, err)
		}
		var size, resident int // pages (proc_pid_statm(5))
		if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
			return nil, fmt.Errorf("read memory of %s: %w", name, err)
		}
		out[name] = footprint{len(open), resident * os.Getpagesize() >> 20}
	}
	return out, nil
}

// moreFiles is what a daemon may have open more than before: the third peer, and
// connections that have not ended yet. One file for each reload is a leak.
const moreFiles = 30

// daemons have all lived through it, none has more open with each reload, and
// edged is content.
func (s *storm) daemons(ctx context.Context, before map[string]footprint) error {
	now, err := s.footprints()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(now)) {
		a, b := before[name], now[name]
		s.Say("%s: %d files open, before %d; %d MiB in memory, before %d", name, b.files, a.files, b.mib, a.mib)
		if b.files > a.files+moreFiles {
			errs = append(errs, fmt.Errorf("%s has %d files open, before it were %d", name, b.files, a.files))
		}
		if d := s.box.Daemon(name); d.Starts() != 1 || len(d.Exits()) > 0 {
			errs = append(errs, fmt.Errorf("%s was started %d times: %+v", name, d.Starts(), d.Exits()))
		}
	}
	st, err := s.box.Status(ctx)
	if err == nil && st.Generation != s.generation {
		err = fmt.Errorf("edged is at generation %d, want %d", st.Generation, s.generation)
	}
	return errors.Join(append(errs, err)...)
}

// report prints how long a reload takes, from the call of edgectl to its end.
func (s *storm) report() {
	var all []time.Duration
	for _, list := range s.took {
		all = append(all, list...)
	}
	s.Say("a reload: %s", spread(all))
	for _, kind := range slices.Sorted(maps.Keys(s.took)) {
		s.Say("  %s: %s", kind, spread(s.took[kind]))
	}
	s.Say("a changed policy is at the router, after edgectl has ended: %s", spread(s.late))
}

// spread is the median and the longest of some times.
func spread(list []time.Duration) string {
	if len(list) == 0 {
		return "none"
	}
	slices.Sort(list)
	return fmt.Sprintf("median %.0f ms, longest %.0f ms, of %d", 1000*list[len(list)/2].Seconds(), 1000*list[len(list)-1].Seconds(), len(list))
}
