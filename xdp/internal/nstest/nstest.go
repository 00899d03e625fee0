// Package nstest gives a test a network namespace of its own.
//
// It is for the tests of package xdp and of those below it, and touches nothing
// outside the namespaces that it makes. It holds nothing between calls.
package nstest

import (
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// New puts the test's thread into a new network namespace, for good: the thread
// ends with the test's goroutine. lo is down in it.
func New(t testing.TB) netns.NsHandle {
	t.Helper()
	runtime.LockOSThread()
	ns, err := netns.New()
	Check(t, err)
	t.Cleanup(func() { ns.Close() })
	return ns
}

// In runs f in a namespace, on this thread, and comes back.
func In(t testing.TB, ns netns.NsHandle, f func()) {
	t.Helper()
	old, err := netns.Get()
	Check(t, err)
	defer old.Close()
	Check(t, netns.Set(ns))
	defer func() { Check(t, netns.Set(old)) }()
	f()
}

// Sysctl sets a key below net in the thread's namespace.
func Sysctl(t testing.TB, key, value string) {
	t.Helper()
	Check(t, os.WriteFile("/proc/sys/net/"+key, []byte(value), 0))
}

// Up sets an interface up.
func Up(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	Check(t, err)
	Check(t, netlink.LinkSetUp(l))
	return l
}

// Check ends the test if there is an error.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
