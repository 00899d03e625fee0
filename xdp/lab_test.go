package xdp

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

const (
	box1v4, box1v6 = "10.0.1.2", "fd00:1::2"
	box2v4, box2v6 = "10.0.2.2", "fd00:2::2"
)

// Services of the lab by port: what the outer header is, seen from each VIP.
var labServices = []struct {
	port  int
	p     edge.Protocol
	encap edge.Encap
	outer [2]string // for the IPv4 and the IPv6 VIP
}{
	{80, edge.TCP, edge.EncapGUE, [2]string{box2v4, box2v6}},
	{81, edge.TCP, edge.EncapIPIP, [2]string{box2v4, box2v6}},
	{82, edge.TCP, edge.EncapGUE, [2]string{box2v6, box2v4}},
	{83, edge.TCP, edge.EncapIPIP, [2]string{box2v6, box2v4}},
	{53, edge.UDP, edge.EncapGUE, [2]string{box2v4, box2v6}},
	{54, edge.UDP, edge.EncapIPIP, [2]string{box2v6, box2v4}},
}

func labTable(local bool) edge.Table {
	t := edge.Table{Seed: testSeed}
	for i, vip := range []string{vip4, vip6} {
		for _, s := range labServices {
			svc := service(fmt.Sprintf("%s-%d-%d", s.p, s.port, i), netip.AddrPortFrom(addr(vip), uint16(s.port)).String(), s.p,
				edge.TableBackend{ID: "box2", Addr: addr(s.outer[i]), Weight: 1, Local: local})
			svc.Encap = s.encap
			t.Services = append(t.Services, svc)
		}
	}
	return t
}

func box1Table() edge.Table {
	t := labTable(false)
	t.Source4, t.Source6 = addr(box1v4), addr(box1v6)
	return t
}

func box2Table() edge.Table {
	t := labTable(true)
	t.Source4, t.Source6 = addr(box2v4), addr(box2v6)
	t.Trusted = []netip.Addr{addr(box1v4), addr(box1v6)}
	return t
}

// lab is client - router - box1, box2: the router sends the VIPs to box1, which
// forwards to box2, which answers the client directly.
type lab struct {
	client, box1, box2, router netns.NsHandle
	dir                        string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{client: newNS(t), box1: newNS(t), box2: newNS(t), router: newNS(t), dir: bpffs(t)}
	l.connect(t, "c", l.client, "198.51.100.1/24", client4+"/24", "2001:db8:c::fe/64", client6+"/64")
	l.connect(t, "b1", l.box1, "10.0.1.1/24", box1v4+"/24", "fd00:1::1/64", box1v6+"/64")
	l.connect(t, "b2", l.box2, "10.0.2.1/24", box2v4+"/24", "fd00:2::1/64", box2v6+"/64")
	for _, name := range []string{"b1", "b2"} {
		stub, err := AttachPassStub(name)
		check(t, err)
		t.Cleanup(func() { stub.Close() })
	}
	addRoute(t, vip4, box1v4, 0)
	addRoute(t, vip6, box1v6, 0)
	for _, box := range []netns.NsHandle{l.box1, l.box2} {
		in(t, box, func() {
			addAddr(t, "lo", vip4+"/32")
			addAddr(t, "lo", vip6+"/128")
		})
	}
	return l
}

// connect joins a namespace to the router, by which it reaches everything.
func (l *lab) connect(t *testing.T, name string, ns netns.NsHandle, router4, host4, router6, host6 string) {
	t.Helper()
	check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "up0", PeerNamespace: netlink.NsFd(int(ns))}))
	check(t, OffloadsOff(name))
	up(t, name)
	addAddr(t, name, router4)
	addAddr(t, name, router6)
	in(t, ns, func() {
		check(t, OffloadsOff("up0"))
		up(t, "up0")
		addAddr(t, "up0", host4)
		addAddr(t, "up0", host6)
		// What clients send must leave room for outer headers: they are told
		// so by the MSS, which the route makes smaller.
		addRoute(t, "0.0.0.0/0", router4, 1400)
		addRoute(t, "::/0", router6, 1380)
	})
}

func addRoute(t testing.TB, dst, via string, mss int) {
	t.Helper()
	if p, err := netip.ParsePrefix(via); err == nil {
		via = p.Addr().String()
	}
	r := &netlink.Route{Gw: net.ParseIP(via), AdvMSS: mss}
	if _, n, err := net.ParseCIDR(dst); err == nil {
		r.Dst = n
	} else {
		r.Dst = host(dst)
	}
	check(t, netlink.RouteAdd(r))
}

// boxes loads both forwarders.
func (l *lab) boxes(t *testing.T) (box1, box2 *Forwarder) {
	t.Helper()
	in(t, l.box1, func() { box1 = openForwarder(t, boxOptions(l.dir+"/box1")) })
	apply(t, box1, box1Table())
	l.waitForNeighbours(t)
	return box1, l.receiver(t)
}

// waitForNeighbours waits until box1 knows the router, which only its forwarder
// has asked for.
func (l *lab) waitForNeighbours(t *testing.T) {
	t.Helper()
	in(t, l.box1, func() {
		for _, router := range []string{"10.0.1.1", "fd00:1::1"} {
			eventually(t, "neighbour "+router, func() bool {
				known, err := netlink.NeighList(up(t, "up0").Attrs().Index, 0)
				return err == nil && slices.ContainsFunc(known, func(n netlink.Neigh) bool {
					a, _ := netip.AddrFromSlice(n.IP)
					return a.Unmap() == addr(router) && len(n.HardwareAddr) == 6 && n.FlagsExt&netlink.NTF_EXT_MANAGED != 0
				})
			})
		}
	})
}

func (l *lab) receiver(t *testing.T) (box2 *Forwarder) {
	t.Helper()
	in(t, l.box2, func() { box2 = openForwarder(t, boxOptions(l.dir+"/box2")) })
	apply(t, box2, box2Table())
	return box2
}

// serve echoes on a VIP of box2 until the test ends.
func (l *lab) serve(t *testing.T, p edge.Protocol, at netip.AddrPort) {
	t.Helper()
	in(t, l.box2, func() {
		if p == edge.UDP {
			c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			check(t, err)
			done := make(chan struct{})
			t.Cleanup(func() { c.Close(); <-done })
			go func() {
				defer close(done)
				buf := make([]byte, 2000)
				for {
					n, from, err := c.ReadFromUDPAddrPort(buf)
					if err != nil {
						return
					}
					c.WriteToUDPAddrPort(buf[:n], from)
				}
			}()
			return
		}
		ln, err := net.Listen("tcp", at.String())
		check(t, err)
		done := make(chan struct{})
		t.Cleanup(func() { ln.Close(); <-done })
		go func() {
			defer close(done)
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				io.Copy(c, c)
				c.Close()
			}
		}()
	})
}

// dial connects from the client.
func (l *lab) dial(t *testing.T, p edge.Protocol, to netip.AddrPort) net.Conn {
	t.Helper()
	var c net.Conn
	var err error
	in(t, l.client, func() { c, err = net.DialTimeout(p.String(), to.String(), patience) })
	check(t, err)
	t.Cleanup(func() { c.Close() })
	check(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// echo sends n bytes and wants them back.
func echo(t *testing.T, c net.Conn, n int) {
	t.Helper()
	want := make([]byte, n)
	for i := range want {
		want[i] = byte(rand.Uint32())
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(want)
		sent <- err
	}()
	got := make([]byte, n)
	_, err := io.ReadFull(c, got)
	check(t, <-sent)
	check(t, err)
	if !bytes.Equal(got, want) {
		t.Fatal("what came back is not what was sent")
	}
}
