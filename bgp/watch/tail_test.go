package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what is to come, on a busy box too.
const patience = time.Minute

// run starts a Watcher in real time.
func run(t *testing.T, cfg Config) *Watcher {
	t.Helper()
	w := New(Options{})
	if err := w.Set(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run does not end")
		}
	})
	return w
}

// eventually waits until the State is as ok says.
func eventually(t *testing.T, w *Watcher, what string, ok func(State) bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(w.State()); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not %s: %+v", what, w.State())
		}
	}
}

// sees waits for a number of vantage points that see a hijack, and of lines.
func sees(t *testing.T, w *Watcher, hijacks int, lines, dropped uint64) {
	t.Helper()
	eventually(t, w, fmt.Sprintf("%d hijacks, %d lines, %d dropped", hijacks, lines, dropped), func(s State) bool {
		count := 0
		for _, a := range s.Alarms {
			if a.Kind == UnexpectedOrigin {
				count += a.Count
			}
		}
		return count == hijacks && s.Lines == lines && s.Dropped == dropped
	})
}

// hijackAt is what the vantage point n sees of a hijack, now.
func hijackAt(n int) string {
	return strings.Replace(ris("rrc01", fmt.Sprint(n), `[1,666]`, announce("192.0.2.0/24")), "1767225600.25", "0", 1) + "\n"
}

func add(t *testing.T, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func fromFile(path string) Config { return Config{Own: []Own{own("192.0.2.0/24")}, File: path} }

// TestFile: a file that is not there yet, grows, is rotated in either way, is
// truncated, and goes.
func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "feed")
	w := run(t, fromFile(path))
	eventually(t, w, "in trouble", func(s State) bool {
		return !s.Connected && s.LastErr == "stat: no such file or directory" && s.Source == path
	})
	add(t, path, hijackAt(1))
	sees(t, w, 1, 1, 0)
	if s := w.State(); !s.Connected || s.LastErr != "" {
		t.Errorf("%+v", s)
	}
	line := hijackAt(2)
	add(t, path, line[:50]) // a line in two pieces
	add(t, path, line[50:]+"garbage\n")
	sees(t, w, 2, 3, 1)

	// Renamed: the writer goes on with the old one until it opens a new one.
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	add(t, path+".1", hijackAt(3))
	sees(t, w, 3, 4, 1)
	eventually(t, w, "in trouble", func(s State) bool { return s.Connected && strings.HasPrefix(s.LastErr, "the file has been removed") })
	add(t, path+".1", hijackAt(4)+hijackAt(5)[:20])
	add(t, path, hijackAt(6))
	sees(t, w, 5, 7, 2) // 4 and 6, and the half of 5 is dropped
	eventually(t, w, "well", func(s State) bool { return !strings.Contains(s.LastErr, "removed") })

	// Copied and truncated.
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	add(t, path, "\n")
	add(t, path, strings.Replace(hijackAt(7), "666", "64500", 1))
	sees(t, w, 5, 8, 2)

	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o755)); err != nil {
		t.Fatal(err)
	}
	eventually(t, w, "in trouble", func(s State) bool { return !s.Connected && s.LastErr == "neither a regular file nor a FIFO" })
	sees(t, w, 5, 8, 2)
	if err := w.Set(Config{Own: []Own{own("192.0.2.0/24")}}); err != nil {
		t.Fatal(err)
	}
	sees(t, w, 0, 0, 0)
}

// TestFileBacklog: of a large file only the end is read.
func TestFileBacklog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "feed")
	add(t, path, hijackAt(1))
	if err := os.Truncate(path, maxBacklog+500); err != nil { // sparse
		t.Fatal(err)
	}
	add(t, path, "\n"+hijackAt(2))
	w := run(t, fromFile(path))
	sees(t, w, 1, 1, 0) // the hole is the rest of a line, of which the beginning was not read
}

// TestFIFO: writers come and go; without any there is no trouble.
func TestFIFO(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "feed")
	if err := syscall.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
	w := run(t, fromFile(path))
	eventually(t, w, "connected", func(s State) bool { return s.Connected })
	for round := range 2 {
		before := w.State().Lines
		for n := range 3 {
			add(t, path, hijackAt(n)) // waits for a reader
		}
		sees(t, w, 3+round, before+3, 0) // the one of the round before is still seen
		writer, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		line := hijackAt(3)
		for _, piece := range []string{hijackAt(0), line[:9], line[9:]} {
			if _, err := writer.WriteString(piece); err != nil {
				t.Fatal(err)
			}
		}
		sees(t, w, 4, before+5, 0)
		if round == 1 { // the reader waits for more: it stops at once
			if err := w.Set(Config{Own: []Own{own("192.0.2.0/24")}}); err != nil {
				t.Fatal(err)
			}
			var err error
			for deadline := time.Now().Add(patience); err == nil && !time.Now().After(deadline); time.Sleep(5 * time.Millisecond) {
				_, err = writer.WriteString("\n")
			}
			if !errors.Is(err, syscall.EPIPE) {
				t.Errorf("it is still read: %v", err)
			}
		}
		writer.Close()
		if round == 1 {
			break
		}
		// Another one in its place.
		if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o644)); err != nil {
			t.Fatal(err)
		}
		if err := w.Set(fromFile(path)); err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			add(t, path, strings.Replace(hijackAt(n), "666", "64500", 1))
		}
		sees(t, w, 1, before+8, 0)
	}
}
