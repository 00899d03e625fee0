package nic

import (
	"testing"

	"github.com/catchment-dev/edge/xdp/internal/nstest"
	"github.com/vishvananda/netlink"
)

// What every test here calls, by a short name.
var check, newNS = nstest.Check, nstest.New

// addLink makes an interface and returns what the kernel made of it.
func addLink(t testing.TB, l netlink.Link) netlink.Link {
	t.Helper()
	check(t, netlink.LinkAdd(l))
	return byName(t, l.Attrs().Name)
}

func byName(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	check(t, err)
	return l
}

// addVeth makes a pair with the MTU.
func addVeth(t testing.TB, a, b string, mtu int) (netlink.Link, netlink.Link) {
	t.Helper()
	dev := addLink(t, &netlink.Veth{LinkAttrs: attrs(a, mtu), PeerName: b})
	return dev, byName(t, b)
}

func attrs(name string, mtu int) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name, a.MTU = name, mtu
	return a
}
