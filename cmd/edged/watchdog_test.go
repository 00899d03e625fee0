package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWatchdog(t *testing.T) {
	for name, c := range map[string]struct {
		states      []string // one a device; "-": it has none
		elsewhere   bool     // no appliance
		up          time.Duration
		runs, known bool
		alarms      int
	}{
		"none":                  {up: time.Hour, known: true, alarms: 1},
		"none yet":              {up: time.Minute, known: true},
		"not opened":            {states: []string{"inactive\n"}, up: time.Hour, known: true, alarms: 1},
		"it runs":               {states: []string{"active\n"}, up: time.Hour, runs: true, known: true},
		"one of two":            {states: []string{"inactive\n", "active\n"}, up: time.Hour, runs: true, known: true},
		"a device without word": {states: []string{"-"}, up: time.Hour},
		"no appliance":          {elsewhere: true, states: []string{"inactive\n"}, up: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			image, class := t.TempDir(), t.TempDir()
			if c.elsewhere {
				image += "/none"
			}
			for i, state := range c.states {
				dir := filepath.Join(class, "watchdog"+string(rune('0'+i)))
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if state == "-" {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, "state"), []byte(state), 0o444); err != nil {
					t.Fatal(err)
				}
			}
			if runs, known := watchdogRuns(image, class); runs != c.runs || known != c.known {
				t.Errorf("runs %v, known %v; want %v, %v", runs, known, c.runs, c.known)
			}
			got := watchdogAlarms(image, class, c.up)
			if len(got) != c.alarms || len(got) > 0 && !strings.Contains(got[0], "edge-watchdog") {
				t.Errorf("alarms %q, want %d", got, c.alarms)
			}
		})
	}
	if up := sinceBoot(); up <= 0 {
		t.Errorf("up for %s", up)
	}
}
