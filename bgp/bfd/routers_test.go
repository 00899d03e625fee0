package bfd

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge/bgp/internal/bgptest"
)

// router is a far end that is not ours. It runs with a real-time priority: on
// the busy box of the tests it would else be late itself, and say so by a flap.
type router interface {
	// session is what it says of its session with an address.
	session(addr string) routerSession
	// processes are those that speak BFD.
	process() *process
	// restart kills it and starts it again.
	restart()
}

// routerSession is what the routers tell in common; the intervals are those at
// which it sends and after which it gives up.
type routerSession struct {
	state        string // up, down, init; empty: no such session
	since        string // of the state, or an id that only a new session changes
	tx, detect   time.Duration
	remoteReason string // FRR only
}

// neighbour is a session in a router's configuration, with 100 ms times 3.
type neighbour struct {
	addr, local, iface string
	multihop           bool
}

func realtime() []string { return []string{"chrt", "-f", "1"} }

// bird is a BIRD 2 that runs the BFD protocol alone.
type bird struct {
	t    testing.TB
	ns   *space
	dir  string
	proc *process
}

func newBird(t testing.TB, ns *space, interval time.Duration, neighbours ...neighbour) router {
	t.Helper()
	b := &bird{t: t, ns: ns, dir: tempDir(t)}
	var lines strings.Builder
	for _, n := range neighbours {
		fmt.Fprintf(&lines, "\tneighbor %s", n.addr)
		if n.iface != "" {
			fmt.Fprintf(&lines, " dev %q", n.iface)
		}
		fmt.Fprintf(&lines, " local %s multihop %s;\n", n.local, map[bool]string{true: "yes", false: "no"}[n.multihop])
	}
	timers := fmt.Sprintf("{ min rx interval %[1]d ms; min tx interval %[1]d ms; idle tx interval 1 s; multiplier 3; }", interval.Milliseconds())
	conf := fmt.Sprintf("log stderr all;\nrouter id 10.0.0.2;\nprotocol device { scan time 1; }\nprotocol bfd {\n\tinterface \"*\" %s;\n\tmultihop %s;\n%s}\n", timers, timers, &lines)
	must(t, os.WriteFile(b.dir+"/bird.conf", []byte(conf), 0o600))
	b.start()
	return b
}

func (b *bird) start() {
	b.t.Helper()
	b.proc = b.ns.StartBIRD(b.t, bgptest.Daemon{Dir: b.dir, Before: realtime()})
}

func (b *bird) session(addr string) routerSession {
	for line := range strings.Lines(bgptest.Birdc(b.dir, "show bfd sessions")) {
		// IP address, Interface, State, Since, Interval, Timeout
		f := strings.Fields(line)
		if len(f) == 6 && f[0] == addr {
			return routerSession{state: strings.ToLower(f[2]), since: f[3], tx: seconds(f[4]), detect: seconds(f[5])}
		}
	}
	return routerSession{}
}

func seconds(s string) time.Duration {
	f, _ := strconv.ParseFloat(s, 64)
	return time.Duration(f * float64(time.Second)).Round(time.Millisecond)
}

func (b *bird) process() *process { return b.proc }

func (b *bird) restart() {
	b.proc.Stop(syscall.SIGKILL)
	b.start()
}

// frr is a zebra and a bfdd.
type frr struct {
	t    testing.TB
	ns   *space
	dir  string
	bfdd *process
}

func newFRR(t testing.TB, ns *space, interval time.Duration, neighbours ...neighbour) router {
	t.Helper()
	f := &frr{t: t, ns: ns}
	conf := strings.Builder{}
	conf.WriteString("log stdout\nbfd\n")
	for _, n := range neighbours {
		fmt.Fprintf(&conf, " peer %s", n.addr)
		if n.multihop {
			conf.WriteString(" multihop")
		}
		fmt.Fprintf(&conf, " local-address %s", n.local)
		if n.iface != "" {
			fmt.Fprintf(&conf, " interface %s", n.iface)
		}
		fmt.Fprintf(&conf, "\n  receive-interval %[1]d\n  transmit-interval %[1]d\n exit\n", interval.Milliseconds())
	}
	f.dir = bgptest.FRRDir(t, map[string]string{"bfdd": conf.String()})
	f.start("zebra")
	f.bfdd = f.start("bfdd", "--bfdctl", f.dir+"/bfdctl")
	return f
}

func (f *frr) start(daemon string, more ...string) *process {
	f.t.Helper()
	return f.ns.StartFRR(f.t, daemon, bgptest.Daemon{Dir: f.dir, Before: realtime(), More: more})
}

func (f *frr) show(daemon, what string) ([]byte, error) {
	return exec.Command("vtysh", "--vty_socket", f.dir, "-d", daemon, "-c", "show "+what).Output()
}

func (f *frr) session(addr string) routerSession {
	out, err := f.show("bfdd", "bfd peers json")
	var peers []struct {
		Peer       string `json:"peer"`
		ID         uint32 `json:"id"`
		Status     string `json:"status"`
		Tx         int    `json:"transmit-interval"`
		Rx         int    `json:"receive-interval"`
		RemoteTx   int    `json:"remote-transmit-interval"`
		RemoteRx   int    `json:"remote-receive-interval"`
		RemoteMult int    `json:"remote-detect-multiplier"`
		RemoteDiag string `json:"remote-diagnostic"`
		Downs      int    `json:"session-down"`
	}
	if err != nil || json.Unmarshal(out, &peers) != nil {
		return routerSession{}
	}
	for _, p := range peers {
		if p.Peer == addr {
			return routerSession{
				state: p.Status, since: fmt.Sprint(p.ID), remoteReason: p.RemoteDiag,
				tx:     time.Duration(max(p.Tx, p.RemoteRx)) * time.Millisecond,
				detect: time.Duration(p.RemoteMult*max(p.Rx, p.RemoteTx)) * time.Millisecond,
			}
		}
	}
	return routerSession{}
}

func (f *frr) process() *process { return f.bfdd }

func (f *frr) restart() {
	f.bfdd.Stop(syscall.SIGKILL)
	f.bfdd = f.start("bfdd", "--bfdctl", f.dir+"/bfdctl")
}

// says waits until a router says what ok wants of its session.
func says(t testing.TB, r router, addr, what string, ok func(routerSession) bool) (s routerSession) {
	t.Helper()
	eventually(t, func() string {
		if s = r.session(addr); ok(s) {
			return ""
		}
		return fmt.Sprintf("%s: the router says %+v", what, s)
	})
	return s
}

func isUp(s routerSession) bool   { return s.state == "up" }
func isDown(s routerSession) bool { return s.state == "down" }
