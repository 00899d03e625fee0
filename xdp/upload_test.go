package xdp

import (
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/nft"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	linkMTU = 1500 // of every link of the lab
	// timestamps is what the options of each segment take from the MSS (RFC 7323
	// section 3.2), which both ends use by default.
	timestamps = 12
	uploadSize = 2 << 20
)

// TestFullSizeUpload sends as large segments as client and server agree upon,
// over links that all have the same MTU. With the rules of the receiving box
// they fit into the tunnel, each encapsulation and family of the outer header.
func TestFullSizeUpload(t *testing.T) {
	l := newLab(t)
	l.plainRoutes(t)
	box1, _ := l.boxes(t)
	l.track(t)
	in(t, l.box2, func() { check(t, nft.Apply(receiverRules())) })
	for _, s := range uploads() {
		l.serve(t, edge.TCP, s.VIP)
		c := l.dial(t, edge.TCP, s.VIP)
		if got, want := sendMSS(t, c), nftMSS(s)-timestamps; got != want {
			t.Errorf("%s: segments of %d bytes, want %d", s.ID, got, want)
		}
		echo(t, c, uploadSize)
		c.Close()
	}
	balanced(t, box1)
	for _, v := range stats(t, box1).Verdicts {
		if v.Count > 0 && (v.Action == "drop" || strings.HasPrefix(string(v.Reason), "too_big")) {
			t.Errorf("box1: %d packets left by %s %s", v.Count, v.Action, v.Reason)
		}
	}
	if n := l.tracked(t); n > 0 {
		t.Errorf("box2 tracks %d connections of the client", n)
	}
}

// TestUploadWithoutRules is what the rules spare the client: it sends segments
// that do not fit, is told, and begins again smaller. It remembers what it was
// told of the path to an address, so that later connections do better.
func TestUploadWithoutRules(t *testing.T) {
	l := newLab(t)
	l.plainRoutes(t)
	box1, _ := l.boxes(t)
	l.track(t)
	for _, s := range uploads() {
		l.serve(t, edge.TCP, s.VIP)
		c := l.dial(t, edge.TCP, s.VIP)
		echo(t, c, uploadSize)
		c.Close()
	}
	balanced(t, box1)
	told := uint64(0)
	for _, v := range stats(t, box1).Verdicts {
		if v.Action == "tx" && v.Reason == "too_big" {
			told = v.Count
		}
	}
	t.Logf("%d packets were too big", told)
	if told == 0 {
		t.Error("everything fits without rules")
	}
	if l.tracked(t) == 0 {
		t.Error("box2 tracks nothing without rules")
	}
}

// track gives box2 a firewall that tracks connections.
func (l *lab) track(t *testing.T) {
	t.Helper()
	in(t, l.box2, func() {
		cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader("table inet operator { chain input { type filter hook input priority 0; ct state invalid counter; }; }")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("nft: %v\n%s", err, out)
		}
	})
}

// tracked is how many connections from the client box2 tracks.
func (l *lab) tracked(t *testing.T) (n int) {
	t.Helper()
	in(t, l.box2, func() {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			check(t, err)
			for _, f := range flows {
				if from := f.Forward.SrcIP.String(); from == client4 || from == client6 {
					n++
				}
			}
		}
	})
	return n
}

// uploads are the TCP services of the lab.
func uploads() (out []edge.TableService) {
	for _, s := range labTable(true).Services {
		if s.Protocol == edge.TCP {
			out = append(out, s)
		}
	}
	return out
}

// receiverRules are those that edged sets on box2.
func receiverRules() (out nft.Rules) {
	for _, s := range uploads() {
		out = append(out, nft.Service{VIP: s.VIP, Protocol: s.Protocol, MSS: nftMSS(s)})
	}
	return out
}

func nftMSS(s edge.TableService) int {
	return nft.MSS(linkMTU, nft.Overhead(s.Encap, true), s.VIP.Addr())
}

// plainRoutes takes the MSS off the routes of the lab: nobody but the rules knows
// of the tunnel.
func (l *lab) plainRoutes(t *testing.T) {
	t.Helper()
	for _, ns := range []netns.NsHandle{l.client, l.box1, l.box2} {
		in(t, ns, func() {
			for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
				routes, err := netlink.RouteList(up(t, "up0"), family)
				check(t, err)
				for _, r := range routes {
					if r.AdvMSS > 0 {
						r.AdvMSS = 0
						check(t, netlink.RouteReplace(&r))
					}
				}
			}
		})
	}
}

// sendMSS is how many bytes of data a segment of c has at the most.
func sendMSS(t *testing.T, c net.Conn) int {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	check(t, err)
	var n int
	check(t, raw.Control(func(fd uintptr) { n, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG) }))
	check(t, err)
	return n
}
