package bgp_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/bgp/internal/bgptest"
)

// frr is a zebra and a bgpd in a namespace of their own.
type frr struct {
	t     testing.TB
	ns    *space
	dir   string
	procs map[string]*process
}

// frrOptions are what differs between the FRRs of the tests.
type frrOptions struct {
	neighbor []string // further lines about the speaker, without its address
	own      int      // its AS; 0: 65100 and the number of the link
	v6       bool     // the session runs over IPv6
	bfd      bool
}

func newFRR(t testing.TB, s *speaker, n int, o frrOptions) *frr {
	t.Helper()
	f := &frr{t: t, ns: newSpace(t), procs: map[string]*process{}}
	link(t, s.ns, f.ns, n)
	remote := fmt.Sprintf("10.0.%d.1", n)
	if o.v6 {
		remote = fmt.Sprintf("fd00:%d::1", n)
	}
	if o.own == 0 {
		o.own = 65100 + n
	}
	daemons, configs := []string{"zebra", "bgpd"}, map[string]string{}
	if o.bfd {
		o.neighbor = append(o.neighbor, "bfd 10 300 300")
		daemons = []string{"zebra", "bfdd", "bgpd"}
		configs["bfdd"] = "log stdout\n"
	}
	var more strings.Builder
	for _, line := range o.neighbor {
		fmt.Fprintf(&more, " neighbor %s %s\n", remote, line)
	}
	configs["bgpd"] = fmt.Sprintf(`log stdout
router bgp %d
 bgp router-id 10.0.%d.2
 no bgp ebgp-requires-policy
 no bgp network import-check
 neighbor %[3]s remote-as 4200000001
 neighbor %[3]s timers 3 9
 neighbor %[3]s timers connect 1
%[4]s address-family ipv4 unicast
  neighbor %[3]s activate
 exit-address-family
 address-family ipv6 unicast
  neighbor %[3]s activate
 exit-address-family
`, o.own, n, remote, more.String())
	f.dir = bgptest.FRRDir(t, configs)
	for _, name := range daemons {
		d := bgptest.Daemon{Dir: f.dir}
		switch name {
		case "bfdd":
			d.More = []string{"--bfdctl", f.dir + "/bfdd.sock"}
		case "zebra":
			// Without it zebra changes an IPv6 route by deleting and adding it.
			d.More = []string{"--v6-rr-semantics"}
		}
		f.procs[name] = f.ns.StartFRR(t, name, d)
	}
	return f
}

// frrPath is what of "show bgp ... json" is looked at.
type frrPath struct {
	Paths []struct {
		ASPath struct {
			String string `json:"string"`
		} `json:"aspath"`
		Metric    int `json:"metric"`
		LocalPref int `json:"locPrf"`
		Large     struct {
			String string `json:"string"`
		} `json:"largeCommunity"`
		Community struct {
			String string `json:"string"`
		} `json:"community"`
		Nexthops []struct {
			IP string `json:"ip"`
		} `json:"nexthops"`
	} `json:"paths"`
}

func (f *frr) vtysh(daemon, cmd string) string { return bgptest.Vtysh(f.dir, daemon, cmd) }

func (f *frr) route(p netip.Prefix) *seen {
	family := "ipv4"
	if p.Addr().Is6() {
		family = "ipv6"
	}
	var v frrPath
	if json.Unmarshal([]byte(f.vtysh("bgpd", fmt.Sprintf("show bgp %s unicast %s json", family, p))), &v) != nil || len(v.Paths) != 1 {
		return nil
	}
	path := v.Paths[0]
	r := &seen{path: path.ASPath.String, med: path.Metric, communities: path.Community.String, large: path.Large.String}
	if path.ASPath.String == "" || path.ASPath.String == "Local" {
		r.path, r.localPref = "", path.LocalPref
	}
	if len(path.Nexthops) > 0 {
		r.nextHop = path.Nexthops[0].IP
	}
	return r
}

func (f *frr) has(p netip.Prefix, want *seen) {
	f.t.Helper()
	eventually(f.t, func() string { return differ(p, f.route(p), want) })
}
