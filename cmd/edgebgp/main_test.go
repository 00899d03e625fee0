package main

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
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
		{"PUT", "/v1/intent", map[string]any{"new": 1, "speaker": map[string]any{"new": 2}}, "intent is not valid: speaker: ASN 0"},
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

func TestReply(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		want string
	}{
		{nil, 200, `{"generation":7,`},
		{fmt.Errorf("%w: x", bgp.ErrInvalid), 400, `"error":"intent is not valid: x"`},
		{fmt.Errorf("%w: x", bgp.ErrForgotten), 409, `"error":"intent is refused`},
		{errors.New("x"), 503, `"error":"x"`},
	} {
		w := httptest.NewRecorder()
		reply(w, edge.SpeakerState{Generation: 7}, c.err)
		if got := w.Body.String(); w.Code != c.code || !strings.Contains(got, c.want) || !strings.Contains(got, `"generation":7`) {
			t.Errorf("%v: %d %s", c.err, w.Code, got)
		}
	}
}
