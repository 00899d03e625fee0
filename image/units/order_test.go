package units

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// order boots the units that judge, and returns what was said, a line each.
func order(t *testing.T, what string) []string {
	t.Helper()
	dir := t.TempDir()
	said, late := bootBy(t, dir, 2*time.Minute, "testdata/order.sh", dir, here(t), what)
	if late {
		t.Fatalf("it did not end in time\nsaid: %s", said)
	}
	return strings.Split(strings.TrimSpace(said), "\n")
}

// TestJudgementHoldsUpNothing: while a boot is judged, for as long as that takes, all
// else is reached; bless, resume and good follow, and only then.
func TestJudgementHoldsUpNothing(t *testing.T) {
	said := order(t, "stay")
	before := slices.Index(said, "system: starting, complete: inactive, jobs of targets: 1")
	after := slices.Index(said, "boot-complete.target is reached")
	if before < 0 || after < before || slices.Contains(said, "not in time") {
		t.Fatalf("%s", strings.Join(said, "\n"))
	}
	for _, line := range []string{"edgectl appliance resume", "edgectl appliance setup --boot-was-good", "blessed"} {
		if at := slices.Index(said, line); at < before {
			t.Errorf("%s: line %d of\n%s", line, at, strings.Join(said, "\n"))
		}
	}
}

// TestJudgementEndsWithReboot: nobody waits for it, and what waits for it does not run.
func TestJudgementEndsWithReboot(t *testing.T) {
	start := time.Now()
	said := order(t, "reboot")
	if !slices.Contains(said, "health is ended") || slices.Contains(said, "blessed") || slices.Contains(said, "edgectl appliance resume") {
		t.Errorf("%s", strings.Join(said, "\n"))
	}
	if took := time.Since(start); took > 60*time.Second {
		t.Errorf("it took %s", took)
	}
}

// TestDeadmanRuns: where a job hangs before sysinit.target, and in emergency.target.
func TestDeadmanRuns(t *testing.T) {
	for what, want := range map[string]string{
		"hang":      "multi-user: inactive, sysinit: inactive, emergency: inactive",
		"emergency": "multi-user: inactive, sysinit: inactive, emergency: active",
	} {
		t.Run(what, func(t *testing.T) {
			if said := order(t, what); !slices.Contains(said, "deadman runs") || !slices.Contains(said, want) {
				t.Errorf("%s", strings.Join(said, "\n"))
			}
		})
	}
}
