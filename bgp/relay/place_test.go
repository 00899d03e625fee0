//go:debug multipathtcp=0

package relay

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/catchment-dev/edge/bgp/internal/bgptest"
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

// What every test here calls, by a short name.
type (
	space   = bgptest.Space
	process = bgptest.Process
)

var (
	must       = bgptest.Must
	tempDir    = bgptest.TempDir
	newSpace   = bgptest.NewSpace
	eventually = bgptest.Poll(10 * time.Millisecond).Eventually
)

// lead sends what is for dst by way of via.
func lead(t testing.TB, s *space, dst, via string) {
	t.Helper()
	to, err := netlink.ParseIPNet(dst)
	must(t, err)
	gw, err := netlink.ParseAddr(via + "/32")
	must(t, err)
	must(t, s.Netlink.RouteAdd(&netlink.Route{Dst: to, Gw: gw.IP}))
}

// link joins a and b by a veth: 10.0.n.1, fd00:n::1 and fe80::1 in a, .2 and ::2
// in b.
func link(t testing.TB, a, b *space, n int) {
	t.Helper()
	name := fmt.Sprintf("v%d", n)
	bgptest.Link(t, a, b, name)
	a.Up(t, name, fmt.Sprintf("10.0.%d.1/24", n), fmt.Sprintf("fd00:%d::1/64", n), "fe80::1/64")
	b.Up(t, name, fmt.Sprintf("10.0.%d.2/24", n), fmt.Sprintf("fd00:%d::2/64", n), "fe80::2/64")
}

// inside runs f in a namespace, as the Hub wants it.
func inside(s *space) func(f func()) {
	return func(f func()) {
		if err := s.Run(func() error { f(); return nil }); err != nil {
			panic(err)
		}
	}
}

// writeSysctl sets a value of /proc/sys for the namespace of the thread.
func writeSysctl(name, value string) error {
	return os.WriteFile("/proc/sys/"+name, []byte(value), 0o600)
}
