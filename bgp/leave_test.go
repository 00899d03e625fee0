package bgp_test

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// told sends SIGTERM and waits until the speaker says that it is to stop.
func (s *speaker) told() {
	s.t.Helper()
	before := time.Now()
	must(s.t, s.proc.Cmd.Process.Signal(syscall.SIGTERM))
	eventually(s.t, func() string {
		if st := s.state(); st.Stopping.Before(before.Add(-time.Second)) {
			return "it does not say that it is to stop"
		}
		return ""
	})
}

// ends waits for the end of the process by itself.
func (s *speaker) ends() {
	s.t.Helper()
	eventually(s.t, func() string {
		select {
		case <-s.proc.Done:
			return ""
		default:
			return "it has not ended"
		}
	})
	if code := s.proc.Cmd.ProcessState.ExitCode(); code != 0 {
		s.t.Errorf("exit code %d", code)
	}
}

// TestStopWaitsForLeave: after SIGTERM no router loses anything until it is withdrawn by
// an order; then the process ends by itself, and the next one announces when told.
func TestStopWaitsForLeave(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	b := newBird(t, s, 1, birdOptions{})
	f := newFRR(t, s, 2, frrOptions{})
	in := intentOf(peerN(1), peerN(2))
	s.set(in)
	s.established("r1", "r2")
	inFIB(t, b.ns, true)
	inFIB(t, f.ns, true)
	if st := s.state(); !st.Stopping.IsZero() {
		t.Errorf("it is to stop since %s", st.Stopping)
	}
	goneB, goneF := watch(t, b.ns), watch(t, f.ns)
	s.told()
	s.set(degraded(in)) // it does what it is told
	b.has(net4, degraded4)
	b.has(net6, degraded6)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		if st := s.set(degraded(in)); st.Holders(net4) != 2 || st.Holders(net6) != 2 || st.Stopping.IsZero() {
			t.Fatalf("while it waits: %+v", st)
		}
	}
	if n, m := goneB(), goneF(); n != 0 || m != 0 {
		t.Errorf("BIRD's kernel lost a route %d times, FRR's %d times", n, m)
	}
	one := withdrawn(degraded(in), time.Now().Add(time.Minute), net4)
	s.set(one)
	b.has(net4, nil)
	b.has(net6, degraded6)
	// The answer comes before the end.
	if st := s.set(withdrawn(one, time.Now().Add(time.Minute), net6)); st.Holders(net6) != 0 {
		t.Errorf("after the last withdrawal: %+v", st)
	}
	s.ends()
	inFIB(t, b.ns, false)
	inFIB(t, f.ns, false)
	s.start()
	if st := s.state(); !st.Stopping.IsZero() || len(st.Announcements) != 0 || len(st.Peers) != 2 {
		t.Errorf("the next process: %+v", st)
	}
	s.set(in)
	b.has(net4, normal4)
	inFIB(t, f.ns, true)
}

// TestStopWithoutEdged: nobody gives leave, so it waits and says so; a second SIGTERM
// ends it at once.
func TestStopWithoutEdged(t *testing.T) {
	t.Parallel()
	s, r, in := announced(t)
	deleted := watch(t, r.ns)
	in.Speaker.Lease = time.Second
	s.set(in)
	s.told()
	r.has(net4, degraded4) // the lease has run out
	eventually(t, func() string {
		if out := s.proc.Output(); !strings.Contains(out, "edged does not renew the lease") {
			return "the log does not say what is missing"
		}
		return ""
	})
	if n := deleted(); n != 0 {
		t.Errorf("the router's kernel lost the route %d times", n)
	}
	must(t, s.proc.Cmd.Process.Signal(syscall.SIGTERM))
	s.ends()
	lost(r)
	if out := s.proc.Output(); !strings.Contains(out, "still announced: 192.0.2.0/24 (lease expired") {
		t.Error("the log does not say what was still announced")
	}
}

// TestStopAlone: without a session there is nothing to wait for, whatever is to be
// announced.
func TestStopAlone(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	s.set(intentOf(peerN(1)))
	must(t, s.proc.Cmd.Process.Signal(syscall.SIGTERM))
	s.ends()
}
