package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
)

// callTimeout bounds a call to another process of this box.
const callTimeout = 2 * time.Second

// speakerClient is edgebgp as edged reaches it.
type speakerClient struct{ c *socket.Client }

func newSpeakerClient(runDir string) speakerClient {
	return speakerClient{socket.NewClient(filepath.Join(runDir, "edgebgp.sock"))}
}

func (s speakerClient) Set(ctx context.Context, in edge.Intent) (st edge.SpeakerState, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return st, s.c.Call(ctx, http.MethodPut, "/v1/intent", in, &st)
}

func (s speakerClient) State(ctx context.Context) (st edge.SpeakerState, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return st, s.c.Call(ctx, http.MethodGet, "/v1/state", nil, &st)
}

// errNotAsked is the state of a proxy that has not been asked yet.
var errNotAsked = errors.New("edgeproxy has not been asked yet")

// proxyClient is edgeproxy as edged reaches it. It asks on a beat of its own,
// since a proxy that hangs must not hold up the decision. last may be called by
// several goroutines at once.
type proxyClient struct {
	c *socket.Client

	mu    sync.Mutex
	state edge.ProxyState
	at    time.Time
	err   error
}

func newProxyClient(runDir string) *proxyClient {
	return &proxyClient{c: socket.NewClient(filepath.Join(runDir, "edgeproxy.sock")), err: errNotAsked}
}

// last returns the last answer, its age and the error of the last call.
func (p *proxyClient) last() (edge.ProxyState, time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state, time.Since(p.at), p.err
}

// exchange tells the proxy of the fleet's load and asks for its state.
func (p *proxyClient) exchange(ctx context.Context, fleet edge.FleetLoad) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var st edge.ProxyState
	err := p.c.Call(ctx, http.MethodPut, "/v1/fleet", fleet, nil)
	if err == nil {
		err = p.c.Call(ctx, http.MethodGet, "/v1/state", nil, &st)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
	if err == nil {
		p.state, p.at = st, time.Now()
	}
}

// reload has the proxy read its configuration again.
func (p *proxyClient) reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := p.c.Call(ctx, http.MethodPost, "/v1/reload", nil, nil); err != nil {
		return fmt.Errorf("reload edgeproxy: %w", err)
	}
	return nil
}
