package bgp_test

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/bgp/internal/bgptest"
)

// bird is a BIRD 2 in a namespace of its own, linked to a speaker; what it
// learns goes to its kernel table.
type bird struct {
	t    testing.TB
	ns   *space
	dir  string
	n    int
	proc *process
}

// birdOptions are what differs between the BIRDs of the tests.
type birdOptions struct {
	asn      int    // of the speaker; 0: 4200000001
	session  string // further lines of the protocol
	top      string // further lines of the file
	exports  string // filter of what it sends; empty: none
	v6       bool   // the session runs over IPv6
	families []string
	channel  string // further lines of each channel
	local    string // its address; empty: that of the link
	remote   string // the speaker's; empty: that of the link
	own      int    // its AS; 0: 65100 and the number of the link
}

func newBird(t testing.TB, s *speaker, n int, o birdOptions) *bird {
	t.Helper()
	b := &bird{t: t, ns: newSpace(t), dir: tempDir(t), n: n}
	link(t, s.ns, b.ns, n)
	b.configure(o)
	b.start()
	return b
}

func (b *bird) configure(o birdOptions) {
	b.t.Helper()
	local, remote := fmt.Sprintf("10.0.%d.2", b.n), fmt.Sprintf("10.0.%d.1", b.n)
	if o.v6 {
		local, remote = fmt.Sprintf("fd00:%d::2", b.n), fmt.Sprintf("fd00:%d::1", b.n)
	}
	if o.local != "" {
		local, remote = o.local, o.remote
	}
	if o.own == 0 {
		o.own = 65100 + b.n
	}
	if o.asn == 0 {
		o.asn = 4200000001
	}
	if o.exports == "" {
		o.exports = "none"
	}
	if o.families == nil {
		o.families = []string{"ipv4", "ipv6"}
	}
	var channels strings.Builder
	for _, f := range o.families {
		fmt.Fprintf(&channels, "%s { import all; export %s; %s };\n", f, o.exports, o.channel)
	}
	conf := fmt.Sprintf(`log stderr all;
router id 10.0.%d.2;
protocol device { scan time 10; }
protocol kernel { ipv4 { import none; export all; }; }
protocol kernel { ipv6 { import none; export all; }; }
%s
protocol bgp edge {
	local %s as %d;
	neighbor %s as %d;
	hold time 9;
	keepalive time 3;
	connect retry time 1;
	connect delay time 1;
	error wait time 1, 2;
	error forget time 1;
	%s
	%s
}
`, b.n, o.top, local, o.own, remote, o.asn, o.session, channels.String())
	must(b.t, os.WriteFile(b.dir+"/bird.conf", []byte(conf), 0o600))
}

func (b *bird) start() {
	b.t.Helper()
	b.proc = b.ns.StartBIRD(b.t, bgptest.Daemon{Dir: b.dir})
}

func (b *bird) birdc(cmd string) string { return bgptest.Birdc(b.dir, cmd) }

// seen is a path as a router shows it.
type seen struct {
	path        string // "4200000001 4200000001"
	med         int    // 0: none
	communities string // "(65000,10) (65000,20)"
	large       string
	nextHop     string
	localPref   int // of iBGP
}

var (
	birdPath = regexp.MustCompile(`BGP\.as_path: (.*)`)
	birdMED  = regexp.MustCompile(`BGP\.med: (\d+)`)
	birdComm = regexp.MustCompile(`BGP\.community: (.*)`)
	birdPref = regexp.MustCompile(`BGP\.local_pref: (\d+)`)
	birdLrg  = regexp.MustCompile(`BGP\.large_community: (.*)`)
	birdHop  = regexp.MustCompile(`BGP\.next_hop: (\S+)`)
)

// route returns nil if BIRD does not have the prefix from the speaker.
func (b *bird) route(p netip.Prefix) *seen {
	out := b.birdc("show route all protocol edge where net = " + p.String())
	if !strings.Contains(out, p.String()) {
		return nil
	}
	one := func(re *regexp.Regexp) string {
		if m := re.FindStringSubmatch(out); m != nil {
			return strings.TrimSpace(m[1])
		}
		return ""
	}
	r := &seen{path: one(birdPath), communities: one(birdComm), large: one(birdLrg), nextHop: one(birdHop)}
	r.med, _ = strconv.Atoi(one(birdMED))
	if r.path == "" {
		r.localPref, _ = strconv.Atoi(one(birdPref))
	}
	return r
}

var birdImports = regexp.MustCompile(`Import (updates|withdraws): +(\d+)`)

// counts are the updates and the withdrawals that BIRD has received, over both
// families.
func (b *bird) counts() (updates, withdraws int) {
	for _, m := range birdImports.FindAllStringSubmatch(b.birdc("show protocols all edge"), -1) {
		n, _ := strconv.Atoi(m[2])
		if m[1] == "updates" {
			updates += n
		} else {
			withdraws += n
		}
	}
	return updates, withdraws
}

// has waits until BIRD has p as want; nil: does not have it.
func (b *bird) has(p netip.Prefix, want *seen) {
	b.t.Helper()
	eventually(b.t, func() string { return differ(p, b.route(p), want) })
}

func differ(p netip.Prefix, got, want *seen) string {
	if got == nil && want == nil || got != nil && want != nil && *got == *want {
		return ""
	}
	return fmt.Sprintf("%s is %+v, want %+v", p, got, want)
}

// what the routers see of intentOf.
var (
	normal4   = &seen{path: "4200000001", communities: "(65000,10) (65000,20)", nextHop: "10.0.1.1"}
	normal6   = &seen{path: "4200000001", communities: "(65000,10) (65000,20)", nextHop: "fd00:1::1"}
	degraded4 = &seen{path: "4200000001 4200000001 4200000001 4200000001", med: 500, communities: "(65535,0)", nextHop: "10.0.1.1"}
	degraded6 = &seen{path: degraded4.path, med: 500, communities: "(65535,0)", nextHop: "fd00:1::1"}
)

// watch counts deletions of net4 and net6 from the kernel tables of a
// namespace until the returned function is called.
func watch(t testing.TB, s *space) (deleted func() int) {
	t.Helper()
	ch := make(chan netlink.RouteUpdate, 256)
	stop := make(chan struct{})
	must(t, netlink.RouteSubscribeAt(s.NS, ch, stop))
	n := make(chan int)
	go func() {
		count := 0
		for u := range ch {
			if u.Type == unix.RTM_DELROUTE && u.Dst != nil && (u.Dst.String() == net4.String() || u.Dst.String() == net6.String()) {
				count++
			}
		}
		n <- count
	}()
	return func() int { close(stop); return <-n }
}

// inFIB waits until the kernel of the namespace routes net4 and net6, or does
// not.
func inFIB(t testing.TB, s *space, want bool) {
	t.Helper()
	eventually(t, func() string {
		routes, err := s.Netlink.RouteList(nil, netlink.FAMILY_ALL)
		must(t, err)
		for _, p := range []netip.Prefix{net4, net6} {
			got := false
			for _, r := range routes {
				got = got || r.Dst != nil && r.Dst.String() == p.String()
			}
			if got != want {
				return fmt.Sprintf("%s in the kernel: %v, want %v", p, got, want)
			}
		}
		return ""
	})
}
