package guard

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"log"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"github.com/hashicorp/memberlist"

	"github.com/catchment-dev/edge"
)

func (f *fleet) counts(n *node, reason string) {
	f.t.Helper()
	f.until(string(n.ID)+" counts "+reason, func() bool { return n.State().Dropped[reason] > 0 })
}

// TestWrongKey: a node with another key is never a member, and both ends show
// why.
func TestWrongKey(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 1)
	a, _ := f.start(0), f.start(1)
	c := f.start(2, func(o *Options) { o.Keys = [][]byte{key2} })
	f.counts(a, "wrong_key")
	f.counts(c, "wrong_key")
	f.until("a and b see each other", func() bool { return f.nodes[0].alive() == 1 && f.nodes[1].alive() == 1 })
	c.Publish(edge.Report{Says: claim("false"), Load: edge.LoadRow{}})
	c.Wish(prefix1, sick)
	f.until("c is refused", func() bool { return c.Permit(prefix1).Refused && len(c.State().Asking) == 1 })
	if c.alive() != 0 || a.report("c").Age >= 0 {
		t.Error("a node with a wrong key is believed")
	}
}

// hostile throws bytes at the port of a node.
type hostile struct {
	*fleet
	at  *node
	rng *rand.Rand
}

// noise is n random bytes after the first.
func (h *hostile) noise(n int, first byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(h.rng.Uint32())
	}
	b[0] = first
	return b
}

// packet sends b until it is counted: a packet may be lost.
func (h *hostile) packet(b []byte, reason string) {
	h.t.Helper()
	before := h.at.State().Dropped[reason]
	h.until("packet counted as "+reason, func() bool {
		h.raw("udp", b)
		return h.at.State().Dropped[reason] > before
	})
}

// stream sends b over a connection of its own, which it closes.
func (h *hostile) stream(b []byte, reason string) {
	h.t.Helper()
	before := h.at.State().Dropped[reason]
	h.raw("tcp", b)
	h.until("stream counted as "+reason, func() bool { return h.at.State().Dropped[reason] > before })
}

func (h *hostile) raw(network string, b []byte) {
	h.t.Helper()
	c, err := net.Dial(network, h.at.Gossip.String())
	if err != nil {
		h.t.Fatal(err)
	}
	defer c.Close()
	c.Write(b)
}

func labelled(t *testing.T, b []byte) []byte {
	out, err := memberlist.AddLabelHeaderToPacket(b, label)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestGarbage: all survive, each kind is counted.
func TestGarbage(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, 1)
	f.startAll()
	h := &hostile{f, f.nodes[0], rand.New(rand.NewPCG(1, 1))}
	http := []byte("GET / HTTP/1.1\r\n\r\n")
	h.packet(h.noise(100, 1), "wrong_label")
	h.packet([]byte{244}, "wrong_label") // a label header cut short
	h.packet(labelled(t, h.noise(100, 1)), "wrong_key")
	h.packet(labelled(t, h.noise(100, 77)), "not_encrypted")
	h.packet(labelled(t, []byte{1, 2}), "not_encrypted")
	h.stream(http, "wrong_label")
	h.stream(labelled(t, http), "not_encrypted")
	h.stream(labelled(t, append([]byte{streamMark, 0, 0, 0, 100}, h.noise(100, 1)...)), "wrong_key")
	h.stream(labelled(t, []byte{streamMark, 255, 255, 255, 255, 1}), "oversize")
	h.stream(labelled(t, []byte{streamMark, 0, 0, 0, 100}), "malformed") // cut short
	for range 100 {
		h.raw("udp", h.noise(1+h.rng.IntN(1400), byte(h.rng.Uint32())))
		h.raw("tcp", h.noise(1+h.rng.IntN(4000), byte(h.rng.Uint32())))
	}
	f.stillWorks()
}

// stillWorks: the nodes are members and a permit is given.
func (f *fleet) stillWorks() {
	f.t.Helper()
	a := f.nodes[0]
	a.Wish(prefix1, sick)
	f.until("a permit after all that", func() bool { return f.seen(len(f.roster)-1) && a.Permit(prefix1).OK })
}

// TestManyStreams: who opens connections and says nothing does not shut out
// the others.
func TestManyStreams(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, 1)
	f.startAll()
	for range 2 * maxStreamsEach {
		c, err := net.Dial("tcp", f.roster[0].Gossip.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	f.counts(f.nodes[0], "too_many_streams")
	f.stillWorks()
}

// insider is somebody who has the gossip key.
func (f *fleet) insider(name string, at netip.AddrPort) *memberlist.Memberlist {
	f.t.Helper()
	tr, err := listen(context.Background(), at, func(string) {})
	if err != nil {
		f.t.Fatal(err)
	}
	c := memberlist.DefaultLocalConfig()
	c.Name, c.Label, c.SecretKey, c.Transport = name, label, key1, tr
	c.AdvertiseAddr, c.AdvertisePort = at.Addr().String(), int(at.Port())
	c.Logger = log.New(&logLines{log: f.nodes[0].log, drop: func(string) {}}, "", 0)
	list, err := memberlist.Create(c)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { list.Shutdown() })
	list.Join([]string{f.roster[0].Gossip.String()})
	return list
}

func TestStrangersWithTheKey(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 1)
	spare := f.roster[2].Gossip
	f.roster = f.roster[:2]
	f.nodes = f.nodes[:2]
	f.startAll()
	a := f.nodes[0]
	stranger := f.insider("z", spare)
	f.counts(a, "stranger")
	to := &memberlist.Node{Name: "a", Addr: net.IP(a.Gossip.Addr().AsSlice()), Port: a.Gossip.Port()}
	say := func(raw []byte, reason string) {
		t.Helper()
		before := a.State().Dropped[reason]
		if err := stranger.SendReliable(to, raw); err != nil {
			t.Fatal(err)
		}
		f.until("counted as "+reason, func() bool { return a.State().Dropped[reason] > before })
	}
	say([]byte{2}, "malformed")
	say([]byte("\x01\x01[]"), "unknown_version")
	say([]byte("\x02\x63{}"), "unknown_kind")
	say([]byte("\x02\x01{}"), "malformed")
	say(make([]byte, maxMessage+1), "oversize")
	for _, c := range forgeries(a, f.nodes[1].boot) {
		say(c.raw, c.want)
	}
	if a.alive() != 1 {
		t.Errorf("%d members, want b alone", a.alive())
	}
	f.nodes[1].stop() // a takes this process of b to be who had its key
	f.start(1)
	f.stillWorks()
}

// TestSealedPoison: packets with the right key that make memberlist panic do
// not reach it.
func TestSealedPoison(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, 1)
	f.startAll()
	a := f.nodes[0]
	seal := func(version byte, text, aad []byte) []byte {
		block, err := aes.NewCipher(key1)
		if err != nil {
			t.Fatal(err)
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			t.Fatal(err)
		}
		nonce := make([]byte, gcm.NonceSize())
		return gcm.Seal(append([]byte{version}, nonce...), nonce, text, aad)
	}
	hostile := &hostile{f, a, nil}
	hostile.packet(labelled(t, seal(0, bytes.Repeat([]byte{255}, 16), []byte(label))), "not_encrypted")
	frame := []byte{streamMark, 0, 0, 0, sealSize}
	hostile.stream(labelled(t, append(bytes.Clone(frame), seal(1, nil, append(frame, label...))...)), "malformed")
	f.stillWorks()
}

// TestImpostor: a name of the roster at another address is not let in.
func TestImpostor(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 1)
	f.start(0)
	spare := f.roster[2].Gossip
	spare = netip.AddrPortFrom(spare.Addr().Next(), spare.Port())
	f.insider("c", spare)
	f.counts(f.nodes[0], "wrong_address")
	if f.nodes[0].alive() != 0 {
		t.Error("an impostor is a member")
	}
}
