package guard

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// callDead is memberlist's message that a node is dead, as who has the gossip key makes
// it: MessagePack, with the highest incarnation, which no node can outdo.
func callDead(t *testing.T, name edge.NodeID) []byte {
	text := func(b []byte, s string) []byte { return append(append(b, 0xa0|byte(len(s))), s...) }
	b := []byte{5, 0x83} // dead; a map of three
	b = binary.BigEndian.AppendUint32(append(text(b, "Incarnation"), 0xce), math.MaxUint32)
	b = text(text(b, "Node"), string(name))
	b = text(text(b, "From"), "z")
	block, err := aes.NewCipher(key1)
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	nonce := make([]byte, gcm.NonceSize())
	rand.Read(nonce)
	return labelled(t, gcm.Seal(append([]byte{sealVersion}, nonce...), nonce, b, []byte(label)))
}

// TestCalledDead: who has the gossip key can make a node look dead to the failure
// detector, for ever. Its signed word is as fresh as ever.
func TestCalledDead(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, 1)
	f.startAll()
	a, c := f.nodes[0], f.nodes[2]
	h := &hostile{f, a, nil}
	says := claim("alive")
	tell := func() {
		c.Publish(edge.Report{Says: says, Load: edge.LoadRow{Demand: 10}})
		a.Publish(edge.Report{Says: says, Load: edge.LoadRow{Demand: 1}})
		f.nodes[1].Publish(edge.Report{Says: says, Load: edge.LoadRow{Demand: 1}})
	}
	f.until("c is heard", func() bool { tell(); m := a.report("c"); return m.Alive && m.Age >= 0 && m.Age < time.Second })
	h.until("c looks dead to a", func() bool { tell(); h.raw("udp", bytes.Clone(callDead(t, "c"))); return !a.report("c").Alive })
	begin := time.Now()
	h.until("c has been dead for three seconds", func() bool {
		tell()
		if m := a.report("c"); m.Alive || m.Age > a.fresh() {
			t.Fatalf("alive: %t, heard %s ago", m.Alive, m.Age)
		}
		h.raw("udp", callDead(t, "c"))
		return time.Since(begin) > 3*time.Second
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if sum, known := a.demand(); !known || sum != 12 {
		t.Errorf("demand %g, known: %t", sum, known)
	}
}
