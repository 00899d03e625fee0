package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/xdp"
)

// Link joins two hosts. Cut and Heal may be called by several goroutines and
// as often as wanted.
type Link interface {
	// Cut breaks the link; both ends see it go down.
	Cut() error
	// Heal mends it.
	Heal() error
	// String names the two hosts, "a1--r-a".
	String() string
}

// veth is a link without delay. One end, the router's, is set down by a cut;
// the other then loses its carrier but keeps its addresses and routes.
type veth struct {
	router, other *Host
	name          string // of the router's end; the other's is "eth0"
	mu            sync.Mutex
}

// uplink is the name of the only interface of every host that is not a router.
const uplink = "eth0"

// vethSpec describes a link from a router to a host.
type vethSpec struct {
	router, other *Host
	mtu           int
	// near are the router's addresses, far the other's.
	near, far []netip.Prefix
}

// newVeth makes the link with its addresses, up, and the default routes of the
// far end.
func newVeth(s vethSpec) (*veth, error) {
	v := &veth{router: s.router, other: s.other, name: s.other.name}
	pair := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: v.name, MTU: s.mtu, NumTxQueues: 1, NumRxQueues: 1},
		PeerName:  uplink, PeerNamespace: netlink.NsFd(s.other.ns), PeerMTU: uint32(s.mtu),
		PeerNumTxQueues: 1, PeerNumRxQueues: 1,
	}
	if err := s.router.nl.LinkAdd(pair); err != nil {
		return nil, fmt.Errorf("make link %s: %w", v, err)
	}
	err := errors.Join(
		raise(s.router, v.name, s.near),
		raise(s.other, uplink, s.far),
		addDefaults(s.other, s.near),
	)
	if err != nil {
		return nil, fmt.Errorf("set up link %s: %w", v, err)
	}
	return v, nil
}

// raise switches the offloads of an interface off (a checksum or segment left
// to a network card that is not there is wrong once XDP has encapsulated it),
// gives it its addresses and sets it up.
func raise(h *Host, name string, addrs []netip.Prefix) error {
	if err := h.Do(func() error { return xdp.OffloadsOff(name) }); err != nil {
		return err
	}
	link, err := h.nl.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s of %s: %w", name, h.name, err)
	}
	for _, a := range addrs {
		if err := h.nl.AddrAdd(link, &netlink.Addr{IPNet: ipNet(a), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add %s to %s of %s: %w", a, name, h.name, err)
		}
	}
	if err := h.nl.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s of %s up: %w", name, h.name, err)
	}
	return nil
}

// addDefaults adds a default route per family by the router's addresses.
func addDefaults(h *Host, routers []netip.Prefix) error {
	link, err := h.nl.LinkByName(uplink)
	if err != nil {
		return fmt.Errorf("find %s of %s: %w", uplink, h.name, err)
	}
	for _, r := range routers {
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if r.Addr().Is6() {
			all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(all), Gw: r.Addr().AsSlice()}
		if err := h.nl.RouteAdd(route); err != nil {
			return fmt.Errorf("add default route of %s: %w", h.name, err)
		}
	}
	return nil
}

// ipNet keeps the host bits.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func (v *veth) Cut() error { return v.set((*netlink.Handle).LinkSetDown) }

func (v *veth) Heal() error { return v.set((*netlink.Handle).LinkSetUp) }

func (v *veth) set(change func(*netlink.Handle, netlink.Link) error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	link, err := v.router.nl.LinkByName(v.name)
	if err == nil {
		err = change(v.router.nl, link)
	}
	if err != nil {
		return fmt.Errorf("change link %s: %w", v, err)
	}
	return nil
}

func (v *veth) String() string { return v.other.name + "--" + v.router.name }
