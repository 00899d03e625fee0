package watch

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const streamURL = "http://192.0.2.99/stream?format=json"

// lab is a Watcher in a synctest bubble whose streams are pipes.
type lab struct {
	t *testing.T
	*Watcher
	streams chan *io.PipeWriter
	log     bytes.Buffer // read it after stop only
	stop    func()

	mu      sync.Mutex
	refuse  error
	dials   []time.Time
	changes int
}

// inLab returns a script for a bubble. The Watcher has cfg.
func inLab(cfg Config, script func(*lab)) func(*testing.T) {
	return func(t *testing.T) {
		l := &lab{t: t, streams: make(chan *io.PipeWriter, 100)}
		l.Watcher = New(Options{Log: slog.New(slog.NewTextHandler(&l.log, nil)), OnChange: func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.changes++
		}})
		l.get = l.dial
		l.set(cfg)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		l.stop = sync.OnceFunc(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("Run: %v", err)
				}
			case <-time.After(time.Second):
				t.Error("Run does not end")
			}
		})
		t.Cleanup(l.stop)
		script(l)
		l.stop()
	}
}

func (l *lab) dial(ctx context.Context, url string) (io.ReadCloser, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dials = append(l.dials, time.Now())
	if l.refuse != nil {
		return nil, l.refuse
	}
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { r.CloseWithError(ctx.Err()) })
	l.streams <- w
	return r, nil
}

func (l *lab) setRefuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = err
}

func (l *lab) set(cfg Config) {
	l.t.Helper()
	if err := l.Set(cfg); err != nil {
		l.t.Fatal(err)
	}
}

// told returns how often OnChange was called since, up to the next look.
func (l *lab) told() int {
	<-time.After(tellPause) // of the bubble
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.changes
	l.changes = 0
	return n
}

func (l *lab) dialled() []time.Time {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dials
}

// stream returns the next connection as the server has it.
func (l *lab) stream() *io.PipeWriter {
	l.t.Helper()
	select {
	case w := <-l.streams:
		return w
	case <-time.After(time.Hour):
		l.t.Fatal("nobody connects")
		return nil
	}
}

// want compares the kinds of the alarms.
func (l *lab) want(kinds ...string) State {
	l.t.Helper()
	synctest.Wait()
	s := l.State()
	var got []string
	for _, a := range s.Alarms {
		got = append(got, a.Kind)
	}
	if strings.Join(got, " ") != strings.Join(kinds, " ") {
		l.t.Fatalf("%+v, want %q", s, kinds)
	}
	return s
}

func send(w io.Writer, lines ...string) { io.WriteString(w, strings.Join(lines, "\n")+"\n") }

func good() string { return ris("rrc00", "p", `[3333,65001,64500]`, announce("192.0.2.0/24")) }
func hijack() string {
	return strings.Replace(ris("rrc01", "q", `[1,666]`, announce("192.0.2.0/24")), "1767225600.25", "0", 1)
}

func watched() Config {
	return Config{Own: []Own{own("192.0.2.0/24")}, URL: streamURL, MissingAfter: 10 * time.Minute}
}
