package guard

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"

	"github.com/catchment-dev/edge"
)

const inside = "GUARD_TEST_INSIDE" // set in the child that has a network namespace of its own

// TestPartition cuts five nodes two to three, with real packets dropped, until
// both sides take the other for dead. It runs in a network namespace of its
// own, in a child process: the sockets are made by goroutines on any thread.
func TestPartition(t *testing.T) {
	t.Parallel()
	if os.Getenv(inside) == "" {
		child := exec.Command("/proc/self/exe", "-test.run=^TestPartition$", "-test.timeout=3m", "-test.v")
		child.Env = append(os.Environ(), inside+"=1")
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		out, err := child.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestPartition") {
			t.Fatalf("%v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "partition_test.go") {
				t.Log(strings.TrimSpace(line))
			}
		}
		return
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, 5, 2)
	f.startAll()
	heal := f.cut(2)
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
	began := time.Now()
	f.until("the split is seen", func() bool {
		return a.alive() == 1 && f.nodes[1].alive() == 1 && f.nodes[2].alive() == 2 && f.nodes[3].alive() == 2 && e.alive() == 2
	})
	t.Logf("split seen after another %s", time.Since(began))
	if a.Permit(prefix1).OK || f.announcing() != 4 {
		t.Errorf("%d announce; permit of a: %+v", f.announcing(), a.Permit(prefix1))
	}
	f.nodes[2].Publish(edge.Report{Says: claim("news from beyond"), Load: edge.LoadRow{}})
	heal()
	began = time.Now()
	within(t, 10*time.Second, "all see all again", func() bool { return f.seen(4) })
	t.Logf("healed after %s", time.Since(began))
	f.until("the news of the other side", func() bool { return a.report("c").Age >= 0 })
	f.until("a leaves with the promises of the other side", func() bool { return a.tryLeave() == nil })
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
