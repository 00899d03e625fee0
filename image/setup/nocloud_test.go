package setup

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func noCloudDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestNoCloud(t *testing.T) {
	good := goodTree(t)
	var b strings.Builder
	fmt.Fprintf(&b, "#cloud-config\r\nhostname: edge-a1.example.net\npackage_upgrade: true\nssh_authorized_keys:\n  - %sruncmd: [reboot]\nwrite_files:\n", good["authorized_keys"])
	for _, name := range good.names() {
		switch name {
		case "authorized_keys", "hostname":
		case "secrets/ring.seed":
			fmt.Fprintf(&b, "  - {path: /etc/edge/%s, encoding: gz+b64, content: %s}\n", name, base64.StdEncoding.EncodeToString(zip(t, good[name])))
		default:
			fmt.Fprintf(&b, "  - path: /etc/edge/%s\n    permissions: '0777'\n    encoding: b64\n    content: %s\n", name, base64.StdEncoding.EncodeToString(good[name]))
		}
	}
	dir := noCloudDir(t, map[string]string{
		"user-data": b.String(), "network-config": "version: 2\n",
		"meta-data": "instance-id: i-1\nlocal-hostname: other\npublic-keys:\n  mine: {openssh-key: " + strings.TrimSpace(string(good["authorized_keys"])) + "}\n",
	})
	got, problems, notes, ok, err := readNoCloud(dir)
	if err != nil || !ok || len(problems) > 0 {
		t.Fatal(ok, err, problems)
	}
	if d := cmp.Diff(good, got); d != "" {
		t.Error(d)
	}
	if _, problems := Check(got); len(problems) > 0 {
		t.Error(problems)
	}
	for _, want := range []string{"package_upgrade means nothing", "runcmd means nothing", "network-config is not read"} {
		if !strings.Contains(strings.Join(notes, "\n"), want) {
			t.Errorf("no note %q in %q", want, notes)
		}
	}
}

func TestNoCloudForms(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		ok    bool
		part  string // of the tree
		want  string // in the problems
	}{
		"nothing":             {nil, false, "", ""},
		"an empty file":       {map[string]string{"user-data": "\n", "meta-data": "instance-id: x\n"}, false, "", ""},
		"an edge.yaml":        {map[string]string{"user-data": "node:\n  name: a\n", "meta-data": "local-hostname: a1\n"}, true, "edge.yaml hostname", ""},
		"a script":            {map[string]string{"user-data": "#!/bin/sh\nreboot\n"}, true, "", "this form is not taken"},
		"MIME":                {map[string]string{"user-data": "Content-Type: multipart/mixed\n"}, true, "", "this form is not taken"},
		"gzip":                {map[string]string{"user-data": "\x1f\x8b\x08"}, true, "", "this form is not taken"},
		"elsewhere":           {map[string]string{"user-data": "#cloud-config\nwrite_files: [{path: /etc/passwd, content: x}]\n"}, true, "", "write_files[0]: /etc/passwd is not below /etc/edge"},
		"out of it":           {map[string]string{"user-data": "#cloud-config\nwrite_files: [{path: /etc/edge/../passwd, content: x}]\n"}, true, "", "../passwd: its name"},
		"append":              {map[string]string{"user-data": "#cloud-config\nwrite_files: [{path: /etc/edge/hostname, append: true}]\n"}, true, "", "append is not taken"},
		"an encoding":         {map[string]string{"user-data": "#cloud-config\nwrite_files: [{path: /etc/edge/hostname, encoding: rot13}]\n"}, true, "", "none of b64"},
		"not base64":          {map[string]string{"user-data": "#cloud-config\nwrite_files: [{path: /etc/edge/hostname, encoding: b64, content: '%'}]\n"}, true, "", "not base64"},
		"a wrong type":        {map[string]string{"user-data": "#cloud-config\nwrite_files: hunter2\n"}, true, "", "line 2: it is of another type"},
		"no YAML":             {map[string]string{"user-data": "#cloud-config\na: [hunter2\n"}, true, "", "cannot be read as YAML"},
		"keys alone":          {map[string]string{"user-data": "#cloud-config\nssh_authorized_keys: [x]\n", "meta-data": "public-keys: [y]\n"}, true, "authorized_keys", ""},
		"only network-config": {map[string]string{"user-data": "#cloud-config\n{}\n", "network-config": "version: 1\n"}, true, "", "it is not read, and there is no other"},
	} {
		tree, problems, _, ok, err := readNoCloud(noCloudDir(t, c.files))
		if err != nil || ok != c.ok || strings.Join(tree.names(), " ") != c.part {
			t.Errorf("%s: %v, %q, %v; want %v, %q", name, ok, tree.names(), err, c.ok, c.part)
		}
		if !strings.Contains(problems.Error(), c.want) || c.want == "" && len(problems) > 0 {
			t.Errorf("%s: problems %q, want %q", name, problems.Error(), c.want)
		}
		if strings.Contains(problems.Error(), secretMark) {
			t.Errorf("%s: a secret is shown: %s", name, problems.Error())
		}
	}
}

// TestYAMLBomb: a file that is small must not be large in memory.
func TestYAMLBomb(t *testing.T) {
	var b strings.Builder
	b.WriteString("#cloud-config\na0: &a0 [x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9), ", "))
	}
	b.WriteString("ssh_authorized_keys: *a11\n")
	tree, problems, _, _, err := readNoCloud(noCloudDir(t, map[string]string{"user-data": b.String()}))
	if err != nil || len(problems) == 0 || len(tree) > 0 {
		t.Errorf("%q %v %v", tree.names(), problems, err)
	}
}

// TestUnpackingEnds: many files that are small as they are written, and large, or broken
// behind much that is whole, once they are unpacked. The keys count all the same.
func TestUnpackingEnds(t *testing.T) {
	large := zip(t, make([]byte, 9<<20))
	cut := zip(t, make([]byte, 7<<20))
	for name, packed := range map[string][]byte{"large": large, "cut": cut[:len(cut)-4]} {
		var b strings.Builder
		fmt.Fprintf(&b, "#cloud-config\nssh_authorized_keys: [x]\na: &a %q\nwrite_files:\n", base64.StdEncoding.EncodeToString(packed))
		for n := 0; b.Len() < maxUserData-100; n++ {
			fmt.Fprintf(&b, "- {path: /etc/edge/secrets/%x, encoding: gz+b64, content: *a}\n", n)
		}
		tree, problems, _, _, err := readNoCloud(noCloudDir(t, map[string]string{"user-data": b.String()}))
		if err != nil || len(problems) > 10 || !strings.Contains(problems.Error(), "here the reading ended") {
			t.Errorf("%s: %v, %d problems", name, err, len(problems))
		}
		if string(tree["authorized_keys"]) != "x\n" {
			t.Errorf("%s: %q", name, tree.names())
		}
	}
}

func FuzzNoCloud(f *testing.F) {
	f.Add([]byte("#cloud-config\nwrite_files: [{path: /etc/edge/hostname, content: a, encoding: b64}]\nssh_authorized_keys: [a]\n"), []byte("local-hostname: a\npublic-keys: [b]\n"))
	f.Add([]byte("node: {}\n"), []byte("public-keys: {a: {openssh-key: b}, c: d}\n"))
	f.Add([]byte("#cloud-config\na: &a [*a]\n"), []byte("x: !!binary ="))
	f.Fuzz(func(t *testing.T, user, meta []byte) {
		b := newBuilder()
		b.noCloud(user, meta)
		holds(t, b.tree)
	})
}
