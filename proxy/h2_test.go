package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2Ask sends one request as raw frames and says how it was answered: a
// status, or "reset".
func h2Ask(b *bench, body string, fields ...string) string {
	c := b.tlsClient("h2")
	defer c.Close()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range fields {
		i := strings.Index(f[1:], ":") + 1
		enc.WriteField(hpack.HeaderField{Name: f[:i], Value: strings.TrimPrefix(f[i+1:], " ")})
	}
	io.WriteString(c, http2.ClientPreface)
	fr := http2.NewFramer(c, c)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	fr.WriteSettings()
	fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: body == "", EndHeaders: true})
	if body != "" {
		fr.WriteData(1, true, []byte(body))
	}
	for {
		f, err := fr.ReadFrame()
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			return f.PseudoValue("status")
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return "reset"
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return "reset"
			}
			b.t.Fatalf("read frame: %v", err)
		}
	}
}

// TestMalformedH2: what HTTP/1.1 could not carry to the upstream, or would
// carry as something else, never gets there.
func TestMalformedH2(t *testing.T) {
	o, seen := simpleOrigin(t)
	b := newBench(t, o.addr)
	good := []string{":method: GET", ":scheme: https", ":authority: h", ":path: /"}
	post := append([]string{":method: POST"}, good[1:]...)
	tests := map[string]struct {
		body   string
		fields []string
		want   string // "400", "501", "reset", or either
	}{
		"plus in length":     {"abc", append(post[:4:4], "content-length: +3"), "400 reset"},
		"two lengths":        {"abc", append(post[:4:4], "content-length: 3", "content-length: 3"), "400 reset"},
		"length without end": {"", append(post[:4:4], "content-length: 3"), "400 reset"},
		"other host":         {"", append(good[:4:4], "host: i"), "400 reset"},
		"no authority":       {"", []string{":method: GET", ":scheme: https", ":path: /"}, "400 reset"},
		"userinfo":           {"", []string{":method: GET", ":scheme: https", ":authority: a@h", ":path: /"}, "400 reset"},
		"space in path":      {"", []string{":method: GET", ":scheme: https", ":authority: h", ":path: / HTTP/1.1"}, "400 reset"},
		"raw byte in path":   {"", []string{":method: GET", ":scheme: https", ":authority: h", ":path: /\x80"}, "400 reset"},
		"fragment":           {"", []string{":method: GET", ":scheme: https", ":authority: h", ":path: /#a"}, "400 reset"},
		"relative path":      {"", []string{":method: GET", ":scheme: https", ":authority: h", ":path: a"}, "400 reset"},
		"bad method":         {"", []string{":method: G T", ":scheme: https", ":authority: h", ":path: /"}, "400 reset"},
		"connect":            {"", []string{":method: CONNECT", ":authority: h:443"}, "501 reset"},
		"crlf in value":      {"", append(good[:4:4], "a: b\r\nc: d"), "400 reset"},
		"name with a colon":  {"", append(good[:4:4], "a b: c"), "400 reset"},
		"connection":         {"", append(good[:4:4], "connection: close"), "400 reset"},
		"transfer-encoding":  {"", append(good[:4:4], "transfer-encoding: chunked"), "400 reset"},
		"many fields":        {"", append(good[:4:4], "a: "+strings.Repeat("b", 40000)), "431 reset"},
	}
	for name, tt := range tests {
		if got := h2Ask(b, tt.body, tt.fields...); !strings.Contains(tt.want, got) {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
	if s := seen.String(); s != "" {
		t.Errorf("the origin saw:\n%s", s)
	}
	if got := h2Ask(b, "", good...); got != "200" {
		t.Errorf("a good request: %s", got)
	}
	if got := h2Ask(b, "", append(good[:4:4], "x-edge-reason: forged", "a: \tb ", "cookie: c=1", "cookie: d=2")...); got != "200" {
		t.Errorf("a good request: %s", got)
	}
	if s := seen.String(); !strings.Contains(s, "A: b\r\n") || strings.Contains(s, "forged") || !strings.Contains(s, "Cookie: c=1; d=2\r\n") {
		t.Errorf("the origin saw:\n%s", s)
	}
}

// TestManyStreams: streams of one connection do not wait for each other.
func TestManyStreams(t *testing.T) {
	o, asked, let := slowOrigin(t)
	b := newBench(t, o.addr)
	cc := b.h2Client()
	done := make(chan error, 8)
	for range 8 {
		go func() {
			req, _ := http.NewRequest("GET", "https://www.example.net/", nil)
			resp, err := cc.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
				if resp.StatusCode != 200 {
					err = fmt.Errorf("status %d", resp.StatusCode)
				}
			}
			done <- err
		}()
	}
	for range 8 {
		<-asked
	}
	if st := b.s.State(); st.Connections != 1 {
		t.Errorf("%d connections", st.Connections)
	}
	close(let)
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
