package health

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

func TestWeight(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		said []string
		want string
	}{
		{nil, "none"},
		{[]string{"0"}, "0"},
		{[]string{"7"}, "7"},
		{[]string{"1000"}, "1000"},
		{[]string{"007"}, "7"},
		{[]string{"1001"}, "none"},
		{[]string{""}, "none"},
		{[]string{"-1"}, "none"},
		{[]string{"-0"}, "none"},
		{[]string{"+5"}, "none"},
		{[]string{"5.0"}, "none"},
		{[]string{"1e2"}, "none"},
		{[]string{"0x10"}, "none"},
		{[]string{"1_0"}, "none"},
		{[]string{"5, 5"}, "none"},
		{[]string{"5", "5"}, "none"},
		{[]string{"٥"}, "none"},
		{[]string{strings.Repeat("9", 400)}, "none"},
	} {
		if got := written(weight(http.Header{WeightHeader: tt.said})); got != tt.want {
			t.Errorf("%q: weight %s, want %s", tt.said, got, tt.want)
		}
	}
}

func written(w *int) string {
	if w == nil {
		return "none"
	}
	return fmt.Sprint(*w)
}

// FuzzWeight: whatever the header says, a weight is in range and is what stands
// there.
func FuzzWeight(f *testing.F) {
	for _, s := range []string{"", "0", "1000", "1001", "-1", "5.5", " 7", "7,8", "\x00"} {
		f.Add(s)
	}
	digits := regexp.MustCompile(`^[0-9]+$`)
	f.Fuzz(func(t *testing.T, said string) {
		w := weight(http.Header{WeightHeader: {said}})
		short := strings.TrimLeft(said, "0")
		usable := digits.MatchString(said) && (len(short) < 4 || short == "1000")
		if usable != (w != nil) {
			t.Fatalf("%q: weight %s", said, written(w))
		}
		if w != nil && fmt.Sprint(*w) != "0"+short && fmt.Sprint(*w) != short {
			t.Errorf("%q: weight %d", said, *w)
		}
	})
}

// weighed is a real HTTP server whose answer the test sets.
type weighed struct {
	*httptest.Server
	header, status atomic.Value
}

func newWeighed(t *testing.T, tls bool) *weighed {
	w := &weighed{}
	w.answer(200, "")
	w.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		if h := w.header.Load().(string); h != "" {
			rw.Header()["x-load-balancing-endpoint-WEIGHT"] = []string{h} // any case
		}
		rw.WriteHeader(w.status.Load().(int))
		fmt.Fprint(rw, "well")
	}))
	w.Config.ErrorLog = discard()
	if tls {
		w.StartTLS()
	} else {
		w.Start()
	}
	t.Cleanup(w.Close)
	return w
}

func (w *weighed) answer(status int, header string) {
	w.status.Store(status)
	w.header.Store(header)
}

// TestMonitorWeighs goes from the header of a real server to the status: with
// each good answer the weight is what that answer said, a bad one leaves it.
func TestMonitorWeighs(t *testing.T) {
	t.Parallel()
	plain, secret := newWeighed(t, false), newWeighed(t, true)
	m := start(t, Options{}, &fake{})
	var probes []edge.Probe
	for id, url := range map[edge.ProbeID]string{"plain": plain.URL, "secret": secret.URL} {
		probes = append(probes, edge.Probe{
			ID: id, Kind: edge.ProbeHTTP, URL: url, Insecure: true, Body: "well",
			Interval: 20 * time.Millisecond, Timeout: ample, Rise: 1, Fall: 1,
		})
	}
	plain.answer(200, "3")
	secret.answer(200, "1000")
	m.Set(probes)
	shows := func(id edge.ProbeID, state edge.ProbeState, w string) {
		t.Helper()
		end := time.After(time.Minute)
		for last := status(t, m, id); last.State != state || written(last.Weight) != w; last = status(t, m, id) {
			select { // a change of the weight alone must say so too
			case <-m.Changed():
			case <-end:
				t.Fatalf("%s was %s with weight %s (%s) when something changed last, want %s with %s", id, last.State, written(last.Weight), last.LastErr, state, w)
			}
		}
	}
	shows("plain", edge.Up, "3")
	shows("secret", edge.Up, "1000")
	plain.answer(200, "0")
	shows("plain", edge.Up, "0")
	plain.answer(200, "12")
	shows("plain", edge.Up, "12")
	plain.answer(503, "5") // what a failing answer says does not count
	shows("plain", edge.Down, "12")
	plain.answer(200, "many")
	shows("plain", edge.Up, "none")
	plain.answer(200, "6")
	shows("plain", edge.Up, "6")
	plain.answer(200, "")
	shows("plain", edge.Up, "none")
	shows("secret", edge.Up, "1000")
}

// TestTCPWeighsNothing: a probe that cannot hear a weight says none.
func TestTCPWeighsNothing(t *testing.T) {
	t.Parallel()
	w := newWeighed(t, false)
	w.answer(200, "3")
	m := start(t, Options{}, &fake{})
	m.Set([]edge.Probe{{
		ID: "a", Kind: edge.ProbeTCP, Addr: netip.MustParseAddrPort(w.Listener.Addr().String()),
		Interval: 20 * time.Millisecond, Timeout: ample, Rise: 1, Fall: 1,
	}})
	eventually(t, "up", func() bool { return status(t, m, "a").State == edge.Up })
	if got := written(status(t, m, "a").Weight); got != "none" {
		t.Errorf("weight %s", got)
	}
}
