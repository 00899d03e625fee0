package xdp

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
)

// pinger sends datagrams all the time and counts what comes back.
type pinger struct{ sent, back atomic.Int64 }

func (p *pinger) run(c net.Conn, stop *atomic.Bool) error {
	buf := make([]byte, 100)
	pace := time.Tick(time.Millisecond)
	for !stop.Load() {
		<-pace
		if err := c.SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			return err
		}
		p.sent.Add(1)
		if _, err := c.Write(buf); err != nil {
			return err
		}
		if _, err := c.Read(buf); err == nil {
			p.back.Add(1)
		} else if netErr := net.Error(nil); !errors.As(err, &netErr) || !netErr.Timeout() {
			return err
		}
	}
	return nil
}

// R9: when the router in front of a box gets another MAC address, as when its spare
// takes over, packets go on to the new one as soon as the kernel has learnt it:
// nothing keeps the old one. The spare announces itself (RFC 9568 section 8), or the
// kernel finds out when it next asks for the old one.
func TestGatewayChangesMAC(t *testing.T) {
	t.Run("announced", func(t *testing.T) {
		l := newLab(t)
		sysctl(t, "ipv4/conf/b1/arp_notify", "1")
		sysctl(t, "ipv6/conf/b1/ndisc_notify", "1")
		l.changeGateway(t, []byte{2, 0, 0, 0, 7, 1}, []byte{2, 0, 0, 0, 7, 2})
	})
	t.Run("found out", func(t *testing.T) {
		l := newLab(t)
		in(t, l.box1, func() {
			for _, family := range []string{"ipv4", "ipv6"} { // less than the minute that it takes else
				sysctl(t, family+"/neigh/up0/base_reachable_time_ms", "500")
				sysctl(t, family+"/neigh/up0/delay_first_probe_time", "1")
				sysctl(t, family+"/neigh/up0/interval_probe_time_ms", "200")
				sysctl(t, family+"/neigh/up0/retrans_time_ms", "50")
			}
		})
		l.changeGateway(t, []byte{2, 0, 0, 0, 7, 3})
	})
}

// changeGateway gives the router other MAC addresses on the side of box1 while
// datagrams go to and fro.
func (l *lab) changeGateway(t *testing.T, macs ...[]byte) {
	t.Helper()
	box1, _ := l.boxes(t)
	var g errgroup.Group
	var stop atomic.Bool
	var pings [2]pinger
	var conns []net.Conn
	for i, vip := range []string{vip4, vip6} {
		udp, tcp := netip.AddrPortFrom(addr(vip), 53), netip.AddrPortFrom(addr(vip), 80)
		l.serve(t, edge.UDP, udp)
		l.serve(t, edge.TCP, tcp)
		c := l.dial(t, edge.TCP, tcp)
		echo(t, c, 1000)
		conns = append(conns, c)
		u := l.dial(t, edge.UDP, udp)
		g.Go(func() error { return pings[i].run(u, &stop) })
	}
	t.Cleanup(func() { stop.Store(true) })
	goesOn := func(when string) {
		t.Helper()
		for i := range pings {
			at := pings[i].back.Load()
			deadline := time.Now().Add(patience)
			for pings[i].back.Load() < at+20 {
				if time.Now().After(deadline) {
					t.Fatalf("%s: no datagrams come back within %s", when, patience)
				}
				<-time.After(5 * time.Millisecond)
			}
		}
	}
	goesOn("before")
	for _, mac := range macs {
		begin := time.Now()
		setMAC(t, "b1", mac)
		goesOn("after the change")
		t.Logf("packets go on within %s", time.Since(begin).Round(time.Millisecond))
		in(t, l.box1, func() {
			known, err := netlink.NeighList(up(t, "up0").Attrs().Index, 0)
			check(t, err)
			for _, n := range known {
				a, _ := netip.AddrFromSlice(n.IP)
				if a = a.Unmap(); (a == addr("10.0.1.1") || a == addr("fd00:1::1")) && !bytes.Equal(n.HardwareAddr, mac) {
					t.Errorf("packets go on, and box1 has %s at %s", a, n.HardwareAddr)
				}
			}
		})
		for _, c := range conns {
			echo(t, c, 100_000)
		}
	}
	stop.Store(true)
	check(t, g.Wait())
	for i := range pings {
		t.Logf("%d of %d datagrams came back", pings[i].back.Load(), pings[i].sent.Load())
	}
	balanced(t, box1)
}
