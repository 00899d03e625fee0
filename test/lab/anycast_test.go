package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// speaker is a BIRD in a box that announces the service prefixes as edgebgp
// does: over one IPv4 session, dialled, with the box's key. It is what tests
// the routers' side without our own speaker.
type speaker struct {
	box     *Box
	process *Process
}

const speakerConf = `
log stderr all;
router id %[1]s;
protocol device {}
%[9]s
protocol static s4 { ipv4; route %[2]s blackhole; }
protocol static s6 { ipv6; route %[3]s blackhole; }
protocol bgp up {
	local %[1]s port 1790 as 64512;
	neighbor %[4]s as %[5]d;
	hold time 9; connect delay time 1; connect retry time 1; error wait time 1, 2;
	%[6]s
	ipv4 { import none; export filter { %[7]s accept; }; };
	ipv6 { import none; export filter { %[7]s accept; }; next hop address %[8]s; };
}
`

const degraded = `bgp_path.prepend(64512); bgp_path.prepend(64512); bgp_path.prepend(64512); bgp_med = 1000; bgp_community.add((65535,0));`

// speak starts or, with other attributes, reconfigures the speaker.
func (s *speaker) speak(ctx context.Context, l *Lab, attributes string) error {
	var plan *boxPlan
	for _, p := range l.plan.boxes {
		if p.Name == s.box.name {
			plan = p
		}
	}
	key := ""
	if plan.Key != "" {
		key = fmt.Sprintf("password %q;", plan.Key)
	}
	bfd := ""
	if l.Topology.BFD {
		bfd, key = `protocol bfd { interface "*" { interval 300 ms; multiplier 3; }; }`, key+"bfd on;"
	}
	text := fmt.Sprintf(speakerConf, plan.Addr4, Prefix4, Prefix6, plan.Gateway4, plan.PeerASN, key, attributes, plan.Addr6, bfd)
	if err := os.WriteFile(s.box.path("speaker.conf"), []byte(text), 0o644); err != nil {
		return err
	}
	if s.process != nil {
		_, err := s.box.Run(ctx, "birdc", "-s", s.box.path("speaker.ctl"), "configure")
		return err
	}
	log, err := os.Create(s.box.path("speaker.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	s.process, err = s.box.start(log, "bird", "-f", "-c", s.box.path("speaker.conf"), "-s", s.box.path("speaker.ctl"))
	return err
}

// addVIP gives a box a VIP, as edged does.
func addVIP(b *Box, a netip.Addr) error {
	lo, err := b.nl.LinkByName("lo")
	if err != nil {
		return err
	}
	return b.nl.AddrReplace(lo, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen()))})
}

// greet listens on the VIPs of a box, which answer with its name.
func greet(t *testing.T, b *Box) {
	t.Helper()
	for _, a := range []netip.Addr{VIP4, VIP6} {
		if err := addVIP(b, a); err != nil {
			t.Fatal(err)
		}
		ln, err := b.Listen("tcp", netip.AddrPortFrom(a, 443).String())
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, b.name)
				c.Close()
			}
		}()
		t.Cleanup(func() { ln.Close(); <-done })
	}
}

// ask opens n connections to a VIP and counts who answered.
func ask(ctx context.Context, c *Client, vip netip.Addr, n int) (map[string]int, error) {
	got := map[string]int{}
	for range n {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		conn, err := c.Dial(ctx, "tcp", netip.AddrPortFrom(vip, 443).String())
		cancel()
		if err != nil {
			return got, err
		}
		conn.(*net.TCPConn).SetDeadline(time.Now().Add(30 * time.Second))
		b, err := io.ReadAll(conn)
		conn.Close()
		if err != nil {
			return got, err
		}
		got[string(b)]++
	}
	return got, nil
}

func testAnycast(t *testing.T, l *Lab) {
	ctx := limit(t, patience)
	speakers := map[string]*speaker{}
	for _, b := range l.Boxes {
		greet(t, b)
		speakers[b.name] = &speaker{box: b}
		if err := speakers[b.name].speak(ctx, l, ""); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		for _, s := range speakers {
			s.process.Kill()
		}
	}()
	await := func(router string, via ...string) {
		t.Helper()
		start := time.Now()
		for _, p := range []netip.Prefix{Prefix4, Prefix6} {
			if err := l.Routers[router].Await(ctx, p, via...); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%s leads to %v after %s", router, via, time.Since(start).Round(time.Millisecond))
	}
	await("r-a", "a1", "a2")
	await("r-b", "b1")
	await("r-c", "c1")
	for client, want := range map[string][]string{"client-a": {"a1", "a2"}, "client-b": {"b1"}, "client-c": {"c1"}} {
		for _, vip := range []netip.Addr{VIP4, VIP6} {
			got, err := ask(ctx, l.Clients[client], vip, 40)
			if err != nil || len(got) != len(want) {
				t.Errorf("%s was served by %v, %v; want all of %v", client, got, err, want)
			}
		}
	}

	w, err := l.Routers["r-a"].Watch(Prefix4)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	t.Log("degrade a1, then a2")
	for i, name := range []string{"a1", "a2"} {
		if err := speakers[name].speak(ctx, l, degraded); err != nil {
			t.Fatal(err)
		}
		await("r-a", []string{"a2", "r-b"}[i])
	}
	t.Log("kill b1's speaker: the FRR router moves to the next site")
	speakers["b1"].process.Kill()
	await("r-b", "r-c")
	await("r-a", "r-c")
	t.Log("isolate c1: everybody is degraded or dead, and a serves")
	if err := l.Boxes["c1"].Isolate(); err != nil {
		t.Fatal(err)
	}
	await("r-c", "r-a")
	await("r-b", "r-a")
	await("r-a", "a1", "a2")
	if lost, err := w.Lost(); err != nil || len(lost) > 0 {
		t.Errorf("r-a lost the prefix: %+v, %v", lost, err)
	}
	t.Log("rejoin c1")
	if err := l.Boxes["c1"].Rejoin(); err != nil {
		t.Fatal(err)
	}
	await("r-c", "c1")
	await("r-a", "r-c")
}
