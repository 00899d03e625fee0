package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/image/slot"
)

// TestTwoNames: what a power cut in a rename on the EFI partition leaves, once that was
// checked. One name stays, whole and without a counter, and the upgrade ends.
func TestTwoNames(t *testing.T) {
	t.Parallel()
	const good, counted, before = "edge_1.2.0.efi", "edge_1.2.0+2-1.efi", "edge_1.2.0+3.efi"
	uki := func(name string) string { return ukiFolder + "/" + name }
	for _, c := range []struct {
		name  string
		names []string // of the whole program
		cut   []string // of files that are empty after the check
		other []string // of another program
		wild  bool     // the partition was not checked
		fails string
	}{
		{name: "in the blessing, both whole", names: []string{good, counted}},
		{name: "the old name is cut", names: []string{good}, cut: []string{counted}},
		{name: "the new name is cut", names: []string{counted}, cut: []string{good}},
		{name: "by systemd-boot", names: []string{before, counted}},
		{name: "by systemd-boot, the new one is cut", names: []string{before}, cut: []string{counted}},
		{name: "both, one after the other", names: []string{good, counted, before}},
		{name: "one is of other bytes", names: []string{counted}, other: []string{good}},
		{name: "not checked", names: []string{good, counted}, wild: true, fails: "may share their content: systemctl status edge-esp"},
		{name: "none is whole", cut: []string{good, counted}, fails: "none that is whole"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newTrial(t)
			b.must("upgrade", b.payload("1.2.0"))
			b.boot("1.2.0", slot.B)
			b.must("appliance", "health")
			program := b.read(uki(counted))
			if err := os.Remove(filepath.Join(b.root, uki(counted))); err != nil {
				t.Fatal(err)
			}
			for content, names := range map[string][]string{program: c.names, "": c.cut, "MZ" + strings.Repeat("x", 9000): c.other} {
				for _, n := range names {
					b.put(uki(n), []byte(content))
				}
			}
			if !c.wild {
				b.put(espChecked, nil)
			}
			if c.fails != "" {
				b.refuses(c.fails, "appliance", "resume", "--within=50ms")
				for _, n := range append(c.names, c.cut...) {
					b.read(uki(n)) // is there still
				}
				return
			}
			b.must("appliance", "resume")
			b.expectESP("1.2.0 1.1.0")
			files, err := os.ReadDir(filepath.Join(b.root, ukiFolder))
			if err != nil || len(files) != 2 || b.read(uki(good)) != program {
				t.Errorf("%v, %v", files, err)
			}
			if u := b.upgrade(); u.Stage != slot.Good || len(b.node.drains) != 0 {
				t.Errorf("%+v, %v", u, b.node.drains)
			}
		})
	}
}

// TestWhole: without a manifest, as after a rollback.
func TestWhole(t *testing.T) {
	t.Parallel()
	n := func(name, sum string) named {
		u, _ := slot.ParseUKI(name)
		return named{UKI: u, file: slot.ESPFile{Name: name}, sum: sum}
	}
	for want, all := range map[string][]named{
		"edge_1.efi":     {n("edge_1+2-1.efi", "a"), n("edge_1.efi", "a")},
		"edge_1+2-1.efi": {n("edge_1+2-1.efi", "a"), n("edge_1.efi", "")},
		"they differ":    {n("edge_1+2-1.efi", "a"), n("edge_1.efi", "b")},
		"none that":      {n("edge_1+2-1.efi", ""), n("edge_1.efi", "")},
	} {
		got, err := whole(all, nil)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && got.file.Name != want {
			t.Errorf("%s: %s, %v", want, got.file.Name, err)
		}
	}
}
