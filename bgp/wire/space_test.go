package wire_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/catchment-dev/edge/bgp/internal/bgptest"
)

// must is what every test here calls, by a short name.
var must = bgptest.Must

// link is two anonymous network namespaces, ours with 10.0.1.1 and fd00:1::1,
// the router's with .2 and ::2, joined by a veth. It goes with the test.
type link struct{ ours, routers *bgptest.Space }

func newLink(t *testing.T) link {
	t.Helper()
	l := link{bgptest.NewSpace(t), bgptest.NewSpace(t)}
	bgptest.Link(t, l.ours, l.routers, "v")
	l.ours.Up(t, "v", "10.0.1.1/24", "fd00:1::1/64")
	l.routers.Up(t, "v", "10.0.1.2/24", "fd00:1::2/64")
	return l
}

// dial connects to a router.
func (l link) dial(to netip.Addr) (c *net.TCPConn, err error) {
	err = l.ours.Run(func() error {
		c, err = net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(to, 179)))
		return err
	})
	return c, err
}
