package xdp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/internal/nstest"
	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var testSeed = [16]byte{0: 0xc0, 7: 7, 8: 1, 15: 0xff}

// What every test here calls, by a short name.
var (
	check  = nstest.Check
	in     = nstest.In
	sysctl = nstest.Sysctl
	up     = nstest.Up
)

// newNS puts the test's thread into a new network namespace, for good: the
// thread ends with the test's goroutine.
func newNS(t testing.TB) netns.NsHandle {
	t.Helper()
	ns := nstest.New(t)
	sysctl(t, "ipv4/ip_forward", "1")
	sysctl(t, "ipv6/conf/all/forwarding", "1")
	sysctl(t, "ipv4/conf/all/rp_filter", "0")
	sysctl(t, "ipv4/conf/default/rp_filter", "0")
	sysctl(t, "ipv6/conf/default/accept_dad", "0")
	sysctl(t, "ipv6/conf/all/accept_dad", "0")
	up(t, "lo")
	return ns
}

// bpffs mounts a bpffs of the test's own.
func bpffs(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	check(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// veth makes a pair with the offloads off that encapsulation does not survive.
func veth(t testing.TB, a, b string) {
	t.Helper()
	check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a}, PeerName: b}))
	for _, name := range []string{a, b} {
		check(t, OffloadsOff(name))
		up(t, name)
	}
}

func addAddr(t testing.TB, dev, cidr string) {
	t.Helper()
	l, err := netlink.LinkByName(dev)
	check(t, err)
	a, err := netlink.ParseAddr(cidr)
	check(t, err)
	a.Flags = unix.IFA_F_NODAD
	check(t, netlink.AddrAdd(l, a))
}

func addNeighbour(t testing.TB, dev, ip, mac string) {
	t.Helper()
	l, err := netlink.LinkByName(dev)
	check(t, err)
	hw, err := net.ParseMAC(mac)
	check(t, err)
	check(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: net.ParseIP(ip), HardwareAddr: hw, State: netlink.NUD_PERMANENT}))
}

func openForwarder(t testing.TB, o Options) *Forwarder {
	t.Helper()
	if o.Flows == 0 {
		o.Flows = 4096
	}
	f, err := Open(t.Context(), o)
	check(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func apply(t testing.TB, f *Forwarder, table edge.Table) {
	t.Helper()
	check(t, f.Apply(t.Context(), table))
}

func stats(t testing.TB, f *Forwarder) edge.ForwarderStats {
	t.Helper()
	st, err := f.Stats()
	check(t, err)
	return st
}

// balanced fails unless each packet was counted out exactly once.
func balanced(t testing.TB, f *Forwarder) {
	t.Helper()
	st := stats(t, f)
	sum := uint64(0)
	for _, v := range st.Verdicts {
		sum += v.Count
	}
	if sum != st.Received {
		t.Errorf("received %d, verdicts %d", st.Received, sum)
	}
}

// md is struct xdp_md.
type md struct{ Data, DataEnd, DataMeta, Ingress, RxQueue, Egress uint32 }

// ran is what became of a packet.
type ran struct {
	xdp     uint32
	out     []byte
	verdict edgeVerdict
}

// device is a Forwarder with an interface to feed packets into.
type device struct {
	*Forwarder
	ingress int                // interface index
	other   *netlink.LinkAttrs // behind which the far backends are
	ns      netns.NsHandle
}

// run feeds one packet into the program.
func (d device) run(t testing.TB, frame []byte) ran { return d.runMeta(t, frame, 0) }

// runMeta leaves less headroom: meta bytes of it are taken.
func (d device) runMeta(t testing.TB, frame []byte, meta int) ran {
	t.Helper()
	data := append(make([]byte, meta), frame...)
	o := &ebpf.RunOptions{Data: data, DataOut: make([]byte, len(data)+256), Repeat: 1}
	o.Context = md{Data: uint32(meta), DataEnd: uint32(len(data)), Ingress: uint32(d.ingress)}
	before, err := d.readVerdictCounts()
	check(t, err)
	xdp, err := d.program().Run(o)
	check(t, err)
	after, err := d.readVerdictCounts()
	check(t, err)
	r := ran{xdp: xdp, out: o.DataOut}
	if after.Received != before.Received+1 {
		t.Fatalf("received went from %d to %d", before.Received, after.Received)
	}
	for i, n := range after.Left {
		switch n - before.Left[i] {
		case 0:
		case 1:
			if r.verdict != 0 {
				t.Fatalf("packet is counted as %d and as %d", r.verdict, i)
			}
			r.verdict = edgeVerdict(i)
		default:
			t.Fatalf("verdict %d went from %d to %d", i, before.Left[i], n)
		}
	}
	if want := xdpCode[r.verdict>>6]; xdp != want || r.verdict == 0 {
		t.Fatalf("verdict %d came with XDP code %d, want %d", r.verdict, xdp, want)
	}
	return r
}

// XDP_PASS, XDP_TX, XDP_REDIRECT, XDP_DROP by action.
var xdpCode = [4]uint32{2, 3, 4, 1}

func (d device) name(v edgeVerdict) string {
	n := d.Forwarder.verdict(v)
	return fmt.Sprintf("%s %s", n.action, n.reason)
}

func addr(s string) netip.Addr         { return netip.MustParseAddr(s) }
func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// patience is how long a test waits for what is to come, on a busy box too.
const patience = time.Minute

// eventually polls until ok, or fails.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s", what, patience)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
