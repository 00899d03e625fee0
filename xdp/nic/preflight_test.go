package nic

import (
	"errors"
	"strings"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	xdplink "github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// passProgram takes no fragments, as ours.
func passProgram(t *testing.T) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	check(t, err)
	t.Cleanup(func() { prog.Close() })
	return prog
}

func attach(t *testing.T, prog *ebpf.Program, ifname string, mode edge.XDPMode) (xdplink.Link, error) {
	t.Helper()
	flags := xdplink.XDPDriverMode
	if mode == edge.XDPGeneric {
		flags = xdplink.XDPGenericMode
	}
	return xdplink.AttachXDP(xdplink.XDPOptions{Program: prog, Interface: byName(t, ifname).Attrs().Index, Flags: flags})
}

// TestPreflightAgreesWithKernel: what is fatal is what the kernel refuses.
func TestPreflightAgreesWithKernel(t *testing.T) {
	newNS(t)
	up, _ := addVeth(t, "veth", "peer", 1500)
	addVeth(t, "fits", "fits-peer", 3506)
	addVeth(t, "jumbo", "jumbo-peer", 3507)
	uneven, _ := addVeth(t, "uneven", "uneven-peer", 1500) // only what the peer sends counts
	check(t, netlink.LinkSetMTU(uneven, 9000))
	addLink(t, macvlan("macvlan", up, nil))
	addLink(t, &netlink.Bridge{LinkAttrs: attrs("bridge", 1500)})
	addLink(t, &netlink.Tuntap{LinkAttrs: attrs("tap", 0), Mode: netlink.TUNTAP_MODE_TAP})
	addLink(t, &netlink.Tuntap{LinkAttrs: attrs("tun", 0), Mode: netlink.TUNTAP_MODE_TUN})
	addLink(t, &netlink.Vxlan{LinkAttrs: attrs("vxlan", 0), VxlanId: 1, Port: 4789})
	prog := passProgram(t)
	for _, c := range []struct {
		name string
		mode edge.XDPMode
		says string // of a fatal finding
	}{
		{"veth", edge.XDPNative, ""},
		{"fits", edge.XDPNative, ""},
		{"jumbo", edge.XDPNative, "the MTU of its peer jumbo-peer, 3507, is too large"},
		{"jumbo", edge.XDPGeneric, ""},
		{"uneven", edge.XDPNative, ""},
		{"uneven-peer", edge.XDPNative, "ip link set uneven mtu 3506"},
		{"lo", edge.XDPNative, "no native XDP (the loopback interface)"},
		{"lo", edge.XDPGeneric, ""},
		{"macvlan", edge.XDPNative, "put veth in its place"},
		{"macvlan", edge.XDPGeneric, ""},
		{"bridge", edge.XDPNative, "it is a bridge"},
		{"bridge", edge.XDPGeneric, ""},
		{"tap", edge.XDPNative, ""},
		{"vxlan", edge.XDPNative, "no native XDP (kind vxlan)"},
	} {
		found, err := Preflight(c.name, c.mode, 56)
		check(t, err)
		fatal := Fatal(found)
		l, refused := attach(t, prog, c.name, c.mode)
		if refused == nil {
			check(t, l.Close())
		}
		if (fatal == nil) != (refused == nil) || (fatal == nil) != (c.says == "") {
			t.Errorf("%s, %s: preflight says %v, the kernel %v", c.name, c.mode, fatal, refused)
		}
		if fatal != nil && !strings.Contains(fatal.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, fatal, c.says)
		}
	}
	// The kernel would run a program on this one, but ours needs Ethernet headers.
	found, err := Preflight("tun", edge.XDPGeneric, 56)
	if err != nil || Fatal(found) == nil || !strings.Contains(Fatal(found).Error(), "no Ethernet frames") {
		t.Errorf("tun: %v, %v", found, err)
	}
}

// The commands that are advised for a veth leave nothing to advise.
func TestPreflightVeth(t *testing.T) {
	newNS(t)
	up, peer := addVeth(t, "up", "peer", 1500)
	found, err := Preflight("up", edge.XDPNative, 56)
	check(t, err)
	judged(t, found, []string{"warn is down", "warn (tx, tso, gso)|ethtool -K up tx off tso off gso off, and the same for peer"})
	check(t, netlink.LinkSetUp(up))
	check(t, netlink.LinkSetUp(peer))
	eth, err := ethtool.NewEthtool()
	check(t, err)
	defer eth.Close()
	check(t, eth.Change("up", map[string]bool{
		"tx-checksum-ip-generic": false, "tx-tcp-segmentation": false, "tx-tcp6-segmentation": false, "tx-generic-segmentation": false,
	}))
	found, err = Preflight("up", edge.XDPNative, 56)
	check(t, err)
	judged(t, found, nil)
	bridge := addLink(t, &netlink.Bridge{LinkAttrs: attrs("br0", 1500)})
	check(t, netlink.LinkSetMaster(up, bridge))
	check(t, netlink.LinkSetMTU(up, 1300))
	found, err = Preflight("up", edge.XDPNative, 56)
	check(t, err)
	judged(t, found, []string{"warn leaves 1244 bytes|ip link set up mtu 1336", "warn port of bridge br0"})
}

// TestGather: facts of which no finding above speaks.
func TestGather(t *testing.T) {
	other := newNS(t)
	newNS(t)
	up, peer := addVeth(t, "up", "peer", 1400)
	f, err := Gather("up")
	check(t, err)
	if f.Kind != "veth" || f.Driver != "veth" || f.Link != "ether" || f.Peer != "peer" || f.PeerMTU != 1400 || f.Attached || f.XDP == nil {
		t.Errorf("%+v", f)
	}
	if f.PossibleCPUs < f.OnlineCPUs || f.OnlineCPUs < 1 || f.Kernel[0] < 5 || f.PageSize < 4096 {
		t.Errorf("%+v", f)
	}
	if f.Channels.RX != 1 || f.Channels.MaxRX < 1 || len(f.Features) == 0 || f.Features["rx-vlan-hw-parse"].Fixed {
		t.Errorf("%+v", f)
	}
	l, err := attach(t, passProgram(t), "up", edge.XDPNative)
	check(t, err)
	defer l.Close()
	check(t, netlink.LinkSetNsFd(peer, int(other)))
	if f, err = Gather("up"); err != nil || !f.Attached || f.Peer != "" || f.PeerMTU != 0 {
		t.Errorf("%+v, %v", f, err)
	}
	// The index of the peer is now one of the other namespace: it must not be
	// taken for an interface of this one.
	same := addLink(t, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "same", Index: peer.Attrs().Index, MTU: 1500, NetNsID: -1}})
	if same.Attrs().Index != peer.Attrs().Index {
		t.Fatalf("the bridge has index %d, not %d", same.Attrs().Index, peer.Attrs().Index)
	}
	if f, err = Gather("up"); err != nil || f.Peer != "" {
		t.Errorf("peer %q, %v", f.Peer, err)
	}
	if _, err := Gather("nosuch"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("an interface that is not there: %v", err)
	}
	if _, err := Preflight("nosuch", edge.XDPNative, 0); err == nil || err.Error() != "find interface nosuch: no such device" {
		t.Errorf("an interface that is not there: %v", err)
	}
	check(t, netlink.LinkAddAltName(up, "another-name-of-this-uplink"))
	if f, err = Gather("another-name-of-this-uplink"); err != nil || f.Name != "up" {
		t.Errorf("by another name: %q, %v", f.Name, err)
	}
	if _, err := Links([]string{"another-name-of-this-uplink"}); err != nil {
		t.Errorf("by another name: %v", err)
	}
}

// This kernel has neither bonds nor VLANs: a bridge plays the bond, and the VLAN
// is only in the list.
func TestGatherBond(t *testing.T) {
	newNS(t)
	bridge := addLink(t, &netlink.Bridge{LinkAttrs: attrs("bond0", 1500)})
	up, _ := addVeth(t, "eth0", "peer", 1500)
	check(t, netlink.LinkSetMaster(up, bridge))
	all, err := ownLinks()
	check(t, err)
	bond := &netlink.Bond{LinkAttrs: *bridge.Attrs(), Mode: netlink.BOND_MODE_802_3AD, XmitHashPolicy: netlink.BOND_XMIT_HASH_POLICY_VLAN_SRCMAC}
	for i, l := range all {
		if l.Attrs().Name == "bond0" {
			all[i] = bond
		}
	}
	all = append(all, &netlink.Vlan{
		LinkAttrs: netlink.LinkAttrs{Index: 99, Name: "bond0.9", ParentIndex: bond.Index, NetNsID: -1}, VlanId: 9, VlanProtocol: q,
	})
	eth, err := ethtool.NewEthtool()
	check(t, err)
	defer eth.Close()
	f, err := gatherer{all: all, eth: eth}.interfaceFacts(bond)
	check(t, err)
	if f.Bond == nil || f.Bond.Mode != "802.3ad" || f.Bond.HashPolicy != "vlan+srcmac" || len(f.Bond.Ports) != 1 {
		t.Fatalf("%+v", f)
	}
	p := f.Bond.Ports[0]
	if p.Name != "eth0" || p.Master != "bond0" || p.MasterKind != "bond" || p.Peer != "peer" {
		t.Errorf("%+v", p)
	}
	for _, v := range [][]VLAN{f.VLANs, p.VLANs} {
		if len(v) != 1 || v[0].Name != "bond0.9" || v[0].Outer != 9 {
			t.Errorf("VLANs %+v", v)
		}
	}
	// The words that Judge knows are the library's, which are the kernel's.
	for mode, want := range map[netlink.BondMode]string{
		netlink.BOND_MODE_BALANCE_TLB: "balance-tlb", netlink.BOND_MODE_BALANCE_ALB: "balance-alb",
		netlink.BOND_MODE_BROADCAST: "broadcast", netlink.BOND_MODE_BALANCE_XOR: "balance-xor",
	} {
		if mode.String() != want {
			t.Errorf("mode %q, want %q", mode, want)
		}
	}
}
