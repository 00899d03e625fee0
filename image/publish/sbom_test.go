package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const mkosiManifest = `{"manifest_version": 1, "config": {"name": "edge"}, "packages": [
 {"type": "deb", "name": "libc6", "version": "2.41-12+deb13u5", "architecture": "amd64"},
 {"type": "deb", "name": "gcc-14-base", "version": "14.2.0-19", "architecture": "amd64"},
 {"type": "deb", "name": "libstdc++6", "version": "14.2.0-19", "architecture": "amd64"},
 {"type": "deb", "name": "adduser", "version": "1:3.152", "architecture": "all"}]}`

func TestSBOM(t *testing.T) {
	dir := t.TempDir()
	packages, out := filepath.Join(dir, "manifest"), filepath.Join(dir, "spdx.json")
	if err := os.WriteFile(packages, []byte(mkosiManifest), 0o600); err != nil {
		t.Fatal(err)
	}
	// Any program that Go made; this one has modules.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"sbom", "-name", "edge_1.2.0_cloud", "-commit", "c0ffee", "-time", "1700000000", "-packages", packages, "-out", out, self}
	if err := run(args, io.Discard); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{"SPDXRef-DOCUMENT": true}
	refs := map[string]bool{}
	for _, p := range d.Packages {
		if ids[p.ID] || p.Name == "" || p.Location == "" || !strings.HasPrefix(p.ID, "SPDXRef-") {
			t.Errorf("twice, or not whole: %+v", p)
		}
		ids[p.ID] = true
		for _, r := range p.Refs {
			refs[r.Locator] = true
		}
	}
	for _, r := range d.Relationships {
		if !ids[r.From] || !ids[r.To] {
			t.Errorf("relationship with nothing: %+v", r)
		}
	}
	for _, want := range []string{
		"pkg:deb/debian/libc6@2.41-12%2Bdeb13u5?arch=amd64&distro=debian-13",
		"pkg:deb/debian/adduser@1%3A3.152?arch=all&distro=debian-13",
	} {
		if !refs[want] {
			t.Errorf("no %s in %v", want, refs)
		}
	}
	if d.Creation.Created != "2023-11-14T22:13:20Z" || d.Version != "SPDX-2.3" || !strings.Contains(d.Namespace, "/edge_1.2.0_cloud-") {
		t.Errorf("%+v, %s", d.Creation, d.Namespace)
	}

	if err := run(args, io.Discard); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(out); err != nil || string(again) != string(text) {
		t.Errorf("written twice, it differs: %v", err)
	}
	args[2] = "edge_1.2.1_cloud"
	if err := run(args, io.Discard); err != nil {
		t.Fatal(err)
	}
	var other document
	if b, err := os.ReadFile(out); err != nil || json.Unmarshal(b, &other) != nil || other.Namespace == d.Namespace {
		t.Errorf("another document has the same namespace %s: %v", other.Namespace, err)
	}
}

func TestSBOMRefused(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		`{"packages": []}`: "no packages",
		`{"packages": [{"type": "rpm", "name": "x", "version": "1"}]}`: "no Debian package",
		`{`: "unexpected end",
	} {
		name := filepath.Join(dir, "manifest")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := run([]string{"sbom", "-name", "n", "-packages", name, "-out", filepath.Join(dir, "out")}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q: %v", text, want, err)
		}
	}
}

func TestSPDXID(t *testing.T) {
	if a, b := spdxID("deb", "libstdc++6", "amd64"), spdxID("deb", "libstdc--6", "amd64"); a == b || strings.ContainsAny(a, "+") {
		t.Errorf("%s and %s", a, b)
	}
}
