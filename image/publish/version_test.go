package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/image/slot"
)

// TestVersionScript: one version is for the image and for the package, in a form that
// boxes take, and a release candidate is older than what it becomes.
func TestVersionScript(t *testing.T) {
	script := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "../version.sh", args...).Output()
		return strings.TrimSuffix(string(out), "\n"), err
	}
	for version, want := range map[string]string{"1.2.0": "1.2.0", "1.2.0~rc1": "1.2.0~rc1", "1.2.0-rc1": "1.2.0~rc1", "1.2-rc.1": "1.2~rc.1", "3": "3"} {
		got, err := script(version)
		if err != nil || got != want || slot.CheckVersion(got) != nil {
			t.Errorf("%s is %q, %v", version, got, err)
		}
		if plain, _, pre := strings.Cut(got, "~"); pre && slot.Compare(got, plain) >= 0 {
			t.Errorf("%s is not older than %s", got, plain)
		}
	}
	b, err := os.ReadFile("../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {""}} {
		if got, err := script(args...); err != nil || got != strings.TrimSpace(string(b)) {
			t.Errorf("%q: %q, %v", args, got, err)
		}
	}
	for _, version := range []string{"v1.2.0", "1.2 0", "1.2.0+x", "-rc1", "1..2", "1.2.0-", "1.2.0-rc1-2", "1.2.0~rc1~2", "1.2.0_1", "1\n2", strings.Repeat("1", 65)} {
		if got, err := script(version); err == nil {
			t.Errorf("%q is taken for %s", version, got)
		}
	}
}
