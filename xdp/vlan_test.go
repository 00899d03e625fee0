package xdp

import (
	"bytes"
	"slices"
	"testing"

	"github.com/catchment-dev/edge/xdp/model"
)

// This kernel may have no VLAN interfaces: up1 plays one of up0.

// setVLANs makes the program take up1 for a VLAN of up0, until the next Apply.
func (d device) setVLANs(t testing.TB, in map[edgeVlanKey]uint32, out map[uint32]edgeVlanLink) {
	t.Helper()
	check(t, replace(d.coll.Maps[edgeMapVlanIn], in))
	check(t, replace(d.coll.Maps[edgeMapVlanOut], out))
	want := d.host
	want.Vlans = min(1, uint32(len(out)))
	check(t, d.putHost(want))
}

// vlanOut is how frames leave by a VLAN of up0 with these tags, outer first.
func (d device) vlanOut(tags ...model.Tag) edgeVlanLink {
	l := edgeVlanLink{Ifindex: uint32(d.ingress)}
	for i, tag := range tags {
		l.Tags.Proto[i], l.Tags.Tci[i] = netOrder(tag.Type), netOrder(tag.TCI)
	}
	return l
}

func TestVLANEgress(t *testing.T) {
	d := oneBox(t)
	up1, up0 := uint32(d.other.Index), uint32(d.ingress)
	far, near := tcpPacket(client4+":1", vip4+":"+portFar).frame(), tcpPacket(client4+":1", vip4+":"+portRemote).frame()
	one, two := []model.Tag{{Type: 0x8100, TCI: 33}}, []model.Tag{{Type: 0x88a8, TCI: 44}, {Type: 0x8100, TCI: 33}}
	for _, c := range []struct {
		name  string
		frame []byte
		in    map[edgeVlanKey]uint32
		out   []model.Tag // of up1; nil: it is no VLAN
		leave edgeVerdict
		tags  []model.Tag
	}{
		{"no VLAN", far, nil, nil, edgeVerdictREDIRECT_BACKEND, nil},
		{"to a VLAN", far, nil, one, edgeVerdictTX_BACKEND, one},
		{"to a VLAN in a VLAN", far, nil, two, edgeVerdictTX_BACKEND, two},
		{"from an unknown VLAN to another", tagged(far, 0x8100, 7), nil, one, edgeVerdictTX_BACKEND, one},
		{"from a VLAN back into it", tagged(far, 0x8100, 33), map[edgeVlanKey]uint32{{Ifindex: up0, Outer: 33}: up1}, one, edgeVerdictTX_BACKEND, one},
		{"from two VLANs to one", tagged(tagged(far, 0x8100, 33), 0x88a8, 44), map[edgeVlanKey]uint32{{Ifindex: up0, Outer: 44, Inner: 33}: up1}, one, edgeVerdictTX_BACKEND, one},
		{"from a VLAN to the interface below", tagged(near, 0x8100, 0x2021), map[edgeVlanKey]uint32{{Ifindex: up0, Outer: 33}: up1}, one, edgeVerdictTX_BACKEND, nil},
		{"from two VLANs to the interface below", tagged(tagged(near, 0x8100, 33), 0x88a8, 44), map[edgeVlanKey]uint32{{Ifindex: up0, Outer: 44, Inner: 33}: up1}, two, edgeVerdictTX_BACKEND, nil},
		{"from an unknown VLAN back into it", tagged(near, 0x8100, 0x2007), nil, one, edgeVerdictTX_BACKEND, []model.Tag{{Type: 0x8100, TCI: 0x2007}}},
		{"without a tag beside a VLAN", near, nil, one, edgeVerdictTX_BACKEND, nil},
	} {
		out := map[uint32]edgeVlanLink{}
		if c.out != nil {
			out[up1] = d.vlanOut(c.out...)
		}
		d.setVLANs(t, c.in, out)
		r := d.run(t, c.frame)
		if r.verdict != c.leave {
			t.Errorf("%s: %s, want %s", c.name, d.name(r.verdict), d.name(c.leave))
			continue
		}
		dst, src := []byte{2, 0, 0, 0, 0, 2}, ourMAC
		if bytes.HasSuffix(c.frame, far[ethLen:]) {
			dst, src = []byte{2, 0, 0, 0, 1, 2}, []byte(d.other.HardwareAddr)
		}
		want := slices.Concat(dst, src)
		for _, tag := range c.tags {
			want = be.AppendUint16(be.AppendUint16(want, tag.Type), tag.TCI)
		}
		want = append(want, 0x08, 0x00, 0x45)
		if !bytes.HasPrefix(r.out, want) {
			t.Errorf("%s: left as\n% x, want\n% x ...", c.name, r.out[:len(want)], want)
		}
		inner := slices.Clone(c.frame[len(c.frame)-len(far)+ethLen:])
		if !bytes.HasSuffix(r.out, inner[ip4Len:]) {
			t.Errorf("%s: the packet inside is another: % x", c.name, r.out)
		}
	}
	balanced(t, d.Forwarder)
}
