package nic

import (
	"net"
	"reflect"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	q  = unix.ETH_P_8021Q
	ad = unix.ETH_P_8021AD
)

func mac(last byte) [6]byte { return [6]byte{2, 0, 0, 0, 0, last} }

// dev is an interface of a driver; its MAC ends with its index.
func dev(index int, name string) link {
	return link{index: index, name: name, kind: "device", mac: mac(byte(index))}
}

func on(lower, index int, kind, name string) link {
	l := dev(index, name)
	l.kind, l.lower = kind, lower
	return l
}

func vlan(lower, index int, name string, proto, vid uint16) link {
	l := on(lower, index, "vlan", name)
	l.proto, l.vid = proto, vid
	return l
}

func portOf(master int, l link) link {
	l.master = master
	return l
}

func ofKind(kind string, l link) link {
	l.kind = kind
	return l
}

func macsOf(last ...byte) (out [][6]byte) {
	for _, n := range last {
		out = append(out, mac(n))
	}
	return out
}

func TestFindLinks(t *testing.T) {
	for name, c := range map[string]struct {
		all     []link
		uplinks []string
		macs    [][6]byte
		vlans   []VLAN
	}{
		"alone": {
			all: []link{dev(1, "lo"), dev(2, "eth0"), dev(3, "eth1")}, uplinks: []string{"eth0"}, macs: macsOf(2),
		},
		"two uplinks, in any order": {
			all: []link{dev(3, "eth1"), dev(2, "eth0")}, uplinks: []string{"eth1", "eth0"}, macs: macsOf(2, 3),
		},
		"the zero MAC is none": {
			all: []link{{index: 1, name: "lo", kind: "device"}}, uplinks: []string{"lo"},
		},
		"macvlan of VRRP, also on a VLAN": {
			all: []link{
				dev(2, "eth0"), on(2, 3, "macvlan", "vrrp"), vlan(2, 4, "eth0.5", q, 5), on(4, 5, "macvlan", "vrrp5"),
				on(9, 6, "macvlan", "other"),
			},
			uplinks: []string{"eth0"}, macs: macsOf(2, 3, 4, 5),
			vlans: []VLAN{{Name: "eth0.5", Index: 4, Uplink: 2, Ingress: []int{2}, Outer: 5, OuterProtocol: q}},
		},
		"QinQ, and three tags": {
			all: []link{
				vlan(3, 4, "s.c", q, 7), vlan(2, 3, "s", ad, 100), dev(2, "eth0"), vlan(4, 5, "s.c.x", q, 8),
			},
			uplinks: []string{"eth0"}, macs: macsOf(2, 3, 4),
			vlans: []VLAN{
				{Name: "s", Index: 3, Uplink: 2, Ingress: []int{2}, Outer: 100, OuterProtocol: ad},
				{Name: "s.c", Index: 4, Uplink: 2, Ingress: []int{2}, Outer: 100, OuterProtocol: ad, Inner: 7, InnerProtocol: q},
			},
		},
		"a VLAN of id 0 is a tag": {
			all:     []link{dev(2, "eth0"), vlan(2, 3, "prio", q, 0), vlan(3, 4, "in", q, 9)},
			uplinks: []string{"eth0"}, macs: macsOf(2, 3, 4),
			vlans: []VLAN{
				{Name: "prio", Index: 3, Uplink: 2, Ingress: []int{2}, OuterProtocol: q},
				{Name: "in", Index: 4, Uplink: 2, Ingress: []int{2}, OuterProtocol: q, Inner: 9, InnerProtocol: q},
			},
		},
		"of the same tags the direct one is first": {
			all: []link{
				dev(2, "eth0"), on(2, 3, "macvlan", "m"), vlan(3, 4, "m.5", q, 5), vlan(2, 5, "eth0.5", q, 5), vlan(2, 6, "s5", ad, 5),
			},
			uplinks: []string{"eth0"}, macs: macsOf(2, 3, 4, 5, 6),
			vlans: []VLAN{
				{Name: "eth0.5", Index: 5, Uplink: 2, Ingress: []int{2}, Outer: 5, OuterProtocol: q},
				{Name: "s5", Index: 6, Uplink: 2, Ingress: []int{2}, Outer: 5, OuterProtocol: ad},
				{Name: "m.5", Index: 4, Uplink: 2, Ingress: []int{2}, Outer: 5, OuterProtocol: q, indirect: 1},
			},
		},
		"a bond: the program runs on its ports": {
			all: []link{
				portOf(4, dev(2, "eth0")), portOf(4, dev(3, "eth1")), ofKind("bond", dev(4, "bond0")), vlan(4, 5, "bond0.9", q, 9),
			},
			uplinks: []string{"bond0"}, macs: macsOf(4, 2, 3, 5),
			vlans: []VLAN{{Name: "bond0.9", Index: 5, Uplink: 4, Ingress: []int{4, 2, 3}, Outer: 9, OuterProtocol: q}},
		},
		"a port of a bond": {
			all: []link{
				portOf(4, dev(2, "eth0")), portOf(4, dev(3, "eth1")), ofKind("bond", dev(4, "bond0")), vlan(4, 5, "bond0.9", q, 9),
			},
			uplinks: []string{"eth0"}, macs: macsOf(2, 4, 5),
			vlans: []VLAN{{Name: "bond0.9", Index: 5, Uplink: 2, Ingress: []int{2}, Outer: 9, OuterProtocol: q, indirect: 1}},
		},
		"a port of a bridge, by a VLAN; other ports are other boxes": {
			all: []link{
				dev(2, "eth0"), portOf(4, vlan(2, 3, "eth0.9", q, 9)), ofKind("bridge", dev(4, "br0")), portOf(4, ofKind("veth", dev(5, "vm"))),
			},
			uplinks: []string{"eth0"}, macs: macsOf(2, 3, 4),
			vlans: []VLAN{{Name: "eth0.9", Index: 3, Uplink: 2, Ingress: []int{2}, Outer: 9, OuterProtocol: q}},
		},
		"a VRF is no bridge": {
			all:     []link{portOf(3, dev(2, "eth0")), ofKind("vrf", dev(3, "red"))},
			uplinks: []string{"eth0"}, macs: macsOf(2),
		},
		"a circle ends": {
			all:     []link{portOf(3, on(3, 2, "macvlan", "a")), ofKind("bridge", on(2, 3, "bridge", "b"))},
			uplinks: []string{"b", "a", "a"}, macs: macsOf(2, 3),
		},
		"each uplink has its VLANs": {
			all: []link{
				dev(2, "eth0"), dev(3, "eth1"), vlan(3, 4, "eth1.5", q, 5), vlan(2, 5, "eth0.6", q, 6), vlan(2, 6, "eth0.5", q, 5),
			},
			uplinks: []string{"eth1", "eth0"}, macs: macsOf(2, 3, 4, 5, 6),
			vlans: []VLAN{
				{Name: "eth0.5", Index: 6, Uplink: 2, Ingress: []int{2}, Outer: 5, OuterProtocol: q},
				{Name: "eth0.6", Index: 5, Uplink: 2, Ingress: []int{2}, Outer: 6, OuterProtocol: q},
				{Name: "eth1.5", Index: 4, Uplink: 3, Ingress: []int{3}, Outer: 5, OuterProtocol: q},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := findLinks(c.all, c.uplinks)
			check(t, err)
			if want := (LinkInfo{MACs: c.macs, VLANs: c.vlans}); !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

// What the netlink library makes of the kernel's messages. This kernel has no
// VLANs or bonds, so they are put in by hand.
func TestLinkFacts(t *testing.T) {
	all := []netlink.Link{
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 2, Name: "eth0", MasterIndex: 7, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 2}, NetNsID: -1}},
		&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Index: 3, Name: "v", ParentIndex: 2, NetNsID: -1}, VlanId: 4094, VlanProtocol: netlink.VLAN_PROTOCOL_8021AD},
		&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Index: 4, Name: "w", ParentIndex: 2, NetNsID: 0}, VlanId: 1},
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 5, Name: "veth", ParentIndex: 2, NetNsID: -1}},
		&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: 6, Name: "ib", HardwareAddr: make(net.HardwareAddr, 20), NetNsID: -1}, LinkType: "ipoib"},
	}
	want := []link{
		{index: 2, name: "eth0", kind: "device", master: 7, mac: mac(2)},
		{index: 3, name: "v", kind: "vlan", lower: 2, vid: 4094, proto: ad},
		{index: 4, name: "w", kind: "vlan", vid: 1, proto: q},
		{index: 5, name: "veth", kind: "veth"},
		{index: 6, name: "ib", kind: "ipoib"},
	}
	if got := linkFacts(all); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestLinks reads real interfaces, one of them moved to another namespace.
func TestLinks(t *testing.T) {
	other := newNS(t)
	newNS(t)
	up, peer := addVeth(t, "up", "peer", 1500)
	vrrp := addLink(t, macvlan("vrrp", up, net.HardwareAddr{0, 0, 0x5e, 0, 1, 7}))
	port, _ := addVeth(t, "port", "vm", 1500)
	bridge := addLink(t, &netlink.Bridge{LinkAttrs: attrs("br", 1500)})
	check(t, netlink.LinkSetMaster(port, bridge))
	bridge = byName(t, "br")
	away := addLink(t, macvlan("away", up, net.HardwareAddr{2, 0, 0, 0, 0, 1}))
	check(t, netlink.LinkSetNsFd(away, int(other)))

	got, err := Links([]string{"up", "port", "lo"})
	check(t, err)
	want := map[[6]byte]bool{}
	for _, l := range []netlink.Link{up, vrrp, port, bridge} {
		want[[6]byte(l.Attrs().HardwareAddr)] = true
	}
	for _, m := range got.MACs {
		if !want[m] {
			t.Errorf("MAC %x is not ours", m)
		}
		delete(want, m)
	}
	if len(want) > 0 || len(got.VLANs) > 0 {
		t.Errorf("missing %v, VLANs %v", want, got.VLANs)
	}
	if got, err = Links([]string{"peer"}); err != nil || len(got.MACs) != 1 || got.MACs[0] != [6]byte(peer.Attrs().HardwareAddr) {
		t.Errorf("peer: %x, %v", got.MACs, err)
	}
	if _, err := Links([]string{"up", "nosuch"}); err == nil || err.Error() != "find interface nosuch: no such device" {
		t.Errorf("an interface that is not there: %v", err)
	}
}

func macvlan(name string, lower netlink.Link, hw net.HardwareAddr) netlink.Link {
	a := attrs(name, 0)
	a.ParentIndex, a.HardwareAddr = lower.Attrs().Index, hw
	return &netlink.Macvlan{LinkAttrs: a, Mode: netlink.MACVLAN_MODE_BRIDGE}
}
