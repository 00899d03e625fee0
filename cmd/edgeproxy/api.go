package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/backbone"
	"github.com/catchment-dev/edge/cmd/internal/socket"
	"github.com/catchment-dev/edge/proxy"
)

// api is what edged asks over the unix socket.
type api struct {
	d        *daemon
	server   *proxy.Server
	selector *backbone.Selector
	metrics  *prometheus.Registry
	started  time.Time

	mu sync.Mutex // one reload at a time
}

func newAPI(d *daemon, server *proxy.Server, selector *backbone.Selector, metrics *prometheus.Registry) *api {
	return &api{d: d, server: server, selector: selector, metrics: metrics, started: time.Now()}
}

func (a *api) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/state", func(w http.ResponseWriter, _ *http.Request) { socket.JSON(w, 200, a.state()) })
	mux.HandleFunc("PUT /v1/fleet", a.putFleet)
	mux.HandleFunc("POST /v1/reload", a.postReload)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.metrics, promhttp.HandlerOpts{}))
	return mux
}

func (a *api) state() edge.ProxyState {
	st := a.server.State()
	st.PID, st.Started, st.Load = os.Getpid(), a.started, a.selector.Load()
	return st
}

func (a *api) putFleet(w http.ResponseWriter, r *http.Request) {
	var f edge.FleetLoad
	if err := read(r, &f); err != nil {
		socket.Fail(w, http.StatusBadRequest, err)
		return
	}
	a.selector.SetFleet(f)
	w.WriteHeader(http.StatusNoContent)
}

// read decodes the body of r into v. Keys that it does not know are ignored:
// edged may be newer than this process, which lives on through its upgrade. The
// error of an empty body wraps io.EOF.
func read(r *http.Request, v any) error {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	return nil
}

// postReload answers 409 with the reason when the old configuration stays.
// Without a body nothing is kept.
func (a *api) postReload(w http.ResponseWriter, r *http.Request) {
	var body edge.ProxyReload
	if err := read(r, &body); err != nil && !errors.Is(err, io.EOF) {
		socket.Fail(w, http.StatusBadRequest, err)
		return
	}
	if err := a.reload(body.Keep); err != nil {
		a.d.log.Error("reload refused", "err", err)
		socket.Fail(w, http.StatusConflict, err)
		return
	}
	socket.JSON(w, 200, a.state())
}

func (a *api) reload(keep []edge.Service) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	cfg, err := edge.Load(a.d.config)
	if err != nil {
		return err
	}
	if key := edge.EffortOf(a.d.cfg, cfg).Proxy; key != "" {
		return fmt.Errorf("%s changes: that needs a restart of edgeproxy", key)
	}
	commit := func() { a.selector.SetRegions(cfg.Fleet.Regions) }
	if err := a.server.Reload(proxy.Reload{Config: cfg, Keep: keep, Commit: commit}); err != nil {
		return err
	}
	a.d.log.Info("reloaded", "config", cfg.Hash, "keep", len(keep))
	return nil
}
