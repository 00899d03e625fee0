package xdp

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf/link"
	"go.uber.org/goleak"
)

// childArg makes the test binary a process that holds a Forwarder; the
// directory of the pins follows.
const childArg = "hold-a-forwarder"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == childArg {
		fmt.Println(holdForwarder(os.Args[2]))
		os.Exit(1)
	}
	if len(os.Args) == 3 && os.Args[1] == captureArg {
		fmt.Println(captureForever(os.Args[2]))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// holdForwarder is the child: it opens, applies, says so and waits to be killed.
func holdForwarder(dir string) error {
	f, err := Open(context.Background(), boxOptions(dir))
	if err != nil {
		return err
	}
	if err := f.Apply(context.Background(), box1Table()); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func boxOptions(dir string) Options {
	return Options{Dir: dir, Interfaces: []string{"up0"}, Flows: 1000}
}

// Real TCP and UDP through every encapsulation, family in family.
func TestEndToEnd(t *testing.T) {
	l := newLab(t)
	box1, box2 := l.boxes(t)
	for _, vip := range []string{vip4, vip6} {
		for _, s := range labServices {
			at := netip.AddrPortFrom(addr(vip), uint16(s.port))
			l.serve(t, s.p, at)
			for range 3 {
				c := l.dial(t, s.p, at)
				if s.p == edge.UDP {
					echo(t, c, 1200)
				} else {
					echo(t, c, 300_000)
				}
				c.Close()
			}
		}
	}
	for name, f := range map[string]*Forwarder{"box1": box1, "box2": box2} {
		balanced(t, f)
		for _, v := range stats(t, f).Verdicts {
			if v.Action == "drop" && v.Count > 0 {
				t.Errorf("%s: %d packets dropped: %s", name, v.Count, v.Reason)
			}
		}
	}
	for _, s := range stats(t, box1).Services {
		if s.Packets == 0 || s.New != 3 {
			t.Errorf("service %s: %+v", s.Service, s)
		}
	}
	if got := verdictCount(stats(t, box2), "decap"); got != verdictCount(stats(t, box1), "backend") {
		t.Errorf("%d packets decapsulated, %d encapsulated", got, verdictCount(stats(t, box1), "backend"))
	}
}

func verdictCount(st edge.ForwarderStats, reason edge.Reason) (n uint64) {
	for _, v := range st.Verdicts {
		if v.Reason == reason {
			n += v.Count
		}
	}
	return n
}

// A port of a VIP that is no service is answered by the box's own stack.
func TestRefusedByTheStack(t *testing.T) {
	l := newLab(t)
	l.boxes(t)
	in(t, l.client, func() {
		_, err := net.DialTimeout("tcp", vip4+":9999", patience)
		if err == nil || err.(*net.OpError).Timeout() {
			t.Errorf("error is %v, want a refusal", err)
		}
	})
}

// The process that loaded the data plane is killed with -9 under traffic, and
// another adopts what it left: same program, same link, same flows.
func TestKillAndAdopt(t *testing.T) {
	l := newLab(t)
	l.receiver(t)
	dir := l.dir + "/box1"
	kill := l.child(t, dir)
	at := netip.AddrPortFrom(addr(vip4), 80)
	l.serve(t, edge.TCP, at)
	c := l.dial(t, edge.TCP, at)
	echo(t, c, 10_000)

	pinned := func() (id link.ID) {
		lk, err := link.LoadPinnedLink(filepath.Join(pinDir(dir), linkPin("up0")), nil)
		check(t, err)
		defer lk.Close()
		info, err := lk.Info()
		check(t, err)
		return info.ID
	}
	linkID := pinned()
	var progID uint32
	in(t, l.box1, func() { progID = xdpOf(t, "up0").ProgId })
	kill()
	echo(t, c, 10_000)

	var f *Forwarder
	in(t, l.box1, func() {
		f = openForwarder(t, boxOptions(dir))
		check(t, f.Attached())
	})
	echo(t, c, 10_000)
	if got := identify(t, f); got.prog != progID || pinned() != linkID || got.links[0] != linkID {
		t.Errorf("adopted %+v, was program %d, link %d", got, progID, linkID)
	}
	flow := edge.Flow{Src: c.LocalAddr().(*net.TCPAddr).AddrPort(), Dst: at, Protocol: edge.TCP}
	in(t, l.box1, func() {
		v, err := f.Lookup(flow, nil)
		want := edge.FlowVerdict{Service: "tcp-80-0", Backend: "box2", By: "table", Slot: v.Slot, Action: "tx", Reason: "backend"}
		if err != nil || v != want {
			t.Errorf("lookup of the old flow: %+v, %v", v, err)
		}
	})
	// The adopted ids are the old ones: the flow stays though the ring is
	// somebody else's now.
	table := box1Table()
	for i := range table.Services {
		b := &table.Services[i].Backends
		(*b)[0].Weight, (*b)[0].KeepTCP = 0, true
		*b = append(*b, edge.TableBackend{ID: "ghost", Addr: addr("10.0.2.99"), Weight: 1})
	}
	apply(t, f, table)
	echo(t, c, 10_000)
	balanced(t, f)
}

// child starts a process that holds box1's forwarder, and returns how to kill it.
func (l *lab) child(t *testing.T, dir string) (kill func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", childArg, dir)
	stdin, err := cmd.StdinPipe()
	check(t, err)
	stdout, err := cmd.StdoutPipe()
	check(t, err)
	in(t, l.box1, func() { check(t, cmd.Start()) })
	kill = func() {
		cmd.Process.Signal(syscall.SIGKILL)
		cmd.Wait()
		stdin.Close()
	}
	t.Cleanup(kill)
	defer l.waitForNeighbours(t)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("child says %q, %v", line, err)
	}
	return kill
}
