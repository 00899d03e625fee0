package firewall

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// set is a named set; the elements are in ascending order, each once.
type set struct {
	name     string
	key      nftables.SetDatatype
	elements []nftables.SetElement
}

// sets are those of a layout. Rules are made only for what is in one.
type sets struct{ all []set }

// add makes a set of keys; one without any is not made, and add says so.
func (s *sets) add(name string, key nftables.SetDatatype, keys [][]byte) bool {
	if len(keys) == 0 {
		return false
	}
	slices.SortFunc(keys, bytes.Compare)
	out := set{name: name, key: key}
	for _, k := range slices.CompactFunc(keys, bytes.Equal) {
		out.elements = append(out.elements, nftables.SetElement{Key: k})
	}
	s.all = append(s.all, out)
	return true
}

// addresses makes a set of the addresses that are of the family.
func (s *sets) addresses(name string, f family, all []netip.Addr) bool {
	var keys [][]byte
	for _, a := range all {
		if f.has(a) {
			keys = append(keys, a.AsSlice())
		}
	}
	return s.add(name, f.addr, keys)
}

func (s *sets) ports(name string, all ...uint16) bool {
	var keys [][]byte
	for _, p := range all {
		keys = append(keys, binary.BigEndian.AppendUint16(nil, p))
	}
	return s.add(name, nftables.TypeInetService, keys)
}

// padded is a part of a key of several: the kernel has each in whole registers.
func padded(b ...byte) []byte { return append(b, make([]byte, -len(b)&3)...) }

// group are neighbours that one rule can tell apart from others.
type group struct {
	set   string
	links bool // its keys have an interface
	least uint8
}

// neighbours makes the sets of those that are of the family: by the TTL that is
// asked of them, and by whether they are bound to an interface.
func (s *sets) neighbours(prefix string, f family, all []neighbour) []group {
	keys := map[group][][]byte{}
	for _, n := range all {
		if !f.has(n.addr) {
			continue
		}
		g := group{set: prefix + f.suffix, links: n.link != "", least: n.least}
		key := n.addr.AsSlice()
		if g.links {
			g.set, key = g.set+"_link", append(key, linkName(n.link)...)
		}
		if g.least != 0 {
			g.set = fmt.Sprintf("%s_ttl%d", g.set, g.least)
		}
		keys[g] = append(keys[g], key)
	}
	var out []group
	for g := range keys {
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b group) int { return bytes.Compare([]byte(a.set), []byte(b.set)) })
	for _, g := range out {
		key := f.addr
		if g.links {
			key = nftables.MustConcatSetType(f.addr, nftables.TypeIFName)
		}
		s.add(g.set, key, keys[g])
	}
	return out
}

// vips are the names of the sets of one family; empty where there is none.
type vips struct{ all, service, protocol, any string }

// vips makes the sets of the services that are of the family.
func (s *sets) vips(f family, all []service) vips {
	var addrs []netip.Addr
	var whole []netip.Addr
	var services, protocols [][]byte
	for _, v := range all {
		a := v.vip.Addr()
		if !f.has(a) {
			continue
		}
		addrs = append(addrs, a)
		p, known := number(v.protocol)
		switch {
		case !known:
			whole = append(whole, a)
		case v.vip.Port() == 0:
			protocols = append(protocols, append(a.AsSlice(), padded(p)...))
		default:
			port := binary.BigEndian.AppendUint16(nil, v.vip.Port())
			services = append(services, slices.Concat(a.AsSlice(), padded(p), padded(port...)))
		}
	}
	var out vips
	name := func(made bool, name string) string {
		if !made {
			return ""
		}
		return name
	}
	at := "vip" + f.suffix
	out.all = name(s.addresses(at, f, addrs), at)
	out.service = name(s.add(at+"_service", nftables.MustConcatSetType(f.addr, nftables.TypeInetProto, nftables.TypeInetService), services), at+"_service")
	out.protocol = name(s.add(at+"_protocol", nftables.MustConcatSetType(f.addr, nftables.TypeInetProto), protocols), at+"_protocol")
	out.any = name(s.addresses(at+"_any", f, whole), at+"_any")
	return out
}

// number is that of the protocol; not known for all of them.
func number(p edge.Protocol) (n byte, known bool) {
	switch p {
	case edge.TCP:
		return unix.IPPROTO_TCP, true
	case edge.UDP:
		return unix.IPPROTO_UDP, true
	}
	return 0, false
}
