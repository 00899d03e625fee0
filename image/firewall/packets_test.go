package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// busy is the reference, with a box that listens for BGP and peers on the link of
// the test.
func busy(t *testing.T, more ...string) Ruleset {
	t.Helper()
	return Build(busyConfig(t, more...))
}

func busyConfig(t *testing.T, more ...string) *edge.Config {
	t.Helper()
	return reference(t, append([]string{
		"    listen: 0\n", "    listen: 179\n",
		`address: "fe80::1", interface: eth1`, `address: "fe80::1", interface: eth0, bfd: {}`,
		"management: 127.0.0.1:9180", "management: 10.1.0.2:9180",
	}, more...)...)
}

// packet is one that comes from outside.
type packet struct {
	network, from, to string
	ttl               int // 0: as usual
}

func (p packet) String() string {
	return fmt.Sprintf("%s %s to %s, ttl %d", p.network, p.from, p.to, p.ttl)
}

// TestPackets sends real ones. What is let in is answered by the kernel, since
// nobody listens: that is an error other than a timeout.
func TestPackets(t *testing.T) {
	p := newPair(t)
	sysctl(t, "ipv4/icmp_ratelimit", "0") // or not everything that is let in is answered
	sysctl(t, "ipv6/icmp/ratelimit", "0")
	rules := busy(t)
	check(t, rules.Apply())
	for counter, packets := range map[string][]packet{
		"": {
			{"tcp", "10.1.0.1", "10.1.0.2:179", 255}, // a peer with GTSM
			{"tcp", "10.0.0.1", "10.1.0.2:179", 3},   // several hops away
			{"tcp6", "fe80::1%out0", "[fe80::2%out0]:179", 1},
			{"udp", "10.1.0.1", "10.1.0.2:3784", 255},
			{"udp6", "fe80::1%out0", "[fe80::2%out0]:3784", 255},
			{"tcp", "10.2.0.2", "10.1.0.2:7946", 0}, {"udp", "10.2.0.2", "10.1.0.2:7946", 0},
			{"udp6", "fd00:2::2", "[fd00:1::2]:7946", 0},
			{"tcp", "10.3.0.2", "10.1.0.2:9181", 0},
			{"udp", "10.2.0.2", "10.1.0.2:6080", 0},
			{"ip4:4", "10.2.0.2", "10.1.0.2", 0}, {"ip4:41", "10.2.0.2", "10.1.0.2", 0},
			{"tcp", "203.0.113.9", "198.51.100.10:443", 0},
			{"udp", "203.0.113.9", "198.51.100.53:53", 0},
			{"tcp", "203.0.113.9", "198.51.100.53:8080", 0}, // port: all, protocol: any
			{"ip4:47", "203.0.113.9", "198.51.100.53", 0},
			{"tcp", "10.0.0.1", "10.1.0.2:22", 0}, {"tcp6", "fd00:2::2", "[fd00:1::2]:22", 0},
			{"tcp", "10.0.0.1", "10.1.0.2:9180", 0},
		},
		refusedBGP:    {{"tcp", "10.2.0.2", "10.1.0.2:179", 255}, {"tcp6", "fe80::9%out0", "[fe80::2%out0]:179", 255}},
		refusedBGPTTL: {{"tcp", "10.1.0.1", "10.1.0.2:179", 254}, {"tcp", "10.1.0.1", "10.1.0.2:179", 1}},
		refusedBFD:    {{"udp", "10.2.0.2", "10.1.0.2:3784", 255}, {"udp", "10.1.0.1", "10.1.0.2:4784", 255}},
		refusedBFDTTL: {{"udp", "10.1.0.1", "10.1.0.2:3784", 254}, {"udp6", "fe80::1%out0", "[fe80::2%out0]:3784", 254}},
		refusedGossip: {{"tcp", "203.0.113.9", "10.1.0.2:7946", 0}, {"udp", "10.1.0.1", "10.1.0.2:7946", 0}},
		refusedTunnel: {{"udp", "203.0.113.9", "10.1.0.2:6080", 0}, {"ip4:4", "203.0.113.9", "10.1.0.2", 0}, {"ip4:41", "203.0.113.9", "10.1.0.2", 0}},
		refusedHealth: {{"tcp", "203.0.113.9", "10.1.0.2:9181", 0}},
		refusedManagement: {
			{"tcp", "203.0.113.9", "10.1.0.2:22", 0}, {"tcp", "192.168.7.7", "10.1.0.2:9180", 0}, {"tcp", "169.254.9.9", "169.254.77.1:9180", 0},
			// By these a box in rescue is reached, and no other.
			{"tcp", "169.254.9.9", "169.254.77.1:22", 0}, {"tcp6", "fe80::9%out0", "[fe80::2%out0]:22", 0},
		},
		refusedVIP:  {{"tcp", "203.0.113.9", "198.51.100.10:22", 0}, {"udp", "203.0.113.9", "198.51.100.10:443", 0}},
		refusedRest: {{"tcp", "203.0.113.9", "10.1.0.2:8080", 0}, {"udp", "10.2.0.2", "10.1.0.2:53", 0}, {"ip4:47", "203.0.113.9", "10.1.0.2", 0}},
	} {
		for _, one := range packets {
			agrees(t, rules, one, counter)
			before := counts(t)
			verdict := p.send(t, one, counter)
			after := counts(t)
			for name := range after {
				if n := after[name] - before[name]; name == counter && n == 0 || name != counter && n != 0 && name != refusedICMP && name != refusedBroadcast {
					t.Errorf("%s: %s counts %d more; sent: %v", one, name, n, verdict)
				}
			}
			if counter == "" && verdict != nil {
				t.Errorf("%s: %v", one, verdict)
			}
		}
	}
}

// send sends a packet from outside. One that should get through is answered; of one
// that should not it is waited until the counter has moved. It says what is wrong.
func (p pair) send(t *testing.T, one packet, counter string) error {
	t.Helper()
	before := counts(t)[counter]
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	done := make(chan error, 1)
	knocking := -1
	p.in(t, p.outside, func() { // a socket stays in the namespace that it was made in
		d := net.Dialer{LocalAddr: local(t, one), Control: func(_, _ string, c syscall.RawConn) error {
			return withTTL(c, one)
		}}
		network := one.network
		if counter != "" && strings.HasPrefix(network, "tcp") {
			// The handshake never ends: it is given up once it has been counted.
			knocking = p.knock(t, one)
			done <- nil
			return
		}
		c, err := d.DialContext(ctx, network, one.to)
		if err != nil {
			done <- answered(err)
			return
		}
		defer c.Close()
		if _, err := c.Write([]byte("12345678")); err != nil {
			done <- answered(err)
			return
		}
		if counter != "" {
			done <- nil
			return
		}
		check(t, c.SetReadDeadline(time.Now().Add(3*time.Second)))
		_, err = c.Read(make([]byte, 64))
		done <- answered(err)
	})
	err := <-done
	if counter == "" {
		return err
	}
	// Open, it would knock again, and be counted as what comes after it.
	defer unix.Close(knocking)
	for deadline := time.Now().Add(5 * time.Second); counts(t)[counter] == before; {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has not moved", counter)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

// answered is nil if the error is the other kernel's answer.
func answered(err error) error {
	for _, want := range []error{unix.ECONNREFUSED, unix.ENOPROTOOPT, unix.EHOSTUNREACH} {
		if errors.Is(err, want) {
			return nil
		}
	}
	return fmt.Errorf("no answer: %w", err)
}

func local(t *testing.T, one packet) net.Addr {
	t.Helper()
	a := netip.MustParseAddr(one.from)
	switch {
	case strings.HasPrefix(one.network, "tcp"):
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
	case strings.HasPrefix(one.network, "udp"):
		return net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
	}
	return &net.IPAddr{IP: a.AsSlice()}
}

func withTTL(c syscall.RawConn, one packet) error {
	if one.ttl == 0 {
		return nil
	}
	var err error
	ctl := c.Control(func(fd uintptr) { err = setTTL(int(fd), one) })
	return errors.Join(ctl, err)
}

func setTTL(fd int, one packet) error {
	if one.ttl == 0 {
		return nil
	}
	if strings.HasSuffix(one.network, "6") {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, one.ttl)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, one.ttl)
}

// knock sends a SYN and does not wait.
func (p pair) knock(t *testing.T, one packet) int {
	t.Helper()
	at := func(text string, port uint16) (int, unix.Sockaddr) {
		a := netip.MustParseAddr(text)
		if a.Is4() {
			return unix.AF_INET, &unix.SockaddrInet4{Addr: a.As4(), Port: int(port)}
		}
		zone := 0
		if a.Zone() != "" {
			ifi, err := net.InterfaceByName(a.Zone())
			check(t, err)
			zone = ifi.Index
		}
		return unix.AF_INET6, &unix.SockaddrInet6{Addr: a.As16(), Port: int(port), ZoneId: uint32(zone)}
	}
	to := netip.MustParseAddrPort(one.to)
	family, target := at(to.Addr().String(), to.Port())
	_, source := at(one.from, 0)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	check(t, setTTL(fd, one))
	check(t, unix.Bind(fd, source))
	if err := unix.Connect(fd, target); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		t.Fatal(err)
	}
	return fd
}

// counts reads the counters as an operator does.
func counts(t *testing.T) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, m := range regexp.MustCompile(`counter (\w+) \{\s+packets (\d+)`).FindAllStringSubmatch(run(t, "", "nft", "list", "counters", "table", "inet", Table), -1) {
		n, err := strconv.ParseUint(m[2], 10, 64)
		check(t, err)
		out[m[1]] = n
	}
	if len(out) != len(counters()) {
		t.Fatalf("%d counters, want %d", len(out), len(counters()))
	}
	return out
}

// TestPing: so many a second, and no more.
func TestPing(t *testing.T) {
	p := newPair(t)
	check(t, busy(t).Apply())
	var got int
	p.in(t, p.outside, func() {
		c, err := net.ListenPacket("ip4:icmp", "10.1.0.1")
		check(t, err)
		defer c.Close()
		// The answers are read when all has been sent: they must not be lost here.
		check(t, c.(*net.IPConn).SetReadBuffer(4<<20))
		const sent = 3 * echoBurst
		for i := range sent {
			_, err := c.WriteTo(echo(uint16(i)), &net.IPAddr{IP: net.IPv4(10, 1, 0, 2)})
			check(t, err)
		}
		check(t, c.SetReadDeadline(time.Now().Add(2*time.Second)))
		for buf := make([]byte, 128); got < sent; {
			n, _, err := c.ReadFrom(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			check(t, err)
			if n > 0 && buf[0] == 0 { // an answer
				got++
			}
		}
	})
	if refused := counts(t)[refusedEcho]; got < echoBurst || refused == 0 || got+int(refused) > 3*echoBurst || got+int(refused) < 3*echoBurst*9/10 {
		t.Errorf("of %d pings %d were answered and %d refused", 3*echoBurst, got, refused)
	}
}

// echo is an ICMP echo request.
func echo(seq uint16) []byte {
	b := []byte{8, 0, 0, 0, 0x12, 0x34}
	b = binary.BigEndian.AppendUint16(b, seq)
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum+sum>>16))
	return b
}
