package guard

import (
	"bytes"
	"encoding/binary"
	"math"
	"time"

	"github.com/catchment-dev/edge"
)

const (
	// stateSize is how much of what a node lacks it is sent at once: the rest with
	// the next exchange. It is little, as the sender of a digest is not known for
	// certain; what most nodes lack comes in answer to their pulses.
	stateSize = 64 << 10 // bytes
	// compareEvery bounds how often one node is sent what it lacks.
	compareEvery = 10 * time.Second
	// maxDigest is enough for 4,000 nodes with the longest names.
	maxDigest = 256 << 10 // bytes
)

// decodeDigest returns who sent a digest, and which reports it has.
func decodeDigest(raw []byte) (edge.NodeID, []head, error) {
	if err := expect(raw, kindDigest); err != nil {
		return "", nil, err
	}
	c := &cursor{b: raw[2:]}
	from := edge.NodeID(c.name())
	var out []head
	for !c.bad && len(c.b) > 0 {
		out = append(out, head{node: edge.NodeID(c.name()), boot: c.boot(), seq: c.uint64()})
	}
	if c.bad {
		return "", nil, errMalformed
	}
	return from, out, nil
}

func appendName(b []byte, s edge.NodeID) []byte { return append(append(b, byte(len(s))), s...) }

func encodeDigest(from edge.NodeID, all []head) []byte {
	b := appendName([]byte{version, kindDigest}, from)
	for _, h := range all {
		b = binary.BigEndian.AppendUint64(appendName(b, h.node), uint64(h.boot))
		b = binary.BigEndian.AppendUint64(b, h.seq)
	}
	return b
}

// digest says which reports this node has: the exchange of states carries that
// alone, since most of 300 reports are there already.
func (g *Guard) digest() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]head, 0, len(g.heard)+1)
	if g.own.raw != nil {
		all = append(all, head{node: g.self, boot: g.own.report.Boot, seq: g.own.report.Seq})
	}
	for id, h := range g.heard {
		all = append(all, head{node: id, boot: h.report.Boot, seq: h.report.Seq})
	}
	return encodeDigest(g.self, all)
}

// compare has the sender of a digest sent what it lacks. The other way round it
// does the same with ours.
func (c *courier) compare(raw []byte) {
	from, all, err := decodeDigest(raw)
	if err != nil {
		c.g.drops.add(err.Error())
		return
	}
	to, ok := c.g.roster.Load().byID[from]
	switch {
	case !ok:
		c.g.drops.add(string(errUnknown))
		return
	case from == c.g.self:
		c.g.drops.add(string(errSelf))
		return
	}
	if state := c.g.lacking(from, all); state != nil {
		c.links.to(to).state(state)
	}
}

// lacking is a state of the reports that the sender of a digest has not got, in no
// order: what it never takes must not stand before all else each time.
func (g *Guard) lacking(from edge.NodeID, all []head) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, at := time.Now(), g.peer(from)
	if now.Sub(at.compared) < compareEvery {
		return nil
	}
	has := map[edge.NodeID]head{}
	for _, h := range all { // a forged one may have any names
		if _, ok := g.heard[h.node]; ok || h.node == g.self {
			has[h.node] = h
		}
	}
	var out []byte
	add := func(id edge.NodeID, h heard) {
		if id == from || !has[id].older(h.report) || out != nil && len(out)+8+len(h.raw) > stateSize {
			return
		}
		if out == nil {
			out, at.compared = []byte{version, kindState}, now
		}
		out = appendState(out, h.raw, now.Sub(h.at))
	}
	if g.own.raw != nil {
		add(g.self, g.own)
	}
	for id, h := range g.heard {
		add(id, *h)
	}
	return out
}

// mergeState takes reports that were sent to this node alone.
func (g *Guard) mergeState(b []byte) {
	err := decodeState(b, func(age time.Duration, raw []byte) { g.hear(raw, age, false) })
	if err != nil {
		g.drops.add(err.Error())
	}
}

// appendState adds a report to a state that begins with version and kind.
func appendState(b, report []byte, age time.Duration) []byte {
	b = binary.BigEndian.AppendUint32(b, millis(age))
	b = binary.BigEndian.AppendUint32(b, uint32(len(report)))
	return append(b, report...)
}

func millis(d time.Duration) uint32 {
	return uint32(min(max(0, d.Milliseconds()), math.MaxUint32))
}

// decodeState calls each with a copy of every report, as far as b can be read.
func decodeState(b []byte, each func(age time.Duration, raw []byte)) error {
	if err := expect(b, kindState); err != nil {
		return err
	}
	for b = b[2:]; len(b) > 0; {
		if len(b) < 8 {
			return errMalformed
		}
		age, n := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		if uint64(len(b)-8) < uint64(n) {
			return errMalformed
		}
		each(time.Duration(age)*time.Millisecond, bytes.Clone(b[8:8+n]))
		b = b[8+n:]
	}
	return nil
}
