package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/image/setup"
)

// watchEvery is how often the console is told of changes: what a person reads, not
// what a log keeps.
const watchEvery = time.Second

func (o *options) applianceWatchCommand() *cobra.Command {
	var everywhere bool
	c := &cobra.Command{
		Use: "watch", Short: "Tell what is announced, and each change of it, on the console", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			tell := o.write
			if everywhere {
				others := terminals{sys: "/sys", dev: "/dev", busy: map[string]chan struct{}{}}
				tell = func(text string) error {
					others.tell(text)
					return o.write(text)
				}
			}
			return o.watch(c.Context(), tell)
		},
	}
	c.Flags().BoolVar(&everywhere, "terminals", false, "also on the other terminals, where nobody is logged in")
	return c
}

// terminals are those beside /dev/console, which is only one of them. One goroutine
// uses it.
type terminals struct {
	sys, dev string
	// busy is full while a line to a terminal is on its way.
	busy map[string]chan struct{}
}

// tell writes to every terminal that may be written to: agetty gives those that wait
// for somebody to the group tty. A port that takes nothing keeps up nobody else, and
// loses what comes meanwhile.
func (t *terminals) tell(text string) {
	for _, name := range t.others() {
		busy, ok := t.busy[name]
		if !ok {
			busy = make(chan struct{}, 1)
			t.busy[name] = busy
		}
		select {
		case busy <- struct{}{}:
			go func() {
				defer func() { <-busy }()
				tellOne(filepath.Join(t.dev, name), text)
			}()
		default:
		}
	}
}

// tellOne opens the terminal each time: a login that ends hangs all up that have it.
func tellOne(path, text string) {
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return // somebody is logged in there, or no login waits
	}
	defer f.Close()
	f.SetWriteDeadline(time.Now().Add(watchEvery))
	_, _ = f.WriteString(strings.ReplaceAll(text, "\n", "\r\n"))
}

// others leaves out what /dev/console is: the last of those that the kernel has, or
// the screen.
func (t *terminals) others() []string {
	b, err := os.ReadFile(filepath.Join(t.sys, "class/tty/console/active"))
	active := strings.Fields(string(b))
	console := ""
	if err == nil && len(active) > 0 {
		console = active[len(active)-1]
	}
	return slices.DeleteFunc(setup.Terminals(t.sys), func(name string) bool {
		return name == console || name == "tty1" && console == "tty0"
	})
}

// watch prints a line when what is announced has changed, until ctx is done. An
// edged that does not answer is a change like any other.
func (o *options) watch(ctx context.Context, tell func(string) error) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for last := ""; ; {
		var st edge.SystemStatus
		line, state := "", ""
		if err := o.call(ctx, "GET", "/v1/status", nil, &st); err != nil {
			line = err.Error()
			state = line
		} else {
			line, state = announcing(st), rungs(st)
		}
		if state != last && ctx.Err() == nil {
			last = state
			if err := tell("edge: " + clean(line) + "\n"); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// rungs is what a change of is worth a line: reasons change with each probe.
func rungs(st edge.SystemStatus) string {
	var all []string
	for _, d := range st.Decisions {
		all = append(all, d.Prefix.String()+" "+string(d.Rung))
	}
	return "rungs " + strings.Join(all, ", ")
}

// announcing says in a line what is on the air, and why the rest is not.
func announcing(st edge.SystemStatus) string {
	var on, off []string
	for _, d := range st.Decisions {
		switch {
		case d.Rung == edge.Announced:
			on = append(on, d.Prefix.String())
		case d.Rung.OnAir():
			on = append(on, fmt.Sprintf("%s (%s)", d.Prefix, d.Rung))
		default:
			off = append(off, fmt.Sprintf("%s (%s: %s)", d.Prefix, d.Rung, cmp.Or(string(d.Reason), "no reason is known")))
		}
	}
	line := "announcing " + strings.Join(on, ", ")
	if len(on) == 0 {
		line = "announces nothing"
	}
	if len(off) > 0 {
		line += "; not " + strings.Join(off, ", ")
	}
	return line
}
