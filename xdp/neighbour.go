package xdp

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/catchment-dev/edge"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hop is a next hop on the way to backends.
type hop struct {
	ifindex int
	addr    netip.Addr
}

// nextHop asks the kernel's routes how a backend is reached.
func (f *Forwarder) nextHop(backend netip.Addr) (hop, error) {
	routes, err := f.nl.RouteGet(backend.AsSlice())
	if err != nil {
		return hop{}, fmt.Errorf("find route to %s: %w", backend, err)
	}
	if len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST {
		return hop{}, fmt.Errorf("find route to %s: it is not one to another box", backend)
	}
	via, ok := netip.AddrFromSlice(routes[0].Gw)
	if !ok {
		via = backend
	}
	return hop{routes[0].LinkIndex, via.Unmap()}, nil
}

// watchNeighbours asks the kernel to know the MAC addresses of the next hops to
// all backends, and to keep knowing them: it learns by itself only what its own
// traffic needs, and packets that leave from XDP are not that. It goes on doing
// so when this process is gone. What fails is logged and not an error: packets
// to that backend are dropped with the reason fib_no_neighbour.
func (f *Forwarder) watchNeighbours(p *plan) {
	want := make(map[hop]bool)
	seen := make(map[[16]byte]bool)
	for _, b := range p.backend {
		if b.Flags&flagLocal != 0 || seen[b.Addr] {
			continue
		}
		seen[b.Addr] = true
		h, err := f.nextHop(netip.AddrFrom16(b.Addr).Unmap())
		if err != nil {
			f.log.Warn("backend cannot be reached", "error", err)
			continue
		}
		want[h] = true
	}
	for h := range want {
		if err := f.manage(h, netlink.NTF_EXT_MANAGED); err != nil {
			f.log.Warn("neighbour is not kept", "address", h.addr, "error", err)
			delete(want, h)
		}
	}
	for h := range f.hops {
		if !want[h] {
			f.manage(h, 0) // may be gone with its interface: no matter
		}
	}
	f.hops = want
}

// manage has the kernel keep a neighbour (NTF_EXT_MANAGED, 5.16) or stop doing
// so (0); either way it is resolved once. An entry that an operator made
// permanent is left alone: this would unmake it.
func (f *Forwarder) manage(h hop, flags int) error {
	known, err := f.nl.NeighList(h.ifindex, 0)
	if err != nil {
		return fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range known {
		if a, _ := netip.AddrFromSlice(n.IP); a.Unmap() == h.addr && n.State&netlink.NUD_PERMANENT != 0 {
			return nil
		}
	}
	err = f.nl.NeighSet(&netlink.Neigh{
		LinkIndex: h.ifindex, IP: net.IP(h.addr.AsSlice()), Flags: netlink.NTF_USE, FlagsExt: flags,
	})
	if err != nil {
		return fmt.Errorf("set neighbour: %w", err)
	}
	return nil
}

// exit says how a packet leaves for a backend.
func (f *Forwarder) exit(b edgeBackend) (edge.FlowVerdict, error) {
	if b.Flags&flagLocal != 0 {
		return f.flowVerdict(edgeVerdictPASS_LOCAL), nil
	}
	h, err := f.nextHop(netip.AddrFrom16(b.Addr).Unmap())
	if err != nil {
		return f.flowVerdict(edgeVerdictDROP_FIB_UNREACHABLE), nil
	}
	if len(f.uplinks) == 1 {
		dev, err := f.nl.LinkByName(f.uplinks[0].name)
		if err != nil {
			return edge.FlowVerdict{}, fmt.Errorf("find interface %s: %w", f.uplinks[0].name, err)
		}
		if dev.Attrs().Index == h.ifindex {
			return f.flowVerdict(edgeVerdictTX_BACKEND), nil
		}
	}
	return f.flowVerdict(edgeVerdictREDIRECT_BACKEND), nil
}
