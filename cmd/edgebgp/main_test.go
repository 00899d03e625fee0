package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp"
	"github.com/catchment-dev/edge/cmd/internal/socket"
)

// The socket as edged uses it. What the speaker does is tested in bgp, with
// this program and real routers.
func TestSocket(t *testing.T) {
	defer goleak.VerifyNone(t)
	path := filepath.Join(t.TempDir(), "sock")
	speaker := bgp.New(bgp.Options{})
	api := &server{path: path, speaker: speaker, ready: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return speaker.Run(ctx) })
	g.Go(func() error { return api.Run(ctx) })
	<-speaker.Ready()
	<-api.Ready()

	c := socket.NewClient(path)
	var st edge.SpeakerState
	if err := c.Call(t.Context(), "GET", "/v1/state", nil, &st); err != nil || st.Started.IsZero() {
		t.Errorf("state of an idle speaker: %+v, %v", st, err)
	}
	for _, call := range []struct {
		method, path string
		in           any
		want         string
	}{
		{"PUT", "/v1/intent", edge.Intent{}, "intent is not valid: speaker: ASN 0 is reserved; speaker: router id"},
		{"PUT", "/v1/intent", 7, "read body: "},
		{"POST", "/v1/state", nil, "POST /v1/state is not served"},
		{"GET", "/", nil, "GET / is not served"},
	} {
		err := c.Call(t.Context(), call.method, call.path, call.in, nil)
		if err == nil || !strings.HasPrefix(err.Error(), call.want) {
			t.Errorf("%s %s: %v, want %q", call.method, call.path, err, call.want)
		}
	}
	c.Close()
	stop()
	if err := g.Wait(); err != nil {
		t.Errorf("stopped: %v", err)
	}
}
