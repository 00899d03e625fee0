package bfd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// must ends the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls cond, which says what is still missing, until it says
// nothing. It returns the time that took.
func eventually(t testing.TB, limit time.Duration, cond func() string) time.Duration {
	t.Helper()
	began := time.Now()
	deadline := began.Add(limit)
	for {
		missing := cond()
		if missing == "" {
			return time.Since(began)
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, missing)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// space is an anonymous network namespace; it lives as long as its handle.
type space struct {
	fd netns.NsHandle
	nl *netlink.Handle
}

func newSpace(t testing.TB) *space {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	must(t, err)
	defer home.Close()
	fd, err := netns.New()
	must(t, err)
	must(t, netns.Set(home))
	nl, err := netlink.NewHandleAt(fd)
	must(t, err)
	t.Cleanup(func() { nl.Close(); fd.Close() })
	s := &space{fd, nl}
	s.up(t, "lo")
	return s
}

func (s *space) up(t testing.TB, name string, addrs ...string) {
	t.Helper()
	l, err := s.nl.LinkByName(name)
	must(t, err)
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		must(t, err)
		addr.Flags = unix.IFA_F_NODAD
		must(t, s.nl.AddrAdd(l, addr))
	}
	must(t, s.nl.LinkSetUp(l))
}

// link joins a and b by a veth of the same name at both ends: 10.0.0.1,
// fd00::1 and fe80::1 in a, .2 and ::2 in b.
func link(t testing.TB, a, b *space, name string) {
	t.Helper()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(b.fd)}
	must(t, a.nl.LinkAdd(veth))
	a.up(t, name, "10.0.0.1/24", "fd00::1/64", "fe80::1/64")
	b.up(t, name, "10.0.0.2/24", "fd00::2/64", "fe80::2/64")
}

// pair is two namespaces joined by the veth v0.
func pair(t testing.TB) (a, b *space) {
	t.Helper()
	a, b = newSpace(t), newSpace(t)
	link(t, a, b, "v0")
	return a, b
}

// goIn calls f on a thread inside the namespace.
func (s *space) goIn(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := netns.Set(s.fd); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return done
}

func (s *space) run(t testing.TB, f func() error) {
	t.Helper()
	must(t, <-s.goIn(f))
}

// process is a child inside a namespace.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// start runs a command inside the namespace until stop or the test's end. Its
// output goes to a file, shown when the test fails.
func (s *space) start(t testing.TB, log string, args ...string) *process {
	t.Helper()
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	defer f.Close()
	p := &process{cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = f, f
	// The death signal comes when the starting *thread* ends: the goroutine
	// below keeps it until the child is gone.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	s.goIn(func() error {
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.cmd.Wait()
		}
		close(p.done)
		return nil
	})
	must(t, <-started)
	t.Cleanup(func() {
		p.stop(syscall.SIGKILL)
		if b, err := os.ReadFile(log); err == nil && t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(log), b[max(0, len(b)-4000):])
		}
	})
	return p
}

// stop sends sig and waits for the end.
func (p *process) stop(sig syscall.Signal) {
	p.cmd.Process.Signal(sig)
	<-p.done
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
	done := s.goIn(func() error {
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
	eventually(r.t, 5*time.Second, func() string {
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
	eventually(r.t, 12*time.Second, func() string {
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

// sendRaw sends b from an address of the namespace to port 3784 or 4784, with
// a TTL.
func (s *space) sendRaw(t testing.TB, from, dest netip.AddrPort, ttl int, b []byte) {
	t.Helper()
	s.run(t, func() error {
		index, err := interfaceIndex("v0")
		if err != nil {
			return err
		}
		level, option := unix.IPPROTO_IP, unix.IP_TTL
		if dest.Addr().Is6() {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
		}
		fd, err := udp(dest.Addr(), 0, [3]int{level, option, ttl}, [3]int{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1})
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return errors.Join(
			unix.Bind(fd, sockaddr(from.Addr(), int(from.Port()), index)),
			unix.Sendto(fd, b, 0, sockaddr(dest.Addr(), int(dest.Port()), index)),
		)
	})
}

// unaddress takes addresses from an interface.
func unaddress(t testing.TB, s *space, name string, addrs ...string) {
	t.Helper()
	l, err := s.nl.LinkByName(name)
	must(t, err)
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		must(t, err)
		must(t, s.nl.AddrDel(l, addr))
	}
}

// route leads a network over a gateway.
func route(t testing.TB, s *space, name, to, via string) {
	t.Helper()
	l, err := s.nl.LinkByName(name)
	must(t, err)
	_, dst, err := net.ParseCIDR(to)
	must(t, err)
	must(t, s.nl.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Gw: net.ParseIP(via)}))
}
