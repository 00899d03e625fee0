package health

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/catchment-dev/edge"
)

// answers are heads that are plain, and some that are nearly so.
func answers() []string {
	return []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nneedle", "HTTP/1.0 503 x\r\n\r\nneedle", "HTTP/1.1 429\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nX-Load-Balancing-Endpoint-Weight: 12\r\nContent-Length: 8\r\n\r\nxxneedle", "HTTP/1.1 200 \r\nConnection: close\r\n\r\nneedle",
		"HTTP/1.1 204 No Content\r\nContent-Length: 6\r\n\r\nneedle", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nneedle",
		"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nContent-Length: 6\r\n\r\nneedle", "HTTP/1.1 200 OK\r\nContent-Length: +6\r\n\r\nneedle",
		"HTTP/1.1 200 OK\r\nX-Load-Balancing-Endpoint-Weight: 1\r\nx-load-balancing-endpoint-weight: 2\r\n\r\n", "HTTP/1.1 20 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n", "HTTP/1.1 200 OK\nA: b\n\n", "HTTP/1.1 200 OK\r\nA : b\r\n\r\n", "HTTP/1.1 200 OK\r\n: b\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nneedle\r\n0\r\n\r\n", "HTTP/2.0 200 OK\r\n\r\n", "HTTP/1.1 100 x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
	}
}

// TestPlain: which answers are read without net/http.
func TestPlain(t *testing.T) {
	t.Parallel()
	for i, want := range []bool{true, true, true, true, true, true, true, false, false, true, false, false, false, false, false, false, false, false} {
		if _, ok := readPlain([]byte(answers()[i])); ok != want {
			t.Errorf("%q: plain is %v", answers()[i], ok)
		}
	}
	for _, c := range []struct {
		say  string
		want bool
	}{
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true},
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no", false},
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok!", false},
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", false},
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\nok", true},
		{"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", false},
		{"HTTP/1.1 200 OK\r\n\r\n", false},
		{"HTTP/1.1 204 No Content\r\n\r\n", true},
		{"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n", true},
	} {
		h, ok := readPlain([]byte(c.say))
		if got := h.reusable([]byte(c.say)); !ok || got != c.want {
			t.Errorf("%q: plain is %v, reusable %v", c.say, ok, got)
		}
	}
}

// FuzzPlain: an answer that is judged without net/http is judged as with it, and
// so is the beginning of one as the whole.
func FuzzPlain(f *testing.F) {
	for _, s := range answers() {
		f.Add([]byte(s), uint16(len(s)/2), true)
	}
	f.Fuzz(func(t *testing.T, say []byte, cut uint16, body bool) {
		p := edge.Probe{FullStatus: 503}
		if body {
			p.Body = "needle"
		}
		w, err := judge(t.Context(), bytes.NewReader(say), p)
		whole := fmt.Sprint(written(w), err)
		if h, ok := readPlain(say); ok {
			if w, err, decided := h.judge(say, &p); decided && fmt.Sprint(written(w), err) != whole {
				t.Errorf("%q: %s %v, net/http says %s", say, written(w), err, whole)
			}
		}
		g, e := newEngine(), newEntry(p, nil)
		e.flight = &flight{e: e, phase: reading}
		part := say[:min(int(cut), len(say))]
		if g.judge(e.flight, part, errMore, e.due) {
			r := g.ends[0].r
			// What has decided may not be all that is wrong with an answer.
			if got := fmt.Sprint(written(r.weight), r.err); got != whole && r.err != nil {
				t.Errorf("the first %d bytes of %q: %s, and all: %s", cut, say, got, whole)
			}
		}
		g = newEngine()
		e.flight = &flight{e: e, phase: reading}
		if !g.judge(e.flight, say, io.EOF, e.due) {
			t.Fatalf("%q: not decided by its end", say)
		}
		if got := fmt.Sprint(written(g.ends[0].r.weight), g.ends[0].r.err); got != whole {
			t.Errorf("%q: %s, net/http says %s", say, got, whole)
		}
	})
}
