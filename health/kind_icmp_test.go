package health

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// routed builds, from the thread's own network namespace, a router one hop away
// with networks behind it that it refuses in several ways. It returns the
// namespace of the router.
func routed(t *testing.T) netns.NsHandle {
	t.Helper()
	here := must(netns.Get())
	defer here.Close()
	router := must(netns.New()) // and the thread is in it
	tool(t, "ip link set lo up")
	if err := netns.Set(here); err != nil {
		t.Error(err)
	}
	tool(t, "ip link set lo up")
	tool(t, "ip link add near type veth peer name far")
	if err := netlink.LinkSetNsFd(must(netlink.LinkByName("far")), int(router)); err != nil {
		t.Error(err)
	}
	tool(t, "ip addr add 10.9.0.1/24 dev near")
	tool(t, "ip addr add 10.9.0.3/24 dev near")
	tool(t, "ip addr add fd09::1/64 dev near nodad")
	tool(t, "ip link set near up")
	if err := netns.Set(router); err != nil {
		t.Error(err)
	}
	for _, line := range []string{
		"ip addr add 10.9.0.2/24 dev far", "ip addr add fd09::2/64 dev far nodad", "ip link set far up",
		"ip route add unreachable 192.0.2.0/25", "ip route add prohibit 192.0.2.128/25", "ip route add blackhole 198.51.100.0/24",
		"ip route add unreachable 2001:db8:1::/48", "ip route add prohibit 2001:db8:2::/48", "ip route add blackhole 2001:db8:3::/48",
	} {
		tool(t, line)
	}
	sysctl(t, "net/ipv4/ip_forward", "1")
	sysctl(t, "net/ipv6/conf/all/forwarding", "1")
	sysctl(t, "net/ipv4/icmp_ratelimit", "0")
	sysctl(t, "net/ipv6/icmp/ratelimit", "0")
	if err := netns.Set(here); err != nil {
		t.Error(err)
	}
	tool(t, "ip route add default via 10.9.0.2")
	tool(t, "ip route add default via fd09::2")
	return router
}

// sysctl sets a parameter of the thread's network namespace.
func sysctl(t *testing.T, name, value string) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
		t.Errorf("set %s: %v", name, err)
	}
}

func TestICMP(t *testing.T) {
	t.Parallel()
	apart(t, unix.CLONE_NEWNET, func() {
		router := routed(t)
		defer router.Close()
		// Without a ping_group_range it takes a raw socket, and with one not.
		for _, groups := range []string{"1 0", "0 2147483647"} {
			sysctl(t, "net/ipv4/ping_group_range", groups)
			pings(t, groups)
			e, err := newEcho(netip.MustParseAddr("127.0.0.1"), netip.Addr{})
			if err != nil || e.raw != (groups == "1 0") {
				t.Errorf("with groups %s the socket is raw: %v, %v", groups, e.raw, err)
			}
			e.file.Close()
			strayReplies(t, router)
		}
		sysctl(t, "net/ipv4/ping_group_range", "1 0")
		becomeNobody(t)
		expect(t, try(t, edge.Probe{Kind: edge.ProbeICMP, Target: netip.MustParseAddr("127.0.0.1")}), "unknown: neither the sysctl")
	})
}

// pings asks everybody. It stays on its thread, so no subtests.
func pings(t *testing.T, groups string) {
	const limit = 100 * time.Millisecond
	for target, want := range map[string]string{
		"127.0.0.1": "", "::1": "", "10.9.0.2": "", "fd09::2": "", "::ffff:10.9.0.2": "",
		"192.0.2.1":    "ping 192.0.2.1: host unreachable, says 10.9.0.2",
		"192.0.2.200":  "ping 192.0.2.200: prohibited by a filter, says 10.9.0.2",
		"198.51.100.1": "ping 198.51.100.1: no answer within 100ms",
		"2001:db8:1::": "ping 2001:db8:1::: no route, says fd09::2",
		"2001:db8:2::": "ping 2001:db8:2::: prohibited by a filter, says fd09::2",
		"2001:db8:3::": "ping 2001:db8:3::: no answer within 100ms",
		"224.0.0.1":    "unknown: 224.0.0.1 is not the address of a target",
		"0.0.0.0":      "unknown: 0.0.0.0 is not the address of a target",
	} {
		p := edge.Probe{Kind: edge.ProbeICMP, Target: netip.MustParseAddr(target)}
		if strings.Contains(want, "no answer") {
			p.Timeout = limit
		}
		t.Logf("groups %s, target %s", groups, target)
		expect(t, try(t, p), want)
	}
	for source, want := range map[string]string{
		"10.9.0.3": "", "192.0.2.77": "unknown: bind to source 192.0.2.77: cannot assign", "::1": "unknown: source ::1 is not of the family of 10.9.0.2",
	} {
		expect(t, try(t, edge.Probe{Kind: edge.ProbeICMP, Target: netip.MustParseAddr("10.9.0.2"), Source: netip.MustParseAddr(source)}), want)
	}
	expect(t, try(t, edge.Probe{Kind: edge.ProbeICMP}), "unknown: is not the address of a target")
}

// becomeNobody takes all rights from the thread, and from no other.
func becomeNobody(t *testing.T) {
	t.Helper()
	const nobody = 65534
	if _, _, no := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); no != 0 {
		t.Errorf("setresuid: %v", no)
	}
}

// strayReplies has the router answer with echoes that are not ours: alone, and
// in front of the right one.
func strayReplies(t *testing.T, router netns.NsHandle) {
	t.Helper()
	here := must(netns.Get())
	defer here.Close()
	if err := netns.Set(router); err != nil {
		t.Error(err)
	}
	sysctl(t, "net/ipv4/icmp_echo_ignore_all", "1")
	fd := must(unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP))
	if err := netns.Set(here); err != nil {
		t.Error(err)
	}
	f := os.NewFile(uintptr(fd), "liar")
	defer f.Close()
	var honest atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		lie(f, &honest)
	}()
	p := edge.Probe{Kind: edge.ProbeICMP, Target: netip.MustParseAddr("10.9.0.2"), Timeout: 100 * time.Millisecond}
	expect(t, try(t, p), "ping 10.9.0.2: no answer within 100ms")
	honest.Store(true)
	p.Timeout = ample
	expect(t, try(t, p), "")
	f.Close()
	<-done
	if err := errors.Join(netns.Set(router), os.WriteFile("/proc/sys/net/ipv4/icmp_echo_ignore_all", []byte("0"), 0), netns.Set(here)); err != nil {
		t.Error(err)
	}
}

// lie answers echoes until f is closed.
func lie(f *os.File, honest *atomic.Bool) {
	buf := make([]byte, 1500)
	rc := must(f.SyscallConn())
	for {
		n, err := f.Read(buf)
		if err != nil {
			return
		}
		ping := buf[20:n]
		if ping[0] != echoRequest4 {
			continue
		}
		var replies [][]byte
		for _, change := range []int{6, 8, len(ping) - 1} { // sequence, token, its end
			b := bytes.Clone(ping)
			b[change] ^= 1
			replies = append(replies, b)
		}
		replies = append(replies, ping[:len(ping)-1], append(bytes.Clone(ping), 0))
		if honest.Load() {
			replies = append(replies, bytes.Clone(ping))
		}
		for _, b := range replies {
			b[0], b[2], b[3] = echoReply4, 0, 0
			b = append(b, make([]byte, len(b)&1)...) // checksum wants an even number
			binary.BigEndian.PutUint16(b[2:], checksum(b))
			_ = rc.Write(func(fd uintptr) bool {
				_ = unix.Sendto(int(fd), b, 0, &unix.SockaddrInet4{Addr: [4]byte(buf[12:16])})
				return true
			})
		}
	}
}

// TestUnreachable is about the messages that the network of a test does not
// send.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		v6         bool
		kind, code byte
		want       string
	}{
		{false, 3, 0, "network unreachable"}, {false, 3, 13, "prohibited by a filter"}, {false, 11, 0, "time to live exceeded"},
		{false, 3, 99, "icmp type 3 code 99"}, {true, 1, 3, "address unreachable"}, {true, 3, 0, "hop limit exceeded"}, {true, 9, 9, "icmp type 9 code 9"},
	} {
		if got := unreachable(c.v6, c.kind, c.code); got != c.want {
			t.Errorf("unreachable(%v, %d, %d) = %q, want %q", c.v6, c.kind, c.code, got, c.want)
		}
	}
}

// FuzzEcho: whatever arrives is told apart from the reply without a crash.
func FuzzEcho(f *testing.F) {
	f.Add([]byte{0x45, 19: 0, 20: 0, 27: 0}, true, false)
	f.Add([]byte{echoReply6, 7: 0}, false, true)
	f.Add([]byte{0x4f}, true, false)
	f.Fuzz(func(t *testing.T, b []byte, raw, v6 bool) {
		e := echo{raw: raw, v6: v6, id: 7, seq: 9, token: []byte("sixteen bytes...")}
		if e.answers(b) && !bytes.Contains(b, e.token) {
			t.Errorf("%q passes", b)
		}
		_ = parseQueued(b)
		_ = who(b)
	})
}
