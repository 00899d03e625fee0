//go:debug multipathtcp=0

package relay

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestMain runs the tests, or in the child the GoBGP servers.
func TestMain(m *testing.M) {
	if os.Getenv(serversEnv) != "" {
		serve(os.Stdin, os.Stdout)
		return
	}
	flag.Parse()
	// They wait more than they work.
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	code := m.Run()
	stopServers()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tempDir is short enough for the path of a unix socket.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "relay")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// eventually polls cond, which says what is still missing, until it says
// nothing.
func eventually(t testing.TB, limit time.Duration, cond func() string) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		missing := cond()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, missing)
		}
		time.Sleep(10 * time.Millisecond)
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

func (s *space) down(t testing.TB, name string) {
	t.Helper()
	l, err := s.nl.LinkByName(name)
	must(t, err)
	must(t, s.nl.LinkSetDown(l))
}

// route sends what is for dst by way of via.
func (s *space) route(t testing.TB, dst, via string) {
	t.Helper()
	to, err := netlink.ParseIPNet(dst)
	must(t, err)
	gw, err := netlink.ParseAddr(via + "/32")
	must(t, err)
	must(t, s.nl.RouteAdd(&netlink.Route{Dst: to, Gw: gw.IP}))
}

// link joins a and b by a veth: 10.0.n.1, fd00:n::1 and fe80::1 in a, .2 and ::2
// in b.
func link(t testing.TB, a, b *space, n int) {
	t.Helper()
	name := fmt.Sprintf("v%d", n)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(b.fd)}
	must(t, a.nl.LinkAdd(veth))
	a.up(t, name, fmt.Sprintf("10.0.%d.1/24", n), fmt.Sprintf("fd00:%d::1/64", n), "fe80::1/64")
	b.up(t, name, fmt.Sprintf("10.0.%d.2/24", n), fmt.Sprintf("fd00:%d::2/64", n), "fe80::2/64")
}

// run calls f on a thread inside the namespace.
func (s *space) run(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := netns.Set(s.fd); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// inside is run as the Hub wants it.
func (s *space) inside(f func()) {
	if err := s.run(func() error { f(); return nil }); err != nil {
		panic(err)
	}
}

// process is a child inside a namespace.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	log  string
}

// start runs a command inside the namespace until stop or the test's end. Its
// output goes to a file, shown when the test fails.
func (s *space) start(t testing.TB, log string, args ...string) *process {
	t.Helper()
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	defer f.Close()
	p := &process{cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{}), log: log}
	p.cmd.Stdout, p.cmd.Stderr = f, f
	// The death signal comes when the starting *thread* ends: the goroutine
	// below keeps it until the child is gone.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(s.fd)
		if err == nil {
			err = p.cmd.Start()
		}
		started <- err
		if err == nil {
			p.cmd.Wait()
		}
		close(p.done)
	}()
	must(t, <-started)
	t.Cleanup(func() {
		p.stop(syscall.SIGKILL)
		if b, err := os.ReadFile(p.log); err == nil && t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(p.log), b[max(0, len(b)-6000):])
		}
	})
	return p
}

// stop sends sig and waits for the end.
func (p *process) stop(sig syscall.Signal) {
	p.cmd.Process.Signal(sig)
	<-p.done
}

func (p *process) output() string {
	b, _ := os.ReadFile(p.log)
	return string(b)
}

// writeSysctl sets a value of /proc/sys for the namespace of the thread.
func writeSysctl(name, value string) error {
	return os.WriteFile("/proc/sys/"+name, []byte(value), 0o600)
}
