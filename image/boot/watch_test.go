package boot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pace() Pace { return Pace{Within: 180 * time.Second, Every: 2 * time.Second} }

func TestWatchWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		runs := 0
		checks := []Check{
			{Name: "early", Run: func(context.Context) error { runs++; return nil }},
			{Name: "late", Run: func(context.Context) error {
				if time.Since(start) < time.Minute {
					return errors.New("not yet")
				}
				return nil
			}},
		}
		if f := Watch(t.Context(), checks, pace()); f != nil {
			t.Error(f)
		}
		if took := time.Since(start); took != time.Minute || runs != 2 {
			t.Errorf("it took %s, and what had passed was run %d times", took, runs)
		}
	})
}

// TestWatchTrustsOneRound: that each has passed once is not enough.
func TestWatchTrustsOneRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		up := func(from, to time.Duration) func(context.Context) error {
			return func(context.Context) error {
				if d := time.Since(start); d < from || d >= to {
					return fmt.Errorf("down after %s", d)
				}
				return nil
			}
		}
		checks := []Check{{Name: "a", Run: up(0, 10*time.Second)}, {Name: "b", Run: up(20*time.Second, time.Hour)}}
		f := Watch(t.Context(), checks, pace())
		if len(f) != 1 || f[0].Check != "a" || time.Since(start) != 180*time.Second {
			t.Errorf("%v after %s", f, time.Since(start))
		}
	})
}

func TestWatchSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		calls := 0
		checks := []Check{
			{Name: "hangs", Run: hang},
			{Name: "hangs at the end", Limit: time.Hour, Run: func(ctx context.Context) error {
				if calls++; calls == 1 {
					return errors.New("the true\nreason")
				}
				return hang(ctx)
			}},
			{Name: "good", Run: func(ctx context.Context) error { return ctx.Err() }},
		}
		f := Watch(t.Context(), checks, Pace{Within: 30 * time.Second, Every: time.Second})
		if len(f) != 2 || !strings.Contains(f[0].Reason, "no answer within 10s") || f[1].Reason != "the true | reason" {
			t.Errorf("%q", f)
		}
	})
}

func TestOnce(t *testing.T) {
	f := Once(t.Context(), []Check{
		{Name: "a", Run: func(context.Context) error { return nil }},
		{Name: "b", Run: func(context.Context) error { return errors.New("no") }},
	})
	if len(f) != 1 || f[0].Check != "b" || f[0].Reason != "no" {
		t.Error(f)
	}
}

func script(t *testing.T, dir, name, text string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := errors.Join(os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o600), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

func TestHooks(t *testing.T) {
	dir := t.TempDir()
	script(t, dir, "10-good", "exit 0", 0o750)
	script(t, dir, "20-bad", "echo first; echo 'the origin is far' >&2; exit 3", 0o755)
	script(t, dir, "30-silent", "exit 4", 0o755)
	script(t, dir, "40-open", "exit 0", 0o757)
	script(t, dir, "README", "exit 1", 0o640)
	script(t, dir, ".hidden", "exit 1", 0o755)
	checks, err := Hooks(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range Once(t.Context(), checks) {
		got = append(got, f.Check+": "+f.Reason)
	}
	want := []string{"hook:20-bad: the origin is far (exit status 3)", "hook:30-silent: exit status 4", "hook:40-open: " + dir + "/40-open may be written by anybody: chmod o-w it"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || len(checks) != 4 {
		t.Errorf("%d checks:\n%s", len(checks), strings.Join(got, "\n"))
	}
	if none, err := Hooks(filepath.Join(dir, "none")); none != nil || err != nil {
		t.Error(none, err)
	}
}

// TestHookThatHangs: its children end with it, and it is waited for no longer.
func TestHookThatHangs(t *testing.T) {
	dir := t.TempDir()
	mark := filepath.Join(dir, "alive")
	script(t, dir, "hang", "(while :; do touch "+mark+"; sleep 0.05; done) & wait", 0o755)
	checks, err := Hooks(dir)
	if err != nil || len(checks) != 1 {
		t.Fatal(checks, err)
	}
	checks[0].Limit = 500 * time.Millisecond
	start := time.Now()
	f := Once(t.Context(), checks)
	if len(f) != 1 || !strings.Contains(f[0].Reason, "no answer within 500ms") {
		t.Fatal(f)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	// Once it is gone nothing makes the file again.
	for deadline := time.Now().Add(10 * time.Second); ; {
		os.Remove(mark)
		quiet := time.Now().Add(time.Second)
		made := false
		for now := time.Now(); !now.After(quiet); now = time.Now() {
			if _, err := os.Stat(mark); err == nil {
				made = true
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if !made {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a child of the hook lives on")
		}
	}
}

// TestHookThatForks: a hook that ends well and leaves something behind, which holds its
// output, has ended well; and what it left is gone.
func TestHookThatForks(t *testing.T) {
	dir := t.TempDir()
	mark := filepath.Join(dir, "pid")
	script(t, dir, "10-forks", "sleep 600 & echo $! >"+mark+"; exit 0", 0o755)
	script(t, dir, "20-forks-and-fails", "sleep 600 & echo 'the origin is far'; exit 1", 0o755)
	script(t, dir, "30-shouts", "yes 'no end of it' | head -c 20000000; echo; echo the last; exit 1", 0o755)
	checks, err := Hooks(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range Once(t.Context(), checks) {
		got = append(got, f.Check+": "+f.Reason)
	}
	want := "hook:20-forks-and-fails: the origin is far (exit status 1)\nhook:30-shouts: the last (exit status 1)"
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	pid, err := os.ReadFile(mark)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("what it left lives on: %s", stat)
		}
	}
}

// TestHookThatWent: another configuration is applied while a boot is judged.
func TestHookThatWent(t *testing.T) {
	dir := t.TempDir()
	script(t, dir, "10-went", "exit 1", 0o755)
	if err := os.WriteFile(filepath.Join(dir, "20-no-shell"), []byte("#!/nowhere\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	checks, err := Hooks(dir)
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(dir, "10-went"))
	if f := Once(t.Context(), checks); len(f) != 1 || f[0].Check != "hook:20-no-shell" {
		t.Error(f)
	}
}

// TestOneLine: no terminal obeys what a check has said, C1 controls (ECMA-48) included.
func TestOneLine(t *testing.T) {
	for said, want := range map[string]string{"a\nb\x1b[2J": "a | b | [2J", "a\u009b2Jb": "a | 2Jb", "\x9b": "?", "\u0085": "", "é": "é"} {
		if got := oneLine(said); got != want {
			t.Errorf("%q: %q, want %q", said, got, want)
		}
	}
}
