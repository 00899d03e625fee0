package watch

import (
	"context"
	"net/netip"
	"time"
)

// tellPause is how often it is looked for alarms that have begun or ended.
const tellPause = time.Second

// The log has so many lines at once of alarms that begin, and of such that end,
// and one more each quotaPause: whoever announces thousands of parts of our
// prefixes, again and again, must not fill the disk, too.
const (
	mostLogged = 16
	quotaPause = 10 * time.Second
)

// teller is what was told last.
type teller struct {
	w            *Watcher
	alarms       map[alarmName]Alarm
	begun, ended quota
}

type alarmName struct {
	kind         string
	prefix, seen netip.Prefix
}

// tellAll tells what changes until ctx ends.
func (w *Watcher) tellAll(ctx context.Context) {
	t := teller{w: w}
	tick := time.NewTicker(tellPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			t.tell()
		}
	}
}

// tell logs alarms that have begun and ended, and says that something is new.
func (t *teller) tell() {
	w, at := t.w, time.Now()
	w.mu.Lock()
	alarms := w.judge.Find(at).Alarms
	news := w.news
	w.news = false
	w.mu.Unlock()
	now := make(map[alarmName]Alarm, len(alarms))
	for _, a := range alarms {
		name := alarmName{a.Kind, a.Prefix, a.Seen}
		now[name] = a
		if _, there := t.alarms[name]; there {
			continue
		}
		news = true
		if t.begun.take(at) {
			w.log.Warn("alarm", "kind", a.Kind, "prefix", a.Prefix, "seen", a.Seen, "evidence", a.Evidence)
		}
	}
	for name, a := range t.alarms {
		if _, there := now[name]; there {
			continue
		}
		news = true
		if t.ended.take(at) {
			w.log.Info("alarm ended", "kind", a.Kind, "prefix", a.Prefix, "seen", a.Seen)
		}
	}
	if n := t.begun.unsaid(at); n > 0 {
		w.log.Warn("more alarms", "count", n)
	}
	if n := t.ended.unsaid(at); n > 0 {
		w.log.Info("more alarms ended", "count", n)
	}
	t.alarms = now
	if news {
		w.onChange()
	}
}

// quota is how much may still be logged of one kind.
type quota struct {
	used  int       // of mostLogged
	since time.Time // used was right
	left  int       // that could not be logged and were not counted in a line
	said  time.Time // the last such line
}

// take says whether one more may be logged.
func (q *quota) take(now time.Time) bool {
	if back := int(now.Sub(q.since) / quotaPause); back > 0 {
		q.used, q.since = max(q.used-back, 0), now
	}
	if q.used >= mostLogged {
		q.left++
		return false
	}
	q.used++
	return true
}

// unsaid returns how many could not be logged, if it is time to say so.
func (q *quota) unsaid(now time.Time) int {
	if q.left == 0 || now.Sub(q.said) < mostLogged*quotaPause {
		return 0
	}
	n := q.left
	q.left, q.said = 0, now
	return n
}
