package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSilence: a link that swallows everything is noticed by BFD alone, by both
// kinds of router.
func TestSilence(t *testing.T) {
	for _, kind := range []RouterKind{BIRD, FRR} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			top := small()
			top.Routers[0].Kind, top.BFD = kind, true
			l := build(t, top)
			toBox(t, l)
			t.Run("swallows", func(t *testing.T) { testSwallows(t, l) })
			t.Run("flush", func(t *testing.T) { testFlush(t, l) })
		})
	}
}

func testSwallows(t *testing.T, l *Lab) {
	ctx := limit(t, patience)
	box, r := l.Boxes["a1"], l.Routers["r-a"]
	holds(ctx, t, r, true)
	watched(ctx, t, r)
	w, err := r.Watch(Prefix4)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := box.Silence(); err != nil {
		t.Fatal(err)
	}
	if err := r.Await(ctx, Prefix4); err != nil {
		t.Fatal(err)
	}
	// BGP alone would take the hold time, and say so.
	asks(ctx, t, r, []string{"show protocols", "BFD session down", "show bgp neighbors", "BFD Down"})
	holds(ctx, t, r, false)
	if err := box.Do(func() error { return carrier(uplink) }); err != nil {
		t.Errorf("the box was told: %v", err)
	}
	for from, to := range map[*Host]netip.AddrPort{box.Host: l.Regions["east"].Origins[0].Addr4, r.Host: netip.MustParseAddrPort(box.Addr4 + ":1")} {
		dial, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		_, err = from.Dial(dial, "tcp", to.String())
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s to %s: %v; want silence", from.Name(), to, err)
		}
	}
	for range 2 { // the second finds nothing to do
		if err := box.EndSilence(); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Await(ctx, Prefix4, "a1"); err != nil {
		t.Fatal(err)
	}
	holds(ctx, t, r, true)
	events, err := w.Events()
	if err != nil || len(events) < 2 || events[0].Left != 0 || events[len(events)-1].Via == nil {
		t.Errorf("the watch saw %+v, %v", events, err)
	}
}

// testFlush: what a killed router leaves goes as by a reboot, and comes back
// with its daemons; its links stay.
func testFlush(t *testing.T, l *Lab) {
	ctx := limit(t, patience)
	r := l.Routers["r-a"]
	r.Kill()
	if route, err := r.Route(Prefix4); err != nil || len(route.Via) == 0 {
		t.Errorf("%v, %v: killed daemons took their routes along", route, err)
	}
	if err := r.FlushRoutes(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []netip.Prefix{Prefix4, Prefix6} {
		if route, err := r.Route(p); err != nil || len(route.Via) > 0 {
			t.Errorf("%v, %v are left", route, err)
		}
	}
	if _, err := l.Clients["client-a"].RTT(ctx, l.Regions["east"].Origins[0].Addr4); err != nil {
		t.Errorf("a link went too: %v", err)
	}
	if err := r.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.Await(ctx, Prefix4, "a1"); err != nil {
		t.Error(err)
	}
}

// holds waits until the router's BGP says so.
func holds(ctx context.Context, t *testing.T, r *Router, want bool) {
	t.Helper()
	err := Until(ctx, fmt.Sprintf("the router holds the path: %t", want), func() error {
		got, err := r.Holds(ctx, Prefix4, "a1")
		if err == nil && got != want {
			err = errors.New("it does not")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// watched waits until the router's BFD session with the box is up.
func watched(ctx context.Context, t *testing.T, r *Router) {
	t.Helper()
	asks(ctx, t, r, []string{"show bfd sessions", " Up ", "show bfd peers", "Status: up"})
}

// asks waits until the answer to a command has a text: what to ask BIRD, its text,
// and the same for FRR.
func asks(ctx context.Context, t *testing.T, r *Router, what []string) {
	t.Helper()
	if r.plan.Kind == FRR {
		what = what[2:]
	}
	err := Until(ctx, r.name+" says "+what[1], func() error {
		out, err := r.Ask(ctx, what[0])
		if err == nil && !strings.Contains(out, what[1]) {
			err = errors.New(out)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// carrier is an error if the interface of this namespace has none.
func carrier(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return err
	}
	if ifr.Uint16()&unix.IFF_RUNNING == 0 {
		return errors.New("no carrier")
	}
	return nil
}
