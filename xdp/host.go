package xdp

import (
	"fmt"
	"maps"
	"slices"

	"github.com/catchment-dev/edge/xdp/nic"
	"github.com/cilium/ebpf"
)

const (
	maxMACs = 16 // MAX_MACS of maps.h
	// tooBigRate is how many senders each CPU tells in a second that their packets
	// are too big, tooBigBurst how many at once. One answer is all that a
	// connection needs.
	tooBigRate  = 1000
	tooBigBurst = 1000
)

// openHost reads what the program knows of this box. Whoever captured before is
// gone: a new process begins without.
func (f *Forwarder) openHost() error {
	if err := f.coll.Maps[edgeMapHost].Lookup(uint32(0), &f.host); err != nil {
		return fmt.Errorf("read map %s: %w", edgeMapHost, err)
	}
	n, err := f.countBlocked()
	if err != nil {
		return err
	}
	f.blocked = n
	want := f.host
	want.Sample, want.SampleActions = 0, 0
	want.TooBig.Interval, want.TooBig.Burst = limit(tooBigRate, tooBigBurst)
	if err := f.putHost(want); err != nil {
		return err
	}
	return f.refreshLinks()
}

// putHost writes the element if it changes.
func (f *Forwarder) putHost(want edgeHost) error {
	if want == f.host {
		return nil
	}
	if err := f.coll.Maps[edgeMapHost].Put(uint32(0), want); err != nil {
		return fmt.Errorf("write map %s: %w", edgeMapHost, err)
	}
	f.host = want
	return nil
}

// refreshLinks tells the program which MAC addresses are this box's, and which
// VLAN sub-interfaces there are. Links change without us: Apply asks anew.
func (f *Forwarder) refreshLinks() error {
	info, err := nic.LinksOn(f.nl, f.present())
	if err != nil {
		return fmt.Errorf("look at interfaces: %w", err)
	}
	if len(info.MACs) > maxMACs {
		f.log.Warn("too many MAC addresses: packets to the last ones are left to the stack", "found", len(info.MACs), "at_most", maxMACs)
		info.MACs = info.MACs[:maxMACs]
	}
	f.vlans = info.VLANs
	want := f.host
	want.Mac = [maxMACs]uint64{}
	for i, mac := range info.MACs {
		want.Mac[i] = macWord(mac)
	}
	want.Vlans = min(1, uint32(len(info.VLANs)))
	if err := f.putVLANs(info.VLANs); err != nil {
		return err
	}
	return f.putHost(want)
}

// present names the interfaces that the program is attached to and that are
// there: one that has vanished is Attached's to tell, and no reason to leave the
// others with an old table.
func (f *Forwarder) present() []string {
	var names []string
	for _, u := range f.uplinks {
		names = append(names, u.name)
	}
	names = append(names, slices.Sorted(maps.Keys(f.extra))...)
	return slices.DeleteFunc(names, func(name string) bool {
		_, err := f.nl.LinkByName(name)
		return err != nil
	})
}

// macWord is a MAC address as the program reads it from a frame.
func macWord(mac [6]byte) (w uint64) {
	for i, b := range mac {
		w |= uint64(b) << (8 * i)
	}
	return w
}

func (f *Forwarder) putVLANs(all []nic.VLAN) error {
	in, out := make(map[edgeVlanKey]uint32), make(map[uint32]edgeVlanLink)
	for _, v := range all {
		for _, at := range v.Ingress {
			key := edgeVlanKey{Ifindex: uint32(at), Outer: v.Outer, Inner: v.Inner}
			if _, taken := in[key]; !taken { // the first is the one
				in[key] = uint32(v.Index)
			}
		}
		l := edgeVlanLink{Ifindex: uint32(v.Uplink)}
		l.Tags.Proto = [2]uint16{netOrder(v.OuterProtocol), netOrder(v.InnerProtocol)}
		l.Tags.Tci = [2]uint16{netOrder(v.Outer), netOrder(v.Inner)}
		out[uint32(v.Index)] = l
	}
	if err := replace(f.coll.Maps[edgeMapVlanOut], out); err != nil {
		return err
	}
	return replace(f.coll.Maps[edgeMapVlanIn], in)
}

// replace makes a small hash map hold what is wanted and nothing else.
func replace[K, V comparable](m *ebpf.Map, want map[K]V) error {
	have := make(map[K]V)
	var key K
	var value V
	for it := m.Iterate(); ; {
		if !it.Next(&key, &value) {
			if err := it.Err(); err != nil {
				return fmt.Errorf("read map %s: %w", m, err)
			}
			break
		}
		have[key] = value
	}
	mr := mirror[K, V]{m: m, have: have}
	if err := mr.add(want); err != nil {
		return err
	}
	return mr.prune(want)
}
