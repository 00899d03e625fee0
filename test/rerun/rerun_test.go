package rerun

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// run runs run.sh with packages of testdata, which remember in folder mark what
// they have done. There is no terminal.
func run(t *testing.T, out, mark string, packages ...string) (code int, said string) {
	t.Helper()
	for i, p := range packages {
		packages[i] = "./test/rerun/testdata/" + p
	}
	cmd := exec.Command("bash", "test/rerun/run.sh", out, "some", strings.Join(packages, " "), "-timeout", "20s", "-race", "-args", "-mark="+mark)
	cmd.Dir = "../.."
	b, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode(), string(b)
	} else if err != nil {
		t.Fatal(err)
	}
	return 0, string(b)
}

const prefix = "github.com/catchment-dev/edge/test/rerun/testdata/"

// TestRun: only what fails once and passes alone is excused, and it is told.
func TestRun(t *testing.T) {
	for _, c := range []struct {
		packages string
		ok       bool
		says     []string
		flaky    []string
	}{
		{"passes", true, []string{"ok  \t" + prefix + "passes"}, nil},
		{"passes flaky", true, []string{"ok  \t" + prefix + "passes", "the first time", "1 FLAKY"}, []string{"flaky.TestOnce", "flaky.TestOnce/inner_part"}},
		{"fails flaky", false, []string{"every time"}, []string{"flaky.TestOnce", "flaky.TestOnce/inner_part"}},
		{"leaks", false, []string{"a leak", "no test of it"}, nil},
		{"leaks flaky", false, []string{"a leak", "no test of it"}, []string{"flaky.TestOnce", "flaky.TestOnce/inner_part"}},
		{"panics", false, []string{"panic: once"}, nil},
		{"hangs", false, []string{"test timed out"}, nil},
		{"races", false, []string{"DATA RACE"}, nil},
		{"broken passes", false, []string{"undefined: nothing", "build failed"}, nil},
		{"many", false, []string{"failures (4) exceeds"}, nil},
	} {
		t.Run(c.packages, func(t *testing.T) {
			t.Parallel()
			out := t.TempDir()
			code, said := run(t, out, t.TempDir(), strings.Fields(c.packages)...)
			if (code == 0) != c.ok {
				t.Errorf("exit code %d", code)
			}
			for _, want := range c.says {
				if !strings.Contains(said, want) {
					t.Errorf("it does not say %q", want)
				}
			}
			var want strings.Builder
			for _, name := range c.flaky {
				want.WriteString(prefix + name + ": failed, and passed when it ran alone\n")
			}
			if b, err := os.ReadFile(filepath.Join(out, "flaky.txt")); err != nil || string(b) != want.String() {
				t.Errorf("flaky.txt: %v, %s", err, b)
			}
			if t.Failed() {
				t.Log(said)
			}
		})
	}
}

// TestMost: a fourth flaky test fails, whichever run of make test has the others.
func TestMost(t *testing.T) {
	out := t.TempDir()
	for n := range 4 {
		code, said := run(t, out, t.TempDir(), "flaky")
		if (code != 0) != (n == 3) {
			t.Errorf("after %d: exit code %d: %s", n+1, code, said)
		}
	}
}
