package console

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/catchment-dev/edge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ask sends one request to a console with the sample status.
func ask(t *testing.T, method, target, host string, header ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, target, nil)
	if host != "" {
		r.Host = host
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	Handler(&source{status: sample()}, samplePast()).ServeHTTP(w, r)
	return w.Result()
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, path string
		code         int
		kind         string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8"},
		{"HEAD", "/", 200, "text/html; charset=utf-8"},
		{"GET", "/page.css", 200, "text/css; charset=utf-8"},
		{"GET", "/page.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/base.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/v1/status", 200, "application/json"},
		{"GET", "/v1/history", 200, "application/json"},
		{"HEAD", "/v1/history?since=3", 200, "application/json"},
		{"HEAD", "/v1/status", 200, "application/json"},
		{"HEAD", "/v1/events", 200, "text/event-stream"},
		{"GET", "/favicon.ico", 404, ""},
		{"GET", "/page.html", 404, ""},
		{"GET", "/index.html", 404, ""},
		{"GET", "/v1", 404, ""},
		{"GET", "/v1/drains", 404, ""},
		{"GET", "/console.go", 404, ""},
		{"POST", "/", 405, ""},
		{"PUT", "/v1/status", 405, ""},
		{"DELETE", "/v1/events", 405, ""},
		{"POST", "/v1/history", 405, ""},
		{"OPTIONS", "/v1/status", 405, ""},
	} {
		resp := ask(t, c.method, c.path, "127.0.0.1:8080")
		if resp.StatusCode != c.code || c.kind != "" && resp.Header.Get("Content-Type") != c.kind {
			t.Errorf("%s %s: %d %s", c.method, c.path, resp.StatusCode, resp.Header.Get("Content-Type"))
		}
		for k, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Cache-Control": "no-store", "Access-Control-Allow-Origin": "",
		} {
			if got := resp.Header.Get(k); got != want {
				t.Errorf("%s %s: %s is %q, want %q", c.method, c.path, k, got, want)
			}
		}
		if csp := resp.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'self';") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s %s: policy %q", c.method, c.path, csp)
		}
	}
}

func TestHosts(t *testing.T) {
	t.Parallel()
	for host, code := range map[string]int{
		"127.0.0.1": 200, "127.0.0.1:9000": 200, "[::1]:9000": 200, "[2001:db8::1]": 200, "10.1.2.3:80": 200,
		"localhost": 200, "LOCALHOST:9000": 200,
		"evil.example": 421, "evil.example:9000": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421,
		"localhost:": 200, "a:b:c": 421, ":80": 421, "[": 421, "1.2.3": 421,
	} {
		if got := ask(t, "GET", "/v1/status", host).StatusCode; got != code {
			t.Errorf("host %q: %d, want %d", host, got, code)
		}
	}
	for site, code := range map[string]int{"same-origin": 200, "none": 200, "same-site": 403, "cross-site": 403} {
		if got := ask(t, "GET", "/v1/status", "127.0.0.1", "Sec-Fetch-Site", site).StatusCode; got != code {
			t.Errorf("asked from %s: %d, want %d", site, got, code)
		}
	}
	if got := ask(t, "GET", "/", "127.0.0.1", "Sec-Fetch-Site", "cross-site").StatusCode; got != 200 {
		t.Errorf("a link from another site's page: %d", got)
	}
}

func TestStatusIsWhole(t *testing.T) {
	t.Parallel()
	resp := ask(t, "GET", "/v1/status", "localhost")
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var got edge.SystemStatus
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if got.Node != "ams1" || len(got.Decisions) != 4 || len(got.Probes) != 6 || got.Guard.Asking[prefix4].Needed != 2 {
		t.Errorf("status: %+v", got)
	}
}

// TestAssetsStandAlone: no address of another machine, no inline script or
// style, no way to turn a text into markup.
func TestAssetsStandAlone(t *testing.T) {
	t.Parallel()
	banned := regexp.MustCompile(`(?i)https?://|//cdn|@import|<style|\sstyle=|\son[a-z]+=|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(`)
	inline := regexp.MustCompile(`(?s)<script[^>]*>[^<]`)
	for _, name := range append(scripts(), "page.html", "page.css") {
		b, err := assets.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(b), "http://www.w3.org/2000/svg", "") // a name, never fetched
		if m := banned.FindString(text); m != "" {
			t.Errorf("%s holds %q", name, m)
		}
		if inline.MatchString(text) {
			t.Errorf("%s has an inline script", name)
		}
	}
}
