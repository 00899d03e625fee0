package setup

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// checkNetwork judges the files of systemd-networkd in t. networkd itself only
// warns in its log, of a box that cannot be reached then.
func checkNetwork(t Tree) (problems Problems) {
	some := false
	for _, name := range t.under("network") {
		some = some || path.Ext(name) == ".network"
		problems = append(problems, checkNetworkFile(name, t[name])...)
	}
	if !some {
		problems.at("network", "add one, such as network/10-uplink.network with [Match] Name=eth0 and [Network] Address=, Gateway=", "there is no file *.network: the box would have no address")
	}
	return problems
}

// sections are those of systemd 257 that each kind of file must or may have.
// Others are a typing error, and networkd would leave out what is under them.
func sections(ext string) (need []string, may []string) {
	switch ext {
	case ".network":
		return []string{"Match"}, strings.Fields("Link SR-IOV Network Address Neighbor IPv6AddressLabel RoutingPolicyRule NextHop Route DHCP DHCPv4 DHCPv6 DHCPPrefixDelegation IPv6AcceptRA DHCPServer DHCPServerStaticLease IPv6SendRA IPv6Prefix IPv6RoutePrefix IPv6PREF64Prefix Bridge BridgeFDB BridgeMDB LLDP CAN IPoIB QDisc NetworkEmulator TokenBucketFilter PIE FlowQueuePIE StochasticFairBlue StochasticFairnessQueueing BFIFO PFIFO PFIFOHeadDrop PFIFOFast CAKE ControlledDelay DeficitRoundRobinScheduler DeficitRoundRobinSchedulerClass EnhancedTransmissionSelection GenericRandomEarlyDetection FairQueueingControlledDelay FairQueueing TrivialLinkEqualizer HierarchyTokenBucket HierarchyTokenBucketClass ClassfulMultiQueueing BandMultiQueueing HeavyHitterFilter QuickFairQueueing QuickFairQueueingClass BridgeVLAN")
	case ".netdev":
		return []string{"NetDev"}, strings.Fields("Match Bridge VLAN MACVLAN MACVTAP IPVLAN IPVTAP VXLAN GENEVE BareUDP L2TP L2TPSession MACsec MACsecReceiveChannel MACsecReceiveAssociation MACsecTransmitAssociation Tunnel FooOverUDP Peer VXCAN Tun Tap WireGuard WireGuardPeer Bond Xfrm VRF BatmanAdvanced IPoIB WLAN HSR")
	}
	return []string{"Match"}, strings.Fields("Link SR-IOV EnergyEfficientEthernet")
}

// networkFile is one file while it is read.
type networkFile struct {
	name     string
	section  string
	seen     map[string]int // how many assignments each section has
	problems Problems
}

func checkNetworkFile(name string, src []byte) Problems {
	f := &networkFile{name: name, seen: map[string]int{}}
	if !utf8.Valid(src) || strings.ContainsRune(string(src), 0) {
		f.fail(0, "", "it is not text")
		return f.problems
	}
	n, continued := 0, false
	for line := range strings.Lines(string(src)) {
		n++
		line = strings.TrimSpace(line)
		was := continued
		comment := strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";")
		continued = strings.HasSuffix(line, `\`) && !comment || was && comment
		if was || line == "" || comment {
			continue
		}
		f.line(n, line)
	}
	need, _ := sections(path.Ext(name))
	for _, section := range need {
		if f.seen[section] == 0 {
			f.fail(0, "", "the section [%s] is missing or empty", section)
		}
	}
	return f.problems
}

func (f *networkFile) fail(line int, remedy, format string, args ...any) {
	f.problems = append(f.problems, Problem{File: f.name, Line: line, Message: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (f *networkFile) line(n int, line string) {
	need, may := sections(path.Ext(f.name))
	if inner, ok := strings.CutPrefix(line, "["); ok {
		section, ok := strings.CutSuffix(inner, "]")
		f.section = section
		if !ok || !slices.Contains(need, section) && !slices.Contains(may, section) && !strings.HasPrefix(section, "X-") {
			f.fail(n, "", "%.60q is not a section of a %s file", line, path.Ext(f.name))
		}
		return
	}
	key, value, ok := strings.Cut(line, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	switch {
	case !ok || key == "" || strings.ContainsAny(key, " \t"):
		// The line is not shown: in the wrong place it may be a key of WireGuard.
		f.fail(n, "", "expected [SECTION] or KEY=VALUE")
	case f.section == "":
		f.fail(n, "begin the file with a section, such as [Match]", "%.60q stands in no section", key)
	default:
		f.seen[f.section]++
		if why := badValue(f.section, key, value); why != "" {
			f.fail(n, "", "%s=%.80q: %s", key, value, why)
		}
	}
}

// badValue judges those values that decide whether the box can be reached.
func badValue(section, key, value string) string {
	if value == "" {
		return "" // takes back what was assigned before
	}
	switch section + "." + key {
	case "Network.Address", "Address.Address":
		if _, err := netip.ParsePrefix(value); err != nil {
			return "expected ADDRESS/BITS"
		}
	case "Network.Gateway", "Route.Gateway":
		if _, err := netip.ParseAddr(value); err != nil && !slices.Contains([]string{"_dhcp4", "_ipv6ra", "_dhcp6"}, value) {
			return "expected an IP address"
		}
	case "Route.Destination":
		_, noPrefix := netip.ParsePrefix(value)
		if _, err := netip.ParseAddr(value); err != nil && noPrefix != nil {
			return "expected ADDRESS or ADDRESS/BITS"
		}
	case "Network.DHCP":
		if !slices.Contains(strings.Fields("yes no true false on off 1 0 ipv4 ipv6 y n t f"), strings.ToLower(value)) {
			return "expected yes, no, ipv4 or ipv6"
		}
	}
	return ""
}
