package edge

import "reflect"

// Effort is what a change of the configuration takes beyond a reload. Each field names
// the first key that takes it, such as "node.run_dir"; empty: none does. The zero value
// is a reload.
type Effort struct {
	// Edged is to be restarted, by which nothing is withdrawn.
	Edged string `json:"edged,omitempty"`
	// Proxy is to be restarted: edgeproxy takes no connections meanwhile, so the node is
	// drained before.
	Proxy string `json:"proxy,omitempty"`
	// DataPlane is to be loaded anew, with the node drained.
	DataPlane string `json:"data_plane,omitempty"`
}

// EffortOf says what it takes to have a box go from old to new. It does not know how
// the box stands: edged may refuse a reload for other reasons.
func EffortOf(old, new *Config) Effort {
	a, b := old.Local, new.Local
	return Effort{
		Edged: firstChange([]setting{
			{"node.name", a.ID, b.ID},
			{"node.run_dir", a.RunDir, b.RunDir},
			{"node.state_dir", a.StateDir, b.StateDir},
			{"node.management", a.Management, b.Management},
			{"node.gossip_bind", a.GossipBind, b.GossipBind},
			{"node.probe_source4", a.ProbeSource4, b.ProbeSource4},
			{"node.probe_source6", a.ProbeSource6, b.ProbeSource6},
			{"node.forwarder.interfaces", a.Forwarder.Interfaces, b.Forwarder.Interfaces},
			{"node.forwarder.mode", a.Forwarder.Mode, b.Forwarder.Mode},
			{"node.forwarder.memory_limit", a.Forwarder.Memory, b.Forwarder.Memory},
			{"fleet.ring_seed_file", old.Fleet.RingSeedFile, new.Fleet.RingSeedFile},
		}),
		Proxy: firstChange([]setting{
			{"node.name", a.ID, b.ID},
			{"node.run_dir", a.RunDir, b.RunDir},
			{"node.proxy_user", a.ProxyUser, b.ProxyUser},
		}),
		DataPlane: firstChange([]setting{
			{"node.forwarder.flows", a.Forwarder.Flows, b.Forwarder.Flows},
			{"node.forwarder.half_flows", a.Forwarder.HalfFlows, b.Forwarder.HalfFlows},
			{"node.bpf_dir", a.BPFDir, b.BPFDir},
		}),
	}
}

type setting struct {
	key      string
	old, new any
}

func firstChange(settings []setting) string {
	for _, s := range settings {
		if !reflect.DeepEqual(s.old, s.new) {
			return s.key
		}
	}
	return ""
}
