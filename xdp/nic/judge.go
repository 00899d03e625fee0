package nic

import (
	"fmt"
	"slices"
	"strings"

	"github.com/catchment-dev/edge"
	"golang.org/x/sys/unix"
)

// Judge says what is wrong with an interface, fatal findings first. It is pure.
func Judge(f Facts) []Finding {
	j := judge{Facts: f}
	if j.kind() {
		j.device()
		j.mtu()
		j.port()
		j.vethOffloads()
	}
	slices.SortStableFunc(j.found, func(a, b Finding) int {
		switch {
		case a.Fatal == b.Fatal:
			return 0
		case a.Fatal:
			return -1
		}
		return 1
	})
	return j.found
}

// judge collects findings about one interface.
type judge struct {
	Facts
	found []Finding
}

func (j *judge) fatal(what, remedy string) {
	j.found = append(j.found, Finding{Interface: j.Name, Fatal: true, What: what, Remedy: remedy})
}

func (j *judge) warn(what, remedy string) {
	j.found = append(j.found, Finding{Interface: j.Name, What: what, Remedy: remedy})
}

// native says whether the program is to run in the driver. In generic mode the
// kernel itself switches LRO and hardware GRO off, and any MTU will do.
func (j *judge) native() bool { return j.Mode != edge.XDPGeneric }

// What several findings advise.
const orGeneric = "or node.forwarder.mode: generic, which is slow"

// kind judges what the interface is, and says whether the rest is worth a look.
func (j *judge) kind() bool {
	switch {
	case j.Link != "ether" && j.Link != "loopback":
		j.fatal(fmt.Sprintf("it carries no Ethernet frames (%s, link layer %s)", j.kindName(), j.Link),
			"name an Ethernet interface in node.forwarder.interfaces")
		return false
	case stacked(j.Kind):
		j.stacked()
		return false
	case j.Kind == "bond":
		j.bond()
	}
	return true
}

// kindName says what kind of interface it is.
func (j *judge) kindName() string {
	switch {
	case j.Link == "loopback":
		return "the loopback interface"
	case j.Driver != "" && (j.Kind == "" || j.Kind == "device"):
		return "driver " + j.Driver
	}
	return "kind " + j.Kind
}

// stacked judges a VLAN or a macvlan: its frames come in by the interface below,
// which is where a driver is.
func (j *judge) stacked() {
	what := fmt.Sprintf("it is a %s on top of another interface, without a driver of its own", j.Kind)
	remedy := "attach to the interface below it, which is in another network namespace"
	if j.Lower != "" {
		what = fmt.Sprintf("it is a %s on top of %s, without a driver of its own", j.Kind, j.Lower)
		remedy = fmt.Sprintf("put %s in its place in node.forwarder.interfaces; the program reads VLAN tags itself", j.Lower)
	}
	if j.native() {
		j.fatal(what, remedy)
		return
	}
	j.warn(what, remedy)
}

// bond judges a bond as such, and the ports on which the program runs.
func (j *judge) bond() {
	b := j.Bond
	if b == nil {
		return
	}
	if j.native() {
		j.bondItself(b)
	}
	for _, port := range b.Ports {
		port.Mode, port.Overhead = j.Mode, j.Overhead
		p := judge{Facts: port}
		p.device()
		j.found = append(j.found, p.found...)
	}
}

// bondItself judges what the kernel asks of a bond (bond_xdp_check).
func (j *judge) bondItself(b *Bond) {
	switch major, minor := j.Kernel[0], j.Kernel[1]; {
	case major != 0 && (major < 5 || major == 5 && minor < 15):
		j.fatal(fmt.Sprintf("Linux %d.%d runs no native XDP on a bond; 5.15 is the first", major, minor),
			"a newer kernel, "+orGeneric)
	case slices.Contains([]string{"balance-tlb", "balance-alb", "broadcast"}, b.Mode):
		j.fatal(fmt.Sprintf("a bond of mode %s runs no native XDP", b.Mode),
			"make it of mode 802.3ad, active-backup, balance-xor or balance-rr, "+orGeneric)
	case b.HashPolicy == "vlan+srcmac" && (b.Mode == "802.3ad" || b.Mode == "balance-xor"):
		j.fatal("a bond with xmit_hash_policy vlan+srcmac runs no native XDP",
			fmt.Sprintf("ip link set %s type bond xmit_hash_policy layer3+4", j.Name))
	case len(b.Ports) == 0:
		j.fatal("it is a bond without ports", fmt.Sprintf("ip link set PORT master %s", j.Name))
	}
}

// device judges what concerns the driver; of a bond, that is its ports'.
func (j *judge) device() {
	if !j.Up {
		j.warn("it is down", fmt.Sprintf("ip link set %s up", j.Name))
	}
	if j.Kind == "bond" {
		return
	}
	j.stripping()
	if j.native() && j.driver() {
		j.coalescing()
		j.channels()
		j.mtuLimit()
	}
}

// driver judges whether there is native XDP, and says no if not.
func (j *judge) driver() bool {
	switch {
	case j.XDP == nil: // an old kernel: the attachment will tell
	case *j.XDP&xdpBasic == 0 && j.Kind == "bridge":
		j.fatal("it is a bridge, which runs no native XDP", "attach to its uplink port, "+orGeneric)
		return false
	case *j.XDP&xdpBasic == 0:
		j.fatal(fmt.Sprintf("it has no native XDP (%s)", j.kindName()), "use an interface whose driver has it, "+orGeneric)
		return false
	case *j.XDP&xdpRedirect == 0:
		j.warn(fmt.Sprintf("it cannot redirect in native mode (%s): what is routed out of another interface is lost", j.kindName()),
			"let this be the only uplink, "+orGeneric)
	}
	return true
}

// coalescing judges what puts several packets into one before the program sees
// them. Drivers refuse to run it then, or its lengths would be lies.
func (j *judge) coalescing() {
	for _, c := range []struct{ feature, name, flag string }{
		{"rx-lro", "LRO", "lro"},
		{"rx-gro-hw", "hardware GRO", "rx-gro-hw"},
	} {
		on, ok := j.Features[c.feature]
		switch {
		case !ok:
		case on.Fixed && j.Driver == "virtio_net":
			// Without this feature virtio_net cannot switch it off (virtnet_xdp_set).
			j.fatal(fmt.Sprintf("%s is on, and the hypervisor does not let it be switched off", c.name),
				"have the hypervisor offer ctrl_guest_offloads, or switch off its guest_tso4, guest_tso6, guest_ecn, guest_ufo "+
					"and guest_csum for this device, "+orGeneric)
		case on.Fixed:
			j.fatal(fmt.Sprintf("%s is on and cannot be switched off", c.name), "use another interface, "+orGeneric)
		case j.Driver == "virtio_net": // it does it itself, for as long as a program is attached
		default:
			s, command := j.off(c.feature, c.flag)
			j.fatal(fmt.Sprintf("%s is on: packets would reach the program merged", c.name), command)
			j.with(s)
		}
	}
}

// stripping judges whether the VLAN tags are still on the frames that the
// program sees: it knows by them what to do with the packet, in either mode.
func (j *judge) stripping() {
	for _, s := range []struct {
		proto         uint16
		feature, flag string
	}{
		{unix.ETH_P_8021Q, "rx-vlan-hw-parse", "rxvlan"},
		{unix.ETH_P_8021AD, "rx-vlan-stag-hw-parse", "rx-vlan-stag-hw-parse"},
	} {
		on, ok := j.Features[s.feature]
		var names []string
		for _, v := range j.VLANs {
			if v.OuterProtocol == s.proto {
				names = append(names, v.Name)
			}
		}
		what := fmt.Sprintf("it takes the VLAN tags off before the program sees them, and has VLAN sub-interfaces (%s)",
			strings.Join(names, ", "))
		switch {
		case !ok || len(names) == 0:
		case j.Kind == "veth":
			// A veth hands over what the sender's stack has left beside the frame,
			// whatever its own settings.
			j.warn("its peer sends VLAN tags beside the frame, where the program does not see them",
				fmt.Sprintf("ethtool -K %s txvlan off", j.peer()))
		case on.Fixed:
			j.fatal(what, "it cannot leave them on: use another interface")
		default:
			set, command := j.off(s.feature, s.flag)
			j.fatal(what, command)
			j.with(set)
		}
	}
}

// peer is how to call the other end of a veth in a command.
func (j *judge) peer() string {
	if j.Peer == "" {
		return "PEER"
	}
	return j.Peer
}

// port judges an interface that is part of another one.
func (j *judge) port() {
	switch {
	case j.Master == "":
	case j.MasterKind == "bridge" && j.native():
		j.warn(fmt.Sprintf("it is a port of bridge %s: native XDP cannot send out of a bridge, so packets that are routed there are lost", j.Master),
			fmt.Sprintf("move the addresses from %s to %s: ip link set %s nomaster, %s", j.Master, j.Name, j.Name, orGeneric))
	case j.MasterKind != "bridge":
		j.warn(fmt.Sprintf("it is a port of %s %s: packets that come in by the other ports do not meet the program", j.MasterKind, j.Master),
			fmt.Sprintf("put %s in its place in node.forwarder.interfaces", j.Master))
	}
}

// mtu judges whether encapsulation leaves room for what IPv6 promises.
func (j *judge) mtu() {
	const least = 1280 // RFC 8200 section 5
	if j.MTU == 0 || j.MTU-j.Overhead >= least {
		return
	}
	j.warn(fmt.Sprintf("its MTU of %d leaves %d bytes for a packet in its tunnel, and IPv6 needs %d", j.MTU, j.MTU-j.Overhead, least),
		fmt.Sprintf("ip link set %s mtu %d", j.Name, least+j.Overhead))
}

// vethOffloads judges the offloads of which nothing in a veth ever takes care:
// a checksum that is still to be filled in is wrong once it is encapsulated
// (DESIGN section 5).
func (j *judge) vethOffloads() {
	if j.Kind != "veth" {
		return
	}
	var on []string
	for _, o := range []struct {
		flag     string
		features []string
	}{
		{"tx", []string{"tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"}},
		{"tso", []string{"tx-tcp-segmentation", "tx-tcp6-segmentation"}},
		{"gso", []string{"tx-generic-segmentation"}},
	} {
		if slices.ContainsFunc(o.features, func(name string) bool { _, ok := j.Features[name]; return ok }) {
			on = append(on, o.flag)
		}
	}
	if len(on) == 0 {
		return
	}
	j.warn(fmt.Sprintf("it is a veth with transmit offloads (%s): what is sent over it has no checksum yet, and is not cut to the MTU", strings.Join(on, ", ")),
		fmt.Sprintf("ethtool -K %s %s off, and the same for %s", j.Name, strings.Join(on, " off "), j.peer()))
}
