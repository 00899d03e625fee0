package setup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// brokenSystem can do nothing.
type brokenSystem struct{}

func (brokenSystem) Hostname(string) error                 { return errors.New("no host name") }
func (brokenSystem) Shadow(string) error                   { return errors.New("no password") }
func (brokenSystem) ReloadUnits([]string, ...string) error { return errors.New("no systemd") }

// TestSmallTroubles: a box whose name or password cannot be set announces, and
// says so.
func TestSmallTroubles(t *testing.T) {
	b := newBox(t)
	b.place.System = brokenSystem{}
	r := b.boot(goodTree(t))
	b.want(r, OK, 1, "no password")
	if text := strings.Join(r.Errors, "\n"); !strings.Contains(text, "no host name") {
		t.Errorf("errors: %s", text)
	}
	// The password is tried again, not taken for set.
	b.place.System = notes{new([]string)}
	b.want(b.again(goodTree(t).with(nil, "authorized_keys", "password")), OK, 2, "nobody can log in")
}

func TestNoDisk(t *testing.T) {
	b := newBox(t)
	v := oneVolume{writeTree(t, t.TempDir(), goodTree(t))}
	r, err := Boot(Options{NoStore: "no space", Volumes: v, Place: b.place, Version: "1", BootID: bootA})
	if err != nil || r.State != Rescue || !strings.Contains(r.String(), "no space") {
		t.Errorf("%+v %v", r, err)
	}
	b.check(r)
}

// TestDamagedState: what only remembers must never keep a box down.
func TestDamagedState(t *testing.T) {
	b := newBox(t)
	good := goodTree(t)
	b.boot(good)
	for _, name := range []string{stateFile, PendingFile, trialFile} {
		if err := os.WriteFile(filepath.Join(b.dir, "edge-config", name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := b.boot(good)
	if r.State != OK || r.Generation != 1 || len(r.Errors) > 0 {
		t.Errorf("%+v", r)
	}
}

// TestOthersFilesStay: only what a setup has placed is taken away by the next.
func TestOthersFilesStay(t *testing.T) {
	b := newBox(t)
	good := goodTree(t)
	b.boot(good)
	other := filepath.Join(b.place.Run, networkDir, "70-other.network")
	if err := os.WriteFile(other, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	same := filepath.Join(b.place.Run, networkDir, "10-uplink.network")
	before, err := os.Stat(same)
	if err != nil {
		t.Fatal(err)
	}
	b.again(good.with(map[string]string{"network/11-more.network": "[Match]\nName=eth1\n"}, "network/20-wg.netdev"))
	var have []string
	entries, err := os.ReadDir(filepath.Join(b.place.Run, networkDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		have = append(have, e.Name())
	}
	if got := strings.Join(have, " "); got != "10-uplink.link 10-uplink.network 11-more.network 70-other.network" {
		t.Errorf("files: %s", got)
	}
	if after, err := os.Stat(same); err != nil || !os.SameFile(before, after) {
		t.Errorf("a file that is the same was replaced: %v", err)
	}
}
