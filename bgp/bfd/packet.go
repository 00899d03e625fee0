package bfd

import (
	"encoding/binary"
	"math"
	"time"
)

// reason says why a packet was dropped; 0 if it was not.
type reason uint8

const (
	taken reason = iota
	badTTL
	badLength
	badVersion
	badMultiplier
	badMultipoint
	badDiscriminator
	badAuth
	badAddress
	unknownPeer
	reasons // how many there are
)

// String is the word of Status.Dropped and of the metric.
func (r reason) String() string {
	return [reasons]string{
		"", "ttl", "length", "version", "multiplier", "multipoint", "discriminator", "auth", "address", "unknown-peer",
	}[r]
}

// Reasons returns the words by which dropped packets are counted. Those of
// RFC 5880 section 6.8.6: length, version, multiplier (detection multiplier
// 0), multipoint (M bit), discriminator (theirs is 0, or ours is not of this
// session), auth (A bit). RFC 5881 section 5: ttl. And address: it came to an
// address, port or interface that the peer's session does not use.
// unknown-peer is counted by Engine.Dropped only.
func Reasons() []string {
	var words []string
	for r := taken + 1; r < reasons; r++ {
		words = append(words, r.String())
	}
	return words
}

const (
	packetLen = 24 // without authentication, which is all that we send
	authLen   = 26 // the least with it
	version   = 1
)

// packet is a BFD control packet (RFC 5880 section 4.1).
type packet struct {
	state               State
	diag                Diag
	poll, final, demand bool
	multiplier          uint8
	mine, yours         uint32 // discriminators, in the eyes of the sender
	minTx, minRx        time.Duration
}

// Bits of the second byte.
const (
	bitPoll       = 0x20
	bitFinal      = 0x10
	bitAuth       = 0x04
	bitDemand     = 0x02
	bitMultipoint = 0x01
)

// parse reads a packet and makes the checks of RFC 5880 section 6.8.6 that need
// no session, in its order. What follows the Length of the packet is ignored.
func parse(b []byte) (packet, reason) {
	if len(b) < packetLen {
		return packet{}, badLength
	}
	p := packet{
		diag: Diag(b[0] & 0x1f), state: State(b[1] >> 6),
		poll: b[1]&bitPoll != 0, final: b[1]&bitFinal != 0, demand: b[1]&bitDemand != 0,
		multiplier: b[2],
		mine:       binary.BigEndian.Uint32(b[4:]), yours: binary.BigEndian.Uint32(b[8:]),
		minTx: micros(b[12:]), minRx: micros(b[16:]),
	}
	auth, length := b[1]&bitAuth != 0, int(b[3])
	switch {
	case b[0]>>5 != version:
		return p, badVersion
	case length < packetLen || auth && length < authLen || length > len(b):
		return p, badLength
	case p.multiplier == 0:
		return p, badMultiplier
	case b[1]&bitMultipoint != 0:
		return p, badMultipoint
	case p.mine == 0 || p.yours == 0 && p.state > Down:
		return p, badDiscriminator
	case auth:
		return p, badAuth
	}
	return p, taken
}

// put writes the packet. The C bit is never set: our BFD dies with the process.
// The echo interval is 0: we have no echo.
func (p packet) put(b *[packetLen]byte) {
	*b = [packetLen]byte{version<<5 | byte(p.diag)&0x1f, byte(p.state) << 6, p.multiplier, packetLen}
	if p.poll {
		b[1] |= bitPoll
	}
	if p.final {
		b[1] |= bitFinal
	}
	if p.demand {
		b[1] |= bitDemand
	}
	binary.BigEndian.PutUint32(b[4:], p.mine)
	binary.BigEndian.PutUint32(b[8:], p.yours)
	binary.BigEndian.PutUint32(b[12:], inMicros(p.minTx))
	binary.BigEndian.PutUint32(b[16:], inMicros(p.minRx))
}

func micros(b []byte) time.Duration {
	return time.Duration(binary.BigEndian.Uint32(b)) * time.Microsecond
}

func inMicros(d time.Duration) uint32 {
	return uint32(min(max(d.Microseconds(), 0), math.MaxUint32))
}
