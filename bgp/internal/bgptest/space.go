package bgptest

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Space is an anonymous network namespace; it lives as long as its handle, which
// is closed when the test ends. Several goroutines may use it.
type Space struct {
	NS      netns.NsHandle
	Netlink *netlink.Handle // what it does is done inside
}

// NewSpace makes a namespace in which lo is up, and in which addresses and routes
// are what the test has set. The thread of the caller is where it was before.
func NewSpace(t testing.TB) *Space {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	Must(t, err)
	defer home.Close()
	fd, err := netns.New()
	Must(t, err)
	err = deaf() // the thread is inside
	Must(t, netns.Set(home))
	Must(t, err)
	nl, err := netlink.NewHandleAt(fd)
	Must(t, err)
	t.Cleanup(func() { nl.Close(); fd.Close() })
	s := &Space{NS: fd, Netlink: nl}
	s.Up(t, "lo")
	return s
}

// deaf makes the thread's namespace take no router advertisements. An FRR with an
// IPv6 next hop for IPv4 sends them, with the prefix of the link: after some
// seconds the other end had an address more, dialled from that one, and was
// nobody that FRR knew.
func deaf() error {
	for _, name := range []string{"all", "default", "lo"} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_ra", []byte("0"), 0); err != nil {
			return fmt.Errorf("refuse router advertisements: %w", err)
		}
	}
	return nil
}

// Up gives an interface addresses, each with the length of its prefix, and sets
// it up. IPv6 addresses are usable at once.
func (s *Space) Up(t testing.TB, name string, addrs ...string) {
	t.Helper()
	l, err := s.Netlink.LinkByName(name)
	Must(t, err)
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		Must(t, err)
		addr.Flags = unix.IFA_F_NODAD
		Must(t, s.Netlink.AddrAdd(l, addr))
	}
	Must(t, s.Netlink.LinkSetUp(l))
}

// Down sets an interface down. The kernel takes its IPv6 addresses away.
func (s *Space) Down(t testing.TB, name string) {
	t.Helper()
	l, err := s.Netlink.LinkByName(name)
	Must(t, err)
	Must(t, s.Netlink.LinkSetDown(l))
}

// Link joins a and b by a veth of the same name at both ends; Up is left to the
// caller.
func Link(t testing.TB, a, b *Space, name string) {
	t.Helper()
	Must(t, a.Netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(b.NS),
	}))
}

// Go calls f on a thread inside the namespace, and tells its error. Goroutines
// that f starts are not inside.
func (s *Space) Go(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := netns.Set(s.NS); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return done
}

// Run calls f on a thread inside the namespace, and waits for it.
func (s *Space) Run(f func() error) error { return <-s.Go(f) }
