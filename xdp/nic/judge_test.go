package nic

import (
	"fmt"
	"strings"
	"testing"

	"github.com/catchment-dev/edge"
)

// good is an uplink that nothing is wrong with.
func good() Facts {
	can := xdpBasic | xdpRedirect
	return Facts{
		Name: "eth0", Mode: edge.XDPNative, Overhead: 56, Kind: "device", Driver: "ice", Link: "ether", Up: true, MTU: 1500,
		XDP: &can, Features: map[string]Feature{"rx-checksum": {}, "rx-vlan-hw-parse": {}, "tx-checksum-ip-generic": {}},
		Channels:     Channels{Combined: 8, MaxCombined: 16},
		PossibleCPUs: 8, OnlineCPUs: 8, Kernel: [2]int{6, 1}, PageSize: 4096,
	}
}

func features(names ...string) map[string]Feature {
	out := map[string]Feature{}
	for _, n := range names {
		name, fixed := strings.CutSuffix(n, " [fixed]")
		out[name] = Feature{Fixed: fixed}
	}
	return out
}

// with is a change of an uplink, and what is said of it then: the beginning of
// each line is "fatal" or "warn", then parts of the finding in their order.
type with struct {
	name   string
	change func(*Facts)
	want   []string
}

func virtio(f *Facts) {
	f.Driver, f.Channels = "virtio_net", Channels{Combined: 8, MaxCombined: 16}
}

func driver(name string, c Channels) func(*Facts) {
	return func(f *Facts) { f.Driver, f.Channels = name, c }
}

func virtual(kind string) func(*Facts) {
	return func(f *Facts) { f.Kind, f.Driver, f.Channels, f.XDP = kind, kind, Channels{}, new(XDPFeatures) }
}

// all does one change after the other.
func all(changes ...func(*Facts)) func(*Facts) {
	return func(f *Facts) {
		for _, c := range changes {
			c(f)
		}
	}
}

func generic(f *Facts)       { f.Mode = edge.XDPGeneric }
func oldKernel(f *Facts)     { f.XDP, f.Kernel = nil, [2]int{5, 15} }
func attached(f *Facts)      { f.Attached = true }
func mtu(n int) func(*Facts) { return func(f *Facts) { f.MTU = n } }

func cpus(n int) func(*Facts) { return func(f *Facts) { f.PossibleCPUs, f.OnlineCPUs = n, n } }

func offloadsOn(names ...string) func(*Facts) {
	return func(f *Facts) { f.Features = features(names...) }
}

func vlans(list ...VLAN) func(*Facts) { return func(f *Facts) { f.VLANs = list } }

func bond(mode, policy string, ports ...Facts) func(*Facts) {
	return func(f *Facts) {
		virtual("bond")(f)
		f.Driver, f.Bond = "bonding", &Bond{Mode: mode, HashPolicy: policy, Ports: ports}
	}
}

func port(change func(*Facts)) Facts {
	f := good()
	f.Name, f.Master, f.MasterKind = "eth1", "bond0", "bond"
	change(&f)
	return f
}

func nothing(*Facts) {}

func kinds() []with {
	five := VLAN{Name: "eth0.5", OuterProtocol: q, Outer: 5}
	return []with{
		{"nothing", nothing, nil},
		{"nothing, generic", generic, nil},
		{"an old kernel says nothing of XDP", oldKernel, nil},
		{"tun", all(virtual("tuntap"), func(f *Facts) { f.Link = "none" }), []string{"fatal no Ethernet|kind tuntap|node.forwarder.interfaces"}},
		{"tun, generic", all(generic, virtual("tuntap"), func(f *Facts) { f.Link = "none" }), []string{"fatal no Ethernet"}},
		{"lo", func(f *Facts) { f.Link, f.Driver, f.XDP = "loopback", "", new(XDPFeatures) }, []string{"fatal no native XDP (the loopback interface)|mode: generic"}},
		{"lo, generic", all(generic, func(f *Facts) { f.Link = "loopback"; f.MTU = 65536 }), nil},
		{"vlan", all(virtual("vlan"), func(f *Facts) { f.Lower = "eth9" }), []string{"fatal is a vlan on top of eth9|put eth9 in its place"}},
		{"vlan, generic", all(generic, virtual("vlan"), func(f *Facts) { f.Lower = "eth9" }), []string{"warn put eth9 in its place"}},
		{"macvlan, parent elsewhere", virtual("macvlan"), []string{"fatal is a macvlan|in another network namespace"}},
		{"bridge", virtual("bridge"), []string{"fatal a bridge, which runs no native XDP"}},
		{"bridge, generic", all(generic, virtual("bridge")), nil},
		{"no driver support", func(f *Facts) { f.XDP, f.Driver = new(XDPFeatures), "e1000" }, []string{"fatal no native XDP (driver e1000)|mode: generic"}},
		{"no driver support, generic", all(generic, func(f *Facts) { f.XDP = new(XDPFeatures) }), nil},
		{"no redirect", func(f *Facts) { b := xdpBasic; f.XDP = &b }, []string{"warn cannot redirect|only uplink"}},
		{"down", func(f *Facts) { f.Up = false }, []string{"warn is down|ip link set eth0 up"}},
		{"port of a bridge", func(f *Facts) { f.Master, f.MasterKind = "br0", "bridge" }, []string{"warn port of bridge br0|nomaster"}},
		{"port of a bridge, generic", all(generic, func(f *Facts) { f.Master, f.MasterKind = "br0", "bridge" }), nil},
		{"port of a bond", func(f *Facts) { f.Master, f.MasterKind = "bond0", "bond" }, []string{"warn port of bond bond0|put bond0 in its place"}},

		{"bond", bond("802.3ad", "layer3+4", port(nothing)), nil},
		{"bond of 5.14", all(bond("802.3ad", "layer3+4", port(nothing)), func(f *Facts) { f.Kernel = [2]int{5, 14} }), []string{"fatal Linux 5.14|5.15"}},
		{"bond of 5.15", all(bond("active-backup", "", port(nothing)), oldKernel), nil},
		{"bond, tlb", bond("balance-tlb", "", port(nothing)), []string{"fatal mode balance-tlb|802.3ad"}},
		{"bond, policy", bond("balance-xor", "vlan+srcmac", port(nothing)), []string{"fatal vlan+srcmac|ip link set eth0 type bond xmit_hash_policy layer3+4"}},
		{"bond, policy of no matter", bond("active-backup", "vlan+srcmac", port(nothing)), nil},
		{"bond, empty", bond("802.3ad", ""), []string{"fatal without ports|ip link set PORT master eth0"}},
		{"bond, a bad port", bond("802.3ad", "", port(offloadsOn("rx-lro")), port(nothing)), []string{"fatal eth1: LRO is on|ethtool -K eth1 lro off"}},
		{"bond, generic", all(generic, bond("balance-tlb", "", port(offloadsOn("rx-lro")))), nil},
		{"bond, stripping port, generic", all(generic, bond("balance-tlb", "", port(all(offloadsOn("rx-vlan-hw-parse"), vlans(five))))), []string{"fatal ethtool -K eth1 rxvlan off"}},
	}
}

func offloads() []with {
	five, s := VLAN{Name: "eth0.5", OuterProtocol: q, Outer: 5}, VLAN{Name: "s", OuterProtocol: ad, Outer: 9}
	veth := all(virtual("veth"), func(f *Facts) { *f.XDP = xdpBasic | xdpRedirect; f.PeerMTU = 1500 })
	return []with{
		{"LRO", offloadsOn("rx-lro"), []string{"fatal LRO is on|ethtool -K eth0 lro off"}},
		{"hardware GRO", offloadsOn("rx-gro-hw"), []string{"fatal hardware GRO is on|ethtool -K eth0 rx-gro-hw off"}},
		{"both", offloadsOn("rx-gro-hw", "rx-lro"), []string{"fatal LRO", "fatal hardware GRO"}},
		{"LRO, fixed", offloadsOn("rx-lro [fixed]"), []string{"fatal cannot be switched off|mode: generic"}},
		{"LRO, generic", all(generic, offloadsOn("rx-lro", "rx-gro-hw")), nil},
		{"software GRO", offloadsOn("rx-gro"), nil},
		{"virtio that switches it off itself", all(virtio, offloadsOn("rx-gro-hw")), nil},
		{"virtio that cannot", all(virtio, offloadsOn("rx-gro-hw [fixed]")), []string{"fatal hypervisor|ctrl_guest_offloads"}},

		{"stripping", all(offloadsOn("rx-vlan-hw-parse"), vlans(five)), []string{"fatal takes the VLAN tags off|(eth0.5)|ethtool -K eth0 rxvlan off"}},
		{"stripping, generic", all(generic, offloadsOn("rx-vlan-hw-parse"), vlans(five)), []string{"fatal rxvlan off"}},
		{"stripping of nothing", all(offloadsOn(), vlans(five, s)), nil},
		{"stripping what is not there", all(offloadsOn("rx-vlan-stag-hw-parse"), vlans(five)), nil},
		{"stripping of the outer tag", all(offloadsOn("rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"), vlans(s)), []string{"fatal (s)|ethtool -K eth0 rx-vlan-stag-hw-parse off"}},
		{"stripping, fixed", all(offloadsOn("rx-vlan-hw-parse [fixed]"), vlans(five)), []string{"fatal cannot leave them on"}},
		{"stripping veth", all(veth, offloadsOn("rx-vlan-hw-parse"), vlans(five), func(f *Facts) { f.Peer = "up" }), []string{"warn ethtool -K up txvlan off"}},

		{"veth", veth, []string{"warn (tx)|ethtool -K eth0 tx off, and the same for PEER"}},
		{"veth, all", all(veth, offloadsOn("tx-checksum-ip-generic", "tx-tcp6-segmentation", "tx-generic-segmentation"), func(f *Facts) { f.Peer = "up" }),
			[]string{"warn (tx, tso, gso)|ethtool -K eth0 tx off tso off gso off, and the same for up"}},
		{"veth, none", all(veth, offloadsOn("tx-checksum-sctp")), nil},
	}
}

func mtus() []with {
	veth := func(own, peer int, name string) func(*Facts) {
		return func(f *Facts) {
			virtual("veth")(f)
			*f.XDP, f.MTU, f.PeerMTU, f.Peer, f.Features = xdpBasic|xdpRedirect, own, peer, name, nil
		}
	}
	cases := []with{
		{"tiny", mtu(1335), []string{"warn leaves 1279 bytes|ip link set eth0 mtu 1336"}},
		{"just enough", mtu(1336), nil},
		{"tiny, generic", all(generic, mtu(1280)), []string{"warn leaves 1224 bytes"}},
		{"huge, generic", all(generic, mtu(9000)), nil},
		{"unknown driver", all(driver("stmmac", Channels{}), mtu(9000)), []string{"warn its MTU, 9000, may be|ip link set eth0 mtu 3498"}},
		{"unknown driver, enough", all(driver("stmmac", Channels{}), mtu(3498)), nil},
		{"gve", all(driver("gve", Channels{}), mtu(2033)), []string{"warn mtu 2032"}},
		{"other pages", all(mtu(9000), func(f *Facts) { f.PageSize = 65536 }), nil},
		{"large and no XDP", all(mtu(9000), func(f *Facts) { f.XDP = new(XDPFeatures) }), []string{"fatal no native XDP"}},
		{"veth, own", veth(9000, 1500, "up"), nil},
		{"veth, peer", veth(1500, 3507, "up"), []string{"fatal the MTU of its peer up, 3507|ip link set up mtu 3506"}},
		{"veth, peer elsewhere", veth(3507, 0, ""), []string{"warn its MTU, 3507|ip link set eth0 mtu 3506"}},
	}
	for name, limit := range map[string]int{
		"virtio_net": 3506, "mana": 3506, "bnxt_en": 3502, "mlx4_en": 3498, "mlx5_core": 3498, "ena": 3498,
		"i40e": 3046, "ice": 3046, "ixgbe": 3046, "ixgbevf": 3046, "igb": 3046, "igc": 1500,
	} {
		cases = append(cases,
			with{name + " limit", all(driver(name, Channels{}), mtu(limit)), nil},
			with{name + " over", all(driver(name, Channels{}), mtu(limit+1)),
				[]string{fmt.Sprintf("fatal its MTU, %d, is too large|%s takes %d|ip link set eth0 mtu %d", limit+1, name, limit, limit)}})
	}
	return cases
}

func queues() []with {
	combined := func(n, most int) Channels { return Channels{Combined: n, MaxCombined: most} }
	split := func(rx, tx, maxRX, maxTX int) Channels { return Channels{RX: rx, TX: tx, MaxRX: maxRX, MaxTX: maxTX} }
	return []with{
		{"virtio, enough", driver("virtio_net", combined(8, 16)), nil},
		{"virtio, too many in use", driver("virtio_net", combined(9, 16)), []string{"warn share them under a lock|ethtool -L eth0 combined 8"}},
		{"virtio, never enough", driver("virtio_net", combined(4, 8)), []string{"warn give the virtual machine 9 queues"}},
		{"virtio, attached", all(attached, driver("virtio_net", combined(16, 16))), nil},
		{"virtio, attached, locked", all(attached, driver("virtio_net", combined(8, 8))), []string{"warn share them"}},
		{"virtio, says nothing", driver("virtio_net", Channels{}), nil},
		{"virtio, generic", all(generic, driver("virtio_net", combined(4, 4))), nil},
		{"ixgbe", driver("ixgbe", combined(8, 63)), nil},
		{"ixgbe, full", driver("ixgbe", combined(60, 63)), []string{"warn known to hang|ethtool -L eth0 combined 55"}},
		{"ixgbe, as many CPUs as queues", all(cpus(63), driver("ixgbe", combined(63, 63))), nil},
		{"ixgbe, 64 CPUs", all(cpus(64), driver("ixgbe", combined(8, 63))), nil},
		{"ixgbe, 128 CPUs", all(cpus(128), driver("ixgbe", combined(8, 63))), []string{"warn room for 128"}},
		{"ixgbe, 65 CPUs", all(cpus(65), driver("ixgbe", combined(63, 63))), []string{"warn 64 queues|nr_cpus=64"}},
		{"ixgbe, 129 CPUs", all(cpus(129), driver("ixgbe", combined(8, 63))), []string{"fatal at most 128 CPUs|nr_cpus=128"}},
		{"ena", driver("ena", combined(4, 8)), nil},
		{"ena, full", driver("ena", combined(8, 8)), []string{"fatal 8 of its 8 queues|ethtool -L eth0 combined 4"}},
		{"ena, odd", driver("ena", combined(3, 5)), []string{"fatal ethtool -L eth0 combined 2"}},
		{"ena, single", driver("ena", combined(1, 1)), []string{"fatal single queue|larger instance"}},
		{"gve", driver("gve", split(4, 4, 8, 8)), nil},
		{"gve, full", driver("gve", split(8, 8, 8, 8)), []string{"fatal ethtool -L eth0 rx 4 tx 4"}},
		{"gve, uneven", driver("gve", split(2, 4, 3, 8)), []string{"fatal ethtool -L eth0 rx 3 tx 3"}},
		{"gve, single", driver("gve", split(1, 1, 1, 1)), []string{"fatal larger machine"}},
		{"bnxt", driver("bnxt_en", combined(8, 16)), nil},
		{"bnxt, split", driver("bnxt_en", Channels{RX: 8, TX: 8, MaxCombined: 4}), []string{"fatal ethtool -L eth0 rx 0 tx 0 combined 4"}},
		{"i40e", driver("i40e", combined(8, 16)), nil},
		{"i40e, fewer", driver("i40e", combined(4, 16)), []string{"warn 4 queues for 8 CPUs|ethtool -L eth0 combined 8"}},
		{"i40e, fewer, and just enough", driver("i40e", combined(4, 8)), []string{"warn ethtool -L eth0 combined 8"}},
		{"mlx5, fewer and no more", driver("mlx5_core", combined(4, 7)), []string{"warn driver mlx5_core drops|CPUs 0 to 3"}},
		{"mlx5, CPUs that do not run", all(func(f *Facts) { f.PossibleCPUs = 240 }, driver("mlx5_core", combined(8, 8))), nil},
	}
}

func TestJudge(t *testing.T) {
	for group, cases := range map[string][]with{"kinds": kinds(), "offloads": offloads(), "mtus": mtus(), "queues": queues()} {
		for _, c := range cases {
			t.Run(group+"/"+c.name, func(t *testing.T) {
				f := good()
				c.change(&f)
				judged(t, Judge(f), c.want)
			})
		}
	}
}

// judged compares findings with what is wanted of them.
func judged(t *testing.T, got []Finding, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d findings, want %q:\n%v", len(got), want, got)
	}
	for i, f := range got {
		level, parts, _ := strings.Cut(want[i], " ")
		if f.Fatal != (level == "fatal") {
			t.Errorf("fatal is %v, want %s: %s", f.Fatal, level, f)
		}
		rest := f.String()
		for part := range strings.SplitSeq(parts, "|") {
			_, after, ok := strings.Cut(rest, part)
			if !ok {
				t.Errorf("%q is not where it should be in %q", part, f)
			}
			rest = after
		}
	}
}

func TestFatalFirst(t *testing.T) {
	f := good()
	f.Up, f.Features = false, features("rx-lro")
	found := Judge(f)
	if len(found) != 2 || !found[0].Fatal || found[1].Fatal {
		t.Fatalf("%v", found)
	}
	if err := Fatal(found); err == nil || err.Error() != "interface eth0: LRO is on: packets would reach the program merged: ethtool -K eth0 lro off" {
		t.Error(err)
	}
	if err := Fatal(found[1:]); err != nil {
		t.Error(err)
	}
	if err := Fatal([]Finding{found[0], found[0]}); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Error(err)
	}
}

// The zero facts, of which the kernel told nothing, must not be held against
// an interface, apart from what cannot be unknown.
func TestJudgeZeroFacts(t *testing.T) {
	judged(t, Judge(Facts{Name: "eth0", Link: "ether", Up: true}), nil)
}

func TestParseRelease(t *testing.T) {
	for s, want := range map[string][2]int{
		"6.18.44-fc-v769": {6, 18}, "5.15": {5, 15}, "6.1.0-17-amd64": {6, 1}, "6.18-rc1": {6, 18}, "7.0+": {7, 0},
	} {
		if got, err := parseRelease(s); err != nil || got != want {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "6", "6.", "x.1", ".5", "6.x"} {
		if got, err := parseRelease(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

func TestCountCPUs(t *testing.T) {
	for s, want := range map[string]int{"0": 1, "0-1": 2, "0-3,8,10-11": 7} {
		if got, err := countCPUs(s); err != nil || got != want {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "a", "3-1", "0-", "0,,1", "-1"} {
		if got, err := countCPUs(s); err == nil {
			t.Errorf("%q: %d", s, got)
		}
	}
}
