package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
	"github.com/catchment-dev/edge/xdp"
)

// tap is a forwarder whose packets the test makes.
type tap struct {
	samples chan xdp.Sample
	fail    error // what ends it when samples are closed
	orders  chan xdp.CaptureOptions
	ended   chan error // why each capture has ended
}

func newTap() *tap {
	return &tap{samples: make(chan xdp.Sample), orders: make(chan xdp.CaptureOptions, 8), ended: make(chan error, 8)}
}

func (p *tap) Capture(ctx context.Context, o xdp.CaptureOptions, yield func(xdp.Sample) bool) error {
	p.orders <- o
	for {
		select {
		case <-ctx.Done():
			p.ended <- ctx.Err()
			return nil
		case s, ok := <-p.samples:
			if !ok || !yield(s) {
				p.ended <- p.fail
				return p.fail
			}
		}
	}
}

// captureServer serves captures from p on a real socket, until the test ends or
// stop is called.
func captureServer(t *testing.T, p *tap) (client *socket.Client, stop func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edged.sock")
	ln, err := socket.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	c := testConfig()
	c.Local.Forwarder.Interfaces = []string{"eth0"}
	mux := http.NewServeMux()
	mux.Handle("GET /v1/capture", &captures{from: p, log: slog.New(slog.DiscardHandler), config: func() *edge.Config { return c }})
	client = socket.NewClient(path)
	t.Cleanup(client.Close)
	return client, serveUntilEnd(t, ln, mux)
}

// serveUntilEnd has h answer on ln until the test ends or stop is called.
func serveUntilEnd(t *testing.T, ln net.Listener, h http.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- socket.Serve(ctx, ln, h) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// within returns what comes out of ch, or fails.
func within[T any](t *testing.T, ch <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(time.Minute):
		t.Fatalf("%s: nothing within 20 s", what)
	}
	return v
}

// packetsOf reads a capture to its end.
func packetsOf(t *testing.T, r io.Reader) (all []string) {
	t.Helper()
	ng, err := pcapgo.NewNgReader(r, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for {
		data, ci, o, err := ng.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		in, err := ng.Interface(ci.InterfaceIndex)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s %s %d/%d %s", in.Name, o.Comments[0], len(data), ci.Length, data))
	}
}

func TestCapture(t *testing.T) {
	p := newTap()
	client, _ := captureServer(t, p)
	go func() {
		p.samples <- xdp.Sample{Time: time.Now(), Interface: "eth1", Length: 1500, Action: "drop", Reason: "bad_length", Data: []byte("one")}
		p.samples <- xdp.Sample{Time: time.Now(), Interface: "eth0", Length: 3, Action: "tx", Reason: "backend", Data: []byte("two")}
	}()
	resp, err := client.Open(t.Context(), "GET", "/v1/capture?rate=7&actions=drop,tx&packets=2&by=root", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	want := []string{"eth1 drop/bad_length 3/1500 one", "eth0 tx/backend 3/3 two"}
	if diff := cmp.Diff(want, packetsOf(t, resp.Body)); diff != "" {
		t.Errorf("packets (-want +got):\n%s", diff)
	}
	if got := resp.Trailer.Get(trailerPackets); got != "2" || resp.Trailer.Get(trailerError) != "" || resp.Header.Get("Content-Type") != "application/x-pcapng" {
		t.Errorf("trailer %v, header %v", resp.Trailer, resp.Header)
	}
	if diff := cmp.Diff(xdp.CaptureOptions{OneIn: 7, Actions: []string{"drop", "tx"}}, <-p.orders); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// TestCaptureIsSeenAtOnce: a packet is there while the capture goes on.
func TestCaptureIsSeenAtOnce(t *testing.T) {
	p := newTap()
	client, _ := captureServer(t, p)
	resp, err := client.Open(t.Context(), "GET", "/v1/capture", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	ng, err := pcapgo.NewNgReader(resp.Body, pcapgo.DefaultNgReaderOptions) // the head comes before any packet
	if err != nil {
		t.Fatal(err)
	}
	p.samples <- xdp.Sample{Interface: "eth0", Data: []byte("one")}
	if data, _, err := ng.ReadPacketData(); err != nil || string(data) != "one" {
		t.Errorf("packet %q, %v", data, err)
	}
}

func TestCaptureEnds(t *testing.T) {
	t.Run("when its time is over", func(t *testing.T) {
		p := newTap()
		client, _ := captureServer(t, p)
		resp, err := client.Open(t.Context(), "GET", "/v1/capture?seconds=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got := packetsOf(t, resp.Body); got != nil || resp.Trailer.Get(trailerPackets) != "0" || resp.Trailer.Get(trailerError) != "" {
			t.Errorf("packets %q, trailer %v", got, resp.Trailer)
		}
		if err := within(t, p.ended, "end"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("when the client goes away", func(t *testing.T) {
		p := newTap()
		client, _ := captureServer(t, p)
		ctx, cancel := context.WithCancel(t.Context())
		resp, err := client.Open(ctx, "GET", "/v1/capture?seconds=600", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		within(t, p.orders, "order")
		cancel()
		if err := within(t, p.ended, "end"); !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("when edged ends", func(t *testing.T) {
		p := newTap()
		client, stop := captureServer(t, p)
		resp, err := client.Open(t.Context(), "GET", "/v1/capture?seconds=600", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		stop()
		within(t, p.ended, "end")
	})
	t.Run("when the client does not read", func(t *testing.T) {
		t.Parallel()
		p := newTap()
		client, _ := captureServer(t, p)
		resp, err := client.Open(t.Context(), "GET", "/v1/capture?seconds=1&packets=1000000", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data := bytes.Repeat([]byte{1}, 256)
		for ended := false; !ended; {
			select {
			case p.samples <- xdp.Sample{Interface: "eth0", Data: data}:
			case <-p.ended:
				ended = true
			case <-time.After(time.Minute):
				t.Fatal("the capture goes on")
			}
		}
	})
	t.Run("with the forwarder's error", func(t *testing.T) {
		p := newTap()
		p.fail = errors.New("no such map")
		client, _ := captureServer(t, p)
		close(p.samples)
		resp, err := client.Open(t.Context(), "GET", "/v1/capture", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got := packetsOf(t, resp.Body); got != nil || resp.Trailer.Get(trailerError) != "capture: no such map" {
			t.Errorf("packets %q, trailer %v", got, resp.Trailer)
		}
	})
}

// TestOneCapture: a second one is told of the first, and may begin when that is
// over.
func TestOneCapture(t *testing.T) {
	p := newTap()
	client, _ := captureServer(t, p)
	first, err := client.Open(t.Context(), "GET", "/v1/capture?packets=1&by=root,+pid+7", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Body.Close()
	if _, err := client.Open(t.Context(), "GET", "/v1/capture", nil); err == nil || !strings.Contains(err.Error(), "a capture by root, pid 7 is running since ") {
		t.Errorf("second: %v", err)
	}
	p.samples <- xdp.Sample{Interface: "eth0", Data: []byte("one")}
	if got := packetsOf(t, first.Body); len(got) != 1 {
		t.Errorf("packets %q", got)
	}
	third, err := client.Open(t.Context(), "GET", "/v1/capture", nil)
	if err != nil {
		t.Fatal(err)
	}
	third.Body.Close()
}

// TestCaptureOfService: frames of other services are neither written nor
// counted.
func TestCaptureOfService(t *testing.T) {
	p := newTap()
	client, _ := captureServer(t, p)
	go func() {
		for _, port := range []uint16{80, 443, 443} {
			p.samples <- xdp.Sample{Interface: "eth0", Data: tcp4("192.0.2.7:1000", fmt.Sprintf("198.51.100.10:%d", port))}
		}
	}()
	resp, err := client.Open(t.Context(), "GET", "/v1/capture?service=web&packets=2", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := packetsOf(t, resp.Body); len(got) != 2 {
		t.Errorf("packets %q", got)
	}
}

// TestCaptureRefused: what is not understood is refused, and nothing begins.
func TestCaptureRefused(t *testing.T) {
	p := newTap()
	client, _ := captureServer(t, p)
	for _, q := range []string{
		"rate=0", "rate=-1", "rate=x", "rate=4294967296", "seconds=0", "seconds=3601", "packets=0", "packets=1000001",
		"actions=drop,", "actions=lose", "service=none", "one-in=7", "rate=1&rate=2", "by=" + strings.Repeat("x", 501),
	} {
		if _, err := client.Open(t.Context(), "GET", "/v1/capture?"+q, nil); err == nil {
			t.Errorf("%s is taken", q)
		}
	}
	if len(p.orders) > 0 {
		t.Error("a capture has begun")
	}
}
