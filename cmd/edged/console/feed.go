package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
)

// The rhythm and the bounds of the events.
const (
	// pace is the shortest time between two events to one client.
	pace = 500 * time.Millisecond
	// quiet is the longest time without an event: when nothing has changed a
	// client gets only the time of the status, so that it can tell a quiet node
	// from one that has stopped thinking.
	quiet = time.Second
	// refresh is the longest time without the whole status.
	refresh = 5 * time.Second
	// fresh is how long a status is shared by those who ask, so that the cost
	// does not grow with the number of clients.
	fresh = pace / 2
	// patience is how long a request waits for a status that does not come.
	patience = 2 * time.Second
	// writeTimeout ends a client that does not read.
	writeTimeout = 5 * time.Second
	// retry is when a client that has lost its stream comes back: soon, since edged
	// restarts in a second or two. The browser's own pause is three.
	retry = time.Second
	// maxClients is how many event streams there are at once.
	maxClients = 64
)

var errNoStatus = errors.New("edged has not given a status yet")

// snapshot is one status, encoded once for everybody.
type snapshot struct {
	at   time.Time
	time time.Time // of the status itself
	json []byte
	// facts is json without the time of the status: equal facts are no news.
	facts []byte
	// past is how many events there had been.
	past uint64
}

// feed asks the source, for all clients together.
type feed struct {
	src  Source
	past Past
	seen uint64 // how many events there have been: of the question in flight

	mu      sync.Mutex
	last    *snapshot
	asking  chan struct{} // closed when the question in flight is answered
	clients int
}

// get returns a fresh status, or, if the source does not answer in time, the
// last one.
func (f *feed) get(ctx context.Context) (*snapshot, error) {
	f.mu.Lock()
	if f.last != nil && time.Since(f.last.at) < fresh {
		defer f.mu.Unlock()
		return f.last, nil
	}
	if f.asking == nil {
		// A goroutine, since a source that hangs must not take the console
		// with it. There is never more than this one.
		f.asking = make(chan struct{})
		go f.ask(f.asking)
	}
	asking := f.asking
	f.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-asking:
	case <-timer.C:
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil {
		return nil, errNoStatus
	}
	return f.last, nil
}

func (f *feed) ask(done chan struct{}) {
	s, err := encode(f.src.Status())
	// Since the number before, so as not to be handed the whole past each time.
	_, f.seen = f.past.Since(f.seen)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil { // else the last good status goes on, ageing
		s.past = f.seen
		f.last = s
	}
	f.asking = nil
	close(done)
}

func encode(st edge.SystemStatus) (*snapshot, error) {
	now := time.Now()
	whole, err := json.Marshal(st)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	of := st.Time
	st.Time = time.Time{}
	facts, err := json.Marshal(st)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	return &snapshot{at: now, time: of, json: whole, facts: facts}, nil
}

func (f *feed) serveStatus(w http.ResponseWriter, r *http.Request) {
	s, err := f.get(r.Context())
	if err != nil {
		problem(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(bytes.Clone(s.json), '\n')) // the reader may be gone
}

// join takes one of the places of the clients.
func (f *feed) join() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.clients >= maxClients {
		return false
	}
	f.clients++
	return true
}

func (f *feed) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clients--
}

// serveEvents streams until the client goes, does not read, or the server ends.
func (f *feed) serveEvents(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodHead && !f.join() {
		w.Header().Set("Retry-After", "5")
		problem(w, http.StatusServiceUnavailable, fmt.Sprintf("%d clients watch already: no more are served", maxClients))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	defer f.leave()
	_, _ = fmt.Fprintf(w, "retry: %d\n", retry.Milliseconds()) // goes out with the first event
	s := stream{out: w, control: http.NewResponseController(w)}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		snap, err := f.get(r.Context())
		if r.Context().Err() != nil {
			return
		}
		if err == nil && !s.send(snap) {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// stream is what one client has been sent.
//
// The id of an event is how many events of the past there have been, for a client
// that wants to know whether to ask for more of them.
type stream struct {
	out     http.ResponseWriter
	control *http.ResponseController
	last    *snapshot // the last of which anything was said
	facts   []byte    // of the last whole status
	whole   time.Time // when that was sent
	any     time.Time // when the last event was sent
}

// send writes an event if there is something to say, and returns false when the
// client is lost. Of a snapshot that it has seen it says nothing: a source that
// hangs must look dead.
func (s *stream) send(snap *snapshot) bool {
	now := time.Now()
	event := ""
	switch {
	case snap == s.last:
		return true
	case !bytes.Equal(snap.facts, s.facts) || now.Sub(s.whole) >= refresh:
		event = fmt.Sprintf("event: status\nid: %d\ndata: %s\n\n", snap.past, snap.json)
		s.facts, s.whole = snap.facts, now
	case snap.past != s.last.past || now.Sub(s.any) >= quiet:
		event = fmt.Sprintf("event: same\nid: %d\ndata: {\"time\":%q}\n\n", snap.past, snap.time.Format(time.RFC3339Nano))
	default:
		return true
	}
	s.last, s.any = snap, now
	// Some writers of tests cannot have deadlines; a real connection can.
	_ = s.control.SetWriteDeadline(now.Add(writeTimeout))
	if _, err := fmt.Fprint(s.out, event); err != nil {
		return false
	}
	return s.control.Flush() == nil
}
