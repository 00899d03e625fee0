package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/edged/console"
	"github.com/catchment-dev/edge/cmd/internal/socket"
)

// handler is what edgectl talks to. The console has some of the reading half;
// flows and packets are for those only who may use the socket.
func (d *daemon) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", console.Handler(d, d.events))
	// The console's may be half a second old, for the sake of its many readers.
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		socket.JSON(w, http.StatusOK, d.Status())
	})
	mux.HandleFunc("GET /v1/explain", d.serveExplain)
	mux.HandleFunc("GET /v1/flows", d.serveFlows)
	mux.Handle("GET /v1/capture", &captures{from: d.fwd, log: d.log, config: d.config})
	mux.HandleFunc("POST /v1/drain", d.serveDrain)
	mux.HandleFunc("POST /v1/undrain", d.serveUndrain)
	mux.HandleFunc("POST /v1/prefer", d.servePrefer)
	mux.HandleFunc("GET /v1/what-if", d.serveWhatIf)
	mux.HandleFunc("POST /v1/reload", d.serveReload)
	mux.HandleFunc("GET /v1/guard/decisions", d.serveDecisions)
	mux.HandleFunc("GET /v1/guard/what-if", d.serveGuardWhatIf)
	mux.HandleFunc("POST /v1/guard/trust", d.serveTrust)
	return mux
}

func (d *daemon) serveExplain(w http.ResponseWriter, r *http.Request) {
	what := r.URL.Query().Get("what")
	ex, err := d.explain(what)
	if err != nil {
		socket.Fail(w, http.StatusBadRequest, err)
		return
	}
	socket.JSON(w, http.StatusOK, ex)
}

// maxReason bounds an operator's reason, in bytes: it goes into every status.
const maxReason = 500

func (d *daemon) serveDrain(w http.ResponseWriter, r *http.Request) {
	var o edge.Drain
	if err := socket.Read(r, &o); err != nil {
		socket.Fail(w, http.StatusBadRequest, err)
		return
	}
	o.Since, o.ByFile, o.Stop = time.Now(), false, false
	if !o.Until.IsZero() && !o.Until.After(o.Since) {
		socket.Fail(w, http.StatusBadRequest, fmt.Errorf("the drain would have ended at %s already", o.Until.Format(time.RFC3339)))
		return
	}
	if o.Service != "" && o.Prefix != (netip.Prefix{}) {
		socket.Fail(w, http.StatusBadRequest, errors.New("a prefix and a service are named: one order drains one of them"))
		return
	}
	if len(o.Reason) > maxReason {
		socket.Fail(w, http.StatusBadRequest, fmt.Errorf("the reason has %d bytes, at most %d are taken", len(o.Reason), maxReason))
		return
	}
	if o.Reason == "" {
		o.Reason = noReason
	}
	force := func(context.Context) error { return nil }
	if o.Force {
		force = func(ctx context.Context) error { return d.forceOut(ctx, o) }
	}
	kept := o
	kept.Force = false
	d.changeThen(w, r, func(context.Context) (*receipt, error) {
		if err := d.known(o.Prefix, o.Service); err != nil {
			return nil, err
		}
		if o.Force {
			if err := d.mayForce(o); err != nil {
				return nil, err
			}
		}
		return d.drains.add(kept), nil
	}, force)
}

// noReason is that of an order without one.
const noReason = "no reason given"

func (d *daemon) serveUndrain(w http.ResponseWriter, r *http.Request) {
	var o struct {
		Prefix  netip.Prefix   `json:"prefix,omitzero"`
		Service edge.ServiceID `json:"service,omitempty"`
	}
	if err := socket.Read(r, &o); err != nil {
		socket.Fail(w, http.StatusBadRequest, err)
		return
	}
	d.change(w, r, func(context.Context) (*receipt, error) {
		if kept, had := d.drains.remove(o.Prefix, o.Service); had {
			return kept, nil
		}
		name := drainName(edge.Drain{Prefix: o.Prefix, Service: o.Service})
		for _, f := range d.drains.byFile {
			if f.Prefix == o.Prefix && f.Service == o.Service {
				return nil, fmt.Errorf("%s is drained by %s: take its line out there", name, d.config().Local.DrainFile)
			}
		}
		if d.drains.stop != nil {
			return nil, fmt.Errorf("%s is drained since edgebgp is to stop: start it again, and it comes back by itself", name)
		}
		return nil, fmt.Errorf("%s is not drained", name)
	})
}

// change has the loop do f, waits until what f has ordered is on the disk, has the loop
// take one turn, and answers with the status. The loop does not wait for the disk.
func (d *daemon) change(w http.ResponseWriter, r *http.Request, f func(context.Context) (*receipt, error)) {
	d.changeThen(w, r, f, func(context.Context) error { return nil })
}

// changeThen is change, with something that the loop does besides once the order is in
// force.
func (d *daemon) changeThen(w http.ResponseWriter, r *http.Request, f func(context.Context) (*receipt, error), then func(context.Context) error) {
	var kept *receipt
	err := d.order(r.Context(), func(ctx context.Context) (err error) {
		kept, err = f(ctx)
		return err
	})
	if err == nil {
		err = kept.wait(r.Context())
	}
	if err == nil {
		err = d.order(r.Context(), func(ctx context.Context) error {
			err := then(ctx)
			d.turn(ctx)
			return err
		})
	}
	if err != nil {
		socket.Fail(w, refusal(err), err)
		return
	}
	socket.JSON(w, http.StatusOK, d.Status())
}

func refusal(err error) int {
	if errors.Is(err, errBusy) || errors.Is(err, errDisk) {
		return http.StatusServiceUnavailable
	}
	return http.StatusConflict
}

// known says what is wrong with an order about a prefix or a service; the zero
// values stand for the whole node.
func (d *daemon) known(p netip.Prefix, s edge.ServiceID) error {
	_, exists := d.service(s)
	switch {
	case s != "" && !exists:
		return fmt.Errorf("%s is not a service of the configuration", s)
	case p != netip.Prefix{} && !has(d.config().Fleet.Prefixes, p):
		return fmt.Errorf("%s is not a prefix of the configuration", p)
	}
	return nil
}

func drainName(o edge.Drain) string {
	if o.Service != "" {
		return "service " + string(o.Service)
	}
	return prefixName(o.Prefix)
}

func prefixName(p netip.Prefix) string {
	if p == (netip.Prefix{}) {
		return "the node"
	}
	return p.String()
}

func (d *daemon) serveReload(w http.ResponseWriter, r *http.Request) {
	var out struct {
		Generation uint64   `json:"generation"`
		Changes    []string `json:"changes"`
	}
	blocked, bad := d.prepareReload(r.Context())
	err := d.order(r.Context(), func(ctx context.Context) (err error) {
		if bad != nil {
			d.configErr = bad.Error()
			return bad
		}
		out.Changes, err = d.reload(ctx, blocked)
		d.turn(ctx)
		out.Generation = d.generation
		return err
	})
	if err != nil {
		socket.Fail(w, refusal(err), err)
		return
	}
	socket.JSON(w, http.StatusOK, out)
}
