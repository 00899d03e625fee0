package relay

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/bgp/internal/bgptest"
)

// bird is a BIRD 2 in a namespace of its own.
type bird struct {
	t    testing.TB
	ns   *space
	dir  string
	n    int
	proc *process
}

// birdOptions are what differs between the BIRDs of the tests.
type birdOptions struct {
	ns       *space // nil: a new one, linked to the hub
	local    string // "10.0.n.2"
	remote   string // "10.0.n.1"
	asn      int    // its AS; 0: 65100 + n
	id       string // its router id; "10.0.n.2"
	session  string // further lines of the protocol
	channels string // "ipv4 {...} ipv6 {...}"
	top      string // further lines of the file
}

// newBird starts a BIRD at the far end of link n.
func newBird(t testing.TB, r *rig, n int, o birdOptions) *bird {
	t.Helper()
	b := &bird{t: t, ns: o.ns, dir: tempDir(t), n: n}
	if b.ns == nil {
		b.ns = newSpace(t)
		link(t, r.ns, b.ns, n)
	}
	b.configure(o)
	b.start()
	return b
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func (b *bird) configure(o birdOptions) {
	b.t.Helper()
	self := fmt.Sprintf("10.0.%d.2", b.n)
	conf := fmt.Sprintf(`log stderr all;
router id %s;
protocol device { scan time 10; }
%s
protocol bgp edge {
	local %s as %d;
	neighbor %s as 4200000001;
	hold time 9;
	keepalive time 3;
	connect retry time 1;
	connect delay time 1;
	error wait time 1, 1;
	error forget time 1;
	%s
	%s
}
`, or(o.id, self), o.top, or(o.local, self), or(o.asn, 65100+b.n), or(o.remote, fmt.Sprintf("10.0.%d.1", b.n)), o.session,
		or(o.channels, "ipv4 { import all; export none; }; ipv6 { import all; export none; };"))
	must(b.t, os.WriteFile(b.dir+"/bird.conf", []byte(conf), 0o600))
}

func (b *bird) start() {
	b.t.Helper()
	b.proc = b.ns.StartBIRD(b.t, bgptest.Daemon{Dir: b.dir})
}

func (b *bird) birdc(cmd ...string) string { return bgptest.Birdc(b.dir, cmd...) }

// has waits until BIRD has the prefix with all the words; no words: until it
// does not have it.
func (b *bird) has(prefix netip.Prefix, words ...string) {
	b.t.Helper()
	eventually(b.t, func() string {
		out := b.birdc("show route all protocol edge where net = " + prefix.String())
		if len(words) == 0 && strings.Contains(out, prefix.String()) {
			return out
		}
		for _, w := range words {
			if !strings.Contains(out, w) {
				return fmt.Sprintf("no %q in %s", w, out)
			}
		}
		return ""
	})
}

// logs waits until BIRD has logged the words, in one line.
func (b *bird) logs(words ...string) {
	b.t.Helper()
	eventually(b.t, func() string {
	lines:
		for line := range strings.Lines(b.proc.Output()) {
			for _, w := range words {
				if !strings.Contains(line, w) {
					continue lines
				}
			}
			return ""
		}
		return fmt.Sprintf("%q in the log of BIRD", words)
	})
}

// frr is a zebra and a bgpd in a namespace of their own.
type frr struct {
	t   testing.TB
	ns  *space
	dir string
	log *process // of bgpd
}

// newFRR starts an FRR at the far end of link n; id is its router id, session
// are further lines, each after "neighbor ADDRESS".
func newFRR(t testing.TB, r *rig, n int, id string, session ...string) *frr {
	t.Helper()
	ns := newSpace(t)
	link(t, r.ns, ns, n)
	return newFRRIn(t, ns, n, id, fmt.Sprintf("10.0.%d.1", n), session...)
}

// newFRRIn starts an FRR in a namespace that is linked already; remote is our
// address.
func newFRRIn(t testing.TB, ns *space, n int, id, remote string, session ...string) *frr {
	t.Helper()
	f := &frr{t: t, ns: ns}
	var conf strings.Builder
	fmt.Fprintf(&conf, "log stdout\nrouter bgp %d\n bgp router-id %s\n no bgp ebgp-requires-policy\n no bgp network import-check\n bgp log-neighbor-changes\n", 65100+n, id)
	for _, line := range append([]string{"remote-as 4200000001", "timers 3 9", "timers connect 1"}, session...) {
		fmt.Fprintf(&conf, " neighbor %s %s\n", remote, line)
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		fmt.Fprintf(&conf, " address-family %s unicast\n  neighbor %s activate\n exit-address-family\n", family, remote)
	}
	f.dir = bgptest.FRRDir(t, map[string]string{"bgpd": conf.String()})
	for _, d := range []string{"zebra", "bgpd"} {
		f.log = f.ns.StartFRR(t, d, bgptest.Daemon{Dir: f.dir})
	}
	return f
}

func (f *frr) vtysh(daemon, cmd string) string { return bgptest.Vtysh(f.dir, daemon, cmd) }

// has waits until FRR has the prefix with all the words.
func (f *frr) has(prefix netip.Prefix, words ...string) {
	f.t.Helper()
	family := "ipv4"
	if prefix.Addr().Is6() {
		family = "ipv6"
	}
	eventually(f.t, func() string {
		out := f.vtysh("bgpd", fmt.Sprintf("show bgp %s unicast %s", family, prefix))
		for _, w := range words {
			if !strings.Contains(out, w) {
				return fmt.Sprintf("no %q in %s", w, out)
			}
		}
		return ""
	})
}
