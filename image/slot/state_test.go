package slot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestState(t *testing.T) {
	s := State{filepath.Join(t.TempDir(), "edge-image")}
	if u, err := s.Upgrade(); u != nil || err != nil {
		t.Fatalf("at first: %v, %v", u, err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want := &Upgrade{Stage: Staged, Version: "1.2.0", Slot: B, From: "1.1.0", Tries: 3, By: "root", Since: now, Drain: "why"}
	put(t, filepath.Join(s.Dir, "upgrade.json.new"), nil) // a power cut has left it, for all to read
	if err := s.SetUpgrade(want, now); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(s.Dir, "upgrade.json")); err != nil || info.Mode() != 0o600 {
		t.Error(info.Mode(), err)
	}
	got, err := s.Upgrade()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" || !got.OnTrial() {
		t.Error(d)
	}
	for i := range 25 {
		if err := s.Refuse(Refused{Version: fmt.Sprint(i % 22), When: now, Check: "bgp", Reason: "no peer"}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := s.Refused()
	if err != nil || len(list) != maxRefused {
		t.Fatalf("%d are refused, %v", len(list), err)
	}
	if r := RefusedOf(list, "21"); r == nil || r.Times != 1 || RefusedOf(list, "none") != nil {
		t.Error(r)
	}
	if err := s.Refuse(Refused{Version: "21", When: now, Check: "xdp"}); err != nil {
		t.Fatal(err)
	}
	if list, _ = s.Refused(); list[len(list)-1].Times != 2 || list[len(list)-1].Check != "xdp" {
		t.Error(list[len(list)-1])
	}
	if err := errors.Join(s.Forgive("21"), s.Forgive("none")); err != nil {
		t.Fatal(err)
	}
	if list, _ = s.Refused(); len(list) != maxRefused-1 || RefusedOf(list, "21") != nil {
		t.Error("it is not forgiven")
	}
	for i := range maxBoots + 5 {
		if err := s.AddBoot(Boot{ID: fmt.Sprint(i / 2), Version: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	boots, err := s.Boots()
	if err != nil || len(boots) != (maxBoots+5+1)/2 || boots[0].Version != "1" {
		t.Errorf("%d boots, the first is %+v, %v", len(boots), boots[0], err)
	}
}

// TestStateOfNewer: what a newer version has written is neither guessed at nor
// replaced.
func TestStateOfNewer(t *testing.T) {
	s := State{t.TempDir()}
	text := []byte(`{"format":2,"stage":"staged","version":{"new":"shape"}}`)
	for _, name := range []string{upgradeFile, refusedName, bootsName} {
		put(t, filepath.Join(s.Dir, name), text)
	}
	if _, err := s.Upgrade(); !errors.Is(err, ErrNewer) {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"upgrade": s.SetUpgrade(&Upgrade{}, time.Now()), "refuse": s.Refuse(Refused{Version: "1"}), "boot": s.AddBoot(Boot{ID: "1"}), "forgive": s.Forgive("1"),
	} {
		if !errors.Is(err, ErrNewer) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, name := range []string{upgradeFile, refusedName, bootsName} {
		if b, err := os.ReadFile(filepath.Join(s.Dir, name)); err != nil || string(b) != string(text) {
			t.Errorf("%s was changed to %s", name, b)
		}
	}
	put(t, filepath.Join(s.Dir, upgradeFile), []byte("{torn"))
	if _, err := s.Upgrade(); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Error(err)
	}
	if err := s.SetUpgrade(&Upgrade{Version: "1"}, time.Now()); err != nil {
		t.Errorf("what is torn cannot be replaced: %v", err)
	}
}

func FuzzState(f *testing.F) {
	f.Add([]byte(`{"format":1,"stage":"staged","version":"1.2.0"}`))
	f.Add([]byte(`{"format":9}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var u Upgrade
		if err := decodeState(b, &u); err == nil && u.Format > stateFormat {
			t.Errorf("format %d is taken", u.Format)
		}
		decodeState(b, &refusedFile{})
		decodeState(b, &bootsFile{})
	})
}

func TestReserve(t *testing.T) {
	s := State{t.TempDir()}
	put(t, filepath.Join(s.FetchDir(), "root-1"), []byte("x"))
	if err := errors.Join(s.Reserve(), s.Reserve()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(s.Dir, "reserve")); err != nil || info.Size() != reserveSize {
		t.Fatal(info, err)
	}
	if err := errors.Join(s.Release(), s.Release()); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(s.Dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "lock")
	unlock, err := Lock(path, "alice (edgectl, pid 7): edgectl upgrade")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path, "bob"); err == nil || !strings.Contains(err.Error(), "alice (edgectl, pid 7): edgectl upgrade") {
		t.Errorf("a second one: %v", err)
	}
	unlock()
	unlock, err = Lock(path, "bob")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
