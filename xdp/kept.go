package xdp

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// keptProtocol marks neighbours as kept by the forwarder (NDA_PROTOCOL, shown as
// "proto 202" by ip neigh): so the next process tells them from those that an
// operator has made managed himself, which are his.
const keptProtocol = 202

// Attributes of a neighbour (linux/neighbour.h).
const (
	ndaDst      = 1
	ndaProtocol = 12
	ndaFlagsExt = 15
)

// sockets are netlink sockets in the namespace in which they were opened, for
// what package netlink does not know.
type sockets map[int]*nl.SocketHandle

func openSockets(protocols ...int) (sockets, error) {
	all := make(sockets)
	for _, p := range protocols {
		s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), p)
		if err != nil {
			all.close()
			return nil, fmt.Errorf("open netlink: %w", err)
		}
		all[p] = &nl.SocketHandle{Socket: s}
	}
	return all, nil
}

func (s sockets) close() {
	for _, h := range s {
		h.Close()
	}
}

// neighbour is what the kernel has of one.
type neighbour struct {
	managed   bool // it is kept resolved
	permanent bool
	protocol  uint8
}

// ours says whether it is kept since one of us has asked for it.
func (n neighbour) ours() bool { return n.managed && n.protocol == keptProtocol }

// foreign says whether it is an operator's: he has told its MAC address, or has it
// managed.
func (n neighbour) foreign() bool { return n.permanent || n.managed && n.protocol != keptProtocol }

// neighbours lists all neighbours.
func (s sockets) neighbours() (map[hop]neighbour, error) {
	msgs, err := s.listNeighbours()
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	all := make(map[hop]neighbour)
	for _, m := range msgs {
		if len(m) < unix.SizeofNdMsg {
			continue
		}
		h, n, err := readNeighbour(m)
		if err != nil {
			return nil, fmt.Errorf("list neighbours: %w", err)
		}
		all[h] = n
	}
	return all, nil
}

// listNeighbours reads a list that changed meanwhile again. One that changes all
// the time is taken as it is: the next Apply asks again.
func (s sockets) listNeighbours() (msgs [][]byte, err error) {
	for range 5 {
		req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
		req.Sockets = s
		req.AddData(&netlink.Ndmsg{})
		msgs, err = req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			return msgs, err
		}
	}
	return msgs, nil
}

// readNeighbour reads a struct ndmsg and what follows it.
func readNeighbour(m []byte) (h hop, n neighbour, err error) {
	h.ifindex = int(nl.NativeEndian().Uint32(m[4:]))
	n.permanent = nl.NativeEndian().Uint16(m[8:])&netlink.NUD_PERMANENT != 0
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofNdMsg:])
	for _, a := range attrs {
		switch {
		case a.Attr.Type == ndaDst:
			h.addr, _ = netip.AddrFromSlice(a.Value)
		case a.Attr.Type == ndaProtocol && len(a.Value) == 1:
			n.protocol = a.Value[0]
		case a.Attr.Type == ndaFlagsExt && len(a.Value) == 4:
			n.managed = nl.NativeEndian().Uint32(a.Value)&netlink.NTF_EXT_MANAGED != 0
		}
	}
	return h, n, err
}

// keep has the kernel keep a neighbour resolved (NTF_EXT_MANAGED, 5.16) or stop
// doing so (flags 0); either way it is resolved once.
func (s sockets) keep(h hop, flags uint32) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.Sockets = s
	family := uint8(unix.AF_INET)
	if h.addr.Is6() {
		family = unix.AF_INET6
	}
	req.AddData(&netlink.Ndmsg{Family: family, Index: uint32(h.ifindex), Flags: netlink.NTF_USE})
	req.AddData(nl.NewRtAttr(ndaDst, h.addr.AsSlice()))
	req.AddData(nl.NewRtAttr(ndaProtocol, nl.Uint8Attr(keptProtocol)))
	if flags != 0 {
		req.AddData(nl.NewRtAttr(ndaFlagsExt, nl.Uint32Attr(flags)))
	}
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("set neighbour: %w", err)
	}
	return nil
}
