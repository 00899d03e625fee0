package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/internal/follow"
)

// Options are what a Watcher needs. The zero value is usable.
type Options struct {
	// Log gets alarms that begin and end, and what happens to the feed; nil
	// drops it.
	Log *slog.Logger
	// OnChange is called after alarms have begun or ended, and after a change of
	// State's Source, Connected or LastErr, within a second. It must not block.
	OnChange func()
}

// State is what is wrong now, and how the feed does.
type State struct {
	Findings
	Source    string    // of the feed: its URL or file; empty: there is none
	Connected bool      // the feed is read
	Lines     uint64    // that the feed had
	Dropped   uint64    // of them: too long, malformed, or cut off
	LastErr   string    // why the feed is not read, or the last line of ten minutes that was dropped
	LastAt    time.Time // of the last line
}

// Watcher watches. Its methods may be called by several goroutines at once.
type Watcher struct {
	log      *slog.Logger
	onChange func()
	get      func(ctx context.Context, url string) (io.ReadCloser, error)

	mu    sync.Mutex
	cfg   Config
	loop  *follow.Loop[feedAt]
	judge *Judge
	state State // of the feed, without Findings
	drop  drop
	news  bool // not yet told
}

// feedAt is where a feed is; the zero value is nowhere.
type feedAt struct{ url, file string }

// drop is the last line that was dropped.
type drop struct {
	why string
	at  time.Time
}

// dropShown is how long it is shown.
const dropShown = 10 * time.Minute

// New returns a Watcher that watches nothing until it has a Config and Run runs.
func New(o Options) *Watcher {
	w := &Watcher{log: o.Log, onChange: o.OnChange, get: getter(), judge: NewJudge()}
	w.loop = follow.New[feedAt](&w.mu)
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if w.onChange == nil {
		w.onChange = func() {}
	}
	return w
}

// Set makes cfg the configuration. The feed goes on if it is the same; with
// another one what the old one has shown is gone when Set returns. An error
// names the setting; the old configuration stays then.
func (w *Watcher) Set(cfg Config) error {
	source, err := cfg.check()
	if err != nil {
		return err
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if cfg.equal(w.cfg) {
		return nil
	}
	cfg = cfg.clone()
	if at := (feedAt{cfg.URL, cfg.File}); at != w.loop.Config() {
		if w.state.Source != "" {
			w.judge.Lost(w.state.Source, "", now)
		}
		w.state, w.drop, w.news = State{Source: source}, drop{}, true
		w.loop.Replace(at)
	}
	w.cfg = cfg
	w.judge.Set(cfg, now)
	return nil
}

// check returns the name of the feed.
func (cfg Config) check() (source string, err error) {
	switch {
	case cfg.URL != "" && cfg.File != "":
		return "", errors.New("watch: url and file are both set: choose one feed")
	case cfg.File != "" && !filepath.IsAbs(cfg.File):
		return "", fmt.Errorf("watch: file %q is not an absolute path", cfg.File)
	case cfg.MissingAfter < 0:
		return "", fmt.Errorf("watch: missing after %s: it is below zero", cfg.MissingAfter)
	case cfg.Forget < 0 || cfg.Forget > maxForget:
		return "", fmt.Errorf("watch: forget %s is not between 0 and %s", cfg.Forget, maxForget)
	case len(cfg.Own)+len(cfg.Elsewhere) > maxOwn:
		return "", fmt.Errorf("watch: %d prefixes, at most %d", len(cfg.Own)+len(cfg.Elsewhere), maxOwn)
	}
	seen := map[netip.Prefix]bool{}
	for _, own := range slices.Concat(cfg.Own, cfg.Elsewhere) {
		switch p := own.Prefix; {
		case !p.IsValid() || p.Addr().Is4In6() || p != p.Masked():
			return "", fmt.Errorf("watch: %s is not a prefix, or has host bits", p)
		case len(own.Origins) == 0:
			return "", fmt.Errorf("watch: %s has no origin", p)
		case seen[p]:
			return "", fmt.Errorf("watch: %s is listed twice", p)
		}
		seen[own.Prefix] = true
	}
	if cfg.URL == "" {
		return cfg.File, nil
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return "", errors.New("watch: url is not an http or https URL with a host") // not shown: it may have a password
	}
	return u.Redacted(), nil
}

func (cfg Config) equal(other Config) bool {
	same := func(a, b Own) bool { return a.Prefix == b.Prefix && slices.Equal(a.Origins, b.Origins) }
	return cfg.URL == other.URL && cfg.File == other.File && cfg.MissingAfter == other.MissingAfter && cfg.Forget == other.Forget &&
		slices.Equal(cfg.Neighbours, other.Neighbours) && slices.EqualFunc(cfg.Own, other.Own, same) && slices.EqualFunc(cfg.Elsewhere, other.Elsewhere, same)
}

func (cfg Config) clone() Config {
	cfg.Neighbours = slices.Clone(cfg.Neighbours)
	for _, list := range []*[]Own{&cfg.Own, &cfg.Elsewhere} {
		*list = slices.Clone(*list)
		for i := range *list {
			(*list)[i].Origins = slices.Clone((*list)[i].Origins)
		}
	}
	return cfg
}

// Observe takes what a watched peer shows. A route need not be of our prefixes:
// any shows that the peer is alive.
func (w *Watcher) Observe(r Route) {
	now := time.Now()
	if r.At.IsZero() || r.At.After(now) {
		r.At = now
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge.Observe(r)
}

// EndOfRIB says that a watched peer has shown all the routes of a family that it
// has (RFC 4724 section 2). Of those that are not among them it bears witness from
// now on. A second one in a session changes nothing.
func (w *Watcher) EndOfRIB(source string, f edge.Family) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge.EndOfRIB(source, f, time.Now())
}

// Lost says that the session with a watched peer has ended: what it has shown
// is gone, and it shows nothing as missing any more.
func (w *Watcher) Lost(source string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge.Lost(source, "", time.Now())
}

// State returns what is wrong now, and how the feed does.
func (w *Watcher) State() State {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.state
	if s.LastErr == "" && w.drop.why != "" && now.Sub(w.drop.at) < dropShown {
		s.LastErr = w.drop.why
	}
	s.Findings = w.judge.Find(now)
	return s
}

// Run reads the feed and tells what changes until ctx ends, and returns nil then.
func (w *Watcher) Run(ctx context.Context) error {
	var aside sync.WaitGroup
	defer aside.Wait()
	aside.Go(func() { w.tellAll(ctx) })
	w.loop.Run(ctx, func(ctx context.Context, at feedAt, term follow.Term) {
		f := &feed{w: w, term: term}
		switch {
		case at.url != "":
			f.followURL(ctx, at.url)
		case at.file != "":
			f.followFile(ctx, at.file)
		}
	})
	return nil
}
