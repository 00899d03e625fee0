package proxy

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/catchment-dev/edge"
)

// TestMalformed: what is no request gets 400 (or a more telling 4xx or 5xx)
// and a closed connection, and the origin sees nothing of it.
func TestMalformed(t *testing.T) {
	seen := &lines{}
	o := newOrigin(t, func(c *originConn) { // never answers before it has the body
		h, _ := c.head()
		io.WriteString(seen, h)
		io.Copy(io.Discard, c.br)
	})
	b := newBenchWith(t, func(c *edge.Config) { c.Fleet.Proxy.HeaderTimeout = 4 * time.Second }, o.addr)
	tests := map[string]struct{ in, want string }{
		"te and cl":       {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"two cl":          {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "400"},
		"te in 1.0":       {"POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"obs-fold":        {"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n", "400"},
		"bare lf":         {"GET / HTTP/1.1\nHost: h\n\n", "400"},
		"no host":         {"GET / HTTP/1.1\r\n\r\n", "400"},
		"bad host":        {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "400"},
		"absolute":        {"GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n", "400"},
		"raw target":      {"GET /\x80 HTTP/1.1\r\nHost: h\r\n\r\n", "400"},
		"connect":         {"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n", "501"},
		"garbage":         {"\x16\x03\x01\x00\xff\r\n", "400"},
		"long":            {"GET /" + strings.Repeat("a", 20000) + " HTTP/1.1\r\nHost: h\r\n\r\n", "431"},
		"h2 preface":      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"},
		"bad chunk":       {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", "400"},
		"bare lf chunk":   {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", "400"},
		"second is bad":   {"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n", "400"},
		"websocket":       {"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "501"},
		"head never ends": {"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n", "408"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			out := b.raw(tt.in)
			last := out[max(strings.LastIndex(out, "HTTP/1.1 "), 0):]
			if !strings.HasPrefix(last, "HTTP/1.1 "+tt.want) || !strings.Contains(last, "\r\nConnection: close\r\n") || !strings.Contains(last, "\r\nX-Edge-Reason: ") {
				t.Errorf("got %q, want %s", last, tt.want)
			}
		})
	}
	for head := range strings.SplitSeq(seen.String(), "\r\n\r\n") {
		if head != "" && !strings.Contains(head, "Transfer-Encoding: chunked") {
			t.Errorf("the origin saw %q", head)
		}
	}
	for _, l := range b.access(len(tests) + 1) {
		if l.Status >= 400 && l.Reason == "" {
			t.Errorf("line without a reason: %+v", l)
		}
	}
}

func TestReusesConnections(t *testing.T) {
	o, _ := simpleOrigin(t)
	b := newBench(t, o.addr)
	c := b.dial(80)
	br := bufio.NewReader(c)
	for range 50 {
		io.WriteString(c, get)
		readAnswer(t, br, "hello")
	}
	for range 10 { // each from a client connection of its own
		b.raw(strings.Replace(get, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
	}
	if n := o.conns.Load(); n != 1 {
		t.Errorf("%d connections to the origin for 60 requests", n)
	}
	if l := b.access(60); l[0].Reused || !l[59].Reused || l[59].Attempts != 1 {
		t.Errorf("lines: %+v, %+v", l[0], l[59])
	}
}

// readAnswer reads one answer with a Content-Length and returns its head.
func readAnswer(t *testing.T, br *bufio.Reader, body string) string {
	t.Helper()
	h, err := (&originConn{nil, br}).head()
	if err != nil {
		t.Fatalf("read answer: %v after %q", err, h)
	}
	buf := make([]byte, len(body))
	if _, err := io.ReadFull(br, buf); err != nil || string(buf) != body {
		t.Fatalf("body %q, %v; head %q", buf, err, h)
	}
	return h
}

func TestHopByHop(t *testing.T) {
	seen := &lines{}
	o := newOrigin(t, func(c *originConn) {
		h, _ := c.head()
		io.WriteString(seen, h)
		c.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Private, close\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\n" +
			"Proxy-Authenticate: Basic\r\nX-Edge-Reason: forged\r\nX-Request-Id: forged\r\nX-Public: 1\r\nUpgrade: h2c\r\n\r\nok")
	})
	b := newBench(t, o.addr)
	out := b.raw("GET /a?b HTTP/1.1\r\nHost: www.example.net\r\nConnection:\r\nConnection: X-Forwarded-For, X-Mine, close\r\nX-Mine: 1\r\n" +
		"Keep-Alive: 5\r\nTE: trailers\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: x\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n" +
		"X-Forwarded-For: 6.6.6.6\r\nX_Forwarded_For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\nX-Edge-Reason: x\r\nAccept: */*\r\nAccept: b\r\n\r\n")
	head := seen.String()
	for _, bad := range []string{"x-mine", "keep-alive", "\r\nte:", "connection", "proxy-", "upgrade", "http2", "6.6.6.6", "x-edge", "content-length", "transfer-"} {
		if strings.Contains(strings.ToLower(head), bad) {
			t.Errorf("the origin got %q in:\n%s", bad, head)
		}
	}
	for _, good := range []string{"GET /a?b HTTP/1.1\r\nHost: www.example.net\r\n", "Accept: */*\r\nAccept: b\r\n", "X-Forwarded-For: 127.0.0.1\r\n", "X-Forwarded-Proto: http\r\n"} {
		if !strings.Contains(head, good) {
			t.Errorf("the origin did not get %q in:\n%s", good, head)
		}
	}
	low := strings.ToLower(out)
	for _, bad := range []string{"x-private", "keep-alive", "proxy-", "forged", "upgrade"} {
		if strings.Contains(low, bad) {
			t.Errorf("the client got %q in:\n%s", bad, out)
		}
	}
	id := b.access(1)[0].ID
	if len(id) != 32 || !strings.Contains(out, "X-Request-Id: "+id) || !strings.Contains(head, "X-Request-Id: "+id) || !strings.Contains(out, "X-Public: 1\r\n") {
		t.Errorf("id %q; the client got:\n%s\nthe origin:\n%s", id, out, head)
	}
}

func TestSNI(t *testing.T) {
	b := newBenchWith(t, func(cfg *edge.Config) {
		cfg.Fleet.Proxy.Certificates = append(cfg.Fleet.Proxy.Certificates, writeCert(t, t.TempDir(), "*.example.org"))
	})
	for sni, want := range map[string]string{
		"www.example.net": "www.example.net", "a.example.org": "*.example.org", "A.EXAMPLE.ORG": "*.example.org",
		"a.b.example.org": "www.example.net", "other.test": "www.example.net", "": "www.example.net",
	} {
		c := tls.Client(b.dial(443), &tls.Config{ServerName: sni, InsecureSkipVerify: true})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		if got := c.ConnectionState().PeerCertificates[0].DNSNames[0]; got != want {
			t.Errorf("%q got %s, want %s", sni, got, want)
		}
		c.Close()
	}
}

func TestSessionResumption(t *testing.T) {
	b := newBench(t)
	cfg := &tls.Config{ServerName: "www.example.net", InsecureSkipVerify: true, ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	for i := range 2 {
		c := tls.Client(b.dial(443), cfg)
		io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		if out, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(out), "ok\n") {
			t.Fatalf("%q, %v", out, err)
		}
		if got := c.ConnectionState().DidResume; got != (i == 1) {
			t.Errorf("connection %d: resumed %v", i, got)
		}
	}
}

// TestOwnAnswers: each answer of our own has its status and says why.
func TestOwnAnswers(t *testing.T) {
	silent := newOrigin(t, func(c *originConn) { c.head(); c.Read(make([]byte, 1)) })
	garbled := newOrigin(t, func(c *originConn) { c.head(); c.say("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n") })
	broke := newOrigin(t, func(c *originConn) { c.head() })
	dead := closedPort(t)
	b := newBenchWith(t, func(cfg *edge.Config) {
		cfg.Fleet.Proxy.UpstreamTimeout = 2 * time.Second
		cfg.Fleet.Proxy.Routes = []edge.Route{{Hosts: []string{"www.example.net"}, PathPrefix: "/app"}}
	})
	tests := map[string]struct {
		path     string
		err      error
		upstream []netip.AddrPort
		status   string
		reason   string
	}{
		"no route":   {path: "/apple", status: "404", reason: "no route matches the host and path"},
		"down":       {path: "/app", err: ErrDown, status: "503", reason: "no region is up"},
		"full":       {path: "/app", err: ErrFull, status: "503", reason: "no_room"},
		"refused":    {path: "/app", upstream: []netip.AddrPort{dead, dead}, status: "502", reason: "could not connect to the upstream: connection refused"},
		"timeout":    {path: "/app/x", upstream: []netip.AddrPort{silent.addr}, status: "504", reason: "the upstream did not answer in time"},
		"garbled":    {path: "/app", upstream: []netip.AddrPort{garbled.addr}, status: "502", reason: "the answer of the upstream is malformed: the Content-Length is not a number"},
		"broke":      {path: "/app", upstream: []netip.AddrPort{broke.addr}, status: "502", reason: "the upstream closed the connection without an answer"},
		"health":     {path: "/healthz", err: ErrDown, status: "200"},
		"not health": {path: "/healthz/x", status: "404", reason: "no route matches the host and path"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b.picker.mu.Lock()
			b.picker.err, b.picker.upstreams = tt.err, tt.upstream
			b.picker.mu.Unlock()
			for _, args := range [][]string{{"--http1.1"}, {"--http2"}} {
				out, code := b.curl("https://www.example.net"+tt.path, append(args, "-D", "-")...)
				head, body, _ := strings.Cut(out, "\r\n\r\n")
				if code != 0 || !strings.Contains(head, " "+tt.status) {
					t.Fatalf("exit %d: %q", code, out)
				}
				low := strings.ToLower(head)
				if tt.reason == "" {
					if body != "ok\n" {
						t.Errorf("body %q", body)
					}
					continue
				}
				if !strings.HasPrefix(body, tt.reason) || !strings.Contains(low, "x-edge-reason: "+strings.ToLower(tt.reason)) {
					t.Errorf("want reason %q: %q", tt.reason, out)
				}
				if strings.Contains(low, "retry-after: 1") != (tt.err == ErrFull) {
					t.Errorf("retry-after: %q", head)
				}
			}
		})
	}
	if st := b.s.State(); st.Responses["2xx"] != 2 || st.Responses["4xx"] != 4 || st.Responses["5xx"] != 12 || st.Requests != 18 || len(st.Listeners) != 3 {
		t.Errorf("state %+v", st)
	}
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(b.s.Collector()); err != nil {
		t.Fatal(err)
	}
	if families, err := reg.Gather(); err != nil || len(families) != 9 {
		t.Errorf("%d metric families, %v", len(families), err)
	}
}

// closedPort returns an address of a port on which nobody listens.
func closedPort(t *testing.T) netip.AddrPort {
	ln, err := net.Listen("tcp", netip.AddrPortFrom(loopback(), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

func TestHealthListener(t *testing.T) {
	b := newBench(t)
	ask := func(path string) string {
		c := b.dial(9181)
		io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		out, _ := io.ReadAll(c)
		return string(out)
	}
	if out := ask("/healthz"); !strings.HasPrefix(out, "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(out, "\r\n\r\nok\n") {
		t.Errorf("got %q", out)
	}
	if out := ask("/"); !strings.HasPrefix(out, "HTTP/1.1 404 ") {
		t.Errorf("got %q", out)
	}
	b.end()
	if _, err := net.Dial("tcp", netip.AddrPortFrom(b.vip(), 9181).String()); err == nil {
		t.Error("the health port answers although nothing is served")
	}
}

func TestListenTakesWhatIsThere(t *testing.T) {
	// TEST-NET and the documentation prefix: not addresses of this box.
	away, away6 := netip.MustParseAddrPort("192.0.2.1:443"), netip.MustParseAddrPort("[2001:db8::1]:443")
	cfg := &edge.Config{Local: edge.Local{ID: "a"}, Fleet: edge.Fleet{
		Nodes:    []edge.Node{{ID: "a"}},
		Services: []edge.Service{{ID: "web", VIP: away, Proxied: true, TLS: true}, {ID: "web6", VIP: away6, Proxied: true, TLS: true}},
	}}
	first, err := Listen(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer first[away].Close()
	defer first[away6].Close()
	if _, err := Listen(cfg, nil); err == nil {
		t.Error("bound twice")
	}
	have := map[netip.AddrPort]*net.TCPListener{away: first[away], away6: first[away6], {}: nil}
	again, err := Listen(cfg, have)
	if err != nil || again[away] != first[away] || again[away6] != first[away6] || len(have) != 1 {
		t.Errorf("%v %v, left %v", again, err, have)
	}
	cfg.Local.ID = "b"
	if _, err := Listen(cfg, nil); err == nil {
		t.Error("no such node")
	}
}

func TestIPv6(t *testing.T) {
	free, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().(*net.TCPAddr).AddrPort()
	free.Close()
	o, seen := simpleOrigin(t)
	b := newBenchWith(t, func(cfg *edge.Config) {
		cfg.Fleet.Services = append(cfg.Fleet.Services, edge.Service{ID: "six", VIP: at, Protocol: edge.TCP, Proxied: true})
	}, o.addr)
	out, code := b.curl("http://" + at.String() + "/")
	if code != 0 || out != "hello" || !strings.Contains(seen.String(), "X-Forwarded-For: ::1\r\n") || !strings.Contains(seen.String(), "Host: "+at.String()+"\r\n") {
		t.Errorf("exit %d, %q; the origin saw:\n%s", code, out, seen)
	}
	if l := b.access(1)[0]; l.VIP != at.String() || !strings.HasPrefix(l.Client, "[::1]:") {
		t.Errorf("line %+v", l)
	}
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	vip := netip.MustParseAddrPort("192.0.2.1:443")
	base := func() *edge.Config {
		return &edge.Config{Local: edge.Local{ID: "a"}, Fleet: edge.Fleet{
			Nodes: []edge.Node{{ID: "a", Addr4: vip.Addr(), HealthPort: 1}}, Services: []edge.Service{{ID: "web", VIP: vip, Proxied: true, TLS: true}},
			Proxy: edge.Proxy{Certificates: []edge.Certificate{writeCert(t, dir, "x")}},
		}}
	}
	tests := map[string]struct {
		change func(*edge.Config)
		want   string
	}{
		"missing key":     {func(c *edge.Config) { c.Fleet.Proxy.Certificates[0].KeyFile = dir + "/none" }, "none"},
		"no certificate":  {func(c *edge.Config) { c.Fleet.Proxy.Certificates = nil }, "no certificate is configured"},
		"health on a vip": {func(c *edge.Config) { c.Fleet.Nodes[0].HealthPort = 443 }, "is the vip of service web"},
		"access log":      {func(c *edge.Config) { c.Fleet.Proxy.AccessLog = dir }, "open access log"},
	}
	for name, tt := range tests {
		cfg := base()
		tt.change(cfg)
		if _, err := New(Options{Config: cfg}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

func TestAccessLogNeverBlocks(t *testing.T) {
	r, w, err := os.Pipe() // nobody reads
	if err != nil {
		t.Fatal(err)
	}
	o, _ := simpleOrigin(t)
	b := newBenchWith(t, func(cfg *edge.Config) { cfg.Fleet.Proxy.DrainTimeout = time.Second }, o.addr)
	b.s.access.redirect(&accessFile{w})
	for b.s.access.dropped.Load() == 0 {
		b.s.access.write(accessLine{Path: strings.Repeat("x", 1000)})
	}
	if out := b.raw(strings.Replace(get, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1)); !strings.HasSuffix(out, "hello") {
		t.Errorf("a request while the log is blocked: %q", out)
	}
	start := time.Now()
	b.end()
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("ended after %v", took)
	}
	go io.Copy(io.Discard, r)
	waitFor(t, "the writer to end", func() bool { _, err := w.Write(nil); return errors.Is(err, os.ErrClosed) })
	r.Close()
}

func TestRoute(t *testing.T) {
	routes := []edge.Route{
		{Hosts: []string{"www.example.net"}, PathPrefix: "/a", Regions: []edge.RegionID{"a"}},
		{Hosts: []string{"*.example.net"}, PathPrefix: "/", Regions: []edge.RegionID{"star"}},
		{Hosts: []string{"::1"}, PathPrefix: "/", Regions: []edge.RegionID{"six"}},
		{PathPrefix: "/any/", Regions: []edge.RegionID{"any"}},
	}
	for in, want := range map[[2]string]edge.RegionID{
		{"www.example.net", "/a"}: "a", {"WWW.Example.NET.:443", "/a/b?x"}: "a", {"www.example.net", "/a?/x"}: "a", {"www.example.net", "/ab"}: "star",
		{"x.example.net", "/a"}: "star", {"x.y.example.net", "/"}: "", {"example.net", "/"}: "", {".example.net", "/"}: "",
		{"[::1]:80", "/"}: "six", {"h", "/any"}: "any", {"h", "/any/x"}: "any", {"h", "/anyx"}: "", {"h", "*"}: "",
	} {
		regions, ok := route(routes, in[0], in[1])
		if ok != (want != "") || ok && !slices.Equal(regions, []edge.RegionID{want}) {
			t.Errorf("%v: %v %v, want %q", in, regions, ok, want)
		}
	}
}
