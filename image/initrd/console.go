package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Priorities of the kernel's log.
const (
	crit   = 2
	warn   = 4
	notice = 5
)

// mostRecord is how much of a line one record of the kernel's log takes, in
// bytes; the rest would be dropped.
const mostRecord = 900

// console says what happens, in the kernel's log, which the journal has later,
// and on the console: by the log where its level is high enough, else directly.
type console struct {
	log   *os.File // nil: only the console
	shown int      // priorities below this are on the console already
}

// newConsole gives one that has the console alone: /dev is not mounted yet.
func newConsole() *console { return &console{} }

// attach opens the kernel's log. Without it the console has to do.
func (c *console) attach() {
	// Else the kernel drops all but ten lines in five seconds.
	_ = os.WriteFile("/proc/sys/kernel/printk_devkmsg", []byte("on\n"), 0)
	level, err := os.ReadFile("/proc/sys/kernel/printk")
	if err == nil {
		c.shown = consoleLevel(string(level))
	}
	if log, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0); err == nil {
		c.log = log
	}
}

// consoleLevel is the first of the four numbers of /proc/sys/kernel/printk.
func consoleLevel(s string) int {
	first, _, _ := strings.Cut(strings.TrimSpace(s), "\t")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}

func (c *console) say(priority int, format string, args ...any) {
	for _, text := range records(fmt.Sprintf(format, args...)) {
		text = "edge-initrd: " + text
		if c.log != nil {
			if _, err := fmt.Fprintf(c.log, "<%d>%s\n", priority, text); err == nil && priority < c.shown {
				continue
			}
		}
		fmt.Println(text)
	}
}

// records splits a text into lines that the log takes.
func records(text string) (out []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		for len(line) > mostRecord {
			out, line = append(out, line[:mostRecord]), line[mostRecord:]
		}
		if line != "" {
			out = append(out, line)
		}
	}
	return out
}

// ensurePanicResets makes a panic reset the machine after ten seconds, enough
// to read why, unless the command line names another time: a box that hangs
// would never boot the other version. It holds as long as the kernel runs, so
// for a root that turns out to be changed as well.
func ensurePanicResets() {
	const file = "/proc/sys/kernel/panic"
	if b, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(b)) == "0" {
		_ = os.WriteFile(file, []byte("10\n"), 0)
	}
}
