package lab

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"
)

// pollEvery is the pause between two looks at a condition.
const pollEvery = 20 * time.Millisecond

// Until is UntilEvery with 50 looks a second.
func Until(ctx context.Context, what string, holds func() error) error {
	return UntilEvery(ctx, pollEvery, what, holds)
}

// UntilEvery looks at a condition until it holds (nil) or ctx ends; then the error
// says what was waited for and what the last look found. It looks at once, and
// then once in each interval.
func UntilEvery(ctx context.Context, every time.Duration, what string, holds func() error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w: %w", what, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// Pause waits, or returns why ctx has ended.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ownerOf looks a user up.
func ownerOf(name string) (uid, gid int, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, fmt.Errorf("look up user: %w", err)
	}
	if uid, err = strconv.Atoi(u.Uid); err == nil {
		gid, err = strconv.Atoi(u.Gid)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read ids of user %s: %w", name, err)
	}
	return uid, gid, nil
}

// tail returns the last lines of a file, for a failure's message.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error() + "\n"
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n") + "\n"
}
