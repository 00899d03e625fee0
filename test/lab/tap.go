package lab

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// maxTapped bounds what a tap keeps, in bytes; beyond it nothing more is.
const maxTapped = 64 << 20

// Tap records what passes an interface over IPv4, from or to one port: what
// somebody in the path can record. Its methods may be called by several
// goroutines at once.
type Tap struct {
	port uint16
	file *os.File
	done chan struct{}

	mu     sync.Mutex
	bytes  int
	passed []passed
}

// passed is a packet.
type passed struct {
	from, to netip.AddrPort
	tcp, syn bool
	seq      uint32
	payload  []byte
}

// Tap begins to record. Close ends it.
func (h *Host) Tap(ifname string, port uint16) (*Tap, error) {
	link, err := h.nl.LinkByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("tap %s of %s: %w", ifname, h.name, err)
	}
	var fd int
	err = h.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("tap %s of %s: %w", ifname, h.name, err)
	}
	// All protocols: what leaves is shown to no socket for one of them.
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("tap %s of %s: %w", ifname, h.name, err)
	}
	t := &Tap{port: port, file: os.NewFile(uintptr(fd), "tap:"+ifname), done: make(chan struct{})}
	go t.run()
	return t, nil
}

func (t *Tap) run() {
	defer close(t.done)
	buf := make([]byte, 1<<16+64)
	for {
		n, err := t.file.Read(buf)
		if errors.Is(err, unix.ENETDOWN) {
			continue
		}
		if err != nil {
			return // it was closed
		}
		p, ok := parsePassed(buf[:n])
		if !ok || p.from.Port() != t.port && p.to.Port() != t.port {
			continue
		}
		t.mu.Lock()
		if t.bytes += len(p.payload); t.bytes <= maxTapped {
			t.passed = append(t.passed, p)
		}
		t.mu.Unlock()
	}
}

// parsePassed reads an IPv4 packet of UDP or TCP that is no fragment.
func parsePassed(b []byte) (passed, bool) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return passed{}, false
	}
	head, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if head < 20 || total > len(b) || total < head+8 || binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
		return passed{}, false
	}
	l4 := b[head:total]
	p := passed{
		from: netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[12:])), binary.BigEndian.Uint16(l4)),
		to:   netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:])), binary.BigEndian.Uint16(l4[2:])),
	}
	switch b[9] {
	case unix.IPPROTO_UDP:
		p.payload = bytes.Clone(l4[8:])
		return p, true
	case unix.IPPROTO_TCP:
		if len(l4) < 20 || len(l4) < int(l4[12]>>4)*4 {
			return passed{}, false
		}
		p.tcp, p.syn, p.seq = true, l4[13]&2 != 0, binary.BigEndian.Uint32(l4[4:])
		p.payload = bytes.Clone(l4[int(l4[12]>>4)*4:])
		return p, true
	}
	return passed{}, false
}

func (t *Tap) packets() []passed {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.passed)
}

// Datagrams are the payloads that were sent to an address over UDP, in their order.
func (t *Tap) Datagrams(to netip.AddrPort) [][]byte {
	var out [][]byte
	for _, p := range t.packets() {
		if !p.tcp && p.to == to {
			out = append(out, p.payload)
		}
	}
	return out
}

// TappedStream is what one side has sent over a TCP connection.
type TappedStream struct {
	From, To netip.AddrPort
	// Data is all up to the first byte that was not seen.
	Data []byte
}

// Streams are what was sent over TCP to an address, by who opened the connection
// while the tap was there, in the order of their opening.
func (t *Tap) Streams(to netip.AddrPort) []TappedStream {
	return streams(t.packets(), to)
}

func streams(all []passed, to netip.AddrPort) []TappedStream {
	type piece struct {
		at   uint32 // from the first byte
		data []byte
	}
	var out []TappedStream
	var pieces [][]piece
	var first []uint32
	open := map[netip.AddrPort]int{}
	for _, p := range all {
		if !p.tcp || p.to != to {
			continue
		}
		i, known := open[p.from]
		if p.syn && (!known || first[i] != p.seq+1) {
			open[p.from] = len(out)
			out, pieces, first = append(out, TappedStream{From: p.from, To: to}), append(pieces, nil), append(first, p.seq+1)
		} else if known && len(p.payload) > 0 {
			pieces[i] = append(pieces[i], piece{p.seq - first[i], p.payload})
		}
	}
	for i := range out {
		slices.SortStableFunc(pieces[i], func(a, b piece) int { return cmp.Compare(a.at, b.at) })
		for _, p := range pieces[i] {
			have := uint32(len(out[i].Data))
			if p.at > have {
				break
			}
			if end := p.at + uint32(len(p.data)); end > have { // else it was sent again
				out[i].Data = append(out[i].Data, p.data[have-p.at:]...)
			}
		}
	}
	return out
}

// Forget drops what has been recorded.
func (t *Tap) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passed, t.bytes = nil, 0
}

// Close ends the recording; what was recorded stays.
func (t *Tap) Close() {
	t.file.Close()
	<-t.done
}
