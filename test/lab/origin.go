package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// maxBytes is the largest answer of an origin's /bytes/N.
const maxBytes = 64 << 20

// Region is a host with origins.
type Region struct {
	*Host
	Origins []*Origin
}

// Origin is a small HTTP/1.1 server inside a region:
//
//	GET  /healthz   "ok", or 503 after SetHealthy(false); /healthz/ANY as well
//	ANY  /echo      the request's body, streamed
//	GET  /bytes/N   N bytes
//	ANY  otherwise  an Answer as JSON
//
// Only those under /healthz are not counted. Its methods may be called by several
// goroutines at once.
type Origin struct {
	// Name is "east-1" for the first of region east.
	Name string
	// Addr4 and Addr6 are where it listens.
	Addr4, Addr6 netip.AddrPort

	region   *Region
	who      map[string]servedBy
	sick     atomic.Bool
	fails    sync.Map // sickness: whom SetHealthyFor has refused
	delay    atomic.Int64
	requests atomic.Uint64
	seconds  rate
	server   *http.Server
	serving  sync.WaitGroup
}

// sickness is a path that one box gets no good answer for.
type sickness struct{ box, path string }

// servedBy is the box from which a request came.
type servedBy struct{ Box, Site string }

// Answer is what an origin says of a request that reached it.
type Answer struct {
	Region   string `json:"region"`
	Upstream string `json:"upstream"`
	// Box and Site are those whose address the request came from; empty if it
	// did not come through a box.
	Box  string `json:"box"`
	Site string `json:"site"`
	// The rest is what the origin saw.
	Method       string `json:"method"`
	Host         string `json:"host"`
	Path         string `json:"path"`
	ForwardedFor string `json:"x_forwarded_for"`
	Proto        string `json:"x_forwarded_proto"`
	RequestID    string `json:"x_request_id"`
}

// newRegion starts one origin per pair of addresses (IPv4, IPv6).
func newRegion(h *Host, addrs []netip.Prefix, who map[string]servedBy) (*Region, error) {
	r := &Region{Host: h}
	for i := 0; i+1 < len(addrs); i += 2 {
		o := &Origin{
			Name: fmt.Sprintf("%s-%d", h.name, i/2+1), region: r, who: who,
			Addr4: netip.AddrPortFrom(addrs[i].Addr(), OriginPort),
			Addr6: netip.AddrPortFrom(addrs[i+1].Addr(), OriginPort),
		}
		if err := o.Start(); err != nil {
			r.close()
			return nil, err
		}
		r.Origins = append(r.Origins, o)
	}
	return r, nil
}

// Start listens again after Stop. It is called by New.
func (o *Origin) Start() error {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", o.health)
	mux.HandleFunc("/healthz/", o.health)
	mux.HandleFunc("/echo", o.echo)
	mux.HandleFunc("/bytes/{n}", o.bytes)
	mux.HandleFunc("/", o.answer)
	o.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	for _, a := range []netip.AddrPort{o.Addr4, o.Addr6} {
		ln, err := o.region.Listen("tcp", a.String())
		if err != nil {
			o.Stop()
			return fmt.Errorf("start origin %s: %w", o.Name, err)
		}
		o.serving.Go(func() { o.server.Serve(ln) }) // ends with Stop
	}
	return nil
}

// Stop closes the listeners and all connections: connecting is refused.
func (o *Origin) Stop() {
	o.server.Close()
	o.serving.Wait()
}

// SetHealthy chooses what /healthz answers: 200 "ok" or 503.
func (o *Origin) SetHealthy(ok bool) { o.sick.Store(!ok) }

// SetHealthyFor chooses it for one box, and one path, such as /healthz, only.
func (o *Origin) SetHealthyFor(box, path string, ok bool) {
	if ok {
		o.fails.Delete(sickness{box, path})
	} else {
		o.fails.Store(sickness{box, path}, true)
	}
}

// SetDelay makes every counted request wait before it is answered.
func (o *Origin) SetDelay(d time.Duration) { o.delay.Store(int64(d)) }

// Requests is how many requests have been counted.
func (o *Origin) Requests() uint64 { return o.requests.Load() }

// PerSecond is how many requests came in the last whole second.
func (o *Origin) PerSecond() int { return o.seconds.last(time.Now()) }

// count counts a request and waits the delay; false if the client has gone.
func (o *Origin) count(ctx context.Context) bool {
	o.requests.Add(1)
	o.seconds.add(time.Now())
	d := time.Duration(o.delay.Load())
	return d <= 0 || Pause(ctx, d) == nil
}

func (o *Origin) health(w http.ResponseWriter, r *http.Request) {
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	_, refused := o.fails.Load(sickness{o.who[from].Box, r.URL.Path})
	if refused || o.sick.Load() {
		http.Error(w, "sick by order", http.StatusServiceUnavailable)
		return
	}
	io.WriteString(w, "ok\n")
}

func (o *Origin) echo(w http.ResponseWriter, r *http.Request) {
	if !o.count(r.Context()) {
		return
	}
	// Without this the server stops reading at the first byte it writes.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	io.Copy(w, r.Body)
}

func (o *Origin) bytes(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.PathValue("n"))
	if err != nil || n < 0 || n > maxBytes {
		http.Error(w, fmt.Sprintf("not a number of bytes up to %d", maxBytes), http.StatusBadRequest)
		return
	}
	if !o.count(r.Context()) {
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(n))
	chunk := make([]byte, 32<<10)
	for n > 0 {
		m, err := w.Write(chunk[:min(n, len(chunk))])
		if err != nil {
			return
		}
		n -= m
	}
}

func (o *Origin) answer(w http.ResponseWriter, r *http.Request) {
	if !o.count(r.Context()) {
		return
	}
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	by := o.who[from]
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(Answer{
		Region: o.region.name, Upstream: o.Name, Box: by.Box, Site: by.Site,
		Method: r.Method, Host: r.Host, Path: r.URL.Path,
		ForwardedFor: r.Header.Get("X-Forwarded-For"), Proto: r.Header.Get("X-Forwarded-Proto"),
		RequestID: r.Header.Get("X-Request-Id"),
	})
}

// SetHealthy chooses for all of the region's origins.
func (r *Region) SetHealthy(ok bool) {
	for _, o := range r.Origins {
		o.SetHealthy(ok)
	}
}

// SetDelay sets it for all of the region's origins.
func (r *Region) SetDelay(d time.Duration) {
	for _, o := range r.Origins {
		o.SetDelay(d)
	}
}

// Requests is how many requests the region has had.
func (r *Region) Requests() uint64 {
	var n uint64
	for _, o := range r.Origins {
		n += o.Requests()
	}
	return n
}

// PerSecond is how many requests the region had in the last whole second.
func (r *Region) PerSecond() int {
	n := 0
	for _, o := range r.Origins {
		n += o.PerSecond()
	}
	return n
}

func (r *Region) close() {
	for _, o := range r.Origins {
		o.Stop()
	}
}

// rate counts by whole seconds; it keeps the one under way and the one before.
type rate struct {
	mu        sync.Mutex
	second    int64
	now, past int
}

func (r *rate) add(t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(t)
	r.now++
}

func (r *rate) last(t time.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(t)
	return r.past
}

func (r *rate) turn(t time.Time) {
	switch s := t.Unix(); {
	case s == r.second:
		return
	case s == r.second+1:
		r.past, r.second, r.now = r.now, s, 0
	default:
		r.past, r.second, r.now = 0, s, 0
	}
}
