package lab

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

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

// Follow tells of every change of the prefixes on all routers until ctx ends; it
// returns once nothing that happens from then on can be missed. Unlike Watch it looks
// at nothing by itself: no change is too short for it. It takes a prefix for gone with
// the first route of it that is deleted: it is for routers with one path. And IPv4
// routes that go with their interface it does not see.
//
// Changes of one router come in their order. The kernel does not say when they were,
// so those of several routers that are read at once have the same time, and then who
// has come is told before who has gone. tell must be quick.
//
// The returned function waits for the end; its error says what may be missing.
func (l *Lab) Follow(ctx context.Context, prefixes []netip.Prefix, tell func(RouteChange)) (wait func() error, err error) {
	f := &follower{prefixes: prefixes, tell: tell, buf: make([]byte, 64<<10)}
	if f.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("follow routes: %w", failed("eventfd", err))
	}
	for _, spec := range l.Topology.Routers {
		if err := f.add(l.Routers[spec.Name]); err != nil {
			f.close()
			return nil, fmt.Errorf("follow routes of %s: %w", spec.Name, err)
		}
	}
	stop := context.AfterFunc(ctx, func() { unix.Write(f.stop, binary.NativeEndian.AppendUint64(nil, 1)) })
	done := make(chan error, 1)
	go func() {
		defer f.close()
		defer stop()
		done <- f.run()
	}()
	return func() error { return <-done }, nil
}

func failed(call string, err error) error { return fmt.Errorf("%s: %w", call, err) }

// follower reads the sockets of all routers in one goroutine: were there one for
// each, what comes first would be a matter of which of them the machine lets run.
type follower struct {
	prefixes []netip.Prefix
	tell     func(RouteChange)
	routers  []string
	socks    []int
	stop     int // an eventfd
	buf      []byte
}

// add subscribes to a router.
func (f *follower) add(r *Router) error {
	fd := -1
	err := r.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return failed("socket", err)
	}
	f.routers, f.socks = append(f.routers, r.name), append(f.socks, fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20); err != nil {
		return failed("setsockopt", err)
	}
	groups := uint32(1)<<(unix.RTNLGRP_IPV4_ROUTE-1) | 1<<(unix.RTNLGRP_IPV6_ROUTE-1)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return failed("bind", err)
	}
	return nil
}

func (f *follower) close() {
	for _, fd := range append(f.socks, f.stop) {
		unix.Close(fd)
	}
}

func (f *follower) run() error {
	poll := []unix.PollFd{{Fd: int32(f.stop), Events: unix.POLLIN}}
	for _, fd := range f.socks {
		poll = append(poll, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	for {
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("follow routes: %w", failed("poll", err))
		}
		if err := f.read(); err != nil {
			return err
		}
		if poll[0].Revents != 0 {
			return nil // after what was there has been told
		}
	}
}

// read tells what there is to read, at all routers.
func (f *follower) read() error {
	at := time.Now()
	var all []RouteChange
	for i, fd := range f.socks {
		for {
			n, from, err := unix.Recvfrom(fd, f.buf, 0)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil { // ENOBUFS: some are lost
				return fmt.Errorf("follow routes of %s: %w", f.routers[i], failed("recvfrom", err))
			}
			if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid != 0 {
				continue
			}
			changes, err := f.parse(f.buf[:n])
			if err != nil {
				return fmt.Errorf("follow routes of %s: %w", f.routers[i], err)
			}
			for _, c := range changes {
				c.At, c.Router = at, f.routers[i]
				all = append(all, c)
			}
		}
	}
	for _, c := range comersFirst(all) {
		f.tell(c)
	}
	return nil
}

// parse takes what concerns one of the prefixes, in the main table.
func (f *follower) parse(raw []byte) ([]RouteChange, error) {
	messages, err := syscall.ParseNetlinkMessage(raw)
	if err != nil {
		return nil, fmt.Errorf("read message: %w", err)
	}
	var out []RouteChange
	for _, m := range messages {
		added := m.Header.Type == unix.RTM_NEWROUTE
		if !added && m.Header.Type != unix.RTM_DELROUTE || len(m.Data) < unix.SizeofRtMsg {
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil, fmt.Errorf("read attributes of route: %w", err)
		}
		// struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type.
		bits, table, kind := int(m.Data[1]), m.Data[4], m.Data[7]
		for _, a := range attrs {
			dst, ok := netip.AddrFromSlice(a.Value)
			if a.Attr.Type != unix.RTA_DST || !ok || table != unix.RT_TABLE_MAIN {
				continue
			}
			if p := netip.PrefixFrom(dst, bits); slices.Contains(f.prefixes, p) {
				out = append(out, RouteChange{Prefix: p, There: added && kind == unix.RTN_UNICAST})
			}
		}
	}
	return out, nil
}

// comersFirst puts the routers at which a prefix is there in the end before those at
// which it has gone. Those of one router stay in their order.
func comersFirst(all []RouteChange) []RouteChange {
	type place struct {
		router string
		prefix netip.Prefix
	}
	there := map[place]int{}
	for _, c := range all {
		there[place{c.Router, c.Prefix}] = map[bool]int{true: 0, false: 1}[c.There]
	}
	slices.SortStableFunc(all, func(a, b RouteChange) int {
		return cmp.Compare(there[place{a.Router, a.Prefix}], there[place{b.Router, b.Prefix}])
	})
	return all
}
