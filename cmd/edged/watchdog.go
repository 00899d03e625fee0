package main

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// watchdogClass is where the kernel lists its watchdogs.
const watchdogClass = "/sys/class/watchdog"

// watchdogBy is how long after the boot the watchdog of an appliance must run: the
// drivers of real ones come first.
const watchdogBy = 3 * time.Minute

// watchdogRuns says whether somebody, who is systemd, keeps a watchdog from resetting
// this box. It is known on an appliance only: elsewhere it is not ours.
func watchdogRuns(image, class string) (runs, known bool) {
	if _, err := os.Stat(image); err != nil {
		return false, false
	}
	devices, err := filepath.Glob(filepath.Join(class, "*"))
	known = err == nil
	for _, d := range devices {
		text, err := os.ReadFile(filepath.Join(d, "state"))
		if err == nil && strings.TrimSpace(string(text)) == "active" {
			return true, true
		}
		known = known && err == nil
	}
	return false, known
}

// watchdogAlarms is one if no watchdog runs so long after the boot.
func watchdogAlarms(image, class string, up time.Duration) []string {
	if runs, known := watchdogRuns(image, class); runs || !known || up < watchdogBy {
		return nil
	}
	return []string{"no watchdog runs: if this box hangs, it stays so until somebody resets it; systemctl status edge-watchdog says why"}
}

// sinceBoot is how long ago the box was booted; 0 if the kernel does not say.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
