package lab

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// small is one site with one box, one region and one client at a BIRD router.
func small() Topology {
	t := Default()
	t.Routers, t.Cores = t.Routers[:1], nil
	t.Sites = []SiteSpec{{"a", "r-a", []BoxSpec{{"a1", true}}}}
	t.Regions, t.Clients, t.Shared = t.Regions[:1], t.Clients[:1], "r-a"
	return t
}

func TestBox(t *testing.T) {
	l := build(t, small())
	t.Run("https", func(t *testing.T) { testHTTPS(t, l) })
	t.Run("documents", func(t *testing.T) { testDocuments(t, l) })
	t.Run("console", func(t *testing.T) { testConsole(t, l) })
	t.Run("failing to connect", func(t *testing.T) { testDialErrors(t, l) })
	t.Run("echo", func(t *testing.T) { testEcho(t, l) })
	t.Run("isolated", func(t *testing.T) { testIsolated(t, l) })
}

// serve answers on a listener until the test ends.
func serve(t *testing.T, ln net.Listener, h http.HandlerFunc) {
	t.Helper()
	srv := &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(ln)
	}()
	t.Cleanup(func() {
		srv.Close()
		<-done
	})
}

// toBox routes a VIP by hand; with the product BGP does it.
func toBox(t *testing.T, l *Lab) {
	t.Helper()
	ctx := limit(t, patience)
	s := &speaker{box: l.Boxes["a1"]}
	if err := s.speak(ctx, l, ""); err != nil {
		t.Fatal(err)
	}
	await := func(ctx context.Context, via ...string) {
		t.Helper()
		for _, p := range []netip.Prefix{Prefix4, Prefix6} {
			if err := l.Routers["r-a"].Await(ctx, p, via...); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(func() {
		s.process.Kill()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		await(ctx)
	})
	await(ctx, "a1")
}

// testHTTPS serves TLS with the lab's certificates on a VIP of the box, which
// passes on to an origin, as edgeproxy would.
func testHTTPS(t *testing.T, l *Lab) {
	toBox(t, l)
	greet(t, l.Boxes["a1"])
	ctx := limit(t, patience)
	box, origin := l.Boxes["a1"], l.Regions["east"].Origins[0]
	var certs []tls.Certificate
	for _, name := range HostNames {
		c, err := tls.LoadX509KeyPair(l.secrets.cert(name), l.secrets.key(name))
		if err != nil {
			t.Fatal(err)
		}
		certs = append(certs, c)
	}
	ln, err := box.Listen("tcp", netip.AddrPortFrom(VIP4, 8443).String())
	if err != nil {
		t.Fatal(err)
	}
	serve(t, tls.NewListener(ln, &tls.Config{Certificates: certs}), func(w http.ResponseWriter, r *http.Request) {
		out, err := box.Run(ctx, "curl", "-s", "-H", "X-Forwarded-For: "+strings.Split(r.RemoteAddr, ":")[0], fmt.Sprintf("http://%s%s", origin.Addr4, r.URL.Path))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.Write(out)
	})
	c := l.Clients["client-a"]
	for _, name := range HostNames {
		a, err := c.Get(ctx, "https://"+name+":8443/some/path", Way{})
		if err != nil || a.Region != "east" || a.Box != "a1" || a.Site != "a" || a.ForwardedFor != "10.101.0.2" || a.Path != "/some/path" {
			t.Errorf("%s: got %+v, %v", name, a, err)
		}
	}
	if _, err := c.Run(ctx, "curl", "-sSf", "--cacert", l.CAPath(), "--resolve", "www.example.net:8443:"+VIP4.String(), "https://www.example.net:8443/"); err != nil {
		t.Error(err)
	}
	if _, err := c.Get(ctx, "https://other.example.net:8443/", Way{}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a name without a certificate: got %v", err)
	}
}

func testDocuments(t *testing.T, l *Lab) {
	box := l.Boxes["a1"]
	ln, err := net.Listen("unix", filepath.Join(box.RunDir(), "edged.sock"))
	if err != nil {
		t.Fatal(err)
	}
	serve(t, ln, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/status" {
			http.NotFound(w, r)
			return
		}
		io.WriteString(w, `{"node":"a1","site":"a"}`)
	})
	st, err := box.Status(t.Context())
	if err != nil || st.Node != "a1" {
		t.Errorf("got %+v, %v", st, err)
	}
	if err := box.Ask(t.Context(), Control, "/v1/none", &st); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("got %v, want 404", err)
	}
	if err := box.Ask(t.Context(), Proxy, "/v1/state", &st); !errors.Is(err, unix.ENOENT) {
		t.Errorf("got %v, want no such socket", err)
	}
	text, err := box.Config()
	if err == nil {
		_, err = edge.Parse("edge.yaml", []byte(strings.Replace(text, "name: b\n", "", 1)))
	}
	if err != nil {
		t.Error(err)
	}
}

func testConsole(t *testing.T, l *Lab) {
	box := l.Boxes["a1"]
	ctx, cancel := context.WithCancel(limit(t, patience))
	at, ended := make(chan net.Addr, 1), make(chan error, 1)
	go func() { ended <- box.RelayConsole(ctx, "127.0.0.1:0", func(a net.Addr) { at <- a }) }()
	url := fmt.Sprintf("http://%s/", <-at)
	get := func() (string, error) {
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(httpRequest(ctx, t, url))
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	if got, err := get(); err == nil {
		t.Errorf("a console that is down answers %q", got)
	}
	ln, err := box.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", ManagementPort))
	if err != nil {
		t.Fatal(err)
	}
	serve(t, ln, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "console") })
	if got, err := get(); err != nil || got != "console" {
		t.Errorf("got %q, %v", got, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := box.RelayConsole(t.Context(), "0.0.0.0:0", nil); err == nil {
		t.Error("relays from an address that is not loopback")
	}
}

func httpRequest(ctx context.Context, t *testing.T, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func testDialErrors(t *testing.T, l *Lab) {
	c := l.Clients["client-a"]
	if _, err := c.Dial(t.Context(), "tcp", "10.10.0.2:9"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a closed port: got %v", err)
	}
	if _, err := c.Dial(t.Context(), "tcp", "[fd00:10::2]:9"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a closed port by IPv6: got %v", err)
	}
	if _, err := c.Dial(t.Context(), "tcp", "www.example.net:80"); err == nil {
		t.Error("a name is looked up")
	}
	// An address of the client's own network that nobody has.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := c.Dial(ctx, "tcp", "10.101.0.77:80"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 30*time.Second {
		t.Errorf("nobody there: got %v after %s", err, time.Since(start))
	}
}

// testEcho asks the UDP backend directly; through the VIP is the product's part.
func testEcho(t *testing.T, l *Lab) {
	toBox(t, l)
	ctx := limit(t, patience)
	s := l.Boxes["a1"]
	if _, err := l.Clients["client-a"].Echo(limit(t, 200*time.Millisecond)); err == nil {
		t.Error("an answer from an address that the box does not have")
	}
	if err := addVIP(s, EchoVIP); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Clients["client-a"].Echo(ctx); err != nil || got != "a1" {
		t.Errorf("got %q, %v", got, err)
	}
}

func testIsolated(t *testing.T, l *Lab) {
	toBox(t, l)
	ctx := limit(t, patience)
	r := l.Routers["r-a"]
	w, err := r.Watch(Prefix4)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	start := time.Now()
	if err := l.Boxes["a1"].Isolate(); err != nil {
		t.Fatal(err)
	}
	if err := r.Await(ctx, Prefix4); err != nil {
		t.Fatal(err)
	}
	t.Logf("the router dropped the prefix after %s", time.Since(start))
	sees(t, "a loss", w.Lost)
	if err := l.Boxes["a1"].Rejoin(); err != nil {
		t.Fatal(err)
	}
	if err := r.Await(ctx, Prefix4, "a1"); err != nil {
		t.Error(err)
	}
}
