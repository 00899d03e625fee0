package xdp

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/nic"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hop is a next hop on the way to backends.
type hop struct {
	ifindex int
	addr    netip.Addr
}

// routeTo asks the kernel's routes how a backend is reached.
func (f *Forwarder) routeTo(backend netip.Addr) (netlink.Route, error) {
	routes, err := f.nl.RouteGet(backend.AsSlice())
	if err != nil {
		return netlink.Route{}, fmt.Errorf("find route to %s: %w", backend, err)
	}
	if len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST {
		return netlink.Route{}, fmt.Errorf("find route to %s: it is not one to another box", backend)
	}
	return routes[0], nil
}

// hopOf is the next hop of a route to a backend.
func hopOf(r netlink.Route, backend netip.Addr) hop {
	via, ok := netip.AddrFromSlice(r.Gw)
	if !ok {
		via = backend
	}
	return hop{r.LinkIndex, via.Unmap()}
}

// Troubles with the ways to backends, as they are logged.
const (
	cannotBeReached = "backend cannot be reached"
	notKept         = "neighbour is not kept"
	mtuNotLocked    = "MTU of a route is ignored: lock it (ip route ... mtu lock N)"
	takesNoFrames   = "packets to a backend are lost: name its interface as an uplink, or send them by one"
)

// trouble is what is wrong with a way, and whose.
type trouble struct{ what, whose string }

// tell logs the troubles that are new or have another reason, and those that are
// no more: Apply asks every few seconds, and all else has been said.
func (f *Forwarder) tell(now map[trouble]string) {
	for t, why := range now {
		if was, ok := f.troubles[t]; !ok || was != why {
			f.log.Warn(t.what, "address", t.whose, "reason", why)
		}
	}
	for t := range f.troubles {
		if _, ok := now[t]; !ok {
			f.log.Info("no more: "+t.what, "address", t.whose)
		}
	}
	f.troubles = now
}

// watchNeighbours asks the kernel to know the MAC addresses of the next hops to
// all backends, and to keep knowing them: it learns by itself only what its own
// traffic needs, and packets that leave from XDP are not that. It goes on doing
// so when this process is gone; the next one releases what nobody needs any more.
// What fails is logged and not an error: packets to that backend are dropped with
// the reason fib_no_neighbour.
func (f *Forwarder) watchNeighbours(p *plan) {
	wrong := make(map[trouble]string)
	defer func() { f.tell(wrong) }()
	want := make(map[hop]bool)
	seen, out := make(map[[16]byte]bool), make(map[int]wayOut)
	for _, b := range p.backend {
		if b.Flags&flagLocal != 0 || seen[b.Addr] {
			continue
		}
		seen[b.Addr] = true
		to := netip.AddrFrom16(b.Addr).Unmap()
		route, err := f.routeTo(to)
		if err != nil {
			wrong[trouble{cannotBeReached, to.String()}] = err.Error()
			continue
		}
		f.judge(to, route, out, wrong)
		want[hopOf(route, to)] = true
	}
	known, err := f.sockets.neighbours()
	if err != nil {
		wrong[trouble{notKept, "all"}] = err.Error()
		return
	}
	if f.hops == nil {
		f.hops = make(map[hop]bool)
		for h, n := range known {
			if n.ours() { // of a process before
				f.hops[h] = true
			}
		}
	}
	for h := range f.hops {
		if known[h].ours() && !want[h] {
			f.sockets.keep(h, 0) // may be gone with its interface: no matter
		}
	}
	f.hops = f.keepAll(want, known, wrong)
}

// keepAll has the kernel keep next hops, and returns those that it does for us.
func (f *Forwarder) keepAll(want map[hop]bool, known map[hop]neighbour, wrong map[trouble]string) map[hop]bool {
	kept := make(map[hop]bool)
	for h := range want {
		if known[h].foreign() {
			continue // this would unmake what the operator has made
		}
		if err := f.sockets.keep(h, netlink.NTF_EXT_MANAGED); err != nil {
			wrong[trouble{notKept, h.addr.String()}] = err.Error()
			continue
		}
		kept[h] = true
	}
	return kept
}

// judge finds what is wrong with a route that does lead to a backend. The
// interfaces that it has looked at are in seen.
func (f *Forwarder) judge(to netip.Addr, r netlink.Route, seen map[int]wayOut, wrong map[trouble]string) {
	out, ok := seen[r.LinkIndex]
	if !ok {
		out = f.wayOut(r.LinkIndex)
		seen[r.LinkIndex] = out
	}
	if mtu := f.ignoredMTU(to, r); mtu > 0 && mtu < out.mtu {
		wrong[trouble{mtuNotLocked, to.String()}] = fmt.Sprintf("packets are sent that are longer than %d bytes, up to the MTU of %s, %d", mtu, out.name, out.mtu)
	}
	if out.takesNone {
		wrong[trouble{takesNoFrames, to.String()}] = fmt.Sprintf("interface %s takes no frames from XDP", out.name)
	}
}

// wayOut is an interface that packets leave by.
type wayOut struct {
	name string
	mtu  int
	// takesNone says that the program cannot send out of it.
	takesNone bool
}

// wayOut looks at an interface; what is not known of it is nothing bad.
func (f *Forwarder) wayOut(index int) (w wayOut) {
	dev, err := f.nl.LinkByIndex(index)
	if err != nil {
		return w // it has gone since: so will the route
	}
	w.name, w.mtu = dev.Attrs().Name, dev.Attrs().MTU
	below := index
	if i := slices.IndexFunc(f.vlans, func(v nic.VLAN) bool { return v.Index == index }); i >= 0 {
		below = f.vlans[i].Uplink
	}
	if f.mode == edge.XDPGeneric || f.isUplink(below) {
		return w
	}
	takes, err := nic.TakesRedirected(f.sockets, below)
	w.takesNone = err == nil && takes != nil && !*takes
	return w
}

// ignoredMTU is the MTU that a route has been given and that the program's lookup
// does not mind, which minds only a locked one; 0: there is none. What the kernel
// has learnt of the path it does mind, so the route itself is asked for.
func (f *Forwarder) ignoredMTU(to netip.Addr, r netlink.Route) int {
	if r.MTU == 0 || r.MTULock {
		return 0
	}
	routes, err := f.nl.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) == 0 || routes[0].MTULock {
		return 0
	}
	return routes[0].MTU
}

func (f *Forwarder) isUplink(index int) bool {
	for _, u := range f.uplinks {
		if dev, err := f.nl.LinkByName(u.name); err == nil && dev.Attrs().Index == index {
			return true
		}
	}
	return false
}

// exit says how a packet leaves for a backend.
func (f *Forwarder) exit(b edgeBackend) (edge.FlowVerdict, error) {
	if b.Flags&flagLocal != 0 {
		return f.flowVerdict(edgeVerdictPASS_LOCAL), nil
	}
	r, err := f.routeTo(netip.AddrFrom16(b.Addr).Unmap())
	if err != nil {
		return f.flowVerdict(edgeVerdictDROP_FIB_UNREACHABLE), nil
	}
	if len(f.uplinks) == 1 {
		dev, err := f.nl.LinkByName(f.uplinks[0].name)
		if err != nil {
			return edge.FlowVerdict{}, fmt.Errorf("find interface %s: %w", f.uplinks[0].name, err)
		}
		if dev.Attrs().Index == r.LinkIndex {
			return f.flowVerdict(edgeVerdictTX_BACKEND), nil
		}
	}
	return f.flowVerdict(edgeVerdictREDIRECT_BACKEND), nil
}
