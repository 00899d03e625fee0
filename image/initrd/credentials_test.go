package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPassCredentials(t *testing.T) {
	base := t.TempDir()
	beside, global, to := filepath.Join(base, "credentials"), filepath.Join(base, "global"), filepath.Join(base, "run/credentials/@initrd")
	for file, content := range map[string]string{
		beside + "/edge.yaml.cred":                       "the one beside the UKI",
		global + "/edge.yaml.cred":                       "the one of all UKIs",
		global + "/edge.secret.ring.cred":                "ring",
		global + "/systemd.extra-unit.evil.service.cred": "ExecStart=evil",
		global + "/passwd.plaintext-password.root.cred":  "secret",
		global + "/edge.txt":                             "no credential",
		global + "/edge.large.cred":                      strings.Repeat("x", mostCredential+1),
		global + "/edge.link/x":                          "",
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", global+"/edge.passwd.cred"); err != nil {
		t.Fatal(err)
	}
	passCredentials(newConsole(), []string{beside, global, filepath.Join(base, "none")}, to)
	got := map[string]string{}
	entries, err := os.ReadDir(to)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(to, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got[e.Name()] = string(b)
	}
	if diff := cmp.Diff(map[string]string{"edge.yaml": "the one beside the UKI", "edge.secret.ring": "ring"}, got); diff != "" {
		t.Error(diff)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestIsOurCredential(t *testing.T) {
	good := []string{"edge.yaml", "edge.network.10-wan.network", "edge.secret.ring_seed", "edge.bundle"}
	for _, name := range slices.Concat(good, []string{"", "edge", "edge.", "edge..", "edge./x", "edge.a/../b", "edge.a b", "edge.ä", "Edge.yaml", "ssh.authorized_keys.root", "edge." + strings.Repeat("x", 255)}) {
		if got := isOurCredential(name); got != slices.Contains(good, name) {
			t.Errorf("%q: %v", name, got)
		}
	}
}
