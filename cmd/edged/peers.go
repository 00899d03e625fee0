package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"reflect"
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
// since a proxy that hangs must not hold up the decision. Its methods may be
// called by several goroutines at once.
type proxyClient struct {
	c   *socket.Client
	log *slog.Logger

	mu    sync.Mutex
	state edge.ProxyState
	at    time.Time
	err   error
	// kept are the services that the proxy shall serve though they are not in
	// the file; told is the process that knows, and what it knows.
	kept []edge.Service
	told struct {
		started time.Time
		kept    []edge.Service
	}
}

func newProxyClient(runDir string, log *slog.Logger) *proxyClient {
	return &proxyClient{c: socket.NewClient(filepath.Join(runDir, "edgeproxy.sock")), log: log, err: errNotAsked}
}

// last returns the last answer, its age and the error of the last call.
func (p *proxyClient) last() (edge.ProxyState, time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state, time.Since(p.at), p.err
}

// exchange tells the proxy of the fleet's load and asks for its state.
func (p *proxyClient) exchange(ctx context.Context, fleet edge.FleetLoad) {
	ask, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var st edge.ProxyState
	err := p.c.Call(ask, http.MethodPut, "/v1/fleet", fleet, nil)
	if err == nil {
		err = p.c.Call(ask, http.MethodGet, "/v1/state", nil, &st)
	}
	p.mu.Lock()
	p.err = err
	if err == nil {
		p.state, p.at = st, time.Now()
	}
	kept, behind := p.kept, err == nil && p.behind(st.Started)
	p.mu.Unlock()
	if !behind {
		return
	}
	if err := p.reload(ctx, kept); err != nil {
		p.log.Warn("edgeproxy does not serve what is leaving", "err", err)
	}
}

// behind says whether the process that was started then does not serve what it
// shall: it is a new one, or the set has changed. The caller has the lock.
func (p *proxyClient) behind(started time.Time) bool {
	if len(p.kept) == 0 && len(p.told.kept) == 0 {
		return false
	}
	return !p.told.started.Equal(started) || !reflect.DeepEqual(p.told.kept, p.kept)
}

// keep sets what the proxy shall serve beyond its file, from its next exchange.
func (p *proxyClient) keep(services []edge.Service) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = services
}

// reload has the proxy read its configuration again, and serve kept as well.
func (p *proxyClient) reload(ctx context.Context, kept []edge.Service) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := p.c.Call(ctx, http.MethodPost, "/v1/reload", edge.ProxyReload{Keep: kept}, nil); err != nil {
		return fmt.Errorf("reload edgeproxy: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told.started, p.told.kept = p.state.Started, kept
	return nil
}
