package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/catchment-dev/edge/bgp/internal/follow"
)

const (
	// firstPause is that before the second try to connect; it doubles up to
	// maxPause, and begins anew after a connection that lasted steady.
	firstPause = time.Second
	maxPause   = time.Minute
	steady     = 30 * time.Second
	// silenceLimit is for the next line of a stream: a proxy on the way may have
	// forgotten us. To connect again costs nothing.
	silenceLimit = 15 * time.Minute
	// The limits of connecting.
	dialLimit   = 10 * time.Second
	answerLimit = 30 * time.Second
)

// feed reads one URL or file: what it finds counts until there is another one.
type feed struct {
	w    *Watcher
	term follow.Term
}

// change changes the state of the feed, unless there is another one.
func (f *feed) change(do func(w *Watcher, now time.Time)) {
	f.term.Do(func() { do(f.w, time.Now()) })
}

// up notes that the feed is read.
func (f *feed) up() {
	f.change(func(w *Watcher, now time.Time) {
		if w.state.Connected && w.state.LastErr == "" {
			return
		}
		w.state.Connected, w.state.LastErr, w.news = true, "", true
		w.judge.Connected(w.state.Source, now)
		w.log.Info("feed connected", "source", w.state.Source)
	})
}

// down notes why the feed is not read.
func (f *feed) down(err error) {
	f.change(func(w *Watcher, now time.Time) {
		if !w.state.Connected && w.state.LastErr == err.Error() {
			return
		}
		w.state.Connected, w.state.LastErr, w.news = false, err.Error(), true
		w.judge.Disconnected(w.state.Source, now)
		w.log.Warn("feed lost", "source", w.state.Source, "reason", err.Error())
	})
}

// gap notes that lines may have been lost.
func (f *feed) gap() {
	f.change(func(w *Watcher, _ time.Time) { w.judge.Gap(w.state.Source) })
}

// trouble notes what is wrong with a feed that is read all the same.
func (f *feed) trouble(why string) {
	f.change(func(w *Watcher, _ time.Time) {
		if w.state.LastErr != why {
			w.state.LastErr, w.news = why, true
			w.log.Warn("feed in trouble", "source", w.state.Source, "reason", why)
		}
	})
}

// dropped counts a line that cannot be used.
func (f *feed) dropped(err error) {
	f.change(func(w *Watcher, now time.Time) {
		w.state.Lines++
		w.state.Dropped++
		w.state.LastAt = now
		w.news = w.news || now.Sub(w.drop.at) >= dropShown // the first of many
		w.drop = drop{"line dropped: " + err.Error(), now}
	})
}

// line takes a line.
func (f *feed) line(b []byte) {
	m, err := parseLine(b, time.Now())
	if err != nil {
		f.dropped(err)
		return
	}
	if len(m.routes) > maxRoutes {
		f.dropped(fmt.Errorf("%d prefixes in one line, more than one UPDATE can have", len(m.routes)))
		return
	}
	f.change(func(w *Watcher, now time.Time) {
		w.state.Lines++
		w.state.LastAt = now
		if m.notice != "" {
			w.drop, w.news = drop{m.notice, now}, true
		}
		if m.lost != "" {
			w.judge.Lost(w.state.Source, m.lost, now)
		}
	})
	// A route that covers all of ours costs as much as they are many: others, who
	// wait for the lock, get their turn.
	for part := range slices.Chunk(m.routes, atOnce) {
		f.change(func(w *Watcher, _ time.Time) {
			for _, r := range part {
				r.Source = w.state.Source
				w.judge.Observe(r)
			}
		})
	}
}

const (
	// maxRoutes is how many prefixes an UPDATE has at most (4,096 bytes, two for
	// the shortest).
	maxRoutes = 2048
	// atOnce is how many routes are judged under one lock.
	atOnce = 8
)

// followURL reads the stream, again and again, until ctx ends.
func (f *feed) followURL(ctx context.Context, url string) {
	pause := firstPause
	for ctx.Err() == nil {
		began := time.Now()
		err := f.stream(ctx, url)
		if ctx.Err() != nil {
			return
		}
		f.down(err)
		if time.Since(began) >= steady {
			pause = firstPause
		}
		follow.Pause(ctx, pause-rand.N(pause/4)) // the boxes of a fleet do not come all at once
		pause = min(2*pause, maxPause)
	}
}

// errSilent is a stream that says nothing.
var errSilent = fmt.Errorf("nothing has come for %s", silenceLimit)

// stream reads one connection until it ends. Never returns nil.
func (f *feed) stream(ctx context.Context, url string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body, err := f.w.get(ctx, url)
	if err != nil {
		return bare(err)
	}
	defer body.Close()
	f.up()
	silence := time.AfterFunc(silenceLimit, func() { cancel(errSilent); body.Close() })
	defer silence.Stop()
	in := newLines(body)
	for {
		line, err := in.next()
		switch {
		case errors.Is(err, errLong):
			f.dropped(err)
			continue // one that never ends is silence, too
		case err != nil:
			if in.partial() {
				f.dropped(errors.New("the connection ended within it"))
			}
			if errors.Is(context.Cause(ctx), errSilent) {
				return errSilent
			}
			if errors.Is(err, io.EOF) {
				return errors.New("the server has ended the stream")
			}
			return bare(err)
		default:
			f.line(line)
		}
		silence.Reset(silenceLimit)
	}
}

// bare takes out of an error what is known (the URL, which may have a password)
// and what differs each time (the local port).
func bare(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	var oe *net.OpError
	if errors.As(err, &oe) {
		return fmt.Errorf("%s: %w", oe.Op, oe.Err)
	}
	return err
}

// getter returns how a stream is asked for. It has no limit of time as a whole:
// a stream has no end. What the environment says of proxies does not count.
func getter() func(ctx context.Context, url string) (io.ReadCloser, error) {
	client := &http.Client{
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: dialLimit}).DialContext,
			TLSHandshakeTimeout:    dialLimit,
			ResponseHeaderTimeout:  answerLimit,
			MaxResponseHeaderBytes: 1 << 16,
			DisableCompression:     true,
			DisableKeepAlives:      true,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			switch {
			case len(via) > 5:
				return errors.New("redirected more than 5 times")
			case via[0].URL.Scheme == "https" && req.URL.Scheme != "https":
				return errors.New("redirected from https to " + req.URL.Scheme)
			case req.URL.Hostname() != via[0].URL.Hostname(): // it must not choose whom else we ask, such as this host
				return fmt.Errorf("redirected to another host: if you trust it, configure its URL: %s", printable(req.URL.Redacted()))
			}
			return nil
		},
	}
	return func(ctx context.Context, url string) (io.ReadCloser, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("User-Agent", "catchment-edge")
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode != http.StatusOK {
			resp.Body.Close()
			return nil, fmt.Errorf("the server answers %s", printable(resp.Status))
		}
		return resp.Body, nil
	}
}
