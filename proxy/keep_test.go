package proxy

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// TestReloadKeeps: a service that is not in the configuration any more but
// still announced is served as before, with its certificate.
func TestReloadKeeps(t *testing.T) {
	o, _ := simpleOrigin(t)
	b := newBench(t, o.addr)
	web, plain := b.cfg.Fleet.Services[0], b.cfg.Fleet.Services[1]
	old := b.tlsClient("http/1.1")
	br := bufio.NewReader(old)
	serves := func() {
		t.Helper()
		io.WriteString(old, get)
		readAnswer(t, br, "hello")
	}
	serves()
	reload := func(change func(*edge.Config), keep ...edge.Service) {
		t.Helper()
		if err := b.s.Reload(Reload{Config: b.with(change), Keep: keep}); err != nil {
			t.Fatal(err)
		}
		serves()
	}
	only := func(id edge.ServiceID, certs ...edge.Certificate) func(*edge.Config) {
		return func(c *edge.Config) {
			for _, s := range b.cfg.Fleet.Services {
				if s.ID == id {
					c.Fleet.Services = []edge.Service{s}
				}
			}
			c.Fleet.Proxy.Certificates = certs
		}
	}
	names := func() []string { return b.tlsClient("http/1.1").ConnectionState().PeerCertificates[0].DNSNames }

	t.Log("the service is gone and so is every certificate")
	wrong := web
	wrong.TLS = false
	reload(only("plain"), web, wrong) // of two the first
	if n := names(); n[0] != "www.example.net" {
		t.Errorf("served with the certificate of %v", n)
	}
	if n := len(b.s.State().Listeners); n != 3 {
		t.Errorf("%d listeners", n)
	}
	t.Log("there is another certificate: not for the kept service")
	reload(only("plain", writeCert(t, b.dir, "other.example.net")), web)
	if n := names(); n[0] != "www.example.net" {
		t.Errorf("served with the certificate of %v", n)
	}
	t.Log("what the file says of the same vip comes first, and only proxied services are kept")
	wrong = plain
	wrong.TLS = true
	l4 := edge.Service{ID: "l4", VIP: netip.AddrPortFrom(b.vip(), 81), Protocol: edge.TCP}
	reload(only("plain"), web, wrong, l4)
	if out := b.raw("GET / HTTP/1.0\r\nHost: h\r\n\r\n"); !strings.HasSuffix(out, "hello") {
		t.Errorf("plain: %q", out)
	}
	if n := len(b.s.State().Listeners); n != 3 {
		t.Errorf("%d listeners", n)
	}
	t.Log("kept no more")
	reload(only("plain"))
	if _, err := net.Dial("tcp", web.VIP.String()); err == nil {
		t.Error("the listener is still open")
	}
	if got := b.s.gen.Load().certs; len(got) != 0 {
		t.Errorf("%d certificates left", len(got))
	}
	t.Log("a kept service that nobody can serve")
	if err := b.s.Reload(Reload{Config: b.with(only("plain")), Keep: []edge.Service{web}}); err == nil || !strings.Contains(err.Error(), "needs TLS") {
		t.Errorf("TLS without a certificate: %v", err)
	}
	serves()
}

// TestReloadBeforeAConnectionBegins: one that was accepted on a VIP that is
// gone by the time it is looked at is served as what it is.
func TestReloadBeforeAConnectionBegins(t *testing.T) {
	o, _ := simpleOrigin(t)
	b := newBench(t, o.addr)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := b.s.Reload(Reload{Config: b.with(func(c *edge.Config) { c.Fleet.Services = c.Fleet.Services[1:] })}); err != nil {
		t.Fatal(err)
	}
	raw, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { b.s.serve(t.Context(), t.Context(), b.cfg.Fleet.Services[0].VIP, accepted) })
	c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true})
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\nHost: www.example.net\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if out, _ := io.ReadAll(c); !strings.HasSuffix(string(out), "hello") {
		t.Errorf("got %q", out)
	}
	raw.Close()
	wg.Wait()
}
