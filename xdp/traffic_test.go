package xdp

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// wireBox makes a namespace with an uplink, up0, on whose other end are the
// router, all backends and the clients: what is sent into peer0 comes back there.
// up1 is another uplink.
func wireBox(t testing.TB) (dir string) {
	t.Helper()
	newNS(t)
	sysctl(t, "ipv6/conf/default/disable_ipv6", "1")
	veth(t, "up0", "peer0")
	veth(t, "up1", "peer1")
	setMAC(t, "up0", ourMAC)
	addAddr(t, "up0", node4+"/24")
	stub, err := AttachPassStub("peer0")
	check(t, err)
	t.Cleanup(func() { stub.Close() })
	return bpffs(t) + "/edge"
}

// wireTable has a service of each kind that traffic is sent to.
func wireTable(b ...edge.TableBackend) edge.Table {
	t := tableOf(service("tcp4", vip4+":80", edge.TCP, b...), service("tcp6", "["+vip6+"]:80", edge.TCP, b...),
		service("udp4", vip4+":53", edge.UDP, b...), service("udp6", "["+vip6+"]:53", edge.UDP, b...))
	t.Trusted = []netip.Addr{addr(trust4), addr(trust6)}
	return t
}

// wireFlow is a flow of the traffic; its client's port is its number.
type wireFlow struct {
	syn, frame []byte // syn is nil once it is sent
	to         []netip.Addr
}

// traffic sends packets as fast as they come back: with a bounded number of them
// on the way no queue overflows, so that whoever does not come back was lost by
// the data plane. While it runs it opens new flows, and looks at how the program
// is attached.
type traffic struct {
	fd     int
	nl     *netlink.Handle
	onWire int           // packets on the way at most
	stop   chan struct{} // closed to end it
	done   sync.WaitGroup
	opened atomic.Int64 // flows that have had an answer
	rounds atomic.Int64
	over   atomic.Bool

	flows   []*wireFlow
	packets int
	took    time.Duration
	errs    []error
}

const (
	firstPort = 2000
	mostFlows = 20000
)

// startTraffic begins with n flows. The test's goroutine calls end before it
// looks at anything but opened.
func startTraffic(t testing.TB, n int) *traffic {
	t.Helper()
	w := &traffic{onWire: 32, stop: make(chan struct{})}
	peer, err := netlink.LinkByName("peer0")
	check(t, err)
	w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	t.Cleanup(func() { unix.Close(w.fd) })
	check(t, unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
	check(t, unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
	check(t, unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}))
	check(t, unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: netOrder(unix.ETH_P_ALL), Ifindex: peer.Attrs().Index}))
	w.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	check(t, err)
	t.Cleanup(w.nl.Close)
	for i := range n {
		w.open()
		check(t, w.exchange([]int{i}))
	}
	w.opened.Store(int64(n))
	w.done.Go(w.run)
	t.Cleanup(func() { w.end() })
	return w
}

// end stops the traffic and returns what was wrong with it.
func (w *traffic) end() error {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	w.done.Wait()
	return errors.Join(w.errs...)
}

// open adds a flow, of TCP or UDP, IPv4 or IPv6 by turns.
func (w *traffic) open() {
	i := len(w.flows)
	client, vip := client4, vip4
	if i%4 > 1 {
		client, vip = "["+client6+"]", "["+vip6+"]"
	}
	from := fmt.Sprint(client, ":", firstPort+i)
	f := &wireFlow{frame: udpPacket(from, vip+":53").frame()}
	if i%2 == 0 {
		p := tcpPacket(from, vip+":80")
		f.frame = p.frame()
		p.flags = flagSYN
		f.syn = p.frame()
	}
	w.flows = append(w.flows, f)
}

func (w *traffic) run() {
	begin := time.Now()
	defer w.over.Store(true)
	defer func() { w.took = time.Since(begin) }()
	for at, round := 0, 0; ; round++ {
		select {
		case <-w.stop:
			return
		default:
		}
		if round%4 == 3 && len(w.flows) < mostFlows {
			w.open()
		}
		n := min(w.onWire, len(w.flows))
		// The newest are among them: their second packet follows at once.
		batch := []int{len(w.flows) - 1}
		for len(batch) < n {
			batch = append(batch, at)
			at = (at + 1) % (len(w.flows) - 1)
		}
		if err := errors.Join(w.exchange(batch), w.attached()); err != nil {
			w.errs = append(w.errs, err)
			return
		}
		w.opened.Store(int64(len(w.flows)))
		w.rounds.Add(1)
	}
}

// exchange sends a packet of each flow and waits until all are back.
func (w *traffic) exchange(batch []int) error {
	for _, i := range batch {
		f := w.flows[i]
		frame := f.frame
		if f.syn != nil {
			frame, f.syn = f.syn, nil
		}
		if _, err := unix.Write(w.fd, frame); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		w.packets++
	}
	buf := make([]byte, 2048)
	for left := len(batch); left > 0; {
		n, err := unix.Read(w.fd, buf)
		if err != nil {
			return fmt.Errorf("%d of %d packets are lost: %w", left, len(batch), err)
		}
		port, to := backendOf(buf[:n])
		if port == 0 {
			continue
		}
		left--
		f := w.flows[port-firstPort]
		if len(f.to) == 0 || f.to[len(f.to)-1] != to {
			f.to = append(f.to, to)
		}
	}
	return nil
}

// backendOf returns the client's port and the backend of a GUE packet over IPv4;
// 0 of any other.
func backendOf(frame []byte) (port int, to netip.Addr) {
	outer := ethLen + ip4Len + 8
	if len(frame) < outer+ip6Len+4 || be.Uint16(frame[12:]) != 0x0800 || frame[ethLen+9] != 17 || be.Uint16(frame[ethLen+ip4Len+2:]) != edge.GUEPort {
		return 0, to
	}
	inner := frame[outer:]
	l4 := ip4Len
	if inner[0]>>4 == 6 {
		l4 = ip6Len
	}
	to, _ = netip.AddrFromSlice(frame[ethLen+16 : ethLen+20])
	return int(be.Uint16(inner[l4:])), to
}

// attached looks, now and then, whether up0 runs a program in native mode.
func (w *traffic) attached() error {
	if w.rounds.Load()%16 != 0 {
		return nil
	}
	dev, err := w.nl.LinkByName("up0")
	if err != nil {
		return err
	}
	if got := attachedAs(dev); got != edge.XDPNative {
		return fmt.Errorf("up0 runs a program in mode %q", got)
	}
	return nil
}

// moved names the flows from first to last, not included, that have changed
// their backend.
func (w *traffic) moved(first, last int64) (names []string) {
	for i, f := range w.flows[first:last] {
		if len(f.to) > 1 {
			names = append(names, fmt.Sprint(int(first)+i, ":", f.to))
		}
	}
	return names
}

// stayed fails if a flow has moved, or a packet was lost.
func (w *traffic) stayed(t testing.TB, first, last int64) {
	t.Helper()
	if moved := w.moved(first, last); len(moved) > 0 {
		t.Errorf("%d of %d flows have moved: %s ...", len(moved), last-first, strings.Join(moved[:min(5, len(moved))], ", "))
	}
}

// goOn waits until the traffic has gone on for some rounds. If it has broken off,
// end says why.
func (w *traffic) goOn(t testing.TB) {
	t.Helper()
	at := w.rounds.Load()
	eventually(t, "traffic goes on", func() bool { return w.over.Load() || w.rounds.Load() > at+20 })
}

// listen hears what the kernel says of interfaces from here on. The returned
// function fails if up0 ever was without a native program.
func listen(t testing.TB) (heard func()) {
	t.Helper()
	sock, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	check(t, err)
	t.Cleanup(sock.Close)
	check(t, sock.SetReceiveTimeout(&unix.Timeval{Sec: 5}))
	return func() {
		t.Helper()
		// An event of our own tells that all before it have been read.
		check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "last"}, PeerName: "last-peer"}))
		for last := false; !last; {
			msgs, _, err := sock.Receive()
			check(t, err)
			for _, m := range msgs {
				header := unix.NlMsghdr(m.Header)
				dev, err := netlink.LinkDeserialize(&header, m.Data)
				check(t, err)
				last = last || dev.Attrs().Name == "last"
				if dev.Attrs().Name == "up0" && (m.Header.Type == unix.RTM_DELLINK || attachedAs(dev) != edge.XDPNative) {
					t.Errorf("the kernel said of up0: message %d, program in mode %q", m.Header.Type, attachedAs(dev))
				}
			}
		}
	}
}
