package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Route is a prefix in a router's kernel.
type Route struct {
	Prefix netip.Prefix
	// Via are the names of the next hosts, sorted; empty: the prefix is not
	// there. A host appears once however many paths lead to it.
	Via []string
}

// Route reads the router's forwarding table for exactly this prefix.
func (r *Router) Route(prefix netip.Prefix) (Route, error) {
	family := unix.AF_INET
	if prefix.Addr().Is6() {
		family = unix.AF_INET6
	}
	found, err := r.nl.RouteListFiltered(family, &netlink.Route{Dst: ipNet(prefix.Masked())}, netlink.RT_FILTER_DST)
	if err != nil {
		return Route{}, fmt.Errorf("read routes of %s: %w", r.name, err)
	}
	route := Route{Prefix: prefix}
	for _, f := range found {
		for _, index := range hopLinks(f) {
			link, err := r.nl.LinkByIndex(index)
			if err != nil {
				return Route{}, fmt.Errorf("read next hop of %s on %s: %w", prefix, r.name, err)
			}
			// An interface of a router has the name of the host behind it.
			route.Via = append(route.Via, link.Attrs().Name)
		}
	}
	slices.Sort(route.Via)
	route.Via = slices.Compact(route.Via)
	return route, nil
}

// hopLinks are the interfaces that a route leads to; none for a blackhole.
func hopLinks(r netlink.Route) []int {
	if r.Type != unix.RTN_UNICAST {
		return nil
	}
	var links []int
	for _, hop := range r.MultiPath {
		links = append(links, hop.LinkIndex)
	}
	if len(links) == 0 && r.LinkIndex > 0 {
		links = append(links, r.LinkIndex)
	}
	return links
}

// Await waits until the prefix leads to exactly these hosts; with none, until
// it is gone.
func (r *Router) Await(ctx context.Context, prefix netip.Prefix, via ...string) error {
	slices.Sort(via)
	what := fmt.Sprintf("%s of %s leads to %v", prefix, r.name, via)
	return Until(ctx, what, func() error {
		got, err := r.Route(prefix)
		if err == nil && !slices.Equal(got.Via, via) {
			err = fmt.Errorf("it leads to %v", got.Via)
		}
		return err
	})
}

// RouteEvent is a change of a prefix in a router's kernel.
type RouteEvent struct {
	// At is when the watch was told, before it looked at the table.
	At time.Time
	// Deleted: the kernel removed a route, or one path of several, of the
	// prefix. Otherwise it added or replaced one.
	Deleted bool
	// Left is how many next hosts the table had when the event was read, a
	// moment after it happened, Via their names, sorted.
	Left int
	Via  []string
}

// RouteWatch records what happens to one prefix on one router.
type RouteWatch struct {
	router *Router
	prefix netip.Prefix
	stop   chan struct{}
	done   chan struct{}
	once   sync.Once

	mu     sync.Mutex
	events []RouteEvent
	err    error
}

// Watch begins to record. Close ends it.
func (r *Router) Watch(prefix netip.Prefix) (*RouteWatch, error) {
	w := &RouteWatch{router: r, prefix: prefix.Masked(), stop: make(chan struct{}), done: make(chan struct{})}
	ns := netns.NsHandle(r.ns)
	updates := make(chan netlink.RouteUpdate, 1024)
	err := netlink.RouteSubscribeWithOptions(updates, w.stop, netlink.RouteSubscribeOptions{
		Namespace:         &ns,
		ErrorCallback:     w.fail,
		ReceiveBufferSize: 4 << 20,
	})
	if err != nil {
		return nil, fmt.Errorf("watch routes of %s: %w", r.name, err)
	}
	// Before Watch returns: what happens from then on must show.
	go w.run(updates, w.via())
	return w, nil
}

// sampleEvery is how often a watch looks for itself: the kernel tells nobody of
// IPv4 routes that go with their interface.
const sampleEvery = 20 * time.Millisecond

func (w *RouteWatch) run(updates <-chan netlink.RouteUpdate, via []string) {
	defer close(w.done)
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case u, ok := <-updates:
			if !ok {
				return
			}
			if isPrefix(u.Dst, w.prefix) {
				at := time.Now()
				via = w.via()
				w.record(RouteEvent{At: at, Deleted: u.Type == unix.RTM_DELROUTE, Left: len(via), Via: via})
			}
		case <-tick.C:
			at := time.Now()
			if now := w.via(); len(now) != len(via) {
				w.record(RouteEvent{At: at, Deleted: len(now) < len(via), Left: len(now), Via: now})
				via = now
			}
		}
	}
}

func (w *RouteWatch) via() []string {
	now, err := w.router.Route(w.prefix)
	if err != nil {
		w.fail(err)
	}
	return now.Via
}

func (w *RouteWatch) record(e RouteEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

func isPrefix(n *net.IPNet, p netip.Prefix) bool {
	if n == nil {
		return false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return ok && a.Unmap() == p.Addr() && ones == p.Bits()
}

// fail keeps the first error: a watch that missed something must not say that
// nothing happened.
func (w *RouteWatch) fail(err error) {
	select {
	case <-w.stop:
		return // closing the socket is how it ends
	default:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = fmt.Errorf("watch %s on %s: %w", w.prefix, w.router.name, err)
	}
}

// Events are the changes so far. An error means that some may be missing.
func (w *RouteWatch) Events() ([]RouteEvent, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events), w.err
}

// Deleted are the deletions so far. Of one path of several it says Left > 0,
// and so it does if a replacement followed at once (BIRD replaces IPv6 routes
// by a deletion and an addition). Left == 0 is a prefix that was lost.
func (w *RouteWatch) Deleted() ([]RouteEvent, error) {
	events, err := w.Events()
	return slices.DeleteFunc(events, func(e RouteEvent) bool { return !e.Deleted }), err
}

// Lost are the deletions after which the router had no route.
func (w *RouteWatch) Lost() ([]RouteEvent, error) {
	events, err := w.Deleted()
	return slices.DeleteFunc(events, func(e RouteEvent) bool { return e.Left > 0 }), err
}

// Close ends the recording; what was recorded stays.
func (w *RouteWatch) Close() {
	w.once.Do(func() { close(w.stop) })
	<-w.done
}
