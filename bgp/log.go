package bgp

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	gobgplog "github.com/osrg/gobgp/v3/pkg/log"
)

// serverLog hands GoBGP's log to ours. A server only ever talks to its relay,
// so nothing of it is news to an operator: it is all for debugging, but what
// GoBGP takes for a fault of its own.
type serverLog struct{ log *slog.Logger }

func (l serverLog) put(level slog.Level, msg string, f gobgplog.Fields) {
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

// Panic and Fatal do not end the process: one peer must not cost the others.
func (l serverLog) Panic(msg string, f gobgplog.Fields) { l.put(slog.LevelError, msg, f) }
func (l serverLog) Fatal(msg string, f gobgplog.Fields) { l.put(slog.LevelError, msg, f) }
func (l serverLog) Error(msg string, f gobgplog.Fields) { l.put(slog.LevelError, msg, f) }
func (l serverLog) Warn(msg string, f gobgplog.Fields)  { l.put(slog.LevelDebug, msg, f) }
func (l serverLog) Info(msg string, f gobgplog.Fields)  { l.put(slog.LevelDebug, msg, f) }
func (l serverLog) Debug(msg string, f gobgplog.Fields) { l.put(slog.LevelDebug, msg, f) }

// SetLevel does nothing: the level is that of our log.
func (l serverLog) SetLevel(gobgplog.LogLevel) {}

// GetLevel keeps GoBGP from putting together what nobody wants to read.
func (l serverLog) GetLevel() gobgplog.LogLevel {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		return gobgplog.DebugLevel
	}
	return gobgplog.InfoLevel
}
