package setup

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGoodOfTheOtherSlot: whatever versions a box runs after each other, the
// generation of the one that it can go back to is kept, in the state and on the disk.
func TestGoodOfTheOtherSlot(t *testing.T) {
	tree := goodTree(t)
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		o := storeOptions(t.TempDir())
		slots := [2]int{0, 0} // the versions in them
		had := map[int]int{}  // what each was last good with
		running := 0
		for step := range 12 {
			switch {
			case step > 0 && r.IntN(4) == 0:
				running = 1 - running // a rollback
			case step > 0:
				slots[1-running] = r.IntN(6)
				running = 1 - running
			}
			o.Version = fmt.Sprintf("1.%d.0", slots[running])
			s := openStore(t, o)
			// Under a new version somebody changes something, or nobody does.
			n, err := s.Current()
			if err != nil || n == 0 || r.IntN(2) == 0 {
				n = add(t, s, tree.with(map[string]string{"hostname": fmt.Sprintf("n%d-%d\n", seed, step)}))
			}
			if _, err := s.Confirm(); err != nil {
				t.Fatal(err)
			}
			if err := s.Tidy(); err != nil {
				t.Fatal(err)
			}
			had[slots[running]] = n
			st := s.State()
			for _, slot := range slots {
				want, ran := had[slot]
				version := fmt.Sprintf("1.%d.0", slot)
				if got := st.Good[version]; ran && got != want {
					t.Fatalf("seed %d, step %d: %s was good with %d and the state says %d: %+v", seed, step, version, want, got, st)
				}
				if ran {
					mustLoad(t, s, want)
				}
			}
			if len(st.Good) > maxGood || len(st.Good) != len(st.Recent) {
				t.Fatalf("seed %d, step %d: %+v", seed, step, st)
			}
		}
	}
}

// TestGoodOfBefore: a state that a version without the order has written.
func TestGoodOfBefore(t *testing.T) {
	o := storeOptions(t.TempDir())
	o.Version = "1.6.0"
	s := openStore(t, o)
	add(t, s, goodTree(t))
	old := `{"format": 1, "good": {"1.1.0": 1, "1.2.0": 1, "1.3.0": 1, "1.4.0": 1, "1.5.0": 1}}`
	if err := os.WriteFile(filepath.Join(o.Dir, stateFile), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.Confirm(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(sortedKeys(s.State().Good), " "); got != "1.3.0 1.4.0 1.5.0 1.6.0" {
			t.Errorf("kept %s", got)
		}
	}
}

// TestDamagedPending: nobody has confirmed a change of which nothing can be read.
func TestDamagedPending(t *testing.T) {
	b := newBox(t)
	good := goodTree(t)
	b.boot(good)
	s := b.store()
	if err := s.ConfirmBoot(); err != nil {
		t.Fatal(err)
	}
	n := add(t, s, good.changed("hold: 3s", "hold: 5s"))
	if err := os.WriteFile(filepath.Join(b.dir, "edge-config", PendingFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := b.boot(good); r.State != OK || r.Generation != 1 || !strings.Contains(strings.Join(r.Notes, "\n"), fmt.Sprintf("generation %d was taken back", n)) {
		t.Errorf("%+v", r)
	}
}
