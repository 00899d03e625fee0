package setup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const bootA, bootB = "boot-a", "boot-b"

func storeOptions(dir string) StoreOptions {
	return StoreOptions{
		Dir: filepath.Join(dir, "edge-config"), Version: "1.0.0", Now: time.Now,
		Owner: func(user, _ string) (int, int) {
			switch user {
			case "edged":
				return 4001, 4001
			case "edgebgp":
				return 4002, 4002
			}
			return 0, 4003
		},
	}
}

func openStore(t testing.TB, o StoreOptions) *Store {
	t.Helper()
	s, err := OpenStore(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// add makes t the current generation, as an operator does without a way back.
func add(t testing.TB, s *Store, tree Tree) int {
	t.Helper()
	c, problems := Check(tree)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	n, err := s.Add(tree, c, Generation{Source: "test", Operator: true})
	if err == nil {
		err = s.Switch(n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestStore(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, storeOptions(dir))
	if n, err := s.Current(); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	good := goodTree(t)
	first := add(t, s, good)
	got, err := s.Load(first)
	if err != nil || got.Digest() != good.Digest() {
		t.Errorf("loaded %q: %v", got.names(), err)
	}
	g, err := s.Describe(first)
	if err != nil || g.Number != 1 || g.Format != format || g.Source != "test" || g.Version != "1.0.0" || g.Created.IsZero() {
		t.Errorf("%+v %v", g, err)
	}
	for name, want := range map[string]struct {
		uid  uint32
		mode os.FileMode
	}{"secrets/node.key": {4001, 0o600}, "secrets/bgp/r.key": {4002, 0o600}, "secrets/tls/web.key": {0, 0o640}, "edge.yaml": {0, 0o644}, generationFile: {0, 0o600}, "health.d/10-disk": {0, 0o755}} {
		info, err := os.Stat(filepath.Join(dir, "edge-config/current", name))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != want.uid || info.Mode() != want.mode {
			t.Errorf("%s: uid %d mode %s", name, st.Uid, info.Mode())
		}
	}
}

// TestTimesStay: edged takes a key of BGP with another time for another key.
func TestTimesStay(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, storeOptions(dir))
	good := goodTree(t)
	add(t, s, good)
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	stat := func(name string) time.Time {
		info, err := os.Stat(filepath.Join(dir, "edge-config/current", name))
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	for _, name := range []string{"secrets/bgp/r.key", "edge.yaml"} {
		if err := os.Chtimes(filepath.Join(dir, "edge-config/current", name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	add(t, s, good.changed("hold: 3s", "hold: 4s"))
	if got := stat("secrets/bgp/r.key"); !got.Equal(old) {
		t.Errorf("the same key has the time %s, want %s", got, old)
	}
	if got := stat("edge.yaml"); got.Equal(old) {
		t.Error("another edge.yaml has the time of the old one")
	}
	add(t, s, good.with(map[string]string{"secrets/bgp/r.key": "hunter3-bgp\n"}))
	if got := stat("secrets/bgp/r.key"); got.Equal(old) {
		t.Error("another key of the same size has the time of the old one")
	}
}

func TestTidy(t *testing.T) {
	s := openStore(t, storeOptions(t.TempDir()))
	good := goodTree(t)
	add(t, s, good)
	if _, err := s.Confirm(); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		add(t, s, good.changed("hold: 3s", fmt.Sprintf("hold: %ds", 10+i)))
		if i == 1 { // the next one tidies too
			if err := s.SetPending(&Pending{From: 3, To: 9}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Mkdir(s.dirOf(9)+"/../.new-killed", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.Tidy(); err != nil {
		t.Fatal(err)
	}
	all, err := s.Generations()
	if want := []int{1, 3, 5, 6, 7, 8, 9}; err != nil || !slices.Equal(all, want) {
		t.Errorf("kept %v, want %v: %v", all, want, err)
	}
	if _, err := os.Stat(s.dirOf(9) + "/../.new-killed"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a killed process has left is still there: %v", err)
	}
}

func TestLock(t *testing.T) {
	o := storeOptions(t.TempDir())
	a, b := openStore(t, o), openStore(t, o)
	unlock, err := a.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Lock(); err == nil {
		t.Error("two have the lock")
	}
	unlock()
	if unlock, err = b.Lock(); err != nil {
		t.Fatal(err)
	}
	unlock()
}

// TestPlain: a box that was not made from the image keeps its folder, of which
// one file is changed.
func TestPlain(t *testing.T) {
	dir := t.TempDir()
	o := storeOptions(dir)
	o.File = filepath.Join(dir, "edge.yaml")
	if err := os.WriteFile(o.File, []byte("old\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(o.File, 0, 4009); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, o)
	tree := Tree{configFile: goodTree(t)[configFile]}
	c, problems := CheckConfig(tree)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	old, err := s.Add(Tree{configFile: []byte("old\n")}, nil, Generation{Source: "found"})
	if err == nil {
		err = s.Switch(old)
	}
	n, addErr := s.Add(tree, c, Generation{})
	if err = errors.Join(err, addErr, s.Switch(n)); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(o.File)
	info, statErr := os.Stat(o.File)
	if err != nil || statErr != nil || string(b) != string(tree[configFile]) || info.Mode() != 0o640 || info.Sys().(*syscall.Stat_t).Gid != 4009 {
		t.Errorf("%q %v %v", b, info, err)
	}
	if err := s.Revert(Pending{From: old, To: n}, "test"); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(o.File); string(b) != "old\n" {
		t.Errorf("%q %v", b, err)
	}
}

// A killed process is a child of the test that kills itself at a given step.

const crashEnv = "EDGE_TEST_CRASH" // step, folder, what to do

// crashing runs the child's part, in a process that was started for it.
func crashing() bool {
	spec := strings.SplitN(os.Getenv(crashEnv), " ", 3)
	if len(spec) != 3 {
		return false
	}
	at, _ := strconv.Atoi(spec[0])
	o := storeOptions(spec[1])
	steps := 0
	o.step = func(string) {
		if steps++; steps == at {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	if err := crashWork(o, spec[1], spec[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(steps)
	os.Exit(0)
	return true
}

// crashWork is what is killed: it brings the tree in dir/next into force.
func crashWork(o StoreOptions, dir, what string) error {
	s, err := OpenStore(o)
	if err != nil {
		return err
	}
	next, _, err := ReadTree(filepath.Join(dir, "next"))
	if err != nil {
		return err
	}
	switch what {
	case "boot":
		_, err = Boot(Options{Store: s, Volumes: oneVolume{filepath.Join(dir, "next")}, Place: testPlace(dir), Version: o.Version, BootID: bootB})
		return err
	case "revert":
		p, err := s.Pending()
		if err != nil || p == nil {
			return errors.Join(err, errors.New("nothing is pending"))
		}
		return s.Revert(*p, "test")
	}
	c, problems := Check(next)
	if len(problems) > 0 {
		return problems
	}
	cur, err := s.Current()
	if err != nil {
		return err
	}
	n, err := s.Add(next, c, Generation{Source: "operator", Operator: true})
	if err == nil {
		err = s.SetPending(&Pending{From: cur, To: n, BootID: bootA})
	}
	if err == nil {
		err = s.Switch(n)
	}
	if err == nil {
		_, err = s.Confirm()
	}
	return errors.Join(err, s.Tidy())
}

// crash runs work in a child that is killed at a step; whole says that it was
// done before.
func crash(t *testing.T, dir, what string, at int) (whole bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s %s", crashEnv, at, dir, what))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return false
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", what, err, out)
	}
	return true
}

// TestKilled kills a process at each of its steps: the old configuration or the
// new one is in force, whole, and the same work done again ends with the new one.
func TestKilled(t *testing.T) {
	good := goodTree(t)
	next := good.changed("hold: 3s", "hold: 4s").with(map[string]string{"hostname": "other\n"}, "secrets/old-gossip.key")
	for _, what := range []string{"apply", "boot", "revert"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for at := 1; ; at++ {
				dir := t.TempDir()
				s := openStore(t, storeOptions(dir))
				old := add(t, s, good)
				writeTree(t, filepath.Join(dir, "next"), next)
				if what == "revert" {
					n := add(t, s, next)
					if err := s.SetPending(&Pending{From: old, To: n, BootID: bootA}); err != nil {
						t.Fatal(err)
					}
				}
				whole := crash(t, dir, what, at)
				oldOrNew(t, s, at, good, next)
				again, want := what, next
				if what == "revert" {
					again, want = "boot", good // another boot takes it back, with no word of the volume
					if err := os.RemoveAll(filepath.Join(dir, "next")); err != nil {
						t.Fatal(err)
					}
					writeTree(t, filepath.Join(dir, "next"), good)
				}
				if err := crashWork(storeOptions(dir), dir, again); err != nil {
					t.Fatalf("step %d, again: %v", at, err)
				}
				if n, err := s.Current(); err != nil || mustLoad(t, s, n).Digest() != want.Digest() {
					t.Errorf("step %d: in the end generation %d: %v", at, n, err)
				}
				if left, _ := filepath.Glob(filepath.Join(dir, "edge-config/gen/.*")); len(left) > 0 {
					t.Errorf("step %d: %q is left", at, left)
				}
				if whole {
					if at < 4 {
						t.Errorf("only %d steps", at)
					}
					return
				}
			}
		})
	}
}

func mustLoad(t *testing.T, s *Store, n int) Tree {
	t.Helper()
	tree, err := s.Load(n)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func oldOrNew(t *testing.T, s *Store, at int, trees ...Tree) {
	t.Helper()
	n, err := s.Current()
	if err != nil || n == 0 {
		t.Fatalf("step %d: generation %d is in force: %v", at, n, err)
	}
	got := mustLoad(t, s, n)
	if !slices.ContainsFunc(trees, func(tree Tree) bool { return tree.Digest() == got.Digest() }) {
		t.Errorf("step %d: neither the old nor the new configuration is in force", at)
	}
	if _, problems := Check(got); len(problems) > 0 {
		t.Errorf("step %d: %v", at, problems)
	}
	all, err := s.Generations()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all { // also those that are not in force are whole
		if _, problems := Check(mustLoad(t, s, n)); len(problems) > 0 {
			t.Errorf("step %d: generation %d: %v", at, n, problems)
		}
		if _, err := s.Describe(n); err != nil {
			t.Errorf("step %d: %v", at, err)
		}
	}
}
