// Go listens with Multipath TCP by default, and such a socket refuses the key
// of TCP MD5 and the TTL (measured: ENOPROTOOPT, EOPNOTSUPP). BGP needs both.

//go:debug multipathtcp=0

// Command edgebgp is the BGP speaker of a box. It takes the whole intent from
// edged over a unix socket, announces it under a lease, and shows what each
// peer really holds.
//
// It owns the BGP sessions and nothing else: it probes nothing and decides
// nothing. After SIGTERM it goes on until no router holds anything of it any more:
// edged sees that it is to stop, and withdraws with the guard's permit. If all routers
// that hold something keep it through a restart (graceful restart, and the data plane
// proven alive), it ends at once. A second SIGTERM ends it at once in any case: the
// sessions close, and the routers drop the site. Started again within the same boot it
// announces again what it was last told, under one fresh lease, without waiting for edged.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp"
	"github.com/catchment-dev/edge/cmd/internal/socket"
	"github.com/catchment-dev/edge/cmd/internal/task"
	"github.com/catchment-dev/edge/cmd/internal/version"
)

func main() {
	path := flag.String("socket", "/run/edge/edgebgp.sock", "unix `socket` to serve")
	state := flag.String("state", "/run/edge/edgebgp.state", "`file` on a tmpfs that keeps the last intent for a restart; empty keeps none")
	pins := flag.String("bpf-dir", "", "`directory` on a bpffs where edged pins the data plane: looked at before a router with graceful restart is told that packets are forwarded; empty never says so")
	level := slog.LevelInfo
	flag.TextVar(&level, "log-level", slog.LevelInfo, "lowest `level` to log: debug, info, warn or error")
	showVersion := flag.Bool("version", false, "print the version and exit")
	flag.Parse()
	if *showVersion {
		fmt.Println("edgebgp", version.String())
		return
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if flag.NArg() > 0 {
		log.Error("edgebgp takes no arguments", "got", flag.Args())
		os.Exit(2)
	}
	// The heap is what the routers are to hold, for each of them: hundreds of
	// megabytes of which little ever changes, so that collecting is cheap.
	debug.SetGCPercent(50)
	speaker := bgp.New(bgp.Options{Log: log, StatePath: *state, KeepsForwarding: func() bool {
		if *pins == "" {
			return false
		}
		err := forwards(*pins)
		if err != nil {
			log.Warn("the data plane is not proven alive", "err", err)
		}
		return err == nil
	}})
	api := &server{path: *path, speaker: speaker, ready: make(chan struct{})}
	ctx, end := context.WithCancel(context.Background())
	defer end()
	if err := task.Run(ctx, log, speaker, api, newLeaver(log, speaker, end)); err != nil {
		log.Error("edgebgp ends", "err", err)
		os.Exit(1)
	}
}

// server is the task that serves the unix socket.
type server struct {
	path    string
	speaker *bgp.Speaker
	ready   chan struct{}
}

// String implements task.Task.
func (s *server) String() string { return "socket " + s.path }

// Ready is closed once the socket can be connected to.
func (s *server) Ready() <-chan struct{} { return s.ready }

// Run serves until ctx ends.
func (s *server) Run(ctx context.Context) error {
	ln, err := socket.Listen(s.path)
	if err != nil {
		return err
	}
	close(s.ready)
	return socket.Serve(ctx, ln, handler(s.speaker))
}

func handler(speaker *bgp.Speaker) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/intent", func(w http.ResponseWriter, r *http.Request) {
		var in edge.Intent
		if err := read(r.Body, &in); err != nil {
			socket.Fail(w, http.StatusBadRequest, err)
			return
		}
		c, err := speaker.Set(r.Context(), in, have(r))
		reply(w, r, c, err)
	})
	mux.HandleFunc("POST /v1/renew", func(w http.ResponseWriter, r *http.Request) {
		c, err := speaker.Renew(r.Context(), r.URL.Query().Get("intent"), have(r))
		reply(w, r, c, err)
	})
	mux.HandleFunc("GET /v1/state", func(w http.ResponseWriter, r *http.Request) {
		c, err := speaker.State(r.Context(), have(r))
		reply(w, r, c, err)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		socket.Fail(w, http.StatusNotFound, fmt.Errorf("%s %s is not served: PUT /v1/intent, POST /v1/renew and GET /v1/state are", r.Method, r.URL.Path))
	})
	return mux
}

// have is the version of the state that the caller holds. Without the parameter,
// even an empty one, it is answered a whole edge.SpeakerState: people and older
// programs ask so.
func have(r *http.Request) string { return r.URL.Query().Get("have") }

// read decodes the one JSON value of a body. Unlike socket.Read it ignores keys
// that it does not know: edgebgp is seldom restarted, so an edged that is newer
// must be able to talk to it. What matters cannot be lost so: a prefix that is
// not known to be announced or withdrawn is an error.
func read(body io.Reader, v any) error {
	d := json.NewDecoder(body)
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("read body: more behind the end of the intent")
	}
	return nil
}

// failure is an edge.Problem beside what is: when a part has failed, the caller
// must be able to tell which.
type failure struct {
	edge.SpeakerState
	edge.Problem
}

func reply(w http.ResponseWriter, r *http.Request, c edge.SpeakerChange, err error) {
	byVersion := r.URL.Query().Has("have")
	if byVersion && err == nil {
		socket.JSON(w, http.StatusOK, c)
		return
	}
	code := http.StatusServiceUnavailable
	switch {
	case errors.Is(err, bgp.ErrInvalid):
		code = http.StatusBadRequest
	case errors.Is(err, bgp.ErrForgotten):
		code = http.StatusConflict
	case errors.Is(err, bgp.ErrNoRenewal):
		code = http.StatusPreconditionFailed
	}
	if byVersion {
		socket.Fail(w, code, err)
		return
	}
	st, broken := edge.SpeakerState{}.With(c)
	switch {
	case broken != nil:
		socket.Fail(w, http.StatusInternalServerError, broken)
	case err != nil:
		socket.JSON(w, code, failure{st, edge.Problem{Error: err.Error()}})
	default:
		socket.JSON(w, http.StatusOK, st)
	}
}
