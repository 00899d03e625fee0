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
	var c1, c2 edge.SpeakerChange
	if err := c.Call(t.Context(), "GET", "/v1/state?have=", nil, &c1); err != nil || c1.Version == "" || c1.Since != "" {
		t.Errorf("state by version: %+v, %v", c1, err)
	}
	if err := c.Call(t.Context(), "GET", "/v1/state?have="+c1.Version, nil, &c2); err != nil || c2.Version != c1.Version || c2.Since != c1.Version || !c2.Same.Order {
		t.Errorf("nothing new: %+v, %v", c2, err)
	}
	for _, call := range []struct {
		method, path string
		in           any
		want         string
	}{
		{"PUT", "/v1/intent", edge.Intent{}, "intent is not valid: speaker: ASN 0 is reserved; speaker: router id"},
		{"PUT", "/v1/intent", 7, "read body: "},
		{"PUT", "/v1/intent", map[string]any{"new": 1, "speaker": map[string]any{"new": 2}}, "intent is not valid: speaker: ASN 0"},
		{"PUT", "/v1/intent?have=", edge.Intent{}, "intent is not valid: speaker: ASN 0 is reserved; speaker: router id"},
		{"POST", "/v1/renew?have=&intent=" + c1.Version, nil, "that intent is not in force: send it whole"},
		{"POST", "/v1/renew", nil, "that intent is not in force: send it whole"},
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
		{bgp.ErrNoRenewal, 412, `"error":"that intent is not in force`},
		{errors.New("x"), 503, `"error":"x"`},
	} {
		change := edge.SpeakerChange{SpeakerState: edge.SpeakerState{Generation: 7}}
		for path, beside := range map[string]bool{"/v1/state": true, "/v1/state?have=": c.err == nil} {
			w := httptest.NewRecorder()
			reply(w, httptest.NewRequest("GET", path, nil), change, c.err)
			if got := w.Body.String(); w.Code != c.code || !strings.Contains(got, c.want) || strings.Contains(got, `"generation":7`) != beside {
				t.Errorf("%s, %v: %d %s", path, c.err, w.Code, got)
			}
		}
	}
	w := httptest.NewRecorder()
	reply(w, httptest.NewRequest("GET", "/v1/state", nil), edge.SpeakerChange{Since: "x"}, nil)
	if w.Code != 500 {
		t.Errorf("a change that is none: %d %s", w.Code, w.Body.String())
	}
}
