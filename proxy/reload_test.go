package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// with returns a copy of the configuration with a change.
func (b *bench) with(change func(*edge.Config)) *edge.Config {
	c := *b.cfg
	c.Fleet.Services = append([]edge.Service(nil), c.Fleet.Services...)
	c.Fleet.Proxy.Certificates = append([]edge.Certificate(nil), c.Fleet.Proxy.Certificates...)
	change(&c)
	return &c
}

// stdClient is Go's own client, over TLS.
func (b *bench) stdClient(h2 bool) *http.Client {
	protos := new(http.Protocols)
	protos.SetHTTP1(!h2)
	protos.SetHTTP2(h2)
	return &http.Client{Timeout: patience, Transport: &http.Transport{
		Protocols: protos, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			_, port, _ := net.SplitHostPort(addr)
			var d net.Dialer
			return d.DialContext(ctx, "tcp", net.JoinHostPort(b.vip().String(), port))
		},
	}}
}

// load sends requests from several clients until stop is called, counting them
// in n; stop returns how many there were. Every one must be answered with 200.
func (b *bench) load(url string) (n *atomic.Int64, stop func() int64) {
	n = new(atomic.Int64)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(b.t.Context())
	for i := range 8 {
		wg.Go(func() {
			c := b.stdClient(i%2 == 0)
			defer c.CloseIdleConnections()
			for ctx.Err() == nil {
				resp, err := c.Post(url, "text/plain", strings.NewReader(strings.Repeat("x", 1000)))
				if err != nil {
					b.t.Errorf("request %d: %v", n.Load(), err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 {
					b.t.Errorf("request %d: %d %q %v", n.Load(), resp.StatusCode, body, err)
				}
				n.Add(1)
			}
		})
	}
	return n, func() int64 { cancel(); wg.Wait(); return n.Load() }
}

func TestReloadUnderLoad(t *testing.T) {
	b := newBench(t, startNginx(t))
	answered, stop := b.load("https://www.example.net/echo")
	extra := netip.AddrPortFrom(b.vip(), 8443)
	var n atomic.Int64
	for i := range 30 {
		waitFor(t, "requests between the reloads", func() bool { return answered.Load() >= int64(10*i) })
		cfg := b.with(func(c *edge.Config) {
			c.Hash = fmt.Sprint(i)
			c.Fleet.Proxy.Certificates[0] = writeCert(t, b.dir, "www.example.net") // the same files, another key
			c.Fleet.Proxy.AccessLog = filepath.Join(b.dir, fmt.Sprintf("access%d.log", i%2))
			if i%2 == 0 {
				c.Fleet.Services = append(c.Fleet.Services, edge.Service{ID: "extra", VIP: extra, Proxied: true, TLS: true})
			}
		})
		if err := b.s.Reload(Reload{Config: cfg, Commit: func() { n.Add(1) }}); err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", extra.String())
		if (err == nil) != (i%2 == 0) {
			t.Errorf("reload %d: dial the extra vip: %v", i, err)
		}
		if err == nil {
			c.Close()
		}
		if got := b.s.State(); got.ConfigHash != fmt.Sprint(i) || len(got.Listeners) != 3+(i+1)%2 {
			t.Errorf("state %+v", got)
		}
	}
	total := stop()
	if total < 290 || n.Load() != 30 {
		t.Errorf("only %d requests during %d reloads", total, n.Load())
	}
	b.end()
	lines := strings.Count(b.log.String(), "\n")
	for i := range 2 {
		data, err := os.ReadFile(filepath.Join(b.dir, fmt.Sprintf("access%d.log", i)))
		if err != nil {
			t.Error(err)
		}
		lines += strings.Count(string(data), "\n")
	}
	if int64(lines) != total {
		t.Errorf("%d access lines for %d requests", lines, total)
	}
}

func TestReloadRefused(t *testing.T) {
	o, _ := simpleOrigin(t)
	b := newBench(t, o.addr)
	busy, err := net.Listen("tcp", netip.AddrPortFrom(b.vip(), 8443).String())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	tests := map[string]struct {
		change func(*edge.Config)
		want   string
	}{
		"no such key":    {func(c *edge.Config) { c.Fleet.Proxy.Certificates[0].KeyFile = "/nowhere" }, "/nowhere"},
		"address in use": {func(c *edge.Config) { c.Fleet.Services[0].VIP = netip.AddrPortFrom(b.vip(), 8443) }, "address already in use"},
		"no such node":   {func(c *edge.Config) { c.Local.ID = "x" }, "not among the nodes"},
		"no such folder": {func(c *edge.Config) { c.Fleet.Proxy.AccessLog = "/nowhere/log" }, "open access log"},
	}
	for name, tt := range tests {
		cfg := b.with(func(c *edge.Config) { c.Hash = "bad" })
		tt.change(cfg)
		err := b.s.Reload(Reload{Config: cfg, Commit: func() { t.Errorf("%s: committed", name) }})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if out, code := b.curl("https://www.example.net/"); code != 0 || out != "hello" || b.s.State().ConfigHash != "one" {
			t.Errorf("%s: the old configuration is not served: exit %d %q", name, code, out)
		}
	}
	b.end()
	if err := b.s.Reload(Reload{Config: b.cfg, Commit: func() { t.Error("committed") }}); err == nil {
		t.Error("reloaded after the end")
	}
}

// TestReloadReachesOldConnections: a keep-alive connection from before sees
// the new routes, and one to a VIP that is gone goes on.
func TestReloadReachesOldConnections(t *testing.T) {
	o, _ := simpleOrigin(t)
	b := newBench(t, o.addr)
	c := b.dial(80)
	br := bufio.NewReader(c)
	io.WriteString(c, get)
	readAnswer(t, br, "hello")
	cfg := b.with(func(c *edge.Config) {
		c.Fleet.Proxy.Routes = []edge.Route{{PathPrefix: "/only"}}
		c.Fleet.Services = c.Fleet.Services[:1]
	})
	if err := b.s.Reload(Reload{Config: cfg}); err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, get)
	if h := readAnswer(t, br, "no route matches the host and path\n"); !strings.HasPrefix(h, "HTTP/1.1 404") {
		t.Errorf("got %q", h)
	}
	io.WriteString(c, "GET /only HTTP/1.1\r\nHost: h\r\n\r\n")
	readAnswer(t, br, "hello")
	if _, err := net.Dial("tcp", netip.AddrPortFrom(b.vip(), 80).String()); err == nil {
		t.Error("the vip that is gone still accepts")
	}
}

// slowOrigin answers when told to.
func slowOrigin(t *testing.T) (o *origin, asked chan struct{}, let chan struct{}) {
	asked, let = make(chan struct{}, 10), make(chan struct{})
	o = newOrigin(t, func(c *originConn) {
		for {
			if _, err := c.head(); err != nil {
				return
			}
			asked <- struct{}{}
			<-let
			c.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
		}
	})
	return o, asked, let
}

func TestDrain(t *testing.T) {
	o, asked, let := slowOrigin(t)
	b := newBench(t, o.addr)
	idle, busy, fresh := b.dial(80), b.dial(80), b.dial(80)
	io.WriteString(idle, "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
	readAnswer(t, bufio.NewReader(idle), "ok\n")
	io.WriteString(busy, get)
	<-asked
	h2c := b.stdClient(true)
	defer h2c.CloseIdleConnections()
	answers := make(chan error, 1)
	go func() {
		resp, err := h2c.Get("https://www.example.net/")
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		answers <- err
	}()
	<-asked
	waitFor(t, "all connections", func() bool { return b.s.State().Connections == 4 })

	b.stop()
	if n, err := idle.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("idle connection: %d, %v", n, err)
	}
	waitFor(t, "the listeners to close", func() bool {
		c, err := net.Dial("tcp", netip.AddrPortFrom(b.vip(), 80).String())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	io.WriteString(fresh, "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
	if h := readAnswer(t, bufio.NewReader(fresh), "ok\n"); !strings.Contains(h, "Connection: close") {
		t.Errorf("the first request of an accepted connection: %q", h)
	}
	select {
	case err := <-b.done:
		t.Fatalf("ended with requests in flight: %v", err)
	case <-time.After(100 * time.Millisecond): // it must not end: nothing to poll for
	}
	close(let)
	if h := readAnswer(t, bufio.NewReader(busy), "hello"); !strings.Contains(h, "Connection: close") {
		t.Errorf("busy connection: %q", h)
	}
	if err := <-answers; err != nil {
		t.Errorf("h2 in flight: %v", err)
	}
	start := time.Now()
	b.end()
	if took := time.Since(start); took > patience/2 {
		t.Errorf("the end took %v", took)
	}
}

// TestDrainTimeout: what does not end is cut off.
func TestDrainTimeout(t *testing.T) {
	o, asked, let := slowOrigin(t)
	b := newBenchWith(t, func(c *edge.Config) { c.Fleet.Proxy.DrainTimeout = 200 * time.Millisecond }, o.addr)
	c := b.dial(80)
	io.WriteString(c, get)
	<-asked
	cc := b.h2Client()
	failed := make(chan error, 1)
	go func() {
		req, _ := http.NewRequest("GET", "https://www.example.net/", nil)
		_, err := cc.RoundTrip(req)
		failed <- err
	}()
	<-asked
	start := time.Now()
	b.end()
	if took := time.Since(start); took < 150*time.Millisecond || took > patience/2 {
		t.Errorf("ended after %v", took)
	}
	if out, _ := io.ReadAll(c); len(out) > 0 {
		t.Errorf("it was answered: %q", out)
	}
	if err := <-failed; err == nil {
		t.Error("h2 was answered")
	}
	close(let)
}

// TestGoAway: an idle HTTP/2 connection is told to go, and goes.
func TestGoAway(t *testing.T) {
	b := newBench(t)
	cc := b.h2Client()
	req, _ := http.NewRequest("GET", "https://www.example.net/healthz", nil)
	resp, err := cc.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	b.stop()
	waitFor(t, "GOAWAY", func() bool { return cc.Err() != nil })
	b.end()
}

// TestDrainFreshH2: a connection that was accepted before the drain has its
// first request answered.
func TestDrainFreshH2(t *testing.T) {
	b := newBench(t)
	cc := b.h2Client()
	b.stop()
	waitFor(t, "the listeners to close", func() bool { return len(b.s.State().Listeners) == 0 })
	req, _ := http.NewRequest("GET", "https://www.example.net/healthz", nil)
	resp, err := cc.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	b.end()
}
