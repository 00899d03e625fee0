package bgp_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"testing"
	"time"
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
	f := &frr{t: t, ns: newSpace(t), dir: tempDir(t)}
	link(t, s.ns, f.ns, n)
	remote := fmt.Sprintf("10.0.%d.1", n)
	if o.v6 {
		remote = fmt.Sprintf("fd00:%d::1", n)
	}
	if o.own == 0 {
		o.own = 65100 + n
	}
	daemons := []string{"zebra", "bgpd"}
	if o.bfd {
		o.neighbor = append(o.neighbor, "bfd")
		daemons = []string{"zebra", "bfdd", "bgpd"}
		must(t, os.WriteFile(f.dir+"/bfdd.conf", []byte("log stdout\n"), 0o644))
	}
	var more strings.Builder
	for _, line := range o.neighbor {
		fmt.Fprintf(&more, " neighbor %s %s\n", remote, line)
	}
	conf := fmt.Sprintf(`log stdout
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
	must(t, os.WriteFile(f.dir+"/bgpd.conf", []byte(conf), 0o644))
	must(t, os.WriteFile(f.dir+"/zebra.conf", []byte("log stdout\n"), 0o644))
	u, err := user.Lookup("frr") // the daemons give up root
	must(t, err)
	uid, _ := strconv.Atoi(u.Uid)
	must(t, os.Chown(f.dir, uid, -1))
	f.procs = map[string]*process{}
	for _, d := range daemons {
		args := []string{"/usr/lib/frr/" + d, "-f", f.dir + "/" + d + ".conf", "-i", f.dir + "/" + d + ".pid",
			"-z", f.dir + "/zserv", "--vty_socket", f.dir, "-A", "127.0.0.1", "-P", "0"}
		if d == "bfdd" {
			args = append(args, "--bfdctl", f.dir+"/bfdd.sock")
		}
		if d == "zebra" {
			// Without it zebra changes an IPv6 route by deleting and adding it.
			args = append(args, "--v6-rr-semantics")
		}
		f.procs[d] = f.ns.start(t, f.dir+"/"+d+".log", args...)
		eventually(t, 10*time.Second, func() string {
			out, err := exec.Command("vtysh", "--vty_socket", f.dir, "-d", d, "-c", "show version").CombinedOutput()
			if err != nil {
				return fmt.Sprintf("%s: %v: %s", d, err, out)
			}
			return ""
		})
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

func (f *frr) vtysh(daemon, cmd string) string {
	out, err := exec.Command("vtysh", "--vty_socket", f.dir, "-d", daemon, "-c", cmd).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("vtysh: %v: %s", err, out)
	}
	return string(out)
}

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
	eventually(f.t, 10*time.Second, func() string { return differ(p, f.route(p), want) })
}
