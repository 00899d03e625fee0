package wire_test

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// link is two anonymous network namespaces, ours with 10.0.1.1 and fd00:1::1,
// the router's with .2 and ::2, joined by a veth. It goes with the test.
type link struct{ ours, routers netns.NsHandle }

func newLink(t *testing.T) link {
	t.Helper()
	l := link{newSpace(t), newSpace(t)}
	h, err := netlink.NewHandleAt(l.ours)
	must(t, err)
	defer h.Close()
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v"}, PeerName: "v", PeerNamespace: netlink.NsFd(l.routers)}))
	up(t, l.ours, "v", "10.0.1.1/24", "fd00:1::1/64")
	up(t, l.routers, "v", "10.0.1.2/24", "fd00:1::2/64")
	return l
}

func newSpace(t *testing.T) netns.NsHandle {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	must(t, err)
	defer home.Close()
	ns, err := netns.New()
	must(t, err)
	must(t, netns.Set(home))
	t.Cleanup(func() { ns.Close() })
	up(t, ns, "lo")
	return ns
}

func up(t *testing.T, ns netns.NsHandle, name string, addrs ...string) {
	t.Helper()
	h, err := netlink.NewHandleAt(ns)
	must(t, err)
	defer h.Close()
	l, err := h.LinkByName(name)
	must(t, err)
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		must(t, err)
		addr.Flags = unix.IFA_F_NODAD
		must(t, h.AddrAdd(l, addr))
	}
	must(t, h.LinkSetUp(l))
}

// within calls f on a thread of the namespace, which ends with it.
func within(ns netns.NsHandle, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(ns)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// dial connects to a router.
func (l link) dial(to netip.Addr) (c *net.TCPConn, err error) {
	err = within(l.ours, func() error {
		c, err = net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(to, 179)))
		return err
	})
	return c, err
}

// start runs a daemon in the router's namespace until the test ends. Its output
// is shown if the test fails.
func (l link) start(t *testing.T, log string, args ...string) {
	t.Helper()
	out, err := os.Create(log)
	must(t, err)
	defer out.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	// The death signal comes when the thread that started it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go within(l.routers, func() error {
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
		}
		close(ended)
		return nil
	})
	must(t, <-started)
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		if b, err := os.ReadFile(log); err == nil && t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(log), b[max(0, len(b)-6000):])
		}
	})
}

// eventually polls cond, which says what is missing, until it says nothing.
func eventually(t *testing.T, limit time.Duration, cond func() string) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		missing := cond()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, missing)
		}
	}
}
