package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
)

// callTimeout bounds a call to another process of this box, firstTimeout one that
// is answered with all that edgebgp has to say: what hundreds of peers hold.
const (
	callTimeout  = 2 * time.Second
	firstTimeout = 10 * time.Second
)

// speakerClient is edgebgp as edged reaches it. It holds the state of the last
// answer, so that edgebgp need say only what has changed, and the intent that it has
// accepted last, which need not be sent again to be renewed. Its methods may be
// called by several goroutines at once.
type speakerClient struct {
	c *socket.Client

	mu    sync.Mutex
	state edge.SpeakerState // never changed in place
	// sent is the last intent that was accepted whole, as it was sent; renewal is
	// what edgebgp calls it. Empty: the next one is sent whole.
	sent    []byte
	renewal string
}

func newSpeakerClient(runDir string) *speakerClient {
	return &speakerClient{c: socket.NewClient(filepath.Join(runDir, "edgebgp.sock"))}
}

// Set sends the intent, or only renews it if it is the one that edgebgp has.
func (s *speakerClient) Set(ctx context.Context, in edge.Intent) (edge.SpeakerState, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return edge.SpeakerState{}, fmt.Errorf("encode intent: %w", err)
	}
	if name := s.renewable(in, body); name != "" {
		st, err := s.call(ctx, http.MethodPost, "/v1/renew?intent="+url.QueryEscape(name), nil)
		if err == nil {
			return st, nil
		}
		s.note(nil, "")
		if !unknown(err) {
			return st, err
		}
	}
	// Whatever becomes of the call, what edgebgp has then is not known.
	s.note(nil, "")
	st, err := s.call(ctx, http.MethodPut, "/v1/intent", json.RawMessage(body))
	if err == nil {
		s.note(body, st.Renewal)
	}
	return st, err
}

// renewable is the name of the intent if edgebgp has it; empty: it is to be sent.
// An order to withdraw is never a mere renewal.
func (s *speakerClient) renewable(in edge.Intent, body []byte) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(in.Withdraw) > 0 || !bytes.Equal(body, s.sent) {
		return ""
	}
	return s.renewal
}

func (s *speakerClient) note(sent []byte, renewal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent, s.renewal = sent, renewal
}

// unknown says that edgebgp has no such intent: it was restarted, or somebody else
// has told it something. An older one has no renewals.
func unknown(err error) bool {
	var r *socket.Refusal
	return errors.As(err, &r) && (r.Code == http.StatusPreconditionFailed || r.Code == http.StatusNotFound)
}

// State asks what has changed since the last answer.
func (s *speakerClient) State(ctx context.Context) (edge.SpeakerState, error) {
	limit := callTimeout
	s.mu.Lock()
	if s.state.Version == "" {
		limit = firstTimeout
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return s.call(ctx, http.MethodGet, "/v1/state", nil)
}

// call makes the state of what was held and of what the answer says has changed.
func (s *speakerClient) call(ctx context.Context, method, path string, in any) (edge.SpeakerState, error) {
	s.mu.Lock()
	held := s.state
	s.mu.Unlock()
	sep := "?"
	if strings.Contains(path, sep) {
		sep = "&"
	}
	var c edge.SpeakerChange
	if err := s.c.Call(ctx, method, path+sep+"have="+url.QueryEscape(held.Version), in, &c); err != nil {
		return edge.SpeakerState{}, err
	}
	st, err := held.With(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.state = edge.SpeakerState{} // the next answer is whole
		return edge.SpeakerState{}, err
	}
	s.state = st
	return st, nil
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
	var st edge.ProxyState
	if err := p.c.Call(ctx, http.MethodPost, "/v1/reload", edge.ProxyReload{Keep: kept}, &st); err != nil {
		return fmt.Errorf("reload edgeproxy: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.at, p.err = st, time.Now(), nil
	p.told.started, p.told.kept = p.state.Started, kept
	return nil
}
