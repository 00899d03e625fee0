package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// keepAlive is one client connection that is used for several requests.
type keepAlive struct {
	net.Conn
	br *bufio.Reader
}

func dialKeepAlive(t *testing.T, at string) *keepAlive {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(2 * patience))
	return &keepAlive{c, bufio.NewReader(c)}
}

// get returns the answer, "origin 200" if all is well.
func (k *keepAlive) get() string {
	io.WriteString(k, "GET /x HTTP/1.1\r\nHost: www.example.net\r\n\r\n")
	resp, err := http.ReadResponse(k.br, nil)
	if err != nil {
		return err.Error()
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(string(body), " ", resp.StatusCode)
}

// laterReload is the document of an edged that is newer than this edgeproxy.
type laterReload struct {
	edge.ProxyReload
	Later map[string]int `json:"later"`
}

// TestReloadKeeps: what is still announced is served although the file does
// not have it any more, until edged no longer asks for it.
func TestReloadKeeps(t *testing.T) {
	s := newSite(t)
	s.extra = "    - {name: more, vip: " + s.net + ".11, port: 80, protocol: tcp, proxy: http}"
	s.configure()
	p := s.start(s.command())
	p.awaitServing()
	more := edge.Service{ID: "more", VIP: netip.MustParseAddrPort(s.net + ".11:80"), Protocol: edge.TCP, Proxied: true}
	keep := dialKeepAlive(t, more.VIP.String())
	serves := func(when string) {
		t.Helper()
		if out := keep.get(); out != "origin 200" {
			t.Fatalf("%s: %s", when, out)
		}
	}
	reload := func(body any, listeners int) {
		t.Helper()
		var st edge.ProxyState
		if err := p.client.Call(t.Context(), "POST", "/v1/reload", body, &st); err != nil {
			t.Fatal(err)
		}
		if len(st.Listeners) != listeners {
			t.Errorf("listeners %v, want %d", st.Listeners, listeners)
		}
	}
	serves("before")

	s.extra = ""
	s.configure()
	web := edge.Service{ID: "old-web", VIP: netip.MustParseAddrPort(s.vip() + ":443"), Protocol: edge.TCP, Proxied: true}
	l4 := edge.Service{ID: "l4", VIP: netip.MustParseAddrPort(s.net + ".12:80"), Protocol: edge.TCP}
	reload(laterReload{edge.ProxyReload{Keep: []edge.Service{more, web, l4}}, map[string]int{"x": 1}}, 3)
	serves("kept")
	if out := dialKeepAlive(t, more.VIP.String()).get(); out != "origin 200" {
		t.Errorf("a new connection to the kept service: %s", out)
	}
	p.serves() // what the file says of web comes before what is kept

	for _, bad := range []any{"text", map[string]any{"keep": 1}, edge.ProxyReload{Keep: []edge.Service{{ID: "bad", Proxied: true}}}} {
		if err := p.client.Call(t.Context(), "POST", "/v1/reload", bad, nil); err == nil {
			t.Errorf("%v: accepted", bad)
		}
		serves("after a refused reload")
	}

	reload(nil, 2)
	if c, err := net.Dial("tcp", more.VIP.String()); err == nil {
		c.Close()
		t.Error("kept for ever")
	}
	serves("in flight on a listener that is closed")
	reload(edge.ProxyReload{}, 2)
}

// TestWhileDraining: until the last request has been answered edged can ask,
// and the regions are measured.
func TestWhileDraining(t *testing.T) {
	s := newSite(t)
	p := s.start(s.command())
	p.awaitServing()
	slow := make(chan string, 1)
	go func() { slow <- s.curl("https://www.example.net/slow") }()
	<-s.asked
	p.cmd.Process.Signal(syscall.SIGTERM)
	waitFor(t, "the state of a draining proxy", func() bool {
		st, err := p.state()
		if err != nil {
			t.Fatal(err)
		}
		return len(st.Listeners) == 0 && st.Connections == 1
	})
	row := edge.FleetRow{Node: "b1", Load: edge.LoadRow{Demand: 900, Regions: []edge.RegionView{{Region: "east", RTT: 1, Up: 1, Of: 1}}}}
	if err := p.client.Call(t.Context(), "PUT", "/v1/fleet", edge.FleetLoad{Rows: []edge.FleetRow{row}}, nil); err != nil {
		t.Error(err)
	}
	waitFor(t, "a round of the backbone", func() bool {
		st, err := p.state()
		if err != nil {
			t.Fatal(err)
		}
		return st.Load.Regions[0].Allowance < 60 // our own demand is about 1
	})
	if err := p.client.Call(t.Context(), "POST", "/v1/reload", nil, nil); err == nil || !strings.Contains(err.Error(), "does not run") {
		t.Errorf("reloaded while draining: %v", err)
	}
	s.release()
	if out := <-slow; out != "origin 200" {
		t.Errorf("in flight: %s", out)
	}
	if err := p.wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if _, err := p.state(); err == nil {
		t.Error("answers after the end")
	}
}

// TestRegionCheckIsHealths: the check of a region understands what a probe of
// the same kind does, and says the same.
func TestRegionCheckIsHealths(t *testing.T) {
	s := newSite(t)
	busy := "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
	s.check.Store(&busy)
	p := s.start(s.command())
	waitFor(t, "the region to be down", func() bool {
		st, err := p.state()
		return err == nil && st.Load.Regions[0].LastErr == "o1: answered 503, expected 200"
	})
	if out := s.curl("https://www.example.net/x"); !strings.HasSuffix(out, " 503") {
		t.Errorf("a region that is down: %s", out)
	}
}
