package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	gobgplog "github.com/osrg/gobgp/v3/pkg/log"
)

// journal remembers what happened to each peer's session. GoBGP's goroutines
// write it while they hold locks of their own, so nothing in it blocks or
// calls GoBGP.
type journal struct {
	now   func() time.Time
	mu    sync.Mutex
	peers map[netip.Addr]*record
}

// record is one peer; it outlives a change of the peer's settings.
type record struct {
	session string
	since   time.Time // of session
	flaps   int
	lastErr string
	said    string // the text of the last notification of shutdown or reset
	keyErr  error  // the key could not be set on the listening socket
}

func newJournal(now func() time.Time) *journal {
	return &journal{now: now, peers: map[netip.Addr]*record{}}
}

// with calls f with the record of addr, if there is one.
func (j *journal) with(addr netip.Addr, f func(*record)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r := j.peers[addr]; r != nil {
		f(r)
	}
}

func (j *journal) add(addr netip.Addr) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.peers[addr] == nil {
		j.peers[addr] = &record{session: "idle", since: j.now()}
	}
}

// keep forgets every peer that is not in want.
func (j *journal) keep(want map[netip.Addr]bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	maps.DeleteFunc(j.peers, func(addr netip.Addr, _ *record) bool { return !want[addr] })
}

// get returns a copy; the zero record for a peer that is not known.
func (j *journal) get(addr netip.Addr) (out record) {
	j.with(addr, func(r *record) { out = *r })
	return out
}

// enter notes the state of a session.
func (r *record) enter(session string, now time.Time) {
	if r.session == session {
		return
	}
	if r.session == established {
		r.flaps++
	}
	r.session, r.since = session, now
}

// lost notes that we ended the session ourselves.
func (j *journal) lost(addr netip.Addr, why string) {
	j.with(addr, func(r *record) {
		r.enter("idle", j.now())
		r.lastErr = why
	})
}

func (j *journal) clearKeyErr(addr netip.Addr) {
	j.with(addr, func(r *record) { r.keyErr = nil })
}

func (j *journal) keyErr(addr netip.Addr) error { return j.get(addr).keyErr }

// observe is the callback of GoBGP's WatchEvent.
func (j *journal) observe(ev *api.WatchEventResponse) {
	p := ev.GetPeer()
	if p.GetType() != api.WatchEventResponse_PeerEvent_STATE {
		return
	}
	st := p.GetPeer().GetState()
	addr, err := netip.ParseAddr(st.GetNeighborAddress())
	if err != nil {
		return
	}
	j.with(addr, func(r *record) { r.enter(sessionName(st.GetSessionState()), j.now()) })
}

// note reads a line of GoBGP's log: the only place where v3 says why a session
// was lost or could not be opened. Lines that it does not know change nothing.
func (j *journal) note(msg string, f gobgplog.Fields) {
	if f["Topic"] != "Peer" {
		return
	}
	addr, err := netip.ParseAddr(fmt.Sprint(f["Key"]))
	if err != nil {
		return
	}
	j.with(addr, func(r *record) {
		switch msg {
		case "failed to connect":
			r.lastErr = fmt.Sprintf("connect: %v", f["Error"])
		case "failed to set md5":
			// A listener that was closed with an earlier server is no matter.
			if err, ok := f["Err"].(error); ok && !errors.Is(err, net.ErrClosed) {
				r.keyErr = err
			}
		case "received notification":
			r.said, _ = f["Communicated-Reason"].(string)
		case "sent notification":
			if e, ok := f["Data"].(error); ok {
				r.lastErr = fmt.Sprintf("sent notification: %v", e)
			}
		case "state changed":
			r.left(fmt.Sprint(f["old"]), fmt.Sprint(f["new"]), fmt.Sprint(f["reason"]))
		}
	})
}

// left notes why a session fell back to idle.
func (r *record) left(from, to, why string) {
	from, to = stateName(from), stateName(to)
	if to != "idle" || from == "idle" {
		return
	}
	switch {
	case from == established:
		r.lastErr = "session lost: " + why
		if r.said != "" {
			r.lastErr += fmt.Sprintf(": %q", r.said)
		}
		r.said = ""
	case strings.HasPrefix(r.lastErr, "sent notification") && why == "invalid-msg":
		// It says more than "invalid-msg".
	default:
		r.lastErr = "session not opened: " + why + " in state " + from
	}
}

func stateName(s string) string { return strings.ToLower(strings.TrimPrefix(s, "BGP_FSM_")) }

// serverLog hands GoBGP's log to ours and to the journal.
type serverLog struct {
	log     *slog.Logger
	journal *journal
}

func (l serverLog) put(level slog.Level, msg string, f gobgplog.Fields) {
	l.journal.note(msg, f)
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	attrs := make([]slog.Attr, 0, len(f))
	for k, v := range f {
		attrs = append(attrs, slog.Any(strings.ToLower(strings.ReplaceAll(k, " ", "_")), v))
	}
	slices.SortFunc(attrs, func(a, b slog.Attr) int { return strings.Compare(a.Key, b.Key) })
	l.log.LogAttrs(context.Background(), level, "gobgp: "+msg, attrs...)
}

// Panic and Fatal do not end the process: GoBGP uses them for messages of one
// peer that it cannot make sense of, and one peer must not cost the others.
func (l serverLog) Panic(msg string, f gobgplog.Fields) { l.put(slog.LevelError, msg, f) }
func (l serverLog) Fatal(msg string, f gobgplog.Fields) { l.put(slog.LevelError, msg, f) }
func (l serverLog) Error(msg string, f gobgplog.Fields) { l.put(slog.LevelError, msg, f) }
func (l serverLog) Warn(msg string, f gobgplog.Fields)  { l.put(slog.LevelWarn, msg, f) }
func (l serverLog) Info(msg string, f gobgplog.Fields)  { l.put(slog.LevelInfo, msg, f) }
func (l serverLog) Debug(msg string, f gobgplog.Fields) { l.put(slog.LevelDebug, msg, f) }

// SetLevel does nothing: the level is that of our log.
func (l serverLog) SetLevel(gobgplog.LogLevel) {}

// GetLevel says debug, always: the errors of connects are logged only then,
// and the journal wants them.
func (l serverLog) GetLevel() gobgplog.LogLevel { return gobgplog.DebugLevel }
