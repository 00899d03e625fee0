package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/guard"
)

// TestGuardKey: what is written is what edged reads, and what is printed is what
// the configuration takes; openssl reads it too.
func TestGuardKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.key")
	stdout, stderr, code := call(t, false, "guard", "key", "--out", path)
	printed, ok := strings.CutPrefix(strings.TrimSpace(stdout), "public_key: ")
	if code != exitOK || !ok || stderr != "" {
		t.Fatalf("exit %d: %q, %q", code, stdout, stderr)
	}
	key, err := guard.ReadNodeKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := guard.PublicKey(key).String(); got != printed {
		t.Errorf("printed %s, but the key in the file is that of %s", printed, got)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if out, err := exec.Command("openssl", "pkey", "-in", path, "-noout", "-text").CombinedOutput(); err != nil || !strings.Contains(string(out), "ED25519 Private-Key") {
		t.Errorf("openssl: %v\n%s", err, out)
	}
	if stdout, stderr, code := call(t, false, "guard", "key", "--show", path); code != exitOK || stdout != "public_key: "+printed+"\n" || stderr != "" {
		t.Errorf("show: exit %d: %q, %q", code, stdout, stderr)
	}
	if _, stderr, code := call(t, false, "guard", "key", "--show", os.Args[0]); code != exitRefused || !strings.Contains(stderr, "does not hold an Ed25519 key") {
		t.Errorf("show what is no key: exit %d: %q", code, stderr)
	}
	if _, stderr, code := call(t, false, "guard", "key", "--show", path, "--out", path+"3"); code == exitOK || stderr == "" {
		t.Errorf("show and make: exit %d: %q", code, stderr)
	}
	before, _ := os.ReadFile(path)
	if _, stderr, code := call(t, false, "guard", "key", "--out", path); code != exitRefused || !strings.Contains(stderr, "exists already") {
		t.Errorf("exit %d: %q", code, stderr)
	}
	if after, _ := os.ReadFile(path); string(before) != string(after) {
		t.Error("an existing key was replaced")
	}
	stdout, _, _ = call(t, false, "-o", "json", "guard", "key", "--out", path+"2")
	var out map[string]string
	if err := json.Unmarshal([]byte(stdout), &out); err != nil || out["file"] != path+"2" || len(out["public_key"]) != 44 {
		t.Errorf("%v: %s", err, stdout)
	}
}
