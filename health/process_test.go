package health

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/catchment-dev/edge"
)

func pidFileOf(t *testing.T, pid int) string {
	return fileWith(t, strconv.Itoa(pid)+"\n")
}

func fileWith(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.pid")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestProcess(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, file, want string }{
		{"alive", pidFileOf(t, os.Getpid()), ""},
		{"alive, more lines", fileWith(t, fmt.Sprintf(" %d \n/var/lib/x\n", os.Getpid())), ""},
		{"no file", "/nonexistent/a.pid", "read pid file /nonexistent/a.pid: no such file or directory"},
		{"a directory", t.TempDir(), "not a regular file"},
		{"a fifo", fifo, "not a regular file"},
		{"empty", fileWith(t, ""), "it is empty"},
		{"garbage", fileWith(t, "edgeproxy\n"), `"edgeproxy" is not a pid`},
		{"zero", fileWith(t, "0"), `"0" is not a pid`},
		{"negative", fileWith(t, "-1"), `"-1" is not a pid`},
		{"too large", fileWith(t, "99999999999999999999"), "is not a pid"},
		{"nobody", pidFileOf(t, maxPID), fmt.Sprintf("process %d does not exist", maxPID)},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, once(t, edge.Probe{Kind: edge.ProbeProcess, PIDFile: c.file}), c.want)
		})
	}
}

// TestProcessDies follows a real process: alive, a zombie, reaped.
func TestProcessDies(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := edge.Probe{Kind: edge.ProbeProcess, PIDFile: pidFileOf(t, cmd.Process.Pid)}
	expect(t, once(t, p), "")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "killed process is no longer alive", func() bool { return once(t, p) != nil })
	expect(t, once(t, p), fmt.Sprintf("process %d is a zombie", cmd.Process.Pid))
	_ = cmd.Wait() // "signal: killed"
	expect(t, once(t, p), fmt.Sprintf("process %d does not exist", cmd.Process.Pid))
}

func TestParseState(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]byte{
		"1 (init) S 0":            'S',
		"7 (a) Z (b) R 0":         'R', // the name of the process is "a) Z (b"
		"7 (tricky) Z) Z":         'Z',
		"7 (a":                    0,
		"7 (a)":                   0,
		"7 (a) ":                  0,
		"":                        0,
		"9 (very (nested)) Z 1 2": 'Z',
	} {
		got, err := parseState([]byte(in))
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("parseState(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
}

func FuzzPID(f *testing.F) {
	for _, s := range []string{"1\n", "4194304", "", "0", "-5", "12 13", "0x10", "+7", "\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		pid, err := parsePID(b)
		if (err == nil) != (pid >= 1 && pid <= maxPID) {
			t.Errorf("parsePID(%q) = %d, %v", b, pid, err)
		}
	})
}

func FuzzState(f *testing.F) {
	for _, s := range []string{"1 (init) S 0", "7 (a", ")", ") ", "x) y"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if state, err := parseState(b); err == nil && len(b) < 3 {
			t.Errorf("parseState(%q) = %q without an error", b, state)
		}
	})
}
