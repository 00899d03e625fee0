package guard

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// maxStreams bounds the inbound connections at once, maxStreamsEach those
	// from one address: strangers can open some before they have shown a key.
	maxStreams     = 1024
	maxStreamsEach = 32
	readBuffer     = 1 << 20 // of the UDP socket, in bytes
	// streamLife ends a connection that everybody has forgotten about: the
	// library loses one when the label cannot be written.
	streamLife = 30 * time.Second
)

// The frame of what memberlist sends with our label and key. Everything else is
// refused before it sees it: not only for the counting, but since version 0 of
// its encryption, and an empty text, make it panic if the key is right.
const (
	sealVersion = 1
	sealSize    = 1 + 12 + 16 // version, nonce, tag: what the empty text would take
	streamMark  = 10          // first byte of an encrypted stream; then 4 of length
	// maxSealed bounds a stream: the largest report with what is around it, or the
	// states of 10,000 nodes.
	maxSealed = maxReport + 1<<20
)

// transport carries memberlist's packets and streams over UDP and TCP of one
// local address and no other. Unlike the library's own it bounds what is open,
// gives each connection a deadline and ends with everything closed.
type transport struct {
	udp   *net.UDPConn
	tcp   *net.TCPListener
	dial  func(addr string, timeout time.Duration) (net.Conn, error)
	drop  func(string)
	label []byte // with which a packet, and an inbound stream, begins

	packets chan *memberlist.Packet
	streams chan net.Conn
	done    chan struct{}
	stop    func()
	wait    sync.WaitGroup

	mu     sync.Mutex
	closed bool
	open   map[*stream]struct{}
	from   map[netip.Addr]int // open inbound connections, by address
	in     int                // their sum

	sent, received traffic
}

// traffic counts bytes as they are on the wire, with the headers of IPv4 or IPv6 and
// of UDP or TCP. Those of TCP, and the packets that carry no data, are reckoned.
type traffic struct{ bytes atomic.Int64 }

const (
	headUDP, headTCP = 20 + 8, 20 + 32 // bytes, over IPv4
	moreIPv6         = 20
	segment          = 1400 // data bytes of a TCP packet
	bareTCP          = 4    // packets each way that open and close a connection, and acknowledge
)

func (c *traffic) add(to netip.Addr, packets, head, data int) {
	if to.Is6() && !to.Is4In6() {
		head += moreIPv6
	}
	c.bytes.Add(int64(packets*head + data))
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

// listen opens the sockets; dialling ends with ctx, the rest with Shutdown.
func listen(ctx context.Context, bind netip.AddrPort, drop func(string)) (*transport, error) {
	head, err := memberlist.AddLabelHeaderToPacket(nil, label)
	if err != nil {
		return nil, fmt.Errorf("listen for gossip: %w", err)
	}
	tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(bind))
	if err != nil {
		return nil, fmt.Errorf("listen for gossip: %w", err)
	}
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(bind))
	if err != nil {
		tcp.Close()
		return nil, fmt.Errorf("listen for gossip: %w", err)
	}
	udp.SetReadBuffer(readBuffer) // the kernel may allow less: more is lost under a burst, no harm
	t := &transport{
		udp: udp, tcp: tcp, drop: drop, label: head,
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn), done: make(chan struct{}),
		open: map[*stream]struct{}{}, from: map[netip.Addr]int{},
	}
	t.stop = sync.OnceFunc(func() { close(t.done) })
	t.dial = func(addr string, timeout time.Duration) (net.Conn, error) {
		d := net.Dialer{Timeout: timeout}
		if !bind.Addr().IsUnspecified() {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(bind.Addr(), 0))
		}
		return d.DialContext(ctx, "tcp", addr)
	}
	t.wait.Go(t.readPackets)
	t.wait.Go(t.accept)
	return t, nil
}

func (t *transport) readPackets() {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := t.udp.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n == 0 {
			t.drop("malformed")
			continue
		}
		t.received.add(from.Addr(), 1, headUDP, n)
		if why := t.refusePacket(buf[:n]); why != "" {
			t.drop(why)
			continue
		}
		p := &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: net.UDPAddrFromAddrPort(from), Timestamp: time.Now()}
		select {
		case t.packets <- p:
		case <-t.done:
			return
		}
	}
}

func (t *transport) refusePacket(b []byte) string {
	sealed, ok := bytes.CutPrefix(b, t.label)
	switch {
	case !ok:
		return "wrong_label"
	case len(sealed) <= sealSize || sealed[0] != sealVersion:
		return "not_encrypted"
	}
	return ""
}

func (t *transport) accept() {
	for {
		c, err := t.tcp.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			t.drop("accept_failed") // out of descriptors, most likely: others must close theirs first
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-t.done:
				return
			}
		}
		s, ok := t.track(c, true)
		if !ok {
			t.drop("too_many_streams")
			continue
		}
		select {
		case t.streams <- s:
		case <-t.done:
			s.Close()
			return
		}
	}
}

// stream is a connection that Shutdown closes.
type stream struct {
	net.Conn
	t       *transport
	inbound bool
	from    netip.Addr
	once    sync.Once
	forget  *time.Timer

	// Of the reader:
	checked bool
	head    []byte // read to be checked, not handed out yet
}

// Read hands out nothing before the frame has been seen to be ours.
func (s *stream) Read(b []byte) (int, error) {
	if !s.checked {
		s.checked = true
		if err := s.check(); err != nil {
			return 0, err
		}
	}
	if len(s.head) > 0 {
		n := copy(b, s.head)
		s.head = s.head[n:]
		return n, nil
	}
	return s.read(b)
}

func (s *stream) read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.t.received.add(s.from, (n+segment-1)/segment, headTCP, n)
	return n, err
}

func (s *stream) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	s.t.sent.add(s.from, (n+segment-1)/segment, headTCP, n)
	return n, err
}

func (s *stream) check() error {
	var mark []byte
	if s.inbound { // answers have no label
		mark = s.t.label
	}
	b := make([]byte, len(mark)+1+4+1)
	n, err := io.ReadFull(readerFunc(s.read), b)
	if n == 0 {
		return err // opened and closed: nothing was said
	}
	sealed, ok := bytes.CutPrefix(b, mark[:min(n, len(mark))])
	why := ""
	switch {
	case !ok:
		why = "wrong_label"
	case err != nil:
		why = "malformed" // cut short
	case sealed[0] != streamMark || sealed[5] != sealVersion:
		why = "not_encrypted"
	case binary.BigEndian.Uint32(sealed[1:]) <= sealSize:
		why = "malformed"
	case binary.BigEndian.Uint32(sealed[1:]) > maxSealed:
		why = "oversize"
	}
	if why != "" {
		s.t.drop(why)
		return fmt.Errorf("refused by the transport: %s", why)
	}
	s.head = b
	return nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// track takes a connection in, or closes it when there are too many.
func (t *transport) track(c net.Conn, inbound bool) (*stream, bool) {
	s := &stream{Conn: c, t: t, inbound: inbound, from: c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || inbound && (t.in >= maxStreams || t.from[s.from] >= maxStreamsEach) {
		c.Close()
		return nil, false
	}
	t.open[s] = struct{}{}
	if inbound {
		t.in++
		t.from[s.from]++
	}
	t.sent.add(s.from, bareTCP, headTCP, 0)
	t.received.add(s.from, bareTCP, headTCP, 0)
	s.forget = time.AfterFunc(streamLife, func() { s.Close() })
	return s, true
}

// Close closes the connection; more than once does nothing.
func (s *stream) Close() error {
	var err error
	s.once.Do(func() {
		err = s.Conn.Close()
		s.t.mu.Lock()
		defer s.t.mu.Unlock()
		s.forget.Stop()
		delete(s.t.open, s)
		if !s.inbound {
			return
		}
		s.t.in--
		if s.t.from[s.from]--; s.t.from[s.from] <= 0 {
			delete(s.t.from, s.from)
		}
	})
	return err
}

// FinalAdvertiseAddr returns the address of the roster, as it is given.
func (t *transport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	a, err := netip.ParseAddr(ip)
	if err != nil {
		return nil, 0, fmt.Errorf("read gossip address: %w", err)
	}
	return net.IP(a.AsSlice()), port, nil
}

// WriteTo sends one packet. No name is ever looked up.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, fmt.Errorf("send packet: %w", err)
	}
	_, err = t.udp.WriteToUDPAddrPort(b, to)
	t.sent.add(to.Addr(), 1, headUDP, len(b))
	return time.Now(), err
}

// WriteToAddress is WriteTo.
func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

// DialTimeout connects; the connection as a whole must be over after timeout,
// unless memberlist sets another deadline.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(addr); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c, err := t.dial(addr, timeout)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		c.Close()
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	s, ok := t.track(c, false)
	if !ok {
		return nil, net.ErrClosed
	}
	return s, nil
}

// DialAddressTimeout is DialTimeout.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

// PacketCh hands out the packets.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh hands out the inbound connections.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown closes the sockets and every connection, and waits for the readers.
func (t *transport) Shutdown() error {
	t.stop()
	t.tcp.Close()
	t.udp.Close()
	t.mu.Lock()
	t.closed = true
	var all []*stream
	for s := range t.open {
		all = append(all, s)
	}
	t.mu.Unlock()
	for _, s := range all {
		s.Close()
	}
	t.wait.Wait()
	return nil
}
