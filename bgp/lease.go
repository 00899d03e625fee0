package bgp

import (
	"time"

	"github.com/catchment-dev/edge"
)

// lease says how long the announcements may stay as they are without a word
// from edged. It is a value driven by the times it is given; the zero value
// has never been granted and does not run out.
type lease struct {
	length  time.Duration
	renewed time.Time
	expired bool
}

func (l *lease) renew(now time.Time, length time.Duration) {
	*l = lease{length: length, renewed: now}
}

func (l *lease) end() time.Time { return l.renewed.Add(l.length) }

// left is 0 when the lease has run out or was never granted.
func (l *lease) left(now time.Time) time.Duration {
	if l.length == 0 {
		return 0
	}
	return max(0, l.end().Sub(now))
}

// expire notes that the lease has run out; true only the first time.
func (l *lease) expire(now time.Time) bool {
	if l.length == 0 || l.expired || l.left(now) > 0 {
		return false
	}
	l.expired = true
	return true
}

// reason does not change as time passes: it is a part of what is announced.
func (l *lease) reason() edge.Reason {
	return edge.Reason("lease expired: edged has not renewed since " + l.renewed.UTC().Format("2006-01-02 15:04:05 UTC"))
}
