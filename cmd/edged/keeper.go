package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	// keepAgain is how long after a failure the same file is tried again.
	keepAgain = 2 * time.Second
	// keepSilence is how long a write may take before that is an alarm, keepLimit
	// how long an operator waits for it. edgectl waits for ten seconds.
	keepSilence = 3 * time.Second
	keepLimit   = 8 * time.Second
	// keepLast is how long an end of edged waits for what is not written yet.
	keepLast = 3 * time.Second
)

// keeper writes the files of the state folder, one after the other, so that a disk
// that stalls holds up nobody else. It has the newest content of each file and no
// older one; since each write is of a whole file, and none has two writers, what
// was handed over last is what is there in the end. What cannot be written is
// tried again until it can. All may be called from any goroutine.
type keeper struct {
	dir     string
	log     *slog.Logger
	replace func(path string, b []byte) error // replaceFile; a test injects faults
	wake    chan struct{}                     // has room for one: there is something to be done

	mu      sync.Mutex // never held during a write
	waiting []*keepsake
	writing *keepsake // nil: none
	since   time.Time // when that began
	faults  map[string]fault
}

// keepsake is the content of a file that is not on the disk yet.
type keepsake struct {
	name, what string // what tells a person what it is
	content    func() ([]byte, error)
	due        time.Time // when it may be written
	receipts   []*receipt
}

// fault is why a file cannot be written.
type fault struct {
	what  string
	since time.Time
	err   error
}

// receipt tells whether what was handed over is on the disk.
type receipt struct {
	done chan struct{} // closed once err is known
	err  error
	// despite, if not empty, is what an error does not change.
	despite string
}

func newKeeper(dir string, log *slog.Logger) *keeper {
	return &keeper{dir: dir, log: log, replace: replaceFile, wake: make(chan struct{}, 1), faults: map[string]fault{}}
}

// keep has v, as JSON, replace the file name. It waits for nothing.
func (k *keeper) keep(name, what string, v any) { k.put(asJSON(name, what, v)) }

// keepRead is keep for content that has to be read first; read runs beside the
// caller. If it returns no content, the file stays as it is.
func (k *keeper) keepRead(name, what string, read func() ([]byte, error)) {
	k.put(&keepsake{name: name, what: what, content: read})
}

// order is keep for an operator's order: the receipt says what has become of the
// first attempt to write it, or to write what has overtaken it meanwhile.
func (k *keeper) order(name, what string, v any) *receipt {
	r, s := &receipt{done: make(chan struct{})}, asJSON(name, what, v)
	s.receipts = []*receipt{r}
	k.put(s)
	return r
}

// asJSON encodes v now: it is perhaps another one at the time of the write.
func asJSON(name, what string, v any) *keepsake {
	b, err := json.MarshalIndent(v, "", "  ")
	return &keepsake{name: name, what: what, content: func() ([]byte, error) { return append(b, '\n'), err }}
}

func (k *keeper) put(s *keepsake) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.waiting, func(o *keepsake) bool { return o.name == s.name })
	if i < 0 {
		k.waiting = append(k.waiting, s)
	} else {
		old := k.waiting[i]
		if len(s.receipts) == 0 { // else somebody waits, though it has just failed
			s.due = old.due
		}
		s.receipts = append(old.receipts, s.receipts...)
		k.waiting[i] = s
	}
	k.poke()
}

func (k *keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// run writes until ctx ends. What is not written by then is for flush.
func (k *keeper) run(ctx context.Context) error {
	for {
		wait := time.NewTimer(k.start())
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case <-k.wake:
			wait.Stop()
		case <-wait.C:
		}
	}
}

// start begins the next write that is due, unless one is under way, and says when
// to look again. A write is a goroutine of its own, never more than one: the
// kernel may hold it for as long as it likes.
func (k *keeper) start() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.writing != nil || len(k.waiting) == 0 {
		return time.Hour
	}
	now := time.Now()
	first := slices.MinFunc(k.waiting, func(a, b *keepsake) int { return a.due.Compare(b.due) })
	if first.due.After(now) {
		return first.due.Sub(now)
	}
	k.waiting = slices.DeleteFunc(k.waiting, func(s *keepsake) bool { return s == first })
	k.writing, k.since = first, now
	go k.write(first)
	return time.Hour
}

func (k *keeper) write(s *keepsake) {
	b, err := s.content()
	if err == nil && b != nil {
		err = k.replace(filepath.Join(k.dir, s.name), b)
	}
	switch was := k.written(s, err); {
	case err != nil && was.err == nil:
		k.log.Warn("state cannot be kept", "file", s.name, "what", s.what, "err", err)
	case err == nil && was.err != nil:
		k.log.Info("state is kept again", "file", s.name, "what", s.what, "failed_since", was.since)
	}
	for _, r := range s.receipts {
		if err != nil {
			r.err = fmt.Errorf("keep %s: %w", s.what, err)
		}
		close(r.done)
	}
	k.poke()
}

// written notes how the write under way has ended and returns the fault before. A file
// that could not be written is tried again, if it is not there anew.
func (k *keeper) written(s *keepsake, err error) fault {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writing = nil
	was := k.faults[s.name]
	if err == nil {
		delete(k.faults, s.name)
		return was
	}
	now := time.Now()
	f := fault{what: s.what, since: now, err: err}
	if was.err != nil {
		f.since = was.since
	}
	k.faults[s.name] = f
	again := now.Add(keepAgain)
	if i := slices.IndexFunc(k.waiting, func(o *keepsake) bool { return o.name == s.name }); i < 0 {
		k.waiting = append(k.waiting, &keepsake{name: s.name, what: s.what, content: s.content, due: again})
	} else if len(k.waiting[i].receipts) == 0 {
		k.waiting[i].due = again
	}
	return was
}

// alarms says what is not kept, since when and why.
func (k *keeper) alarms(now time.Time) []error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []error
	if k.writing != nil && now.Sub(k.since) >= keepSilence {
		out = append(out, fmt.Errorf("the disk of %s does not answer since %s: a restart of edged forgets what has changed, first of all %s",
			k.dir, k.since.UTC().Format(time.DateTime), k.writing.what))
	}
	for name, f := range k.faults {
		out = append(out, fmt.Errorf("%s cannot be kept since %s, a restart of edged forgets what has changed: %s: %w",
			f.what, f.since.UTC().Format(time.DateTime), name, f.err))
	}
	slices.SortFunc(out, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return out
}

// flush writes what waits, each file once, and tells what could not be: for the end
// of the process, when nobody calls keep any more, nor is run running.
func (k *keeper) flush(limit time.Duration) error {
	late := time.NewTimer(limit)
	defer late.Stop()
	k.mu.Lock()
	for _, s := range k.waiting {
		s.due = time.Time{}
	}
	k.mu.Unlock()
	for {
		if k.start(); k.idle() {
			return k.lost()
		}
		select {
		case <-k.wake:
		case <-late.C:
			return k.lost()
		}
	}
}

// idle says that nothing is under way: what still waits has just failed.
func (k *keeper) idle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writing == nil
}

func (k *keeper) lost() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	if s := k.writing; s != nil {
		errs = append(errs, fmt.Errorf("keep %s: the disk of %s does not answer since %s", s.what, k.dir, k.since.UTC().Format(time.DateTime)))
	}
	for _, s := range k.waiting {
		errs = append(errs, fmt.Errorf("keep %s: %w", s.what, cmp.Or(k.faults[s.name].err, errUnwritten)))
	}
	return errors.Join(errs...)
}

var errUnwritten = errors.New("it is not written yet")

// errDisk is the answer to an order that the disk did not take in time.
var errDisk = errors.New("the disk of node.state_dir does not answer; the order may still be carried out: see edgectl status")

// over says whether err is known.
func (r *receipt) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// wait waits until it is known what has become of the order; nil is one that
// changes nothing. It is not for the control loop.
func (r *receipt) wait(ctx context.Context) error {
	if r == nil {
		return nil
	}
	late := time.NewTimer(keepLimit)
	defer late.Stop()
	select {
	case <-ctx.Done():
		return errDisk
	case <-late.C:
		return errDisk
	case <-r.done:
	}
	if r.err != nil && r.despite != "" {
		return fmt.Errorf("%s: %w", r.despite, r.err)
	}
	return r.err
}
