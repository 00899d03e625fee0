package bgp

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// onOwnClock puts the end of each permit on a clock that nobody sets from here on:
// an order may wait for its turn, and a wall clock that is set back meanwhile must
// not make a permit longer. Of the two ends that an order names the earlier counts.
func onOwnClock(orders []edge.Withdrawal, now time.Time, sinceBoot time.Duration) {
	for i := range orders {
		w := &orders[i]
		left := w.Until.Sub(now)
		if w.UntilBoot > 0 {
			left = min(left, w.UntilBoot-sinceBoot)
		}
		w.Until = now.Add(left) // with the monotonic reading of now
	}
}

// sinceBoot is CLOCK_BOOTTIME, the same for all processes of the box, also over a
// suspend.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 1<<63 - 1 // no order is in time; Linux has had it since 2.6.39
	}
	return time.Duration(ts.Nano())
}
