package xdp

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/model/frame"
)

// quicService reads server ids of a length at an offset; each backend has one.
func quicService(id, vip string, q edge.QUIC, b ...edge.TableBackend) edge.TableService {
	svc := service(id, vip, edge.UDP, b...)
	svc.QUIC = &q
	svc.Backends = slices.Clone(b)
	for i := range svc.Backends {
		svc.Backends[i].ServerID = serverID(i, q.Length)
	}
	return svc
}

// serverID is that of a backend of pool: no prefix of a longer one.
func serverID(i, length int) string { return strings.Repeat("\xa7", length-1) + string(rune(1+i)) }

// connection is a connection id that names a server.
func connection(q edge.QUIC, id string) []byte {
	cid := slices.Repeat([]byte{0x99}, 20)
	copy(cid[q.Offset:], id)
	return cid
}

// quicPacket is a datagram of client i, to a VIP.
func quicPacket(vip string, i int, payload []byte) []byte {
	c := clientAt(vip, i)
	return ethernet(frame.Packet{Src: c, Dst: addrPort(vip), Proto: frame.UDP, Payload: payload}.IP())
}

// A client that migrates stays on its backend: its connection id says which, from
// every address and port. Every place that the id can have.
func TestQUICMigration(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 8)
	ring := byTheRing(t, b)
	for _, vip := range bothVIPs(443) {
		for _, q := range []edge.QUIC{{Offset: 0, Length: 1}, {Offset: 1, Length: 2}, {Offset: 0, Length: 8}, {Offset: 12, Length: 8}, {Offset: 19, Length: 1}} {
			apply(t, d.Forwarder, tableOf(quicService(fmt.Sprint("q", q), vip, q, b...)))
			old := stats(t, d.Forwarder).Services[0]
			moved := 0
			for i := range 100 {
				// What the client chose for its first packet says nothing, though it
				// looks like a server id.
				initial := quicPacket(vip, i, frame.LongHeader(connection(q, serverID(i%8, q.Length)), 1000))
				at := d.outcome(t, initial)
				if want := string(ring(initial, 5)); at != want {
					t.Fatalf("%s %+v: Initial of client %d: %s, the ring says %s", vip, q, i, at, want)
				}
				id := serverID(int(at[1]-'0'), q.Length)
				for _, from := range []int{i, 1000 + i, 2000 + i} {
					f := quicPacket(vip, from, frame.ShortHeader(connection(q, id), 30))
					if got := d.outcome(t, f); got != at {
						t.Fatalf("%s %+v: client %d, come from %d: %s, its connection is at %s", vip, q, i, from, got, at)
					}
					if string(ring(f, 5)) != at {
						moved++
					}
				}
			}
			if moved == 0 {
				t.Errorf("%s %+v: nobody had to follow an id", vip, q)
			}
			// Only the Initial packets are remembered.
			n := stats(t, d.Forwarder).Services[0]
			if n.By["server_id"]-old.By["server_id"] != 300 || n.New-old.New != 100 || n.Established != old.Established {
				t.Errorf("%s %+v: counted as %+v, before %+v", vip, q, n, old)
			}
		}
	}
	balanced(t, d.Forwarder)
}

// What does not name a server goes by the flow tables and the ring.
func TestQUICByTheRing(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 8)
	ring := byTheRing(t, b)
	q := edge.QUIC{Offset: 4, Length: 4}
	for _, vip := range bothVIPs(443) {
		other := quicService("other", withPort(vip, 444), q, b...)
		for i := range other.Backends {
			other.Backends[i].ServerID = "o" + serverID(i, 3)
		}
		plain := service("plain", withPort(vip, 445), edge.UDP, b...)
		apply(t, d.Forwarder, tableOf(quicService("q", vip, q, b...), other, plain))
		good := frame.ShortHeader(connection(q, serverID(3, 4)), 0)
		// The length of UDP ends it, whatever IP and Ethernet still hold.
		cut := frame.Packet{Src: clientAt(vip, 1), Dst: addrPort(vip), Proto: frame.UDP, Payload: good}.IP()
		udp := len(cut) - len(good) - 8
		be.PutUint16(cut[udp+4:], 8+1+8-1)
		for name, f := range map[string][]byte{
			"nobody's id":               quicPacket(vip, 1, frame.ShortHeader(connection(q, "none"), 0)),
			"another service's id":      quicPacket(vip, 1, frame.ShortHeader(connection(q, "o"+serverID(3, 3)), 0)),
			"nothing":                   quicPacket(vip, 1, nil),
			"one byte":                  quicPacket(vip, 1, good[:1]),
			"ends in the id":            quicPacket(vip, 1, good[:8]),
			"ends in the id, by length": ethernet(cut),
			"long header":               quicPacket(vip, 1, slices.Concat([]byte{0xc0}, good[1:])),
			"service without quic":      quicPacket(withPort(vip, 445), 1, good),
		} {
			if got, want := d.outcome(t, f), string(ring(f, 5)); got != want {
				t.Errorf("%s: %s: %s, the ring says %s", vip, name, got, want)
			}
		}
		for name, payload := range map[string][]byte{
			"ends with the id":   good[:9],
			"all other bits set": slices.Concat([]byte{0x7f}, good[1:]),
			"no bit set":         slices.Concat([]byte{0}, good[1:]), // RFC 9287
		} {
			if got := d.outcome(t, quicPacket(vip, 2, payload)); got != "b3" {
				t.Errorf("%s: %s: %s", vip, name, got)
			}
		}
		if got := d.outcome(t, quicPacket(withPort(vip, 444), 2, frame.ShortHeader(connection(q, "o"+serverID(5, 3)), 0))); got != "b5" {
			t.Errorf("%s: the other service: %s", vip, got)
		}
	}
}

// What becomes of the id of a backend that drains, leaves, or hands it on.
func TestQUICBackendChanges(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 4)
	q := edge.QUIC{Offset: 0, Length: 2}
	for _, vip := range bothVIPs(443) {
		svc := quicService("q", vip, q, b...)
		to := func(owner int) string {
			return d.outcome(t, quicPacket(vip, 7, frame.ShortHeader(connection(q, serverID(owner, 2)), 30)))
		}
		use := func(backends ...edge.TableBackend) {
			svc.Backends = backends
			apply(t, d.Forwarder, tableOf(svc))
		}
		all := svc.Backends
		drains, handed := all[0], all[1]
		drains.Weight, drains.KeepTCP = 0, true
		handed.ServerID = all[0].ServerID
		for _, step := range []struct {
			name string
			use  []edge.TableBackend
			want string // of the id of b0; empty: one of those that are left
		}{
			{"all", all, "b0"},
			{"drains", []edge.TableBackend{drains, all[1], all[2]}, "b0"},
			{"gone", all[1:], ""},
			{"back", all, "b0"},
			{"handed on", []edge.TableBackend{handed, all[2]}, "b1"},
			{"drains alone", []edge.TableBackend{drains}, "b0"},
			{"nobody", nil, "drop no_backend"},
			{"back again", all, "b0"},
		} {
			use(step.use...)
			got := to(0)
			left := slices.ContainsFunc(step.use, func(b edge.TableBackend) bool { return string(b.ID) == got })
			if step.want != "" && got != step.want || step.want == "" && !left {
				t.Errorf("%s: %s: %s, want %q of %v", vip, step.name, got, step.want, step.use)
			}
		}
		// Without QUIC in the service the id means nothing any more.
		for i := range svc.Backends {
			svc.Backends[i].ServerID = ""
		}
		svc.QUIC = nil
		apply(t, d.Forwarder, tableOf(svc))
		ids := make(map[string]bool)
		for i := range 40 {
			ids[d.outcome(t, quicPacket(vip, 100+i, frame.ShortHeader(connection(q, serverID(0, 2)), 30)))] = true
		}
		if len(ids) != 4 {
			t.Errorf("%s: without QUIC an id leads to %v", vip, ids)
		}
	}
	balanced(t, d.Forwarder)
}
