package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/health"
)

// numbered are n events whose evidence is their number.
func numbered(n int) *health.Ring {
	r := &health.Ring{}
	for i := range n {
		r.Add(edge.Event{Kind: "probe", Subject: "web", From: "up", To: "down", Evidence: fmt.Sprint(i)})
	}
	return r
}

// askPast asks a console about a past.
func askPast(t *testing.T, past Past, query string) (code int, body string) {
	t.Helper()
	r := httptest.NewRequest("GET", "/v1/history"+query, nil)
	r.Host = "localhost"
	w := httptest.NewRecorder()
	Handler(&source{}, past).ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestHistory(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		query       string
		events      int
		first, last string
	}{
		{"", 7, "0", "6"},
		{"?since=", 7, "0", "6"},
		{"?since=0", 7, "0", "6"},
		{"?since=3", 4, "3", "6"},
		{"?since=7", 0, "", ""},
		{"?since=8", 7, "0", "6"}, // of an edged before this one
		{"?since=18446744073709551615", 7, "0", "6"},
		{"?last=2", 2, "5", "6"},
		{"?since=3&last=100", 4, "3", "6"},
		{"?since=6&last=1", 1, "6", "6"},
		{"?last=0", 0, "", ""},
		{"?last=18446744073709551615", 7, "0", "6"},
	} {
		code, body := askPast(t, numbered(7), c.query)
		var got edge.Events
		if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK {
			t.Fatalf("%s: %d %s: %v", c.query, code, body, err)
		}
		if len(got.Events) != c.events || got.Next != 7 {
			t.Errorf("%s: %d events, next %d", c.query, len(got.Events), got.Next)
			continue
		}
		if c.events > 0 && (got.Events[0].Evidence != c.first || got.Events[c.events-1].Evidence != c.last) {
			t.Errorf("%s: from %s to %s", c.query, got.Events[0].Evidence, got.Events[c.events-1].Evidence)
		}
	}
	if code, body := askPast(t, numbered(0), ""); code != http.StatusOK || body != `{"events":[],"next":0}`+"\n" {
		t.Errorf("no past: %d %s", code, body)
	}
	for _, query := range []string{"?since=x", "?since=-1", "?since=1.5", "?since=18446744073709551616", "?last=x", "?last=-1"} {
		code, body := askPast(t, numbered(7), query)
		if code != http.StatusBadRequest || !strings.Contains(body, "is not a number") {
			t.Errorf("%s: %d %s", query, code, body)
		}
	}
}

// long is a past that keeps everything, and says nothing instead of an empty list.
type long []edge.Event

func (l long) Since(n uint64) ([]edge.Event, uint64) {
	if n >= uint64(len(l)) {
		return nil, uint64(len(l))
	}
	return l[n:], uint64(len(l))
}

func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	past := make(long, 3*maxPast)
	past[2*maxPast].Evidence = "first"
	for _, query := range []string{"", "?last=1000000"} {
		_, body := askPast(t, past, query)
		var got edge.Events
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Events) != maxPast || got.Events[0].Evidence != "first" || got.Next != 3*maxPast {
			t.Errorf("%q: %d events from %q on, next %d", query, len(got.Events), got.Events[0].Evidence, got.Next)
		}
	}
	if _, body := askPast(t, past, "?since=12288"); !strings.HasPrefix(body, `{"events":[],`) {
		t.Errorf("nothing new: %s", body)
	}
}

// TestEventsTellOfThePast: every event of the stream says how many changes there
// have been, and a new one is told of at once although nothing else has changed.
func TestEventsTellOfThePast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ring := numbered(7)
		events := serveWith(t, &source{status: sample()}, ring).watch(t)
		time.Sleep(10*time.Second + pace/2)
		synctest.Wait()
		kinds := map[string]int{}
		for _, e := range drain(events) {
			kinds[e.kind]++
			if e.id != "7" {
				t.Errorf("%s: id %q, want 7", e.kind, e.id)
			}
		}
		if kinds["status"] == 0 || kinds["same"] == 0 {
			t.Errorf("events: %v", kinds)
		}
		ring.Add(edge.Event{Kind: "peer"})
		begin := time.Now()
		time.Sleep(pace)
		synctest.Wait()
		got := drain(events)
		if len(got) != 1 || got[0].id != "8" || got[0].at.Sub(begin) > pace {
			t.Errorf("after a change: %+v", got)
		}
	})
}
