package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Core is a link between two routers with a delay: a TUN device at each end and
// a relay between them in this process.
type Core struct {
	a, b   *Host
	ab, ba *relay
	mu     sync.Mutex // serializes Cut and Heal
	files  []*os.File // the two devices
}

// coreSpec describes a link between two routers.
type coreSpec struct {
	a, b         *Host
	addrA, addrB []netip.Prefix
	delay        time.Duration
	mtu          int
}

// newCore makes the devices; run moves the packets.
func newCore(s coreSpec) (*Core, error) {
	c := &Core{a: s.a, b: s.b}
	for _, end := range []struct {
		on, to *Host
		addrs  []netip.Prefix
	}{{s.a, s.b, s.addrA}, {s.b, s.a, s.addrB}} {
		f, err := openTUN(end.on, end.to.name, s.mtu, end.addrs)
		if err != nil {
			c.close()
			return nil, fmt.Errorf("make link %s: %w", c, err)
		}
		c.files = append(c.files, f)
	}
	c.ab = newRelay(c.files[0], c.files[1], s.delay)
	c.ba = newRelay(c.files[1], c.files[0], s.delay)
	return c, nil
}

// openTUN makes a TUN device inside the host. The descriptor works outside it.
func openTUN(h *Host, name string, mtu int, addrs []netip.Prefix) (*os.File, error) {
	var f *os.File
	err := h.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		req, err := unix.NewIfreq(name)
		if err == nil {
			req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		if err != nil {
			unix.Close(fd)
			return fmt.Errorf("make device %s: %w", name, err)
		}
		// The poller may only meet the descriptor once it has a device.
		f = os.NewFile(uintptr(fd), "tun:"+name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	link, err := h.nl.LinkByName(name)
	if err == nil {
		err = errors.Join(h.nl.LinkSetMTU(link, mtu), raise(h, name, addrs))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// run relays until ctx ends or a device fails.
func (c *Core) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range []*relay{c.ab, c.ba} {
		g.Go(func() error { return r.read(ctx) })
		g.Go(func() error { return r.write(ctx) })
	}
	g.Go(func() error {
		<-ctx.Done()
		for _, f := range c.files {
			f.SetDeadline(aLongTimeAgo) // wakes the readers
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("relay %s: %w", c, err)
	}
	return nil
}

// Cut drops what is under way and takes the carrier from both ends.
func (c *Core) Cut() error { return c.set(true) }

// Heal gives the carrier back.
func (c *Core) Heal() error { return c.set(false) }

func (c *Core) set(cut bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Mute(cut)
	carrier := 1
	if cut {
		carrier = 0
	}
	for _, f := range c.files {
		rc, err := f.SyscallConn()
		if err != nil {
			return fmt.Errorf("change link %s: %w", c, err)
		}
		var ioctlErr error
		err = rc.Control(func(fd uintptr) {
			ioctlErr = unix.IoctlSetPointerInt(int(fd), unix.TUNSETCARRIER, carrier)
		})
		if err := errors.Join(err, ioctlErr); err != nil {
			return fmt.Errorf("change carrier of %s: %w", c, err)
		}
	}
	return nil
}

// Mute drops every packet while on, without either end noticing: the break
// that only a hold timer finds.
func (c *Core) Mute(on bool) {
	c.ab.muted.Store(on)
	c.ba.muted.Store(on)
}

// SetDelay changes the one-way delay for the packets to come. Order is kept.
func (c *Core) SetDelay(d time.Duration) {
	c.ab.delay.Store(int64(d))
	c.ba.delay.Store(int64(d))
}

// Dropped counts packets lost because a queue was full, both directions.
func (c *Core) Dropped() uint64 { return c.ab.dropped.Load() + c.ba.dropped.Load() }

// String names the two routers.
func (c *Core) String() string { return c.a.name + "--" + c.b.name }

func (c *Core) close() {
	for _, f := range c.files {
		f.Close()
	}
}
