package health

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// realProbe is a probe of the engine with the pace of a test.
func realProbe(id string, kind edge.ProbeKind, at string) edge.Probe {
	p := edge.Probe{
		ID: edge.ProbeID(id), Kind: kind, Interval: time.Second, Timeout: 900 * time.Millisecond, Rise: 1, Fall: 2,
	}
	if kind == edge.ProbeHTTP {
		p.URL = "http://" + at + "/"
	} else {
		p.Addr = netip.MustParseAddrPort(at)
	}
	return p
}

// TestHalfHangs: 2,000 probes, half of them of targets that accept and are
// silent; the others are run on time, there is no goroutine for any of them, and
// in the end all files are closed. Not parallel: it counts both.
func TestHalfHangs(t *testing.T) {
	at := startTarget(t).String()
	silent := listen(t, "127.0.0.1:0").Addr().String() // its kernel accepts, until the queue is full
	var probes []edge.Probe
	for i := range 500 {
		web := realProbe(fmt.Sprintf("web-%d", i), edge.ProbeHTTP, at)
		web.KeepAlive = i%2 == 0
		probes = append(probes, web, realProbe(fmt.Sprintf("tcp-%d", i), edge.ProbeTCP, at),
			realProbe(fmt.Sprintf("hang-%d", i), edge.ProbeHTTP, silent), realProbe(fmt.Sprintf("hang-more-%d", i), edge.ProbeHTTP, silent))
	}
	files, idle := openFiles(t), runtime.NumGoroutine()
	m, stop := runMonitor(t)
	m.Set(probes)
	hangs := func(s edge.Status) bool { return strings.HasPrefix(string(s.Probe), "hang") }
	eventually(t, "all are as they are", func() bool {
		return !slices.ContainsFunc(m.Statuses(), func(s edge.Status) bool {
			return s.State != map[bool]edge.ProbeState{true: edge.Down, false: edge.Up}[hangs(s)]
		})
	})
	const tries = 5 // the machine does other things beside the tests
	for i := range tries {
		bad := twoSeconds(t, m, idle, hangs)
		if bad == "" {
			break
		}
		if t.Log(bad); i == tries-1 {
			t.Errorf("%d times too little, or too late", tries)
		}
	}
	stop()
	if n := openFiles(t); n > files {
		t.Errorf("%d files are open, %d were before", n, files)
	}
}

// twoSeconds looks at what the 2,000 probes do, and says what is bad; empty: nothing.
// idle is how many goroutines there were before.
func twoSeconds(t *testing.T, m *Monitor, idle int, hangs func(edge.Status) bool) (bad string) {
	t.Helper()
	begin, before := time.Now(), m.Counts().Runs
	most, worst := 0, time.Duration(0)
	eventually(t, "two seconds go by", func() bool {
		most = max(most, runtime.NumGoroutine()-idle)
		for _, s := range m.Statuses() {
			worst = max(worst, time.Since(s.LastRun)-time.Second)
			if !hangs(s) && s.LastErr != "" {
				bad = fmt.Sprintf("probe %s: %s", s.Probe, s.LastErr)
			}
		}
		return time.Since(begin) > 2*time.Second
	})
	rate := float64(m.Counts().Runs-before) / time.Since(begin).Seconds()
	t.Logf("%.0f runs/s, the worst was %s late, %d more goroutines", rate, worst, most)
	if most > 5 {
		t.Errorf("%d more goroutines", most)
	}
	if rate < 1500 || worst > 2*time.Second {
		bad = fmt.Sprintf("%.0f runs/s, the worst was %s late", rate, worst)
	}
	return bad
}

// runMonitor runs a monitor in real time; stop ends it and waits for that.
func runMonitor(t *testing.T) (m *Monitor, stop func()) {
	t.Helper()
	m = New(Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	<-m.Ready()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return m, stop
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestEngineChurn changes the set while runs of every outcome are in the air. In
// the end exactly the last set is there, and decided right.
func TestEngineChurn(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(web())
	t.Cleanup(srv.Close)
	at, silent, refused := srv.Listener.Addr().String(), silentPort(t).String(), closedPort(t).String()
	m, _ := runMonitor(t)
	want := map[edge.ProbeID]edge.ProbeState{}
	for range 150 {
		clear(want)
		var set []edge.Probe
		for i := range 20 + rand.IntN(60) {
			kind := []edge.ProbeKind{edge.ProbeTCP, edge.ProbeHTTP}[rand.IntN(2)]
			where := rand.IntN(3)
			p := realProbe(fmt.Sprintf("p%02d", i), kind, []string{at, silent, refused}[where])
			p.Interval = time.Duration(10+rand.IntN(3)) * time.Millisecond
			p.Timeout = []time.Duration{time.Second, 50 * time.Millisecond, time.Second}[where]
			p.Status, p.KeepAlive = 404, rand.IntN(2) == 0
			want[p.ID] = []edge.ProbeState{edge.Up, edge.Down, edge.Down}[where]
			set = append(set, p)
		}
		m.Set(set)
		<-m.Changed() // of Set, or of a run that has ended since
	}
	eventually(t, "all of the last set are right", func() bool {
		all := m.Statuses()
		return len(all) == len(want) && !slices.ContainsFunc(all, func(s edge.Status) bool { return s.State != want[s.Probe] })
	})
	m.Set(nil)
	eventually(t, "the engine has forgotten them", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.waiting.n == 0 && m.flying.n <= 1 && len(m.dropped) == 0 // the canary flies on
	})
}

// TestParts: an answer in any number of parts is one answer.
func TestParts(t *testing.T) {
	t.Parallel()
	drip := func(text string, size int, end func(net.Conn)) string {
		return says(t, func(c net.Conn) {
			_ = c.(*net.TCPConn).SetNoDelay(true)
			for part := range slices.Chunk([]byte(text), size) {
				if _, err := c.Write(part); err != nil {
					return
				}
				runtime.Gosched()
			}
			end(c)
		})
	}
	shut := func(net.Conn) {}
	stay := func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) }
	reset := func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }
	plain := "HTTP/1.1 200 OK\r\nContent-Length: 15\r\nX-Load-Balancing-Endpoint-Weight: 100\r\n\r\nhere's a needle"
	chunked := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Load-Balancing-Endpoint-Weight: 100\r\n\r\n" +
		"3\r\nnee\r\n5;x=y\r\ndle..\r\n0\r\n\r\n"
	for _, c := range []struct {
		name, say, body string
		end             func(net.Conn)
		want            string
	}{
		{"plain", plain, "needle", stay, ""},
		{"chunked", chunked, "needle", stay, ""},
		{"chunked, another text", chunked, "nail", stay, `answered 8 bytes without "nail"`},
		{"long", strings.Replace(plain, "15", "90000", 1) + strings.Repeat("x", 60000) + "hay", "xhay", stay, ""},
		{"long, cut short", strings.Replace(plain, "15", "90000", 1) + strings.Repeat("x", 30000), "hay", shut, "read body: connection closed too early"},
		{"cut in the head", plain[:17], "", shut, "read answer: connection closed too early"},
		{"reset in the head", plain[:17], "", reset, "read answer: "}, // how much of it arrives is not certain
		{"silent in the head", plain[:17], "", stay, "read answer: no answer within 2s"},
		{"silent in the body", plain[:len(plain)-3], "needle", stay, "read body: no answer within 2s"},
		{"silent in a chunk", chunked[:len(chunked)-20], "needle", stay, "read body: no answer within 2s"},
		{"informational first", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + plain, "needle", stay, ""},
		{"no HTTP at all", "SSH-2.0-x\r\n", "", stay, `read answer: malformed HTTP response "SSH-2.0-x"`},
	} {
		for _, size := range []int{1, 7, 1000} {
			t.Run(fmt.Sprint(c.name, " by ", size), func(t *testing.T) {
				t.Parallel()
				size = max(size, len(c.say)/500)
				p := realProbe("p", edge.ProbeHTTP, drip(c.say, size, c.end))
				p.Timeout, p.Body = ample, c.body
				if strings.Contains(c.want, "no answer") {
					p.Timeout = 2 * time.Second // enough for what comes before the silence
				}
				err := once(t, p)
				expect(t, err, c.want)
				other := slowly(t, p) // to which net/http tells a reset as an end
				if c.name != "reset in the head" && fmt.Sprint(err) != fmt.Sprint(other) {
					t.Errorf("the engine says %v, a worker %v", err, other)
				}
			})
		}
	}
}

// TestKeepAlive: runs share a connection as long as the far end lets them, and
// what it closes while nobody asks is no failure.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	var opened, asked atomic.Int64
	mode := atomic.Pointer[string]{}
	set := func(s string) { mode.Store(&s) }
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch *mode.Load() {
		case "close":
			w.Header().Set("Connection", "close")
		case "long": // more than the engine waits for
			fmt.Fprint(w, strings.Repeat("x", 100<<10))
		case "hang":
			<-r.Context().Done()
		case "503":
			w.WriteHeader(503)
		case "drop":
			panic(http.ErrAbortHandler)
		}
	}))
	srv.Config.ErrorLog = discard()
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	m := New(Options{})
	p := realProbe("p", edge.ProbeHTTP, srv.Listener.Addr().String())
	p.Timeout, p.KeepAlive = 2*time.Second, true
	e := m.entry(p, nil)
	defer m.engine.close()
	for i, step := range []struct {
		mode         string
		before       func()
		opens, asks  int64
		want         string
		keepsOneOpen bool
	}{
		{"", nil, 1, 1, "", true},
		{"", nil, 0, 1, "", true},
		{"503", nil, 0, 1, "answered 503, expected 200", true}, // an answer like any other
		{"", srv.CloseClientConnections, 1, 1, "", true},
		{"close", nil, 0, 1, "", false},
		{"", nil, 1, 1, "", true},
		{"long", nil, 0, 1, "", false},
		{"", nil, 1, 1, "", true},
		{"hang", nil, 0, 1, "read answer: no answer within 2s", false},
		{"drop", nil, 1, 1, "read answer: connection closed too early", false},
		{"", nil, 1, 1, "", true},
		{"drop", nil, 1, 2, "read answer: connection closed too early", false}, // asked twice: it could have been idle
	} {
		set(step.mode)
		if step.before != nil {
			step.before()
		}
		opens, asks := opened.Load(), asked.Load()
		expect(t, alone(t, m.engine, e).err, step.want)
		opens, asks = opened.Load()-opens, asked.Load()-asks
		if opens != step.opens || asks != step.asks || (e.flight.sock != nil) != step.keepsOneOpen {
			t.Errorf("step %d, %s: %d connections, %d requests, a connection kept is %v; want %d, %d and %v",
				i, step.mode, opens, asks, e.flight.sock != nil, step.opens, step.asks, step.keepsOneOpen)
		}
	}
}

// TestSource: a probe comes from the address that it is to come from, over the
// engine as over a worker; one that this box has not says nothing of the target.
func TestSource(t *testing.T) {
	t.Parallel()
	apart(t, unix.CLONE_NEWNET, func() {
		tool(t, "ip link set lo up")
		for _, a := range []string{"192.0.2.1/32", "192.0.2.2/32", "2001:db8::1/128", "2001:db8::2/128"} {
			if strings.Contains(a, ":") {
				a += " nodad" // it is to be there at once
			}
			tool(t, "ip addr add "+a+" dev lo")
		}
		for target, sources := range map[string]map[string]string{
			"192.0.2.1":   {"192.0.2.2": "", "::ffff:192.0.2.2": "", "192.0.2.3": "unknown: 192.0.2.3: cannot assign", "2001:db8::2": "unknown: is not of the family"},
			"2001:db8::1": {"2001:db8::2": "", "2001:db8::3": "unknown: 2001:db8::3: cannot assign", "192.0.2.2": "unknown: is not of the family"},
		} {
			ln, err := net.Listen("tcp", net.JoinHostPort(target, "0"))
			if err != nil {
				t.Error(err)
				return
			}
			seen := make(chan string, 10)
			srv := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				host, _, _ := net.SplitHostPort(r.RemoteAddr)
				seen <- host
			})}
			go func() { _ = srv.Serve(ln) }()
			for source, want := range sources {
				fromSource(t, ln.Addr().String(), netip.MustParseAddr(source), want, seen)
			}
			srv.Close()
		}
	})
}

// fromSource probes a server that says whom it has seen.
func fromSource(t *testing.T, at string, source netip.Addr, want string, seen chan string) {
	p := realProbe("p", edge.ProbeHTTP, at)
	p.Source = source
	runs := []func() error{func() error { return slowly(t, p) }}
	m := New(Options{})
	defer m.engine.close()
	if e := m.entry(p, nil); e.flight != nil {
		// Twice: the second time it is a socket of the pool.
		alone := func() error { return alone(t, m.engine, e).err }
		runs = append(runs, alone, alone)
	} else if !strings.Contains(want, "family") {
		t.Errorf("from %s: not by the engine", source)
	}
	for i, run := range runs {
		expect(t, run(), want)
		if want != "" {
			continue
		}
		if got := <-seen; got != source.Unmap().String() {
			t.Errorf("run %d from %s came from %s", i, source, got)
		}
	}
}

// TestMeetsItself: where nobody listens nothing passes, though the kernel can
// choose just that port to connect from.
func TestMeetsItself(t *testing.T) {
	t.Parallel()
	apart(t, unix.CLONE_NEWNET, func() {
		tool(t, "ip link set lo up")
		sysctl(t, "net/ipv4/ip_local_port_range", "40000 40003")
		for _, host := range []string{"127.0.0.1", "[::1]"} {
			for range 20 {
				for port := range 4 {
					at := fmt.Sprintf("%s:%d", host, 40000+port)
					for _, kind := range []edge.ProbeKind{edge.ProbeTCP, edge.ProbeHTTP} {
						expect(t, once(t, realProbe("p", kind, at)), "connect "+at+": connection refused")
					}
				}
			}
		}
	})
}
