package edge

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestIsASN(t *testing.T) {
	for n, want := range map[uint32]bool{0: false, 1: true, 23455: true, 23456: false, 65534: true, 65535: false, 65536: true, 4294967294: true, 4294967295: false} {
		if IsASN(n) != want {
			t.Errorf("AS %d: %v, want %v", n, !want, want)
		}
	}
}

func TestAddresses(t *testing.T) {
	for s, want := range map[string]struct{ host, reachable bool }{
		"192.0.2.1": {true, true}, "2001:db8::1": {true, true}, "fd00::1": {true, true},
		"127.0.0.1": {true, false}, "::1": {true, false}, "169.254.1.1": {true, false}, "fe80::1": {true, false},
		"0.0.0.0": {}, "::": {}, "224.0.0.1": {}, "ff02::1": {}, "255.255.255.255": {}, "fe80::1%eth0": {}, "::ffff:192.0.2.1": {},
	} {
		a := netip.MustParseAddr(s)
		if IsHost(a) != want.host || IsReachable(a) != want.reachable {
			t.Errorf("%s: host %v, reachable %v, want %+v", s, IsHost(a), IsReachable(a), want)
		}
		if p := netip.PrefixFrom(a, a.BitLen()); IsAnnounceable(p) != want.reachable {
			t.Errorf("%s: announceable %v, want %v", p, !want.reachable, want.reachable)
		}
	}
	if IsHost(netip.Addr{}) || IsAnnounceable(netip.Prefix{}) || IsAnnounceable(netip.MustParsePrefix("192.0.2.1/24")) || IsAnnounceable(netip.PrefixFrom(netip.MustParseAddr("192.0.2.0"), 0)) {
		t.Error("what is no address, has host bits or is a default route is taken")
	}
}

// items repeats format: # is the number of the item, @ makes an address of it,
// KEY a public key.
func items(n int, format string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.NewReplacer("#", fmt.Sprint(i), "@", fmt.Sprintf("%d.%d", i/250, i%250), "KEY", keyOf(i)).Replace(format))
	}
	return b.String()
}

// TestMost: what the speaker and the forwarder cannot hold is an error of the
// configuration; one less is taken.
func TestMost(t *testing.T) {
	base := read(t, "testdata/smallest.yaml")
	for name, c := range map[string]struct {
		before, format string
		most           int // of format, beside those of the file
		want           string
	}{
		"peers": {"      - {name: r, ", "      - {name: p#, address: 10.8.@, asn: 65001}\n",
			MaxPeers - 2, "node.bgp.peers: expected at most 256 in this list, found 257"},
		"services": {"    - {name: dns, ", "    - {name: v#, vip: 192.0.2.7, port: 1#, protocol: udp, backends: [{name: a, address: 10.7.0.1}]}\n",
			MaxServices - 2, "fleet.services: expected at most 512 in this list, found 513"},
		"nodes": {"    - {name: n, ", "    - {name: n#, site: s, address4: 10.6.@, gossip: \"10.6.@:7946\", public_key: KEY}\n",
			MaxTrusted - 1, "fleet.nodes: the nodes have 2049 addresses; expected at most 2048"},
	} {
		for _, n := range []int{c.most, c.most + 1} {
			_, err := Parse("f", []byte(strings.Replace(base, c.before, items(n, c.format)+c.before, 1)))
			if (err != nil) != (n > c.most) || err != nil && !strings.HasSuffix(err.Error(), c.want) {
				t.Errorf("%d more %s: %.300v", n, name, err)
			}
		}
	}
}

// TestMostBackends: the file has two services already, with one backend each;
// that of the proxied one is the node.
func TestMostBackends(t *testing.T) {
	base := read(t, "testdata/smallest.yaml")
	for _, n := range []int{2730, 2731} {
		backends := strings.TrimSuffix(items(n, `{name: b#, address: "10.9.@"}, `), ", ")
		services := items(3, "    - {name: v#, vip: 192.0.2.9, port: 1#, protocol: udp, backends: [-]}\n")
		src := strings.Replace(base, "    - {name: dns, ", strings.ReplaceAll(services, "-]", backends+"]")+"    - {name: dns, ", 1)
		_, err := Parse("f", []byte(src))
		want := fmt.Sprintf("fleet.services: site s uses %d backends, a node counting once for each proxied service; expected at most 8192", 3*n+2)
		if (err != nil) != (3*n+2 > MaxBackends) || err != nil && !strings.HasSuffix(err.Error(), want) {
			t.Errorf("3 times %d backends: %.300v", n, err)
		}
	}
}
