package health

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// TestCalls: an address reaches the kernel as it is meant, of both families, and
// a socket that is disconnected can be connected again.
func TestCalls(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"127.0.0.1", "::1", "::ffff:127.0.0.1"} {
		ip := netip.MustParseAddr(host)
		ln := listen(t, net.JoinHostPort(ip.Unmap().String(), "0"))
		at := netip.AddrPortFrom(ip, netip.MustParseAddrPort(ln.Addr().String()).Port())
		to := newRawAddr(at)
		family := unix.AF_INET6
		if ip.Unmap().Is4() {
			family = unix.AF_INET
		}
		fd := must(unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
		defer unix.Close(fd)
		for range 2 {
			if err := connectTo(fd, &to); err != nil {
				t.Fatalf("connect to %s: %v", at, err)
			}
			if meetsItself(fd, &to) {
				t.Errorf("a connection to %s meets itself", at)
			}
			far := must(ln.Accept())
			defer far.Close()
			if n, err := send(fd, []byte("ask")); n != 3 || err != nil {
				t.Fatalf("send: %d, %v", n, err)
			}
			b := make([]byte, 8)
			if n := must(far.Read(b)); string(b[:n]) != "ask" {
				t.Errorf("%q has come", b[:n])
			}
			must(far.Write([]byte("say")))
			if n, err := receive(fd, b); string(b[:n]) != "say" || err != nil {
				t.Errorf("receive: %q, %v", b[:n], err)
			}
			if err := disconnect(fd); err != nil {
				t.Fatalf("disconnect: %v", err)
			}
			if _, err := far.Read(b); err == nil || err == io.EOF {
				t.Errorf("the far end has read %v, want a reset", err)
			}
			if _, err := unix.Getpeername(fd); err != unix.ENOTCONN {
				t.Errorf("it is still connected: %v", err)
			}
		}
	}
}

// TestEcho: what sends the request back is a target that speaks no HTTP, and not
// a connection with itself.
func TestEcho(t *testing.T) {
	t.Parallel()
	p := realProbe("p", edge.ProbeHTTP, says(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
	}))
	err, other := once(t, p), slowly(t, p)
	expect(t, err, "read answer: malformed HTTP")
	if fmt.Sprint(err) != fmt.Sprint(other) {
		t.Errorf("the engine says %v, a worker %v", err, other)
	}
}

// TestSilentHandshake: a target that answers no SYN fails when its time is over,
// and by the text it is the connection that did not come about, though what finds
// out is the sending. The socket is one that has been used: nothing is left over
// from that, such as the error of its reset.
func TestSilentHandshake(t *testing.T) {
	t.Parallel()
	at := silentPort(t).String()
	p := realProbe("p", edge.ProbeHTTP, at)
	p.Timeout = 100 * time.Millisecond
	open := realProbe("open", edge.ProbeTCP, listen(t, "127.0.0.1:0").Addr().String())
	open.Timeout = ample
	m := New(Options{})
	defer m.engine.close()
	for range 3 {
		expect(t, alone(t, m.engine, m.entry(open, nil)).err, "")
		if n := len(m.engine.socks); n != 1 {
			t.Errorf("%d sockets, want one that is used again", n)
		}
		r := alone(t, m.engine, m.entry(p, nil))
		expect(t, r.err, "connect "+at+": no answer within 100ms")
		if other := slowly(t, p); fmt.Sprint(r.err) != fmt.Sprint(other) || r.took < p.Timeout {
			t.Errorf("after %s the engine says %v, a worker %v", r.took, r.err, other)
		}
	}
}

// TestForget: the epoll knows the sockets that have had to wait, until they did
// without.
func TestForget(t *testing.T) {
	t.Parallel()
	m := New(Options{})
	defer m.engine.close()
	slow := says(t, func(c net.Conn) {
		<-time.After(20 * time.Millisecond) // the run is to wait for it
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	})
	p, q := realProbe("web", edge.ProbeHTTP, slow), realProbe("tcp", edge.ProbeTCP, slow)
	p.Timeout, q.Timeout = ample, ample
	web, tcp := m.entry(p, nil), m.entry(q, nil)
	for i, step := range []struct {
		e       *entry
		watched bool
	}{{tcp, false}, {web, true}, {web, true}, {tcp, false}, {tcp, false}, {web, true}} {
		expect(t, alone(t, m.engine, step.e).err, "")
		pool := m.engine.pools[step.e.flight.key]
		if len(pool.socks) != 1 || pool.socks[0].watched != step.watched || pool.socks[0].armed {
			t.Errorf("step %d: %d sockets, %+v; want one that is watched: %v", i, len(pool.socks), pool.socks[0], step.watched)
		}
	}
}
