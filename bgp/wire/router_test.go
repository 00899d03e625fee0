package wire_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/catchment-dev/edge/bgp/internal/bgptest"
)

// router is a real BGP router in a namespace. It waits for sessions from AS
// 65010 at 10.0.1.1 and fd00:1::1; over the latter, IPv4 prefixes have an IPv6
// next hop. It sends 192.0.2.0/24, 198.51.100.0/24 (with MED 50, 65000:10,
// 65535:0 and 65000:1:2) and 2001:db8:1::/48.
type router interface {
	// withdraw takes 192.0.2.0/24 and 2001:db8:1::/48 away.
	withdraw()
	// refresh asks the other end of the session over IPv4 to send all again.
	refresh()
	// shutdown ends that session, with the text "maintenance tonight".
	shutdown()
}

func command(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
	return string(out)
}

// bird is BIRD 2, as AS 4200000101.
type bird struct {
	t   *testing.T
	dir string
}

func newBird(t *testing.T, l link) router {
	t.Helper()
	b := bird{t, bgptest.TempDir(t)}
	const session = `
protocol bgp %s {
	local %s as 4200000101;
	neighbor %s as 65010;
	passive on;
	hold time 9; keepalive time 3;
	error wait time 1, 1; error forget time 1;
	graceful restart on;
	ipv4 { import none; export filter mark; %s };
	ipv6 { import none; export filter mark; %s };
}`
	conf := `log stderr all;
router id 10.0.1.2;
protocol device { scan time 10; }
protocol static stay { ipv4; route 198.51.100.0/24 blackhole; }
protocol static four { ipv4; route 192.0.2.0/24 blackhole; }
protocol static six { ipv6; route 2001:db8:1::/48 blackhole; }
filter mark {
	if source != RTS_STATIC then reject;
	if net = 198.51.100.0/24 then {
		bgp_med = 50;
		bgp_community.add((65000, 10));
		bgp_community.add((65535, 0));
		bgp_large_community.add((65000, 1, 2));
	}
	accept;
}` + fmt.Sprintf(session, "edge4", "10.0.1.2", "10.0.1.1", "", "next hop address fd00:1::2;") +
		fmt.Sprintf(session, "edge6", "fd00:1::2", "fd00:1::1", "extended next hop on;", "")
	must(t, os.WriteFile(b.dir+"/bird.conf", []byte(conf), 0o600))
	l.routers.StartBIRD(t, bgptest.Daemon{Dir: b.dir})
	return b
}

func (b bird) do(args ...string) {
	b.t.Helper()
	command(b.t, append([]string{"birdc", "-s", b.dir + "/ctl"}, args...)...)
}

func (b bird) withdraw() { b.do("disable four"); b.do("disable six") }
func (b bird) refresh()  { b.do("enable four"); b.do("enable six"); b.do("reload in edge4") }
func (b bird) shutdown() { b.do(`disable edge4 "maintenance tonight"`) }

// frr is FRR, as AS 65102.
type frr struct {
	t   *testing.T
	dir string
}

func newFRR(t *testing.T, l link) router {
	t.Helper()
	const conf = `log stdout
router bgp 65102
 bgp router-id 10.0.1.2
 no bgp ebgp-requires-policy
 no bgp network import-check
 no bgp default ipv4-unicast
 neighbor 10.0.1.1 remote-as 65010
 neighbor 10.0.1.1 passive
 neighbor 10.0.1.1 timers 3 9
 neighbor fd00:1::1 remote-as 65010
 neighbor fd00:1::1 passive
 neighbor fd00:1::1 timers 3 9
 neighbor fd00:1::1 capability extended-nexthop
 address-family ipv4 unicast
  network 192.0.2.0/24
  network 198.51.100.0/24 route-map mark
  neighbor 10.0.1.1 activate
  neighbor fd00:1::1 activate
 exit-address-family
 address-family ipv6 unicast
  network 2001:db8:1::/48
  neighbor 10.0.1.1 activate
  neighbor 10.0.1.1 route-map hop out
  neighbor fd00:1::1 activate
 exit-address-family
route-map mark permit 10
 set metric 50
 set community 65000:10 graceful-shutdown
 set large-community 65000:1:2
route-map hop permit 10
 set ipv6 next-hop global fd00:1::2
`
	f := frr{t, bgptest.FRRDir(t, map[string]string{"bgpd": conf})}
	for _, d := range []string{"zebra", "bgpd"} {
		l.routers.StartFRR(t, d, bgptest.Daemon{Dir: f.dir})
	}
	return f
}

func (f frr) do(lines ...string) {
	f.t.Helper()
	args := []string{"vtysh", "--vty_socket", f.dir, "-d", "bgpd"}
	for _, l := range lines {
		args = append(args, "-c", l)
	}
	command(f.t, args...)
}

func (f frr) networks(no string) {
	f.t.Helper()
	f.do("configure terminal", "router bgp 65102", "address-family ipv4 unicast", no+"network 192.0.2.0/24", "exit-address-family",
		"address-family ipv6 unicast", no+"network 2001:db8:1::/48")
}

func (f frr) withdraw() { f.networks("no ") }

func (f frr) refresh() {
	f.networks("")
	f.do("clear bgp ipv4 unicast 10.0.1.1 soft in", "clear bgp ipv6 unicast 10.0.1.1 soft in")
}

func (f frr) shutdown() {
	f.do("configure terminal", "router bgp 65102", "neighbor 10.0.1.1 shutdown message maintenance tonight")
}
