package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/health"
)

// TestWeightsOfRealChecks goes from the header that real servers answer with,
// through the monitor, to the shares of the ring.
func TestWeightsOfRealChecks(t *testing.T) {
	servers, said := backendServers(t, 3)
	vip := netip.MustParseAddrPort(servers[0].Listener.Addr().String()).Port()
	c := serving(lbService(func(s *edge.Service) {
		s.VIP = netip.AddrPortFrom(s.VIP.Addr(), vip) // the checks go to the port of the VIP
		s.WeightFromCheck = true
		s.Check = edge.Probe{Kind: edge.ProbeHTTP, Path: "/", Interval: 20 * time.Millisecond, Timeout: 5 * time.Second, Rise: 1, Fall: 1}
		s.Backends = s.Backends[:3]
		for i := range s.Backends {
			s.Backends[i].Addr = netip.MustParseAddrPort(servers[i].Listener.Addr().String()).Addr()
		}
	}))
	m := health.New(health.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	m.Set(allProbes(c))
	wants := func(what string, want ...float64) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			got := ringShares(t, table(c, [16]byte{}, look(c, m.Statuses(), draining{}, time.Now())).Services[0])
			worst := 0.
			for i := range want {
				worst = max(worst, math.Abs(got[i]-want[i]))
			}
			if worst <= 0.001 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: shares %.4f, want %.4f", what, got, want)
			}
		}
	}
	wants("0, 2, 6", 0, 0.25, 0.75)
	said[0].Store("2")
	wants("2, 2, 6", 0.2, 0.2, 0.6)
	said[1].Store("many")
	wants("one cannot be read", 1./3, 1./3, 1./3)
	said[1].Store("8")
	wants("2, 8, 6", 0.125, 0.5, 0.375)
	servers[2].Close()
	wants("one is gone", 0.2, 0.8, 0)
}

// backendServers listens on one port of several addresses of lo, and answers
// with the weights 0, 2, 6 until it is told other ones.
func backendServers(t *testing.T, n int) ([]*httptest.Server, []*atomic.Value) {
	t.Helper()
	var out []*httptest.Server
	var said []*atomic.Value
	port := "0"
	for i := range n {
		w := &atomic.Value{}
		w.Store([]string{"0", "2", "6"}[i])
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set(health.WeightHeader, w.Load().(string))
		}))
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:%s", 10+i, port))
		if err != nil {
			t.Fatal(err)
		}
		s.Listener.Close()
		s.Listener = l
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.Start()
		t.Cleanup(s.Close)
		_, port, _ = net.SplitHostPort(l.Addr().String())
		out, said = append(out, s), append(said, w)
	}
	return out, said
}
