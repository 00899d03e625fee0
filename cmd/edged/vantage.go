package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp"
)

// The two ends of the veth pair over which the vantage point's packets come in.
const (
	vantageNear = "edge-probe0"
	vantageFar  = "edge-probe1"
)

// gateway4 and gateway6 are the near end as the vantage point sees it: link
// local, so that they clash with nothing.
var (
	gateway4 = netip.MustParseAddr("169.254.77.1")
	gateway6 = netip.MustParseAddr("fe80::77:1")
)

// macNear and macFar are given, not the kernel's random ones: those udev replaces a
// moment later (MACAddressPolicy=persistent, systemd's default), and then neither the
// neighbours nor the forwarder know the near end. Locally administered; no other link
// has them.
var (
	macNear = [6]byte{0x02, 0x65, 0x64, 0x67, 0x65, 0x00}
	macFar  = [6]byte{0x02, 0x65, 0x64, 0x67, 0x65, 0x01}
)

// vantage is a network namespace of its own from which VIPs are asked. From the
// box's own namespace a VIP is a local address, and a request to it would never
// meet the forwarder. The namespace has no name: it goes with this process.
type vantage struct {
	ns netns.NsHandle // closed and -1 when there is none
}

// openVantage builds the namespace and the veth pair. Without a source address
// there is none, and dial says so.
func openVantage(l edge.Local) (*vantage, error) {
	v := &vantage{ns: netns.None()}
	if !l.ProbeSource4.IsValid() && !l.ProbeSource6.IsValid() {
		return v, nil
	}
	if err := v.build(l); err != nil {
		v.close()
		return nil, fmt.Errorf("build vantage point of probes: %w", err)
	}
	return v, nil
}

func (v *vantage) build(l edge.Local) error {
	var err error
	if v.ns, err = newNamespace(); err != nil {
		return err
	}
	if old, err := netlink.LinkByName(vantageNear); err == nil {
		// Left by a process that was killed; its far end dies with it.
		if err := netlink.LinkDel(old); err != nil {
			return fmt.Errorf("remove old %s: %w", vantageNear, err)
		}
	}
	pair := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: vantageNear, MTU: 1500, NumTxQueues: 1, NumRxQueues: 1, HardwareAddr: macNear[:]},
		PeerName:         vantageFar,
		PeerHardwareAddr: macFar[:],
		PeerNamespace:    netlink.NsFd(int(v.ns)),
	}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("add veth pair: %w", err)
	}
	far, err := netlink.NewHandleAt(v.ns)
	if err != nil {
		return fmt.Errorf("open netlink in the probe's namespace: %w", err)
	}
	defer far.Close()
	return v.connect(l, far)
}

// connect addresses both ends. The neighbours are permanent, since nothing that
// a probe depends on should have to be learned first.
func (v *vantage) connect(l edge.Local, far *netlink.Handle) error {
	near, err := netlink.LinkByName(vantageNear)
	if err != nil {
		return fmt.Errorf("find %s: %w", vantageNear, err)
	}
	end, err := far.LinkByName(vantageFar)
	if err != nil {
		return fmt.Errorf("find %s: %w", vantageFar, err)
	}
	lo, err := far.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := errors.Join(netlink.LinkSetUp(near), far.LinkSetUp(end), far.LinkSetUp(lo), v.plainChecksums()); err != nil {
		return fmt.Errorf("bring up the veth pair: %w", err)
	}
	for _, side := range []struct{ src, gw netip.Addr }{{l.ProbeSource4, gateway4}, {l.ProbeSource6, gateway6}} {
		if !side.src.IsValid() {
			continue
		}
		if err := joinSide(near, end, far, side.src, side.gw); err != nil {
			return err
		}
	}
	return nil
}

// plainChecksums has the kernel write the checksums out: a checksum that is
// left to the network card is wrong once XDP has encapsulated the packet.
func (v *vantage) plainChecksums() error {
	return errors.Join(
		xdp.OffloadsOff(vantageNear),
		v.inside(func() error { return xdp.OffloadsOff(vantageFar) }),
	)
}

func joinSide(near, end netlink.Link, far *netlink.Handle, src, gw netip.Addr) error {
	host := 32
	family := netlink.FAMILY_V4
	if src.Is6() {
		host, family = 128, netlink.FAMILY_V6
	}
	addr := func(a netip.Addr) *netlink.Addr {
		return &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, host)), Flags: unix.IFA_F_NODAD}
	}
	neigh := func(on netlink.Link, a netip.Addr, of netlink.Link) *netlink.Neigh {
		return &netlink.Neigh{LinkIndex: on.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: of.Attrs().HardwareAddr}
	}
	all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if src.Is6() {
		all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	err := errors.Join(
		netlink.AddrAdd(near, addr(gw)),
		far.AddrAdd(end, addr(src)),
		netlink.NeighSet(neigh(near, src, end)),
		far.NeighSet(neigh(end, gw, near)),
		netlink.RouteReplace(&netlink.Route{LinkIndex: near.Attrs().Index, Dst: ipNet(netip.PrefixFrom(src, host)), Scope: netlink.SCOPE_LINK}),
		far.RouteAdd(&netlink.Route{LinkIndex: end.Attrs().Index, Dst: ipNet(all), Gw: gw.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}),
	)
	if err != nil {
		return fmt.Errorf("address the veth pair for %s: %w", src, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// dial opens a connection from inside the namespace: the socket stays there
// when the thread comes back.
func (v *vantage) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if !v.ns.IsOpen() {
		return nil, fmt.Errorf("%w: no probe_source4 or probe_source6 is configured", edge.ErrUnknown)
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", edge.ErrUnknown, err)
	}
	var c net.Conn
	err = v.inside(func() error {
		var err error
		c, err = (&net.Dialer{}).DialContext(ctx, network, at.String())
		return err
	})
	return c, err
}

// inside runs f on a thread in the namespace. A thread that cannot come back
// is never used again: it dies with its goroutine.
func (v *vantage) inside(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- fmt.Errorf("%w: %v", edge.ErrUnknown, err)
			return
		}
		defer home.Close()
		if err := netns.Set(v.ns); err != nil {
			done <- fmt.Errorf("%w: enter the probe's namespace: %v", edge.ErrUnknown, err)
			return
		}
		err = f()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// newNamespace makes a network namespace that only the handle keeps.
func newNamespace() (netns.NsHandle, error) {
	type result struct {
		ns  netns.NsHandle
		err error
	}
	done := make(chan result, 1)
	go func() {
		// netns.New moves the thread; it is not given back, so it ends here.
		runtime.LockOSThread()
		ns, err := netns.New()
		done <- result{ns, err}
	}()
	r := <-done
	if r.err != nil {
		return netns.None(), fmt.Errorf("make network namespace: %w", r.err)
	}
	return r.ns, nil
}

func (v *vantage) close() {
	if v.ns.IsOpen() {
		v.ns.Close()
	}
}
