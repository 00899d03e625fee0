package nic

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// LinkInfo is what packets for this box look like on its uplinks.
type LinkInfo struct {
	// MACs are the destination MAC addresses that are ours: those of the uplinks
	// first, sorted, then, sorted, those of what is stacked on them (macvlans of
	// VRRP, VLAN sub-interfaces), of the ports below a bond and of the bond, team or
	// bridge above a port. Interfaces in other network namespaces are other boxes.
	// The MAC of zeroes that lo has is none.
	MACs [][6]byte
	// VLANs are the VLAN sub-interfaces above the uplinks. Of two that take the
	// packets of the same tags the first is the one: it is stacked more directly,
	// or older.
	VLANs []VLAN
}

// VLAN is a VLAN sub-interface with the tags of what it takes and sends. One
// with three tags is not listed: the program leaves such packets to the stack.
type VLAN struct {
	Name  string
	Index int
	// Uplink is the index of the uplink that its packets leave by.
	Uplink int
	// Ingress are the indexes of the interfaces that the program sees its packets
	// come in by: the uplink, and if that is a bond its ports too, since native
	// XDP runs there.
	Ingress []int
	// Outer and Inner are the VLAN ids; Inner is 0 with one tag.
	Outer, Inner uint16
	// OuterProtocol and InnerProtocol are the ethertypes of the tags, 0x8100 or
	// 0x88a8; 0 for no tag.
	OuterProtocol, InnerProtocol uint16

	indirect int // how many macvlans and ports are between it and the uplink
}

// Links reads what packets for this box look like on its uplinks, in the calling
// thread's network namespace. It says how things are now: ask again when links
// change. An uplink that is not there is an error.
func Links(uplinks []string) (LinkInfo, error) {
	all, err := ownLinks()
	if err != nil {
		return LinkInfo{}, err
	}
	return findLinks(linkFacts(all), uplinks)
}

// LinksOn is Links in the network namespace of nl.
func LinksOn(nl *netlink.Handle, uplinks []string) (LinkInfo, error) {
	all, err := listLinks(nl)
	if err != nil {
		return LinkInfo{}, err
	}
	return findLinks(linkFacts(all), uplinks)
}

// link is what is known of one interface.
type link struct {
	index  int
	name   string
	alt    []string // other names
	kind   string
	lower  int // what it is stacked on; 0: nothing, or another namespace's
	master int // what it is a port of
	mac    [6]byte
	vid    uint16 // of kind vlan
	proto  uint16
}

// stacked says whether interfaces of a kind send and take the frames of the
// interface below. Others have an index below too that is no such thing: of a
// veth it is its peer's.
func stacked(kind string) bool {
	return slices.Contains([]string{"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"}, kind)
}

// gathers says whether interfaces of a kind take the frames of their ports. A
// VRF has ports too, but they stay as they are.
func gathers(kind string) bool { return kind == "bond" || kind == "team" || kind == "bridge" }

func linkFacts(all []netlink.Link) []link {
	out := make([]link, 0, len(all))
	for _, l := range all {
		a := l.Attrs()
		f := link{index: a.Index, name: a.Name, alt: a.AltNames, kind: l.Type(), master: a.MasterIndex}
		if len(a.HardwareAddr) == len(f.mac) {
			f.mac = [6]byte(a.HardwareAddr)
		}
		if a.NetNsID < 0 && stacked(f.kind) {
			f.lower = a.ParentIndex
		}
		if v, ok := l.(*netlink.Vlan); ok {
			f.vid, f.proto = uint16(v.VlanId), cmp.Or(uint16(v.VlanProtocol), unix.ETH_P_8021Q)
		}
		out = append(out, f)
	}
	return out
}

// findLinks is Links over what is known of all interfaces.
func findLinks(all []link, uplinks []string) (LinkInfo, error) {
	w := walk{all: all, macs: make(map[[6]byte]bool)}
	for _, name := range uplinks {
		i := slices.IndexFunc(all, func(l link) bool { return l.name == name || slices.Contains(l.alt, name) })
		if i < 0 {
			return LinkInfo{}, fmt.Errorf("find interface %s: %w", name, unix.ENODEV)
		}
		w.uplink(all[i])
	}
	return w.info(), nil
}

// walk collects what is above a number of uplinks.
type walk struct {
	all   []link
	macs  map[[6]byte]bool // to whether it is an uplink's own
	vlans []VLAN

	// Of the uplink that it is at.
	at      int
	ingress []int
	seen    map[int]bool
}

func (w *walk) uplink(u link) {
	w.at, w.ingress, w.seen = u.index, []int{u.index}, make(map[int]bool)
	if u.kind == "bond" || u.kind == "team" {
		for _, port := range w.all {
			if port.master == u.index {
				w.take(port.mac, false)
				w.ingress = append(w.ingress, port.index)
			}
		}
	}
	w.take(u.mac, true)
	w.up(u, VLAN{})
}

func (w *walk) take(mac [6]byte, own bool) { w.macs[mac] = w.macs[mac] || own }

// up takes l, whose packets have the tags of v, and goes on to what is above it.
func (w *walk) up(l link, v VLAN) {
	if w.seen[l.index] {
		return // nothing keeps a bond from being stacked on what is stacked on it
	}
	w.seen[l.index] = true
	w.take(l.mac, false)
	for _, above := range w.all {
		next := v
		switch {
		case above.lower == l.index && above.kind == "vlan":
			if !next.push(above) {
				continue
			}
			next.Uplink, next.Ingress = w.at, w.ingress
			w.vlans = append(w.vlans, next)
		case above.lower == l.index, above.index == l.master && gathers(above.kind):
			next.indirect++
		default:
			continue
		}
		w.up(above, next)
	}
}

// push adds the tag of l. It says no if there are two already.
func (v *VLAN) push(l link) bool {
	switch {
	case v.OuterProtocol == 0: // not the id: a VLAN of id 0 takes priority tags
		v.Outer, v.OuterProtocol = l.vid, l.proto
	case v.InnerProtocol == 0:
		v.Inner, v.InnerProtocol = l.vid, l.proto
	default:
		return false
	}
	v.Name, v.Index = l.name, l.index
	return true
}

func (w *walk) info() LinkInfo {
	delete(w.macs, [6]byte{})
	out := LinkInfo{VLANs: w.vlans}
	for mac := range w.macs {
		out.MACs = append(out.MACs, mac)
	}
	slices.SortFunc(out.MACs, func(a, b [6]byte) int {
		switch {
		case w.macs[a] == w.macs[b]:
			return bytes.Compare(a[:], b[:])
		case w.macs[a]:
			return -1
		}
		return 1
	})
	slices.SortFunc(out.VLANs, func(a, b VLAN) int {
		return cmp.Or(cmp.Compare(a.Uplink, b.Uplink), cmp.Compare(a.Outer, b.Outer), cmp.Compare(a.Inner, b.Inner),
			cmp.Compare(a.indirect, b.indirect), cmp.Compare(a.Index, b.Index))
	})
	return out
}
