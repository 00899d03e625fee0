// Package console is the web page of a node: the facts of edgectl status, live,
// to be looked at and nothing else.
//
// It owns the page, its stream of events and the bounds on both. It never
// changes anything, needs nothing from outside the box (no CDN, no names) and
// asks for no password: it is served on the management address, which is the
// operator's to guard. It runs in edged.
package console

import (
	"embed"
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"

	"github.com/catchment-dev/edge"
)

// Source is where the facts come from. Status must not wait for anything; if it
// does, the console goes on showing the last status that it had, with its age.
// It is called by one goroutine at a time, and what it returned is not changed
// afterwards.
type Source interface {
	Status() edge.SystemStatus
}

// Past is what has happened: health.Ring. Since returns the events with the
// number since and higher that are still kept, oldest first, and the number to
// ask for next time; of a number that was never given out it returns them all.
// It must not wait, and is called by several goroutines at once.
type Past interface {
	Since(since uint64) (list []edge.Event, next uint64)
}

//go:embed page.html page.css *.js
var assets embed.FS

// scripts are the modules of the page; page.js imports the others.
func scripts() []string {
	return []string{"page.js", "base.js", "fleet.js", "guard.js", "history.js", "panels.js", "peers.js"}
}

// Handler serves the page on /, the status as JSON on /v1/status and as
// server-sent events on /v1/events, and the past on /v1/history. Everything else
// is not found; methods other than GET and HEAD are not allowed.
func Handler(src Source, past Past) http.Handler {
	f := &feed{src: src, past: past}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", asset("page.html", "text/html"))
	mux.HandleFunc("GET /page.css", asset("page.css", "text/css"))
	for _, name := range scripts() {
		mux.HandleFunc("GET /"+name, asset(name, "text/javascript"))
	}
	mux.HandleFunc("GET /v1/status", f.serveStatus)
	mux.HandleFunc("GET /v1/events", f.serveEvents)
	mux.HandleFunc("GET /v1/history", f.serveHistory)
	return guarded(mux)
}

// asset serves an embedded file. Its type is given rather than looked up: the
// box's own table of types could say otherwise, and a browser that is told not
// to guess would then refuse the script.
func asset(name, kind string) http.HandlerFunc {
	b, err := assets.ReadFile(name)
	if err != nil {
		panic(err) // embedded: cannot be missing in a build that compiled
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind+"; charset=utf-8")
		_, _ = w.Write(b) // the reader may be gone
	}
}

// guarded sets the headers that keep a browser from being used against the
// console, and turns away the requests of other web sites' pages.
func guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !byAddress(r.Host) {
			problem(w, http.StatusMisdirectedRequest, "the console is reached by address or as localhost, not by the name in the Host header")
			return
		}
		if site := r.Header.Get("Sec-Fetch-Site"); strings.HasPrefix(r.URL.Path, "/v1/") && (site == "cross-site" || site == "same-site") {
			problem(w, http.StatusForbidden, "another web site's page may not read the console")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// byAddress says whether a Host header is an address or localhost. A name could
// be one that its owner has pointed here (DNS rebinding), to read the console
// with a browser that can reach it.
func byAddress(host string) bool {
	if at, err := netip.ParseAddrPort(host); err == nil {
		return at.IsValid()
	}
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.Contains(host, "]") {
		host = host[:i]
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}

// problem answers with the body that all our APIs have for a "no".
func problem(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(edge.Problem{Error: text}) // the reader may be gone
}
