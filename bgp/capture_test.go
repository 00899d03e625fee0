package bgp_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/bgp/wire"
)

// message is a BGP message as it was on the wire.
type message struct {
	at  time.Time
	raw []byte
}

func (m message) kind() wire.Type { return wire.Type(m.raw[18]) }

// capture is what a router was sent from an address.
type capture struct {
	mu       sync.Mutex
	from     netip.Addr
	next     uint32 // the sequence number that is due
	begun    bool
	pending  []byte
	messages []message
	lost     string
}

// newCapture notes every BGP message that comes in from an IPv4 address, from now
// on, until the test ends. Where a segment was missed it says so.
func newCapture(t testing.TB, s *space, from string) *capture {
	t.Helper()
	c := &capture{from: netip.MustParseAddr(from)}
	var fd int
	must(t, s.Run(func() (err error) {
		const proto = unix.ETH_P_IP&0xff<<8 | unix.ETH_P_IP>>8 // in network order
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, proto); err != nil {
			return err
		}
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
		tick := unix.NsecToTimeval(int64(50 * time.Millisecond))
		return cmpErr(err, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tick))
	}))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if n, err := unix.Read(fd, buf); err == nil {
				c.packet(buf[:n])
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done; unix.Close(fd) })
	return c
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// packet takes an IPv4 packet with TCP in it.
func (c *capture) packet(b []byte) {
	if len(b) < 40 || b[0]>>4 != 4 || b[9] != unix.IPPROTO_TCP || netip.AddrFrom4([4]byte(b[12:16])) != c.from {
		return
	}
	b = b[:binary.BigEndian.Uint16(b[2:])]
	tcp := b[int(b[0]&15)*4:]
	seq, data := binary.BigEndian.Uint32(tcp[4:]), tcp[int(tcp[12]>>4)*4:]
	c.mu.Lock()
	defer c.mu.Unlock()
	if tcp[13]&2 != 0 { // SYN: another connection
		c.next, c.begun, c.pending = seq+1, true, nil
		return
	}
	if len(data) == 0 || c.begun && int32(seq-c.next) < 0 {
		return // nothing, or again
	}
	if c.begun && seq != c.next {
		c.lost = fmt.Sprintf("a segment is missing: %d bytes", seq-c.next)
	}
	c.begun, c.next = true, seq+uint32(len(data))
	c.pending = append(c.pending, data...)
	for len(c.pending) >= wire.HeaderLen {
		n := int(binary.BigEndian.Uint16(c.pending[16:]))
		if len(c.pending) < n {
			return
		}
		c.messages = append(c.messages, message{time.Now(), slices.Clone(c.pending[:n])})
		c.pending = c.pending[n:]
	}
}

// of returns the messages of a kind so far.
func (c *capture) of(t testing.TB, kind wire.Type) (out []message) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost != "" {
		t.Errorf("capture: %s", c.lost)
	}
	for _, m := range c.messages {
		if m.kind() == kind {
			out = append(out, m)
		}
	}
	return out
}

// changes are the prefixes that were announced and withdrawn by UPDATEs so far.
func (c *capture) changes(t testing.TB) (announced, withdrawn []netip.Prefix) {
	t.Helper()
	for _, m := range c.of(t, wire.TypeUpdate) {
		u, err := wire.ParseUpdate(m.raw, true)
		if err != nil {
			t.Errorf("an UPDATE of ours cannot be read: %v", err)
		}
		announced, withdrawn = append(announced, u.Announced...), append(withdrawn, u.Withdrawn...)
	}
	return announced, withdrawn
}
