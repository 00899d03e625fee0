package proxy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/catchment-dev/edge"
)

// accessLine is one line of the access log. Durations are in milliseconds,
// sizes in bytes of body.
type accessLine struct {
	Time     time.Time       `json:"time"`
	ID       string          `json:"request_id"`
	Client   string          `json:"client"`
	VIP      string          `json:"vip"`
	Service  edge.ServiceID  `json:"service,omitempty"`
	SNI      string          `json:"sni,omitempty"`
	TLS      string          `json:"tls,omitempty"`
	Proto    string          `json:"proto"`
	Method   string          `json:"method"`
	Host     string          `json:"host"`
	Path     string          `json:"path"`
	Status   int             `json:"status"`
	In       int64           `json:"bytes_in"`
	Out      int64           `json:"bytes_out"`
	Duration float64         `json:"duration_ms"`
	Region   edge.RegionID   `json:"region,omitempty"`
	Upstream edge.UpstreamID `json:"upstream,omitempty"`
	Attempts int             `json:"attempts"`
	Reused   bool            `json:"reused,omitempty"`
	// Reason says why the answer is ours, why it broke off, or why it did not
	// come from the nearest region.
	Reason edge.Reason `json:"reason,omitempty"`
}

// accessLog writes lines from a goroutine of its own, so that a disk that is
// full or a reader that sleeps never holds up a request: lines that find no
// room in the queue are counted and dropped.
type accessLog struct {
	lines   chan accessLine
	dropped atomic.Uint64
	log     *slog.Logger

	mu  sync.Mutex
	out io.Writer // what the next line goes to
}

// accessQueue is how many lines may wait.
const accessQueue = 4096

func newAccessLog(out io.Writer, log *slog.Logger) *accessLog {
	return &accessLog{lines: make(chan accessLine, accessQueue), out: out, log: log}
}

// openAccess opens the file of the configuration for appending; "" is stdout.
func openAccess(path string, stdout io.Writer) (io.Writer, error) {
	if path == "" {
		return stdout, nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open access log: %w", err)
	}
	return &accessFile{f}, nil
}

// accessFile tells our own files from the stdout that we were given.
type accessFile struct{ *os.File }

func (a *accessLog) write(l accessLine) {
	select {
	case a.lines <- l:
	default:
		a.dropped.Add(1)
	}
}

// redirect makes later lines go to out. The writer goroutine closes the old
// file when it gets there.
func (a *accessLog) redirect(out io.Writer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.out = out
}

func (a *accessLog) current() io.Writer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.out
}

// run writes until ctx ends and the queue is empty, but waits no longer than a
// second for a file that does not take the rest.
func (a *accessLog) run(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.drainQueue(ctx)
	}()
	<-ctx.Done()
	select {
	case <-done:
	case <-time.After(time.Second):
		a.log.Warn("access log blocked", "lines", len(a.lines))
	}
}

func (a *accessLog) drainQueue(ctx context.Context) {
	out := a.current()
	bw := bufio.NewWriterSize(out, 64<<10)
	defer func() { a.finish(out, bw) }()
	for {
		var l accessLine
		select {
		case l = <-a.lines:
		default:
			a.flush(bw)
			select {
			case l = <-a.lines:
			case <-ctx.Done():
				if len(a.lines) == 0 {
					return
				}
				continue
			}
		}
		if now := a.current(); now != out {
			a.finish(out, bw)
			out = now
			bw.Reset(out)
		}
		b, err := json.Marshal(l)
		if err != nil {
			a.dropped.Add(1)
			continue
		}
		bw.Write(append(b, '\n')) // bw keeps the error for flush
	}
}

// flush counts a failed write as one dropped line and starts afresh: what the
// buffer held is gone, the next lines may get through.
func (a *accessLog) flush(bw *bufio.Writer) {
	if err := bw.Flush(); err != nil {
		if a.dropped.Add(1) == 1 {
			a.log.Error("write access log", "err", err)
		}
		bw.Reset(a.current())
	}
}

func (a *accessLog) finish(out io.Writer, bw *bufio.Writer) {
	a.flush(bw)
	closeFile(out)
}

// closeFile closes out if it is a file that openAccess has opened.
func closeFile(out io.Writer) {
	if f, ok := out.(*accessFile); ok {
		f.Close() // everything has been written, or there was an error before
	}
}
