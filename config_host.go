package edge

import "net/netip"

// HostFirewall is who may reach this box beside its VIPs. What BGP, BFD, the gossip
// and the probes of the other boxes need follows from the rest of the configuration.
type HostFirewall struct {
	Mode FirewallMode
	// ManagementNets are the networks from which ManagementPorts, the console and
	// the metrics are reached. Empty: the ports from everywhere, so that nobody is
	// locked out, and the console from this box alone, since it has no password.
	ManagementNets []netip.Prefix
	// ManagementPorts are TCP ports, that of sshd among them.
	ManagementPorts []uint16
}

// FirewallMode says whether the packet filter of the host is ours.
type FirewallMode string

// FirewallAuto is on in the appliance and off on a host that has been installed by
// somebody else, who may have rules of their own.
const (
	FirewallAuto FirewallMode = "auto"
	FirewallOn   FirewallMode = "on"
	FirewallOff  FirewallMode = "off"
)

// On says whether there are rules, on an appliance or elsewhere.
func (f HostFirewall) On(appliance bool) bool {
	return f.Mode == FirewallOn || f.Mode == FirewallAuto && appliance
}

// hostFirewall reads the section host_firewall.
func (r *reader) hostFirewall(o *object) HostFirewall {
	f := HostFirewall{
		Mode:            want(o, "mode", choice(FirewallAuto, FirewallOn, FirewallOff), or(FirewallAuto)),
		ManagementNets:  list(o, "management_nets", anyNetwork(), 0, "default []"),
		ManagementPorts: list(o, "management_ports", port[uint16](), 0, "default [22]"),
	}
	if !o.has("management_ports") {
		f.ManagementPorts = []uint16{22}
	}
	return f
}

// ConfigVolumes says when an appliance looks for a volume (EDGECFG or NoCloud) that
// may replace its configuration, the keys of root included.
type ConfigVolumes string

// VolumesInRescue looks at them only where no configuration can be used, as on a box
// that has none yet. Credentials, which come from the hypervisor or the EFI partition,
// are taken at each boot in any case.
const (
	VolumesAlways   ConfigVolumes = "always"
	VolumesInRescue ConfigVolumes = "rescue"
)
