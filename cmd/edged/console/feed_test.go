package console

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
)

// pipes is a listener without sockets, so that time can be virtual: a dial is a
// net.Pipe, which holds no bytes at all for a client that does not read.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// serve runs a real HTTP server over pipes until the test ends.
func serve(t *testing.T, src Source) *pipes {
	t.Helper()
	return serveWith(t, src, samplePast())
}

func serveWith(t *testing.T, src Source, past Past) *pipes {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	srv := &http.Server{Handler: Handler(src, past)}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(p) }()
	t.Cleanup(func() {
		srv.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	})
	return p
}

// get sends one request and returns the head of its answer, with the body open.
func (p *pipes) get(t *testing.T, path string) (*http.Response, net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	p.conns <- far
	t.Cleanup(func() { near.Close() })
	if _, err := io.WriteString(near, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(near), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp, near
}

// event is one that arrived, with its time.
type event struct {
	kind, id, data string
	at             time.Time
}

// watch opens an event stream and returns what arrives on it.
func (p *pipes) watch(t *testing.T) <-chan event {
	t.Helper()
	resp, _ := p.get(t, "/v1/events")
	if resp.StatusCode != 200 {
		t.Fatalf("events: %s", resp.Status)
	}
	out := make(chan event, 1000)
	go func() {
		defer close(out)
		var e event
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			switch line := lines.Text(); {
			case line == "":
				e.at = time.Now()
				out <- e
				e = event{}
			case strings.HasPrefix(line, "event: "):
				e.kind = line[7:]
			case strings.HasPrefix(line, "id: "):
				e.id = line[4:]
			case strings.HasPrefix(line, "data: "):
				e.data = line[6:]
			}
		}
	}()
	return out
}

func drain(c <-chan event) []event {
	var out []event
	for {
		select {
		case e := <-c:
			out = append(out, e)
		default:
			return out
		}
	}
}

func TestEventsAtOnceAndPaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &source{status: sample()}
		events := serve(t, src).watch(t)
		begin := time.Now()
		synctest.Wait()
		if first := drain(events); len(first) != 1 || first[0].kind != "status" || first[0].at != begin {
			t.Fatalf("at once: %+v", first)
		}
		time.Sleep(time.Millisecond)
		for range 1000 { // changes every 10 ms
			src.change(func(s *edge.SystemStatus) { s.Generation++ })
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		got := drain(events)
		if len(got) != 20 {
			t.Errorf("%d events in 10 s of changes, want one in 500 ms", len(got))
		}
		for i, e := range got {
			if e.kind != "status" || i > 0 && e.at.Sub(got[i-1].at) < pace {
				t.Errorf("event %d: %s %s after the last", i, e.kind, e.at.Sub(got[max(0, i-1)].at))
			}
		}
	})
}

func TestEventsWhenQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := serve(t, &source{status: sample()}).watch(t)
		time.Sleep(time.Minute + time.Millisecond)
		synctest.Wait()
		got := drain(events)
		whole := 0
		for i, e := range got {
			if e.kind == "status" {
				whole++
			}
			if i > 0 && e.at.Sub(got[i-1].at) != quiet {
				t.Errorf("event %d: %s after the last", i, e.at.Sub(got[i-1].at))
			}
		}
		if len(got) != 61 || whole != 13 { // one at once, then each second; whole each fifth
			t.Errorf("%d events, %d of them whole", len(got), whole)
		}
		if same := got[1]; same.kind != "same" || !strings.Contains(same.data, `{"time":"20`) {
			t.Errorf("%+v", same)
		}
	})
}

func TestTooManyClients(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &source{status: sample()}
		p := serve(t, src)
		var last net.Conn
		for range maxClients {
			var resp *http.Response
			resp, last = p.get(t, "/v1/events")
			if resp.StatusCode != 200 {
				t.Fatal(resp.Status)
			}
		}
		resp, _ := p.get(t, "/v1/events")
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
			t.Errorf("one too many: %s", resp.Status)
		}
		if resp, _ := p.get(t, "/v1/status"); resp.StatusCode != 200 {
			t.Errorf("status beside them: %s", resp.Status)
		}
		asked := src.asked
		last.Close()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if resp, _ := p.get(t, "/v1/events"); resp.StatusCode != 200 {
			t.Errorf("after one has gone: %s", resp.Status)
		}
		if n := src.asked - asked; n > 10 {
			t.Errorf("the source was asked %d times in 2 s: it should not grow with the clients", n)
		}
	})
}

// TestClientThatDoesNotRead costs nobody anything and is thrown out.
func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &source{status: sample()}
		p := serve(t, src)
		for range maxClients - 1 {
			p.get(t, "/v1/events") // only the head is read
		}
		events := p.watch(t)
		time.Sleep(pace / 4) // between two looks of the stream, not at one
		for range 8 {
			src.change(func(s *edge.SystemStatus) { s.Generation++ })
			time.Sleep(pace)
		}
		synctest.Wait()
		if got := len(drain(events)); got < 8 {
			t.Errorf("the client that reads got %d events of 8", got)
		}
		time.Sleep(writeTimeout)
		synctest.Wait()
		if resp, _ := p.get(t, "/v1/events"); resp.StatusCode != 200 {
			t.Errorf("those that do not read keep their places: %s", resp.Status)
		}
	})
}

// TestSourceHangs: the console answers with what it had, and its events stop,
// so that the page says so.
func TestSourceHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &source{status: sample()}
		p := serve(t, src)
		events := p.watch(t)
		time.Sleep(time.Second)
		synctest.Wait()
		drain(events)
		hang := make(chan struct{})
		src.mu.Lock()
		src.hang = hang
		src.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := drain(events); len(got) > 0 {
			t.Errorf("events of a source that hangs: %+v", got)
		}
		begin := time.Now()
		resp, _ := p.get(t, "/v1/status")
		if resp.StatusCode != 200 || time.Since(begin) > patience {
			t.Errorf("status: %s after %s", resp.Status, time.Since(begin))
		}
		src.mu.Lock()
		src.hang = nil
		src.mu.Unlock()
		close(hang)
		time.Sleep(2 * patience)
		synctest.Wait()
		if got := drain(events); len(got) == 0 {
			t.Error("no event after the source came back")
		}
	})
}

func TestNoStatusYet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		p := serve(t, &source{status: sample(), hang: hang})
		resp, _ := p.get(t, "/v1/status")
		if resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("status: %s", resp.Status)
		}
		close(hang)
	})
}

// TestEndsWithTheServer: a stream ends when the server's context does.
func TestEndsWithTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		srv := &http.Server{Handler: Handler(&source{status: sample()}, samplePast()), BaseContext: func(net.Listener) context.Context { return ctx }}
		go srv.Serve(p)
		events := p.watch(t)
		time.Sleep(time.Second)
		cancel()
		begin := time.Now()
		for range events {
		}
		if d := time.Since(begin); d > 0 {
			t.Errorf("the stream went on for %s", d)
		}
		srv.Close()
	})
}
