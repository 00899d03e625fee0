package bgp_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// fast is BFD that finds a dead path within 3 s: less would take a router that gets
// no CPU on a busy machine for a dead one. The routers of the tests have the same.
var fast = &edge.BFD{MinTx: 300 * time.Millisecond, MinRx: 300 * time.Millisecond, Multiplier: 10}

// bfdUp waits until BFD with the peer is up.
func (s *speaker) bfdUp(id edge.PeerID) {
	s.t.Helper()
	eventually(s.t, func() string {
		if b := s.peer(id).BFD; b == nil || b.State != "up" || b.Remote != "up" {
			return fmt.Sprintf("BFD with %s is %+v", id, b)
		}
		return ""
	})
}

// falls waits until the session with a peer has ended by the word of BFD.
func (s *speaker) falls(id edge.PeerID) {
	s.t.Helper()
	eventually(s.t, func() string {
		if p := s.peer(id); p.Session == "established" || !strings.Contains(p.LastErr, "BFD: detection time expired") || p.BFD.State != "down" {
			return fmt.Sprintf("%s is %s: %q, BFD %+v", id, p.Session, p.LastErr, p.BFD)
		}
		return ""
	})
}

// lost waits until BIRD has lost the route: at once, and not after its hold time of
// 9 s, which began up to 3 s ago.
func lost(b *bird) {
	b.t.Helper()
	begun := time.Now()
	b.has(net4, nil)
	if took := time.Since(begun); took > 5*time.Second {
		b.t.Errorf("it took %s, as if it had waited for its hold time", took)
	}
}

// TestBFD: the session ends as soon as BFD says that the router is dead, which
// no keepalive would have told, and comes back with it.
func TestBFD(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	b := newBird(t, s, 1, birdOptions{
		top:     `protocol bfd { interface "v1" { min rx interval 300 ms; min tx interval 300 ms; multiplier 10; }; }`,
		session: "bfd on;",
	})
	f := newFRR(t, s, 2, frrOptions{bfd: true})
	p1, p2 := peerN(1), peerN(2)
	p1.BFD, p2.BFD = fast, fast
	in := intentOf(p1, p2)
	s.set(in)
	s.established("r1", "r2")
	s.bfdUp("r1")
	s.bfdUp("r2")
	for id, stop := range map[edge.PeerID][]*process{"r1": {b.proc}, "r2": {f.procs["bfdd"], f.procs["bgpd"]}} {
		for _, p := range stop {
			p.Cmd.Process.Signal(syscall.SIGSTOP)
		}
		s.falls(id)
		if st := s.peer(id); st.BFD.Flaps != 1 {
			t.Errorf("%s: BFD %+v", id, st.BFD)
		}
		for _, p := range stop {
			p.Cmd.Process.Signal(syscall.SIGCONT)
		}
	}
	s.established("r1", "r2")
	s.bfdUp("r1")
	// The other way round: the routers drop us when we are frozen.
	b.has(net4, normal4)
	s.proc.Cmd.Process.Signal(syscall.SIGSTOP)
	eventually(t, func() string {
		if out := b.birdc("show protocols edge"); !strings.Contains(out, "BFD session down") {
			return out
		}
		return ""
	})
	b.has(net4, nil)
	s.proc.Cmd.Process.Signal(syscall.SIGCONT)
	s.established("r1")
	b.has(net4, normal4)
	s.bfdUp("r1")
	s.bfdUp("r2")
	s.rests(in, b)
}

// rests checks that BFD says admin-down only when nothing is announced any more:
// both routers take that word for a failure.
func (s *speaker) rests(in edge.Intent, b *bird) {
	t := s.t
	t.Helper()
	flaps := s.peer("r1").Flaps + s.peer("r2").Flaps
	in.Speaker.Resting = true
	for begun := time.Now(); time.Since(begun) < time.Second; {
		for _, p := range s.set(in).Peers {
			if p.BFD.State != "up" || p.Session != "established" {
				t.Fatalf("resting with announcements: %+v, BFD %+v", p, p.BFD)
			}
		}
	}
	if now := s.peer("r1").Flaps + s.peer("r2").Flaps; now != flaps {
		t.Errorf("resting has ended a session: %d flaps, before %d", now, flaps)
	}
	b.has(net4, normal4)
	s.set(withdrawn(in, time.Now().Add(time.Minute), net4, net6))
	b.has(net4, nil)
	for _, id := range []edge.PeerID{"r1", "r2"} {
		eventually(t, func() string {
			if st := s.peer(id); st.BFD.State != "admin-down" || st.BFD.Remote != "down" {
				return fmt.Sprintf("%s: %+v", id, st.BFD)
			}
			return ""
		})
	}
}

// TestBFDMultihop: over a router in between, which is cut off.
func TestBFDMultihop(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	mid := newSpace(t)
	link(t, s.ns, mid, 1)
	r := &bird{t: t, ns: newSpace(t), dir: tempDir(t), n: 7}
	link(t, mid, r.ns, 7)
	must(t, mid.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }))
	for ns, route := range map[*space]string{s.ns: "10.0.7.0/24 via 10.0.1.2", r.ns: "10.0.1.0/24 via 10.0.7.1"} {
		must(t, ns.Run(func() error {
			return exec.Command("ip", append([]string{"route", "replace"}, strings.Fields(route)...)...).Run()
		}))
	}
	must(t, r.ns.Run(func() error { return exec.Command("ip", "addr", "del", "10.0.1.107/24", "dev", "v7").Run() }))
	must(t, r.ns.Run(func() error { return exec.Command("ip", "route", "replace", "10.0.1.0/24", "via", "10.0.7.1").Run() }))
	r.configure(birdOptions{
		local: "10.0.7.2", remote: "10.0.1.1", session: "multihop 5; bfd on;",
		top: `protocol bfd { multihop { min rx interval 300 ms; min tx interval 300 ms; multiplier 10; }; }`,
	})
	r.start()
	p := peerN(7)
	p.LocalAddr, p.Multihop, p.BFD = netip.MustParseAddr("10.0.1.1"), 5, fast
	s.set(intentOf(p))
	s.established("r7")
	r.has(net4, normal4)
	s.bfdUp("r7")
	must(t, mid.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0) }))
	s.falls("r7")
	must(t, mid.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }))
	s.established("r7")
	r.has(net4, normal4)
}

// proven makes the data plane of s one that is alive: a pinned XDP link.
func (s *speaker) proven() {
	t := s.t
	t.Helper()
	dir := filepath.Join(s.dir, "bpf")
	must(t, os.Mkdir(dir, 0o700))
	must(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	must(t, os.Mkdir(dir+"/v2", 0o700))
	must(t, s.ns.Run(func() error { return pinPass("lo", dir+"/v2/link_lo") }))
	s.flags = []string{"-bpf-dir", dir}
}

// pinPass attaches a program that passes everything to an interface of the
// calling thread's namespace, and pins the link.
func pinPass(ifname, pin string) error {
	insns := [2]uint64{0x00000002_000000b7, 0x95} // r0 = XDP_PASS; exit
	license := [4]byte{'G', 'P', 'L'}
	load := struct {
		kind, count    uint32
		insns, license unsafe.Pointer
		rest           [8]uint64
	}{kind: unix.BPF_PROG_TYPE_XDP, count: 2, insns: unsafe.Pointer(&insns), license: unsafe.Pointer(&license)}
	prog, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&load)), unsafe.Sizeof(load))
	if errno != 0 {
		return errno
	}
	defer unix.Close(int(prog))
	index, err := indexOf(ifname)
	if err != nil {
		return err
	}
	create := struct{ prog, ifindex, attach, flags uint32 }{uint32(prog), index, 37 /* BPF_XDP */, 2 /* generic mode */}
	lk, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_LINK_CREATE, uintptr(unsafe.Pointer(&create)), unsafe.Sizeof(create))
	if errno != 0 {
		return errno
	}
	defer unix.Close(int(lk))
	path := append([]byte(pin), 0)
	at := struct {
		path  unsafe.Pointer
		fd, _ uint32
	}{path: unsafe.Pointer(&path[0]), fd: uint32(lk)}
	if _, _, errno = unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_PIN, uintptr(unsafe.Pointer(&at)), unsafe.Sizeof(at)); errno != 0 {
		return errno
	}
	return nil
}

func indexOf(ifname string) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(ifname)
	if err != nil {
		return 0, err
	}
	err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr)
	return ifr.Uint32(), err
}

// TestGracefulRestart: where it is switched on, neither SIGKILL nor a clean
// restart takes the route out of the router's kernel; elsewhere SIGKILL does at once. A
// clean restart needs no leave where all that hold the routes keep them.
func TestGracefulRestart(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	s.proc.Stop(syscall.SIGKILL)
	s.proven()
	s.start()
	b := newBird(t, s, 1, birdOptions{})
	f := newFRR(t, s, 2, frrOptions{})
	plain := newBird(t, s, 3, birdOptions{})
	p1, p2 := peerN(1), peerN(2)
	p1.RestartTime, p2.RestartTime = 2*time.Minute, 2*time.Minute
	s.set(intentOf(p1, p2, peerN(3)))
	inFIB(t, b.ns, true)
	inFIB(t, f.ns, true)
	inFIB(t, plain.ns, true)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		goneB, goneF := watch(t, b.ns), watch(t, f.ns)
		if sig == syscall.SIGTERM { // else it waits for leave: see TestAtStake
			s.set(intentOf(p1, p2))
			plain.has(net4, nil)
		}
		s.proc.Stop(sig)
		if code := s.proc.Cmd.ProcessState.ExitCode(); sig == syscall.SIGTERM && code != 0 {
			t.Errorf("exit code %d after SIGTERM", code)
		}
		lost(plain)
		s.start()
		s.set(intentOf(p1, p2, peerN(3)))
		s.established("r1", "r2", "r3")
		eventually(t, func() string {
			if out := b.birdc("show protocols all edge"); strings.Contains(out, "Neighbor graceful restart active") || !strings.Contains(out, "Established") {
				return out
			}
			return differ(net4, plain.route(net4), normal4)
		})
		b.has(net4, normal4)
		f.has(net6, &seen{path: "4200000001", communities: "65000:10 65000:20", nextHop: "fd00:1::1"})
		inFIB(t, b.ns, true)
		inFIB(t, f.ns, true)
		if n, m := goneB(), goneF(); n != 0 || m != 0 {
			t.Errorf("%s: BIRD's kernel lost a route %d times, FRR's %d times", sig, n, m)
		}
	}
}

// TestGracefulRestartUnproven: without a data plane that is known to be alive the
// router drops the routes as soon as we are back, and until then it keeps them.
func TestGracefulRestartUnproven(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	b := newBird(t, s, 1, birdOptions{})
	p := peerN(1)
	p.RestartTime = 30 * time.Second
	s.set(intentOf(p))
	inFIB(t, b.ns, true)
	out := b.birdc("show protocols all edge")
	if i := strings.Index(out, "Neighbor capabilities"); i < 0 || !strings.Contains(out[i:], "Restart time: 30") || strings.Contains(out[i:], "AF preserved: ipv4") {
		t.Errorf("offered: %s", out)
	}
}
