package backbone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

func TestDialUpstream(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := ln.Addr().(*net.TCPAddr).AddrPort()
	if rtt, err := dialUpstream(t.Context(), at); err != nil || rtt <= 0 {
		t.Errorf("open port: %v %v", rtt, err)
	}
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a measurement ends with %v: a clean end would keep its port for a minute", err)
	}
	c.Close()
	ln.Close()
	_, err = dialUpstream(t.Context(), at)
	if err == nil || err.Error() != "connect: connection refused" || errors.Is(err, edge.ErrUnknown) {
		t.Errorf("closed port: %v", err)
	}
}

// TestCauseTellsThisBoxFromTheUpstream: what is about this box is unknown.
func TestCauseTellsThisBoxFromTheUpstream(t *testing.T) {
	for _, tt := range []struct {
		call    string
		no      syscall.Errno
		unknown bool
	}{
		{"connect", syscall.ECONNREFUSED, false}, {"connect", syscall.EHOSTUNREACH, false}, {"connect", syscall.ETIMEDOUT, false},
		{"connect", syscall.EADDRNOTAVAIL, true}, {"connect", syscall.ENOBUFS, true}, {"connect", syscall.EAGAIN, true},
		{"socket", syscall.EMFILE, true}, {"socket", syscall.ENFILE, true}, {"socket", syscall.EACCES, true},
	} {
		err := cause(&net.OpError{Op: "dial", Err: os.NewSyscallError(tt.call, tt.no)})
		if errors.Is(err, edge.ErrUnknown) != tt.unknown || !errors.Is(err, tt.no) {
			t.Errorf("%s %v: %v", tt.call, tt.no, err)
		}
	}
	if err := cause(io.ErrUnexpectedEOF); err != io.ErrUnexpectedEOF {
		t.Errorf("another error: %v", err)
	}
}

// TestCheckIsInjected: a check of kind http is the Probe's, with the target
// filled in; the RTT is ours whatever comes of it; a connect that fails needs
// no check, and a check of kind tcp no Probe.
func TestCheckIsInjected(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := ln.Addr().(*net.TCPAddr).AddrPort()
	var asked []edge.Probe
	var answer error
	regions := []edge.Region{{ID: "r", Capacity: 1, Upstreams: []edge.Upstream{{ID: "u", Addr: at}},
		Check: edge.Probe{Kind: edge.ProbeHTTP, Path: "/up?x", Host: "h", Status: 204, Body: "b", Timeout: time.Second, Rise: 1, Fall: 1}}}
	s := New(Options{Node: "me", Regions: regions, Log: slog.New(slog.DiscardHandler), Probe: func(ctx context.Context, p edge.Probe) error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the check has no deadline")
		}
		asked = append(asked, p)
		return answer
	}})
	measure := func() edge.ProbeState {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		u := s.upstreams()[0]
		rtt, err := s.measure(ctx, u)
		s.observe(u, rtt, err)
		return u.state
	}
	for _, step := range []struct {
		err  error
		want edge.ProbeState
	}{
		{fmt.Errorf("%w: no files", edge.ErrUnknown), edge.Unknown}, {nil, edge.Up}, {fmt.Errorf("%w: no files", edge.ErrUnknown), edge.Up},
		{errors.New("answered 503, expected 204"), edge.Down}, {fmt.Errorf("%w: no files", edge.ErrUnknown), edge.Down}, {nil, edge.Up},
	} {
		if answer = step.err; measure() != step.want {
			t.Errorf("after %v: %v", step.err, s.upstreams()[0].state)
		}
	}
	want := regions[0].Check
	want.Addr, want.URL = at, "http://"+at.String()+"/up?x"
	if len(asked) != 6 || asked[0] != want {
		t.Errorf("asked %d times, first %+v, want %+v", len(asked), asked[0], want)
	}
	if u := s.upstreams()[0]; u.rtt <= 0 || len(u.samples) != rttWindow {
		t.Errorf("rtt %v of %d samples: a check that failed has one too", u.rtt, len(u.samples))
	}
	regions[0].Check.Kind = edge.ProbeTCP
	s.SetRegions(regions)
	if measure() != edge.Up || len(asked) != 6 {
		t.Error("a check of kind tcp is more than a connect")
	}
	regions[0].Check.Kind = edge.ProbeHTTP
	s.SetRegions(regions)
	ln.Close()
	if measure() != edge.Down || len(asked) != 6 {
		t.Error("checked an upstream that cannot be connected to")
	}
}

// TestDialUpstreamGivesUp: a connect that nobody answers ends with its context.
func TestDialUpstreamGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dialUpstream(ctx, netip.MustParseAddrPort("127.0.0.1:9")); err == nil {
		t.Error("connected without time")
	}
}
