package e2e

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// console reads the page, the metrics and one live event.
func console(ctx context.Context, t *testing.T, w world) error {
	box := w.Lab.Boxes["a1"]
	tr := &http.Transport{DisableKeepAlives: true, DialContext: box.Dial}
	get := func(path string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", lab.ManagementPort, path), nil)
		if err != nil {
			return nil, err
		}
		return tr.RoundTrip(req)
	}
	for path, must := range map[string]string{"/": "<html", "/metrics": "edge_xdp_received_total", "/v1/status": `"decisions"`} {
		resp, err := get(path)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(strings.ToLower(string(body)), strings.ToLower(must)) {
			t.Errorf("GET %s: %s, %v, does not contain %q: %.300s", path, resp.Status, err, must, body)
		}
	}
	resp, err := get("/v1/events")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	events := 0
	for lines.Scan() && events < 3 {
		if strings.HasPrefix(lines.Text(), "data:") {
			events++
		}
	}
	if events < 3 {
		return fmt.Errorf("the live events ended after %d: %w", events, lines.Err())
	}
	return nil
}

// malformedRequests: each gets 400 and a closed connection, over TLS, through
// the forwarder.
func malformedRequests(ctx context.Context, t *testing.T, w world) error {
	client := w.Lab.Clients["client-a"]
	for name, raw := range map[string]string{
		"no request line":    "\x00\x01\x02\r\n\r\n",
		"two lengths":        "POST / HTTP/1.1\r\nHost: www.example.net\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
		"length and chunked": "POST / HTTP/1.1\r\nHost: www.example.net\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"folded header":      "GET / HTTP/1.1\r\nHost: www.example.net\r\nX-A: b\r\n c\r\n\r\n",
		"space before colon": "GET / HTTP/1.1\r\nHost: www.example.net\r\nX-A : b\r\n\r\n",
		"no host":            "GET / HTTP/1.1\r\n\r\n",
	} {
		c, err := client.Dial(ctx, "tcp", netip.AddrPortFrom(lab.VIP4, 443).String())
		if err != nil {
			return err
		}
		// The certificate is another test's matter.
		s := tls.Client(c, &tls.Config{ServerName: "www.example.net", InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		answer, err := exchange(s, raw)
		c.Close()
		if err != nil || !strings.HasPrefix(answer, "HTTP/1.1 400 ") {
			t.Errorf("%s: answer %.80q, %v; want 400 and the end of the connection", name, answer, err)
		}
	}
	_, err := client.Get(ctx, "https://www.example.net/", lab.Way{})
	return err
}

// exchange sends and reads until the other side closes.
func exchange(c net.Conn, raw string) (string, error) {
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, raw); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// gossipGarbage sends what is no gossip to a1, over UDP and TCP: it is dropped
// and counted, and the guard goes on.
func gossipGarbage(ctx context.Context, t *testing.T, w world) error {
	box := w.Lab.Boxes["a1"]
	dropped := func() (uint64, error) {
		st, err := box.Status(ctx)
		sum := uint64(0)
		for _, n := range st.Guard.Dropped {
			sum += n
		}
		return sum, err
	}
	before, err := dropped()
	if err != nil {
		return err
	}
	st, err := box.Status(ctx)
	if err != nil {
		return err
	}
	for _, network := range []string{"udp", "tcp"} {
		for range 20 {
			c, err := w.Lab.Clients["client-b"].Dial(ctx, network, net.JoinHostPort(box.Addr4, fmt.Sprint(7946)))
			if err != nil {
				return err
			}
			junk := make([]byte, 300)
			rand.Read(junk)
			c.Write(junk) // the other side may close first: that is its right
			c.Close()
		}
	}
	err = story.Until(ctx, "a1 has counted the garbage", func() error {
		after, err := dropped()
		if err == nil && after < before+20 {
			err = fmt.Errorf("%d were dropped before, %d after", before, after)
		}
		return err
	})
	if err != nil {
		return err
	}
	again, err := box.Status(ctx)
	if err != nil {
		return err
	}
	if !again.Started.Equal(st.Started) {
		t.Error("edged was restarted")
	}
	return story.Until(ctx, "all are alive to a1 after the garbage", func() error {
		again, err := box.Status(ctx)
		for _, m := range again.Guard.Members {
			if m.Node != again.Node && !m.Alive {
				err = errors.Join(err, fmt.Errorf("%s is not", m.Node))
			}
		}
		return err
	})
}

// balanced waits until a box has counted out what it has received, and returns that.
// The counters are read one CPU after the other while packets come in: they agree
// only about, and not at each look.
func balanced(ctx context.Context, box *lab.Box) (edge.ForwarderStats, error) {
	var f edge.ForwarderStats
	err := story.Until(ctx, box.Name()+" has counted out what it has received", func() error {
		st, err := box.Status(ctx)
		if err != nil {
			return err
		}
		f = st.Forwarder
		sum := uint64(0)
		for _, v := range f.Verdicts {
			sum += v.Count
		}
		if diff := int64(f.Received) - int64(sum); diff > 50 || diff < -50 || sum == 0 {
			return fmt.Errorf("received %d, but the verdicts sum to %d", f.Received, sum)
		}
		return nil
	})
	return f, err
}

// accounting reads the counters of every box: received is exactly the sum of
// the verdicts, and packets went every way.
func accounting(ctx context.Context, t *testing.T, w world) error {
	actions := map[string]uint64{}
	for name, box := range w.Lab.Boxes {
		f, err := balanced(ctx, box)
		if err != nil {
			return err
		}
		for _, v := range f.Verdicts {
			actions[v.Action] += v.Count
			if v.Count > 0 {
				t.Logf("%s: %-8s %-24s %d", name, v.Action, v.Reason, v.Count)
			}
		}
		if f.Mode != string(edge.XDPNative) {
			t.Errorf("%s: mode %s", name, f.Mode)
		}
	}
	if actions["pass"] == 0 || actions["tx"] == 0 {
		return fmt.Errorf("packets left by %v: want some passed and some sent", actions)
	}
	return nil
}

// noRaces looks for the race detector's reports in the daemons' logs.
func (w world) noRaces(t *testing.T) {
	for name := range w.Lab.Boxes {
		logs, err := filepath.Glob(filepath.Join(w.Lab.Dir(), name, "*.log"))
		if err != nil || len(logs) < 3 {
			t.Errorf("%s has %d logs, %v", name, len(logs), err)
		}
		for _, path := range logs {
			b, err := os.ReadFile(path)
			if err = errors.Join(err, raced(b)); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}

func raced(log []byte) error {
	text := string(log)
	for _, sign := range []string{"WARNING: DATA RACE", "panic:", "fatal error:"} {
		if i := strings.Index(text, sign); i >= 0 {
			return fmt.Errorf("%.3000s", text[i:])
		}
	}
	return nil
}
