package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// RouteChange is one message of a router's kernel about a prefix.
type RouteChange struct {
	// At is when it was read.
	At     time.Time
	Router string
	Prefix netip.Prefix
	// There says that the prefix has a route from now on; otherwise it has none.
	There bool
}

// Follow tells of every change of the prefixes on the router, in the order in which
// the kernel made them, until ctx ends; it returns once nothing that happens from
// then on can be missed. Unlike Watch it looks at nothing by itself: no change is too
// short for it. It takes a prefix for gone with the first route of it that is deleted:
// it is for routers with one path. And routes that go with their interface it does not
// see. tell must be quick.
//
// The returned function waits for the end; its error says what may be missing.
func (r *Router) Follow(ctx context.Context, prefixes []netip.Prefix, tell func(RouteChange)) (wait func() error, err error) {
	ns := netns.NsHandle(r.ns)
	f := &following{ctx: ctx}
	updates := make(chan netlink.RouteUpdate, 64)
	err = netlink.RouteSubscribeWithOptions(updates, ctx.Done(), netlink.RouteSubscribeOptions{
		Namespace: &ns, ErrorCallback: f.fail, ReceiveBufferSize: 4 << 20,
	})
	if err != nil {
		return nil, fmt.Errorf("follow routes of %s: %w", r.name, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for u := range updates { // until the socket is closed
			at := time.Now()
			i := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return isPrefix(u.Dst, p) })
			if i < 0 || u.Table != unix.RT_TABLE_MAIN {
				continue
			}
			there := u.Type == unix.RTM_NEWROUTE && len(hopLinks(u.Route)) > 0
			tell(RouteChange{At: at, Router: r.name, Prefix: prefixes[i], There: there})
		}
	}()
	return func() error {
		<-done
		if err := f.first(); err != nil {
			return fmt.Errorf("follow routes of %s: %w", r.name, err)
		}
		return nil
	}, nil
}

// following keeps the first error of a Follow: a watch that has missed something must
// not say that nothing happened.
type following struct {
	ctx context.Context
	mu  sync.Mutex
	err error
}

func (f *following) fail(err error) {
	if f.ctx.Err() != nil {
		return // closing the socket is how it ends
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

func (f *following) first() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}
