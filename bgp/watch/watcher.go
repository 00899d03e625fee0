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
	"reflect"
	"slices"
	"sync"
	"time"
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
	Alarms    []Alarm   // ordered by prefix, kind and what is seen
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
	changed  chan struct{} // the feed is another; size 1

	mu    sync.Mutex
	cfg   Config
	gen   int // of the feed: what an older one finds is dropped
	judge *Judge
	state State // of the feed, without Alarms
	drop  drop
	news  bool // not yet told
}

// drop is the last line that was dropped.
type drop struct {
	why string
	at  time.Time
}

// dropShown is how long it is shown.
const dropShown = 10 * time.Minute

// New returns a Watcher that watches nothing until it has a Config and Run runs.
func New(o Options) *Watcher {
	w := &Watcher{log: o.Log, onChange: o.OnChange, get: getter(), changed: make(chan struct{}, 1), judge: NewJudge()}
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
	cfg = cfg.clone()
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if reflect.DeepEqual(cfg, w.cfg) {
		return nil
	}
	if cfg.URL != w.cfg.URL || cfg.File != w.cfg.File {
		if w.state.Source != "" {
			w.judge.Lost(w.state.Source, "", now)
		}
		w.state, w.drop, w.news = State{Source: source}, drop{}, true
		w.gen++
		signal(w.changed)
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
	s.Alarms = w.judge.Alarms(now)
	return s
}

// tellPause is how often it is looked for alarms that have begun or ended.
const tellPause = time.Second

// Run reads the feed and tells what changes until ctx ends, and returns nil then.
func (w *Watcher) Run(ctx context.Context) error {
	var told teller
	for ctx.Err() == nil {
		w.mu.Lock()
		cfg, f := w.cfg, &feed{w: w, gen: w.gen}
		w.mu.Unlock()
		w.runFeed(ctx, cfg, f, &told)
	}
	return nil
}

// runFeed reads one feed until there is another.
func (w *Watcher) runFeed(ctx context.Context, cfg Config, f *feed, told *teller) {
	ctx, cancel := context.WithCancel(ctx)
	var follower sync.WaitGroup
	defer follower.Wait()
	defer cancel()
	follower.Go(func() {
		switch {
		case cfg.URL != "":
			f.followURL(ctx, cfg.URL)
		case cfg.File != "":
			f.followFile(ctx, cfg.File)
		}
	})
	tick := time.NewTicker(tellPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
			if f.stale() {
				return
			}
		case <-tick.C:
			w.tell(told)
		}
	}
}

// teller is what was told last.
type teller struct {
	alarms map[alarmName]Alarm
}

type alarmName struct {
	kind         string
	prefix, seen netip.Prefix
}

// mostLogged bounds what one look writes to the log: whoever announces thousands
// of parts of our prefixes must not fill the disk, too.
const mostLogged = 16

// tell logs alarms that have begun and ended, and says that something is new.
func (w *Watcher) tell(t *teller) {
	w.mu.Lock()
	alarms := w.judge.Alarms(time.Now())
	news := w.news
	w.news = false
	w.mu.Unlock()
	now := make(map[alarmName]Alarm, len(alarms))
	logged := 0
	for _, a := range alarms {
		name := alarmName{a.Kind, a.Prefix, a.Seen}
		now[name] = a
		if _, there := t.alarms[name]; there {
			continue
		}
		news = true
		if logged++; logged <= mostLogged {
			w.log.Warn("alarm", "kind", a.Kind, "prefix", a.Prefix, "seen", a.Seen, "evidence", a.Evidence)
		}
	}
	if logged > mostLogged {
		w.log.Warn("more alarms", "count", logged-mostLogged)
	}
	logged = 0
	for name, a := range t.alarms {
		if _, there := now[name]; there {
			continue
		}
		news = true
		if logged++; logged <= mostLogged {
			w.log.Info("alarm ended", "kind", a.Kind, "prefix", a.Prefix, "seen", a.Seen)
		}
	}
	t.alarms = now
	if news {
		w.onChange()
	}
}

// signal wakes the reader of a channel of size 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
