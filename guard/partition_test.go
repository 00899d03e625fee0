package guard

import (
	"flag"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/hashicorp/memberlist"
	"github.com/vishvananda/netlink"

	"github.com/catchment-dev/edge"
)

const inside = "GUARD_TEST_INSIDE" // set in the child that has a network namespace of its own

// cutsFlag is for the long form: 20s,75s,10m.
var cutsFlag = flag.String("cuts", "", "how long TestLongPartitions cuts, a list; empty: it does nothing more than the short form")

// outside runs the test in a network namespace of its own, in a child process: the
// sockets are made by goroutines on any thread. In the child it returns false.
func outside(t *testing.T, timeout time.Duration) bool {
	t.Helper()
	if os.Getenv(inside) == "" {
		child := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.timeout="+timeout.String(), "-test.v", "-cuts="+*cutsFlag)
		child.Env = append(os.Environ(), inside+"=1")
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		out, err := child.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("%v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "partition_test.go") {
				t.Log(strings.TrimSpace(line))
			}
		}
		return true
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	return false
}

// healTime is how long it may take after the end of a cut until all is as before.
const healTime = 30 * time.Second

// TestPartition cuts five nodes two to three, with real packets dropped, until
// both sides take the other for dead, and for 20 seconds at least.
func TestPartition(t *testing.T) {
	t.Parallel()
	if outside(t, 4*time.Minute) {
		return
	}
	f := newFleet(t, 5, 2)
	f.startAll()
	halt := f.tellAll()
	defer halt()
	f.until("all known", f.known)
	heal, began := f.cut(2), time.Now()
	a, e := f.nodes[0], f.nodes[4]
	// One side has two sites, floor 2: nobody there may go. The other has
	// three: one may go, as two others stay.
	a.Wish(prefix1, sick)
	e.Wish(prefix1, sick)
	f.until("e leaves its side of three", func() bool { return e.tryLeave() == nil })
	e.Wish(prefix1, Wish{})
	f.until("a is refused on its side of two", func() bool {
		return strings.Contains(string(a.Permit(prefix1).Reason), "1 of 2 other sites promised to stay; c: no answer")
	})
	within(t, 2*time.Minute, "the split is seen", func() bool {
		return a.alive() == 1 && f.nodes[1].alive() == 1 && f.nodes[2].alive() == 2 && f.nodes[3].alive() == 2 && e.alive() == 2 && time.Since(began) > 20*time.Second
	})
	t.Logf("split seen after %s", time.Since(began))
	if a.Permit(prefix1).OK || f.announcing() != 4 {
		t.Errorf("%d announce; permit of a: %+v", f.announcing(), a.Permit(prefix1))
	}
	if m := a.report("c"); m.Age < a.fresh() || a.State().Isolated {
		t.Errorf("c's word at a is %s old, fresh is %s; isolated: %t", m.Age, a.fresh(), a.State().Isolated)
	}
	f.heals(heal)
	f.until("a leaves with the promises of the other side", func() bool { return a.tryLeave() == nil })
}

// heals ends a cut after news on one side, and waits until all see each other and
// know the news.
func (f *fleet) heals(heal func()) {
	f.t.Helper()
	c, news := f.nodes[2], claim("news from beyond")
	c.says.Store(&news)
	c.Publish(edge.Report{Says: news})
	began := time.Now()
	heal()
	within(f.t, healTime, "all see all again", func() bool { return f.seen(len(f.nodes) - 1) })
	seen := time.Since(began)
	within(f.t, healTime-seen, "the news of the other side", func() bool {
		for _, n := range f.nodes {
			if m := n.report(c.ID); n != c && (m.Age > n.fresh() || !sameClaims(m.Report.Says, news)) {
				return false
			}
		}
		return true
	})
	f.t.Logf("members again after %s, the news everywhere after %s", seen, time.Since(began))
}

// TestForgottenPartition: after a minute memberlist has forgotten dead nodes, which
// is all that differs in a cut of ten minutes. Here it forgets them after a second.
// The real lengths are the long form's.
func TestForgottenPartition(t *testing.T) {
	t.Parallel()
	if outside(t, 3*time.Minute) {
		return
	}
	f := newFleet(t, 5, 2)
	f.tune = func(c *memberlist.Config) {
		c.ProbeInterval, c.ProbeTimeout, c.SuspicionMaxTimeoutMult = 200*time.Millisecond, 100*time.Millisecond, 1
		c.GossipToTheDeadTime = time.Second
	}
	f.startAll()
	halt := f.tellAll()
	defer halt()
	heal := f.cut(2)
	within(t, time.Minute, "the split is seen", func() bool { return f.nodes[0].alive() == 1 && f.nodes[4].alive() == 2 })
	// Nodes are forgotten each time that all have been probed.
	began := time.Now()
	f.until("the dead are forgotten", func() bool { return time.Since(began) > 8*time.Second })
	f.heals(heal)
}

// TestLongPartitions cuts for as long as is asked for, with the real timings.
func TestLongPartitions(t *testing.T) {
	if *cutsFlag == "" {
		return // TestPartition is the short form
	}
	if outside(t, time.Hour) {
		return
	}
	f := newFleet(t, 6, 2)
	f.startAll()
	halt := f.tellAll()
	defer halt()
	for text := range strings.SplitSeq(*cutsFlag, ",") {
		long, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		heal := f.cut(3)
		began := time.Now()
		within(t, long+time.Minute, "the end of the cut", func() bool { return time.Since(began) > long })
		t.Logf("cut for %s: a sees %d of 5", long, f.nodes[0].alive())
		f.heals(heal)
	}
}

// TestIsolated: a site that hears no other one says so, and freezes; when it
// hears them again, it may go.
func TestIsolated(t *testing.T) {
	t.Parallel()
	if outside(t, 3*time.Minute) {
		return
	}
	f := newFleet(t, 4, 1)
	f.roster[1].Site = "a" // a second node of the site does not help
	f.startAll()
	halt := f.tellAll()
	defer halt()
	a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
	f.until("a has heard the others", func() bool { return f.known() && time.Since(f.nodes[3].started) > isolatedAfter })
	if a.State().Isolated || c.State().Isolated {
		t.Error("isolated in a fleet that is whole")
	}
	heal := f.cut(2)
	a.Wish(prefix1, sick)
	b.Wish(prefix1, Wish{Want: true, Severity: edge.SeverityDrain, Reason: "an order"})
	began := time.Now()
	f.until("a and b are isolated", func() bool { return a.State().Isolated && b.State().Isolated })
	t.Logf("isolated after %s", time.Since(began))
	f.until("three leases of silence", func() bool {
		// One of the two may go as the other stays: that is not the site.
		if a.tryLeave() == nil {
			t.Log("a leaves its site to b")
		}
		if b.tryLeave() == nil || !b.held.Load() {
			t.Fatal("nobody announces in isolation")
		}
		return time.Since(began) > isolatedAfter+3*quick.PromiseLease
	})
	if c.State().Isolated {
		t.Error("c hears d, and is isolated")
	}
	heal()
	within(t, healTime, "nobody is isolated", func() bool { return !a.State().Isolated && !b.State().Isolated })
	f.until("b leaves too", func() bool { return b.tryLeave() == nil })
}

// cut drops everything between the first n nodes and the rest; the function
// that it returns heals.
func (f *fleet) cut(n int) func() {
	f.t.Helper()
	c := &nftables.Conn{}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "cut"})
	chain := c.AddChain(&nftables.Chain{Name: "out", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter})
	drop := func(from, to edge.Node) {
		src, dst := from.Gossip.Addr().As4(), to.Gossip.Addr().As4()
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: src[:]},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: dst[:]},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
	}
	for _, x := range f.roster[:n] {
		for _, y := range f.roster[n:] {
			drop(x, y)
			drop(y, x)
		}
	}
	if err := c.Flush(); err != nil {
		f.t.Fatalf("cut: %v", err)
	}
	return func() {
		c.DelTable(table)
		if err := c.Flush(); err != nil {
			f.t.Fatalf("heal: %v", err)
		}
	}
}
