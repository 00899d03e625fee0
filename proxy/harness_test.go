package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/catchment-dev/edge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// waitFor polls until cond holds.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond) // between two polls
	}
}

var lastLoopback atomic.Uint32

// loopback returns an address of 127/8 that no other test uses.
func loopback() netip.Addr {
	n := lastLoopback.Add(1)
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, byte(64 + pid>>8&63), byte(pid), byte(1 + n)})
}

// lines collects what is written to it.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// fixedPicker offers upstreams in order and records how they were used.
type fixedPicker struct {
	mu        sync.Mutex
	upstreams []netip.AddrPort
	err       error
	done      []error
}

func (p *fixedPicker) Pick(_ []edge.RegionID, tried []edge.UpstreamID) (Choice, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return Choice{}, p.err
	}
	if len(tried) >= len(p.upstreams) {
		return Choice{}, ErrDown
	}
	i := len(tried)
	return Choice{
		Region: "east", Upstream: edge.Upstream{ID: edge.UpstreamID(fmt.Sprintf("o%d", i)), Addr: p.upstreams[i]},
		Done: func(err error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.done = append(p.done, err)
		},
	}, nil
}

func (p *fixedPicker) finished() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]error(nil), p.done...)
}

// bench is a running proxy with its surroundings.
type bench struct {
	t      *testing.T
	s      *Server
	cfg    *edge.Config
	picker *fixedPicker
	log    *lines // access log
	stop   func() // SIGTERM
	done   chan error
	dir    string
}

// newBench runs a proxy with https on :443 and http on :80 of an address of
// its own, with all requests going to upstreams.
func newBench(t *testing.T, upstreams ...netip.AddrPort) *bench {
	return newBenchWith(t, func(*edge.Config) {}, upstreams...)
}

func newBenchWith(t *testing.T, change func(*edge.Config), upstreams ...netip.AddrPort) *bench {
	t.Helper()
	b := prepareBench(t, change, upstreams...)
	b.run()
	return b
}

// prepareBench is newBenchWith whose proxy does not run yet.
func prepareBench(t *testing.T, change func(*edge.Config), upstreams ...netip.AddrPort) *bench {
	t.Helper()
	vip := loopback()
	b := &bench{t: t, picker: &fixedPicker{upstreams: upstreams}, log: &lines{}, done: make(chan error, 1), dir: t.TempDir()}
	cert := writeCert(t, b.dir, "www.example.net")
	b.cfg = &edge.Config{
		Hash:  "one",
		Local: edge.Local{ID: "a1"},
		Fleet: edge.Fleet{
			Nodes: []edge.Node{{ID: "a1", Addr4: vip, HealthPort: 9181}},
			Services: []edge.Service{
				{ID: "web", VIP: netip.AddrPortFrom(vip, 443), Protocol: edge.TCP, Proxied: true, TLS: true},
				{ID: "plain", VIP: netip.AddrPortFrom(vip, 80), Protocol: edge.TCP, Proxied: true},
				{ID: "dns", VIP: netip.AddrPortFrom(vip, 53), Protocol: edge.UDP},
			},
			Proxy: edge.Proxy{
				Certificates:  []edge.Certificate{cert},
				Routes:        []edge.Route{{PathPrefix: "/"}},
				HeaderTimeout: patience, IdleTimeout: 20 * time.Second, UpstreamTimeout: 20 * time.Second, DrainTimeout: patience,
			},
		},
	}
	change(b.cfg)
	listeners, err := Listen(b.cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.s, err = New(Options{Config: b.cfg, Picker: b.picker, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Listeners: listeners, Stdout: b.log})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) run() {
	ctx, cancel := context.WithCancel(context.Background())
	b.stop = cancel
	go func() { b.done <- b.s.Run(ctx) }()
	<-b.s.Ready()
	b.t.Cleanup(b.end)
}

// end stops the proxy and checks that it ended well.
func (b *bench) end() {
	b.stop()
	select {
	case err, ok := <-b.done:
		if ok && err != nil {
			b.t.Errorf("run: %v", err)
		}
		if ok {
			close(b.done)
		}
	case <-time.After(2 * patience):
		b.t.Error("the proxy does not end")
	}
}

func (b *bench) vip() netip.Addr { return b.cfg.Fleet.Nodes[0].Addr4 }

// dial connects to a port of the proxy.
func (b *bench) dial(port uint16) net.Conn {
	b.t.Helper()
	c, err := net.Dial("tcp", netip.AddrPortFrom(b.vip(), port).String())
	if err != nil {
		b.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	b.t.Cleanup(func() { c.Close() })
	return c
}

// raw sends bytes to the plain port and returns all that comes back.
func (b *bench) raw(in string) string {
	b.t.Helper()
	c := b.dial(80)
	if _, err := io.WriteString(c, in); err != nil {
		b.t.Fatal(err)
	}
	out, err := io.ReadAll(c)
	if err != nil && len(out) == 0 {
		b.t.Errorf("read: %v", err)
	}
	return string(out)
}

// access returns the lines of the access log once there are n of them.
func (b *bench) access(n int) []accessLine {
	b.t.Helper()
	var out []accessLine
	waitFor(b.t, fmt.Sprintf("%d access lines", n), func() bool {
		out = nil
		for line := range strings.Lines(b.log.String()) {
			var l accessLine
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				b.t.Fatalf("access line %q: %v", line, err)
			}
			out = append(out, l)
		}
		return len(out) >= n
	})
	return out
}

// curl runs curl against the proxy: args come before the URL. It returns the
// output and curl's exit code.
func (b *bench) curl(url string, args ...string) (string, int) {
	b.t.Helper()
	host := "www.example.net"
	resolve := []string{"-sS", "-k", "--max-time", "20", "--resolve", fmt.Sprintf("%s:443:%s", host, b.vip()), "--resolve", fmt.Sprintf("%s:80:%s", host, b.vip())}
	cmd := exec.Command("curl", append(append(resolve, args...), url)...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		b.t.Fatalf("curl: %v", err)
	}
	if errOut.Len() > 0 {
		b.t.Logf("curl: %s", errOut.String())
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// writeCert makes a self-signed certificate for name and its key.
func writeCert(t *testing.T, dir, name string) edge.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<60))
	tmpl := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c := edge.Certificate{CertFile: filepath.Join(dir, name+".crt"), KeyFile: filepath.Join(dir, name+".key")}
	writePEM(t, c.CertFile, "CERTIFICATE", der)
	writePEM(t, c.KeyFile, "EC PRIVATE KEY", keyDER)
	return c
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// origin is an upstream of raw bytes: each connection is given to serve.
type origin struct {
	addr  netip.AddrPort
	conns atomic.Int64
}

type originConn struct {
	net.Conn
	br *bufio.Reader
}

// head reads a request's head as it is.
func (c *originConn) head() (string, error) {
	var b strings.Builder
	for {
		line, err := c.br.ReadString('\n')
		b.WriteString(line)
		if err != nil || line == "\r\n" {
			return b.String(), err
		}
	}
}

// say writes, the way a test origin does: what nobody reads is lost.
func (c *originConn) say(s string) { io.WriteString(c, s) }

func newOrigin(t *testing.T, serve func(c *originConn)) *origin {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &origin{addr: ln.Addr().(*net.TCPAddr).AddrPort()}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			o.conns.Add(1)
			mu.Lock()
			open[c] = true
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(2 * patience))
				serve(&originConn{c, bufio.NewReader(c)})
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return o
}

// simpleOrigin answers every request without a body with "hello" and keeps
// the heads that it saw.
func simpleOrigin(t *testing.T) (*origin, *lines) {
	seen := &lines{}
	return newOrigin(t, func(c *originConn) {
		for {
			h, err := c.head()
			if err != nil {
				return
			}
			io.WriteString(seen, h)
			c.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
		}
	}), seen
}

// tlsClient connects with TLS and h1 or h2 as negotiated.
func (b *bench) tlsClient(protos ...string) *tls.Conn {
	b.t.Helper()
	c := tls.Client(b.dial(443), &tls.Config{ServerName: "www.example.net", InsecureSkipVerify: true, NextProtos: protos})
	if err := c.Handshake(); err != nil {
		b.t.Fatal(err)
	}
	return c
}

// h2Client opens one HTTP/2 connection with Go's own client.
func (b *bench) h2Client() *http.ClientConn {
	b.t.Helper()
	tr := b.stdClient(true).Transport.(*http.Transport)
	cc, err := tr.NewClientConn(b.t.Context(), "https", "www.example.net:443")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { cc.Close() })
	return cc
}

const get = "GET / HTTP/1.1\r\nHost: www.example.net\r\n\r\n"
