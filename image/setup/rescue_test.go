package setup

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRescueAgain: a first configuration that is taken back shuts nobody out, and lets
// nobody in.
func TestRescueAgain(t *testing.T) {
	good := goodTree(t)
	for _, c := range []struct {
		what     string
		source   Tree
		keys     string
		password bool
	}{
		{"a key alone", Tree{"authorized_keys": good["authorized_keys"]}, string(good["authorized_keys"]), false},
		{"a password alone", Tree{"password": good["password"]}, "", true},
		{"neither", Tree{"edge.yaml": []byte("node: {}\n")}, "", false},
	} {
		b := newBox(t)
		b.want(b.boot(c.source), Rescue, 0, "edge.yaml")
		if _, err := b.place.Good(good, Result{Generation: 1}); err != nil {
			t.Fatal(err)
		}
		if err := b.place.Rescue(Result{Errors: []string{"it was taken back"}}); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(filepath.Join(b.place.Run, "edge-setup/authorized_keys")); string(got) != c.keys {
			t.Errorf("%s: keys %q", c.what, got)
		}
		if _, err := os.Stat(filepath.Join(b.place.Run, serialLogin)); (err != nil) != c.password {
			t.Errorf("%s: the serial line: %v", c.what, err)
		}
	}
}
