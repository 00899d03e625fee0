package health

import (
	"context"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// clockKind is the prober of kind clock: this box's clock is right to within
// p.MaxOffset, by the word of the kernel, or by that of the server p.Addr.
type clockKind struct {
	adjtimex func(*unix.Timex) (int, error)
}

func newClockKind() clockKind { return clockKind{adjtimex: unix.Adjtimex} }

// Probe asks the server if one is given. That it does not answer, or has no
// time itself, says nothing of this box's clock: unknown.
func (k clockKind) Probe(ctx context.Context, p edge.Probe) error {
	if p.Addr.IsValid() {
		return probeSNTP(ctx, p)
	}
	var t unix.Timex // no modes: it only reads
	state, err := k.adjtimex(&t)
	if err != nil {
		return fmt.Errorf("%w: read the state of the clock: %w", edge.ErrUnknown, err)
	}
	if state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0 {
		return fmt.Errorf("the clock is not synchronised")
	}
	offset := time.Duration(t.Offset) * time.Microsecond
	if t.Status&unix.STA_NANO != 0 {
		offset = time.Duration(t.Offset)
	}
	// The maximum error is a bound on what the offset leaves out (RFC 5905
	// section 10, root distance).
	worst := offset.Abs() + time.Duration(t.Maxerror)*time.Microsecond
	if p.MaxOffset > 0 && worst > p.MaxOffset {
		return fmt.Errorf("the clock can be off by %s, at most %s is wanted", coarse(worst), p.MaxOffset)
	}
	return nil
}

// coarse rounds down to one digit, for a text that shall not change each time.
func coarse(d time.Duration) time.Duration {
	if d <= 0 {
		return d
	}
	step := time.Duration(math.Pow10(int(math.Log10(float64(d)))))
	return d / step * step
}
