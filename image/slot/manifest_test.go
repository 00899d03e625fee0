package slot

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseManifest(t *testing.T) {
	dir, m := newSystem("1.2.0").pack(t, newSigner(t))
	text, err := os.ReadFile(filepath.Join(dir, ManifestName))
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseManifest(text)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(m, got); d != "" {
		t.Error(d)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"format":1`, `"format":2`, "its format is 2"},
		{`"format":1`, `"format":1,"x":1`, `unknown field "x"`},
		{`"version":"1.2.0"`, `"version":"1.2.0+3"`, "no version"},
		{`"profile":"cloud"`, `"profile":""`, "profile"},
		{`"roothash":"`, `"roothash":"0`, "roothash"},
		{`"part":"uki"`, `"part":"root"`, "no uki"},
		{`"part":"uki"`, `"part":"bios"`, "no uki"},
		{`"name":"edge_1.2.0.root.zst"`, `"name":"../edge"`, "plain name"},
		{`"name":"edge_1.2.0.root.zst"`, `"name":"manifest.json"`, "plain name"},
		{`"size":9000`, `"size":0`, "size: 0"},
		{`"size":9000`, `"size":-1`, "size: -1"},
		{`"size":9000`, `"size":99999999999999`, "size: 99999999999999"},
		{`"sha256":"`, `"sha256":"A`, "sha256"},
	} {
		bad := strings.Replace(string(text), c.old, c.new, 1)
		if bad == string(text) {
			t.Fatalf("%s is not in the manifest", c.old)
		}
		if _, err := ParseManifest([]byte(bad)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.new, err, c.want)
		}
	}
	for _, bad := range []string{"", "{}", "[]", string(text) + "x", string(text) + "{}", strings.Repeat(" ", maxManifest+1)} {
		if _, err := ParseManifest([]byte(bad)); err == nil {
			t.Errorf("%.20q is taken", bad)
		}
	}
}

func FuzzParseManifest(f *testing.F) {
	file := func(p Part) File {
		return File{p, "edge_1." + string(p), 5000, strings.Repeat("a", 64), 400, strings.Repeat("b", 64)}
	}
	text, err := json.Marshal(Manifest{Format: 1, Version: "1.2.0", Profile: "cloud", Arch: "x86-64", RootHash: strings.Repeat("c", 64), Files: []File{file(Verity), file(Root), file(Kernel)}})
	if err != nil {
		f.Fatal(err)
	}
	if _, err := ParseManifest(text); err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseManifest(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := ParseManifest(again); err != nil || !cmp.Equal(m, back) {
			t.Errorf("%v: %s", err, again)
		}
		for _, p := range parts() {
			if file := m.File(p); file.Size <= 0 || strings.ContainsAny(file.Name, "/\\\x00") {
				t.Errorf("%s: %+v", p, file)
			}
		}
	})
}

func TestRoom(t *testing.T) {
	m := &Manifest{Version: "2", Files: []File{{Part: Kernel, Size: 30 << 20}, {Part: Verity, Size: 8 << 20}, {Part: Root, Size: 700 << 20}}}
	enough := Room{ESP: 154 << 20, ESPFree: 31 << 20, Verity: 8 << 20, Root: 700 << 20}
	if err := enough.Fits(m); err != nil {
		t.Error(err)
	}
	for want, r := range map[string]Room{
		"the EFI partition has free 30 MiB, and version 2 needs 31 MiB": {enough.ESP, enough.ESPFree - 1, enough.Verity, enough.Root},
		"the EFI partition has 153 MiB, and version 2 needs 154 MiB":    {enough.ESP - 1, enough.ESPFree, enough.Verity, enough.Root},
		"the verity partition": {enough.ESP, enough.ESPFree, enough.Verity - 1, enough.Root},
		"the root partition":   {enough.ESP, enough.ESPFree, enough.Verity, enough.Root - 1},
	} {
		if err := r.Fits(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
