package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestConfigSwitchFails: a change that fails between the file and the link of the store
// leaves the file as it was.
func TestConfigSwitchFails(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "edge.yaml")
	one := configTree(t, 3)["edge.yaml"]
	if err := os.WriteFile(file, one, 0o640); err != nil {
		t.Fatal(err)
	}
	c, live := openFake(t, filepath.Join(dir, "store"), file)
	wantRun(t, c, exitOK, "", "apply", file)
	told := len(live.told)
	block := filepath.Join(dir, "store", "current.new", "x") // the link cannot be made
	if err := os.MkdirAll(block, 0o755); err != nil {
		t.Fatal(err)
	}
	wantRun(t, c, exitRefused, "switch to generation", "apply", filepath.Join(folder(t, configTree(t, 4)), "edge.yaml"))
	if b, err := os.ReadFile(file); err != nil || string(b) != string(one) || len(live.told) != told {
		t.Errorf("told %q; the file is another: %v\n%s", live.told[told:], err, b)
	}
}

// TestConfigOnBroken: a store that has lost what is in force takes a good one.
func TestConfigOnBroken(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"link": func(dir string) error {
			os.Remove(filepath.Join(dir, "current"))
			return os.Symlink("nowhere", filepath.Join(dir, "current"))
		},
		"generation": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "gen")) },
	} {
		dir := t.TempDir()
		c, _ := openFake(t, dir, "")
		wantRun(t, c, exitOK, "generation 1", "apply", folder(t, configTree(t, 3)))
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		c, _ = openFake(t, dir, "")
		wantRun(t, c, exitOK, "is in force", "apply", folder(t, configTree(t, 4)))
		if n, err := c.store.Current(); err != nil || n == 0 {
			t.Errorf("%s: generation %d, %v", name, n, err)
		}
	}
}

// TestConfigFailsOften: changes that are taken back again and again do not fill the disk.
func TestConfigFailsOften(t *testing.T) {
	c, live := newConfigs(t)
	wantRun(t, c, exitOK, "generation 1", "apply", folder(t, configTree(t, 3)))
	live.fail = func(m move) error {
		if m.to.number != 1 {
			return errors.New("a reason")
		}
		return nil
	}
	for range 12 {
		wantRun(t, c, exitRefused, "generation 1 is in force again", "apply", folder(t, configTree(t, 4)))
	}
	all, err := c.store.Generations()
	if err != nil || len(all) > 7 || all[0] != 1 {
		t.Errorf("generations %v: %v", all, err)
	}
}
