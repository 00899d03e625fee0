package bgp

import (
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// TestPermitOnOwnClock: whatever the wall clock does, the earlier end counts.
func TestPermitOnOwnClock(t *testing.T) {
	now := time.Now()
	boot := sinceBoot()
	if boot <= 0 || boot == 1<<63-1 || sinceBoot() < boot {
		t.Fatalf("%s since the boot", boot)
	}
	for name, tt := range map[string]struct {
		w    edge.Withdrawal
		left time.Duration
	}{
		"of an older edged":          {edge.Withdrawal{Until: now.Add(time.Second).Round(0)}, time.Second},
		"both the same":              {edge.Withdrawal{Until: now.Add(time.Second).Round(0), UntilBoot: boot + time.Second}, time.Second},
		"the clock was set back":     {edge.Withdrawal{Until: now.Add(time.Hour).Round(0), UntilBoot: boot + time.Second}, time.Second},
		"the clock was set forward":  {edge.Withdrawal{Until: now.Add(-time.Hour).Round(0), UntilBoot: boot + time.Second}, -time.Hour},
		"over by the clock of boot":  {edge.Withdrawal{Until: now.Add(time.Second).Round(0), UntilBoot: boot - 1}, -1},
		"there is no permit, no end": {edge.Withdrawal{}, time.Time{}.Sub(now)},
	} {
		all := []edge.Withdrawal{tt.w}
		onOwnClock(all, now, boot)
		if left := all[0].Until.Sub(now); left != tt.left {
			t.Errorf("%s: %s are left, want %s", name, left, tt.left)
		}
	}
}
