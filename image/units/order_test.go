package units

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// order boots the units that judge, and returns what was said, a line each.
func order(t *testing.T, what string) []string {
	t.Helper()
	dir := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	group := cgroup(t)
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child", "--mount-proc",
		"bash", "testdata/order.sh", dir, here, what)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	console, err := os.Create(filepath.Join(dir, "console"))
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	cmd.Stdout, cmd.Stderr = console, console
	err = cmd.Run() // ends by a signal: the first process of the namespace powers off
	said, readErr := os.ReadFile(filepath.Join(dir, "said"))
	if readErr != nil || ctx.Err() != nil || !strings.Contains(string(said), "== end") {
		b, _ := os.ReadFile(console.Name())
		t.Fatalf("%v, %v, %v\nsaid: %s\nconsole: %s", err, readErr, ctx.Err(), said, b)
	}
	return strings.Split(strings.TrimSpace(string(said)), "\n")
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
