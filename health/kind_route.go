package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// maxDumps is how often a dump of the routing table is asked for again that
// was changed while it was read.
const maxDumps = 3

// probeRoute is the prober of kind route: the kernel has a unicast route for
// exactly p.Net with a next hop that is alive, by p.Interface if that is given.
func probeRoute(ctx context.Context, p edge.Probe) error {
	if !p.Net.IsValid() {
		return fmt.Errorf("%w: no prefix to look for", edge.ErrUnknown)
	}
	link := 0
	if p.Interface != "" {
		found, err := net.InterfaceByName(p.Interface)
		switch {
		case err != nil && isMissing(err):
			return fmt.Errorf("interface %s does not exist", p.Interface)
		case err != nil:
			return fmt.Errorf("%w: find interface %s: %w", edge.ErrUnknown, p.Interface, bare(err))
		}
		link = found.Index
	}
	s := &routeSearch{net: p.Net.Masked(), link: link, table: p.Table}
	if s.table == 0 {
		s.table = unix.RT_TABLE_MAIN
	}
	if err := s.run(ctx); err != nil {
		return err
	}
	return s.verdict(p)
}

// isMissing says whether net.InterfaceByName has found no such interface, for
// which it has no error of its own.
func isMissing(err error) bool {
	var no unix.Errno
	return !errors.As(err, &no) || no == unix.ENODEV
}

// routeSearch looks through a routing table for one prefix.
type routeSearch struct {
	net   netip.Prefix
	link  int // 0: any
	table int

	alive            bool
	other, elsewhere bool // what was found instead: another type, another interface
	dead             bool
}

// run reads the routing table until it has found what it looks for.
func (s *routeSearch) run(ctx context.Context) error {
	family := netlink.FAMILY_V4
	if s.net.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	if s.quick(); s.alive {
		return nil
	}
	for range maxDumps {
		err := netlink.RouteListFilteredIter(family, &netlink.Route{Table: s.table}, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			s.look(r)
			return !s.alive && ctx.Err() == nil
		})
		switch {
		case s.alive:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%w: the routing table was not read in time", edge.ErrUnknown)
		case err == nil:
			return nil
		case !errors.Is(err, netlink.ErrDumpInterrupted):
			return fmt.Errorf("%w: read the routing table: %w", edge.ErrUnknown, bare(err))
		}
	}
	return fmt.Errorf("%w: the routing table changes too fast to be read", edge.ErrUnknown)
}

// quick asks for the one route that the kernel takes to the first address of
// the prefix: with the whole table of the Internet in the kernel, to read all of
// it takes half a second. Only what it finds counts, and never its error: a
// longer prefix, or a rule, can be in the way.
func (s *routeSearch) quick() {
	found, _ := netlink.RouteGetWithOptions(s.net.Addr().AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	for _, r := range found {
		if r.Table == s.table {
			s.look(r)
		}
	}
}

// look notes what a route is to the search.
func (s *routeSearch) look(r netlink.Route) {
	if !s.matches(r.Dst) {
		return
	}
	if r.Type != unix.RTN_UNICAST {
		s.other = true
		return
	}
	hops := r.MultiPath
	if len(hops) == 0 {
		hops = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Flags: r.Flags}}
	}
	for _, hop := range hops {
		switch {
		case s.link != 0 && hop.LinkIndex != s.link:
			s.elsewhere = true
		case hop.Flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) != 0:
			s.dead = true
		default:
			s.alive = true
		}
	}
}

// matches says whether a destination is exactly the prefix; nil is the default
// route.
func (s *routeSearch) matches(dst *net.IPNet) bool {
	if dst == nil {
		return s.net.Bits() == 0
	}
	ones, _ := dst.Mask.Size()
	a, ok := netip.AddrFromSlice(dst.IP)
	return ok && ones == s.net.Bits() && a.Unmap() == s.net.Addr()
}

// verdict words the outcome.
func (s *routeSearch) verdict(p edge.Probe) error {
	where := fmt.Sprintf("route to %s", s.net)
	if p.Table != 0 {
		where += fmt.Sprintf(" in table %d", p.Table)
	}
	switch {
	case s.alive:
		return nil
	case s.dead:
		return fmt.Errorf("%s is dead: its link is down", where)
	case s.elsewhere:
		return fmt.Errorf("%s does not point to %s", where, p.Interface)
	case s.other:
		return fmt.Errorf("%s forwards nothing: it is not of type unicast", where)
	}
	return fmt.Errorf("no %s", where)
}
