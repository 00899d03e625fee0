package bfd

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/bgp/internal/bgptest"
)

// bareLink joins a and b by a veth with link-local addresses alone: fe80::2 in a,
// fe80::1 in b.
func bareLink(t testing.TB, a, b *space, name string) {
	t.Helper()
	bgptest.Link(t, a, b, name)
	for _, s := range []*space{a, b} { // none that the kernel makes
		must(t, s.Run(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/addr_gen_mode", []byte("1"), 0) }))
	}
	a.Up(t, name, "fe80::2/64")
	b.Up(t, name, "fe80::1/64")
}

// TestOneAddressTwice: a BIRD and an FRR, each fe80::1 on a link of its own. A cut
// of one link is one session's end, and no packet is taken for that of the other.
func TestOneAddressTwice(t *testing.T) {
	t.Parallel()
	sa, s1, s2 := newSpace(t), newSpace(t), newSpace(t)
	bareLink(t, sa, s1, "v1")
	bareLink(t, sa, s2, "v2")
	e := run(t, sa)
	b := newBird(t, s1, pace, neighbour{addr: "fe80::2", local: "fe80::1", iface: "v1"})
	f := newFRR(t, s2, pace, neighbour{addr: "fe80::2", local: "fe80::1", iface: "v2"})
	e.set(to("fe80::1%v1", ""), to("fe80::1%v2", "fe80::2"))
	for _, peer := range []string{"fe80::1%v1", "fe80::1%v2"} {
		e.becomes(peer, "up, and the pace agreed on", func(s Status) bool { return s.State == Up && s.Detect == 3*pace })
	}
	says(t, b, "fe80::2", "up", isUp)
	says(t, f, "fe80::2", "up", isUp)
	up1, up2 := e.status("fe80::1%v1"), e.status("fe80::1%v2")

	// Each session's "down", by the other's link: all that differs is where it
	// comes from.
	for _, c := range []struct {
		from *space
		link string
		of   Status
		at   string
	}{{s1, "v1", up2, "fe80::1%v1"}, {s2, "v2", up1, "fe80::1%v2"}} {
		sendOn(t, c.from, c.link, "fe80::1", downOf(c.of))
		e.becomes(c.at, "counted", func(s Status) bool { return s.Dropped["discriminator"] == 1 })
	}
	// A stranger of the link, who knows the discriminators.
	s1.Up(t, "v1", "fe80::7/64")
	sendOn(t, s1, "v1", "fe80::7", downOf(up1))
	eventually(t, func() string {
		if e.Dropped()["unknown-peer"] != 1 {
			return "a stranger's packet is not counted"
		}
		return ""
	})
	for peer, was := range map[string]Status{"fe80::1%v1": up1, "fe80::1%v2": up2} {
		if st := e.status(peer); st.State != Up || st.Flaps != 0 || st.Local != was.Local {
			t.Errorf("a packet of another link was heard: %+v", st)
		}
	}

	sa.Down(t, "v1")
	if st := e.reaches("fe80::1%v1", Down); !st.Failed() || st.Diag != DiagExpired {
		t.Errorf("of the cut link: %+v", st)
	}
	if st := e.status("fe80::1%v2"); st.State != Up || st.Flaps != 0 {
		t.Errorf("of the other link: %+v", st)
	}
	sa.Up(t, "v1", "fe80::2/64")
	e.reaches("fe80::1%v1", Up)
	if got := e.changes("fe80::1%v2"); got[len(got)-1] != Up {
		t.Errorf("the other has changed: %v", got)
	}
}

// downOf is the packet that the far end of a session would send to end it.
func downOf(st Status) []byte {
	p := packet{state: Down, multiplier: 3, mine: st.Remote, yours: st.Local, minTx: time.Second, minRx: time.Second}
	var b [packetLen]byte
	p.put(&b)
	return b[:]
}

// sendOn sends a packet to fe80::2 on a link.
func sendOn(t testing.TB, s *space, link, from string, b []byte) {
	t.Helper()
	must(t, s.Run(func() error {
		index, err := interfaceIndex(link)
		if err != nil {
			return err
		}
		src, dst := netip.MustParseAddr(from), netip.MustParseAddr("fe80::2")
		fd, err := udp(dst, 0, [3]int{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 255})
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return errors.Join(unix.Bind(fd, sockaddr(src, 0, index)), unix.Sendto(fd, b, 0, sockaddr(dst, portSingle, index)))
	}))
}

// TestNamedTwice: what is one session, and what nobody could tell apart.
func TestNamedTwice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b Config
		want string
	}{
		{to("fe80::1%v1", ""), to("fe80::1%v2", ""), ""},
		{on("v1", to("fe80::1", "")), to("fe80::1%v2", ""), ""},
		{on("v1", to("fe80::1", "")), to("fe80::1%v1", ""), "named twice"},
		{on("v1", to("fe80::1", "")), on("v2", to("fe80::1", "")), "write the interface v2 as its zone"},
		{on("v1", to("fd00::1", "")), on("v2", to("fd00::1", "")), "named twice"},
	} {
		if _, err := valid([]Config{c.a, c.b}); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v, %+v: %v, want %q", c.a, c.b, err, c.want)
		}
	}
}
