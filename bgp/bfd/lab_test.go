package bfd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/bgp/internal/bgptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What every test here calls, by a short name.
type (
	space   = bgptest.Space
	process = bgptest.Process
)

var (
	must       = bgptest.Must
	tempDir    = bgptest.TempDir
	newSpace   = bgptest.NewSpace
	eventually = bgptest.Poll(5 * time.Millisecond).Eventually
)

// link joins a and b by a veth of the same name at both ends: 10.0.0.1,
// fd00::1 and fe80::1 in a, .2 and ::2 in b.
func link(t testing.TB, a, b *space, name string) {
	t.Helper()
	bgptest.Link(t, a, b, name)
	a.Up(t, name, "10.0.0.1/24", "fd00::1/64", "fe80::1/64")
	b.Up(t, name, "10.0.0.2/24", "fd00::2/64", "fe80::2/64")
}

// pair is two namespaces joined by the veth v0.
func pair(t testing.TB) (a, b *space) {
	t.Helper()
	a, b = newSpace(t), newSpace(t)
	link(t, a, b, "v0")
	return a, b
}

// running is an Engine that runs in a namespace.
type running struct {
	*Engine
	t    testing.TB
	end  func()
	tid  int // of its thread
	mu   sync.Mutex
	seen []Status // by OnChange
}

func run(t testing.TB, s *space) *running {
	t.Helper()
	r := &running{t: t}
	r.Engine = New(Options{Log: slog.New(slog.NewTextHandler(logTo{t}, nil)), OnChange: r.change})
	ctx, cancel := context.WithCancel(context.Background())
	tid := make(chan int, 1)
	done := s.Go(func() error {
		tid <- unix.Gettid()
		return r.Run(ctx)
	})
	r.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(r.end)
	select {
	case <-r.Ready():
		r.tid = <-tid
	case err := <-done:
		t.Fatal(err)
	}
	return r
}

func (r *running) change(s Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, s)
}

// changes are the states that OnChange was told of, for one peer.
func (r *running) changes(peer string) (states []State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.seen {
		if s.Peer == netip.MustParseAddr(peer) {
			states = append(states, s.State)
		}
	}
	return states
}

// logTo writes to the log of a test.
type logTo struct{ t testing.TB }

func (l logTo) Write(b []byte) (int, error) {
	l.t.Logf("%s", b)
	return len(b), nil
}

// set is Set without an error. A socket that was closed a moment ago may still
// be open in a child that another test is just starting, between fork and exec.
func (r *running) set(c ...Config) {
	r.t.Helper()
	eventually(r.t, func() string {
		err := r.Set(c)
		if errors.Is(err, unix.EADDRINUSE) {
			return err.Error()
		}
		must(r.t, err)
		return ""
	})
}

func (r *running) status(peer string) Status {
	r.t.Helper()
	states := r.States()
	i := slices.IndexFunc(states, func(s Status) bool { return s.Peer == netip.MustParseAddr(peer) })
	if i < 0 {
		r.t.Fatalf("no session to %s", peer)
	}
	return states[i]
}

// reaches waits until the session to peer has a state.
func (r *running) reaches(peer string, want State) Status {
	r.t.Helper()
	return r.becomes(peer, want.String(), func(s Status) bool { return s.State == want })
}

// becomes waits until the session to peer is as ok wants it.
func (r *running) becomes(peer, what string, ok func(Status) bool) (st Status) {
	r.t.Helper()
	eventually(r.t, func() string {
		if st = r.status(peer); ok(st) {
			return ""
		}
		return fmt.Sprintf("%s: %+v", what, st)
	})
	return st
}

// to is a session with the timers of most tests.
func to(peer, local string) Config {
	c := Config{Peer: netip.MustParseAddr(peer), MinTx: 100 * time.Millisecond, MinRx: 100 * time.Millisecond}
	if local != "" {
		c.Local = netip.MustParseAddr(local)
	}
	return c
}

// rawPacket is one from an address of the sender to port 3784 or 4784.
type rawPacket struct {
	from, dest netip.AddrPort
	ttl        int
	b          []byte
}

// sendRaw sends a packet from a namespace.
func sendRaw(t testing.TB, s *space, d rawPacket) {
	t.Helper()
	must(t, s.Run(func() error {
		index, err := interfaceIndex("v0")
		if err != nil {
			return err
		}
		level, option := unix.IPPROTO_IP, unix.IP_TTL
		if d.dest.Addr().Is6() {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
		}
		fd, err := udp(d.dest.Addr(), 0, [3]int{level, option, d.ttl}, [3]int{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1})
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return errors.Join(
			unix.Bind(fd, sockaddr(d.from.Addr(), int(d.from.Port()), index)),
			unix.Sendto(fd, d.b, 0, sockaddr(d.dest.Addr(), int(d.dest.Port()), index)),
		)
	}))
}

// unaddress takes addresses from an interface.
func unaddress(t testing.TB, s *space, name string, addrs ...string) {
	t.Helper()
	l, err := s.Netlink.LinkByName(name)
	must(t, err)
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		must(t, err)
		must(t, s.Netlink.AddrDel(l, addr))
	}
}

// route leads a network over a gateway.
func route(t testing.TB, s *space, name, to, via string) {
	t.Helper()
	l, err := s.Netlink.LinkByName(name)
	must(t, err)
	_, dst, err := net.ParseCIDR(to)
	must(t, err)
	must(t, s.Netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Gw: net.ParseIP(via)}))
}
