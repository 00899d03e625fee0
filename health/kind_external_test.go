package health

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// TestExternal asks real vantage points over https, by name and by address.
func TestExternal(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("/yes", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s is reachable", r.RemoteAddr) })
	mux.HandleFunc("/no", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "no way") })
	mux.HandleFunc("/sick", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	mux.Handle("/moved", http.RedirectHandler("/yes", http.StatusFound))
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, "is re")
	})
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.ErrorLog = discard()
	srv.StartTLS()
	t.Cleanup(srv.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	yes, no := srv.URL+"/yes", srv.URL+"/no"
	gone, slow := "https://"+closedPort(t).String()+"/", srv.URL+"/slow"
	p := func(atLeast int, urls ...string) edge.Probe {
		return edge.Probe{Body: "is reachable", CAFile: file, AtLeast: atLeast, URLs: strings.Join(urls, "\x00")}
	}
	strange, sourced, foreign := p(1, yes), p(1, yes), p(1, yes)
	strange.CAFile = ""
	sourced.Source, sourced.Body = netip.MustParseAddr("127.0.0.9"), "127.0.0.9:"
	foreign.Source = netip.MustParseAddr("192.0.2.9")
	unread, brief, plain := p(1, yes), p(2, yes, slow, no), p(1, no)
	unread.CAFile, brief.Timeout, plain.Body = "/nowhere", time.Second, ""
	checks(t, edge.ProbeExternal, []check{
		{"all", p(2, yes, yes), ""},
		{"enough", p(1, yes, no, gone), ""},
		{"enough, does not wait for the slow", p(1, yes, slow), ""},
		{"status alone", plain, ""},
		{"source", sourced, ""},
		{"too few", p(2, yes, no, no), "1 of 3 vantage points reach us, wanted 2"},
		{"another status", p(1, srv.URL+"/sick"), "0 of 1 vantage points reach us, wanted 1"},
		{"a redirect is a no", p(1, srv.URL+"/moved"), "0 of 1 vantage points reach us, wanted 1"},
		{"too few, whatever the silent say", p(3, yes, no, no, gone), "1 of 4 vantage points reach us, wanted 3 (1 did not answer)"},
		{"the silent could make it", p(2, yes, no, gone), "unknown: 1 of 3 vantage points reach us, wanted 2 (1 did not answer)"},
		{"the slow are silent", brief, "unknown: 1 of 3 vantage points reach us, wanted 2 (1 did not answer)"},
		{"half an answer is none", p(1, srv.URL+"/cut"), "unknown: 0 of 1 vantage points reach us, wanted 1 (1 did not answer)"},
		{"nobody answers", p(1, gone, gone), "unknown: 0 of 2"},
		{"no name", p(1, "https://no..name/"), "unknown: 0 of 1"},
		{"not a url", p(1, "https://%zz/", "x", ""), "unknown: 0 of 3"},
		{"not to be trusted", strange, "unknown: 0 of 1"},
		{"a name that the certificate has not", p(1, strings.Replace(yes, "127.0.0.1", "localhost", 1)), "unknown: 0 of 1"},
		{"no roots", unread, "unknown: read CA file /nowhere"},
		{"source that is not ours", foreign, "unknown: 0 of 1"},
		{"more than there are", p(3, yes, yes), "unknown: 3 of 2 vantage points cannot be wanted"},
		{"none wanted", p(0, yes), "unknown: 0 of 1 vantage points cannot be wanted"},
		{"too many", p(1, make([]string, maxVantages+1)...), "unknown: 65 vantage points, at most 64"},
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect(t, externalKind{trust: newTrust(&patience{})}.Probe(ctx, p(1, yes)), "unknown: stopped")
}

// TestVotes is the whole table of small votes.
func TestVotes(t *testing.T) {
	t.Parallel()
	for yes := range 4 {
		for no := range 4 {
			for silent := range 4 {
				for need := 1; need <= yes+no+silent; need++ {
					v := &votes{need: need, enough: func() {}}
					for range yes {
						v.add(saysYes)
					}
					for range no {
						v.add(saysNo)
					}
					for range silent {
						v.add(saysNothing)
					}
					want := fmt.Sprintf("%d of %d", yes, yes+no+silent)
					switch {
					case yes >= need:
						want = ""
					case yes+silent >= need:
						want = "unknown: " + want
					}
					expect(t, v.verdict(), want)
				}
			}
		}
	}
}
