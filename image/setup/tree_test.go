package setup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if crashing() {
		return
	}
	// Hundreds of generations are synced: in memory that costs nothing.
	os.Setenv("TMPDIR", "/dev/shm")
	goleak.VerifyTestMain(m)
}

func TestReadTree(t *testing.T) {
	want := goodTree(t)
	dir := writeTree(t, t.TempDir(), want)
	// What other systems leave on a volume means nothing.
	writeTree(t, dir, Tree{"System Volume Information/x": nil, ".Trashes/y": nil, "._edge.yaml": nil, "README.txt": []byte("hello"), "secrets/.DS_Store": nil})
	got, problems, err := ReadTree(dir)
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestReadTreeRefuses: every file that is wrong has its own line.
func TestReadTreeRefuses(t *testing.T) {
	dir := t.TempDir()
	writeTree(t, dir, Tree{"edge.yml": nil, "networks/x.network": nil, "network/a.conf": nil, "secrets/a/b/c/d": nil, "health.d/a b": nil, "secrets/\xff": nil})
	if err := os.Symlink("/etc/shadow", filepath.Join(dir, "secrets/stolen")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(dir, "secrets/etc")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "secrets/pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secrets/large"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "secrets/large"), maxFile+1); err != nil {
		t.Fatal(err)
	}
	tree, problems, err := ReadTree(dir)
	if err != nil || len(tree) > 0 {
		t.Errorf("took %v: %v", tree.names(), err)
	}
	for _, want := range []string{
		"edge.yml: it is not a part", "networks/x.network: it is not a part", "network/a.conf: it is not a part", "secrets/a/b/c: the folder is too deep",
		"health.d/a b: its name has", "secrets/?: its name has", "secrets/stolen: it is a link", "secrets/etc: it is a link", "secrets/pipe: it is a pipe", "secrets/large: it has more than 8 MiB",
	} {
		if !strings.Contains(problems.Error(), want) {
			t.Errorf("no problem %q in:\n%s", want, problems.Error())
		}
	}
}

func TestTreeBounds(t *testing.T) {
	b := newBuilder()
	for i := range maxFiles + 50 {
		b.put("secrets/"+strings.Repeat("x", 1+i%100)+string(rune('a'+i/100)), nil)
	}
	if len(b.tree) != maxFiles || len(b.problems) != 1 {
		t.Errorf("%d files, %d problems", len(b.tree), len(b.problems))
	}
	b = newBuilder()
	for i := range 10 {
		b.put("secrets/"+string(rune('a'+i)), make([]byte, maxFile))
	}
	if b.size > maxTree || len(b.problems) != 1 {
		t.Errorf("%d bytes, %d problems", b.size, len(b.problems))
	}
}

func TestDigest(t *testing.T) {
	a := Tree{"hostname": []byte("ab"), "password": []byte("c")}
	for name, b := range map[string]Tree{
		"moved bytes": {"hostname": []byte("a"), "password": []byte("bc")}, "one less": {"hostname": []byte("ab")}, "empty": {},
	} {
		if a.Digest() == b.Digest() {
			t.Errorf("%s: the same digest", name)
		}
	}
	if a.Digest() != a.with(nil).Digest() {
		t.Error("the same tree has two digests")
	}
}

// pack makes a tar of t as `tar -C FOLDER .` does, with more entries before.
func pack(t testing.TB, tree Tree, more ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range more {
		add(h, nil)
	}
	add(tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	for _, name := range tree.names() {
		add(tar.Header{Name: "./" + name, Typeflag: tar.TypeReg, Mode: 0o644}, tree[name])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zip(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestBundle(t *testing.T) {
	want := goodTree(t)
	packed := pack(t, want)
	for name, b := range map[string][]byte{"plain": packed, "gzip": zip(t, packed)} {
		got := newBuilder()
		got.bundle("bundle", b)
		if d := cmp.Diff(want, got.tree); d != "" || len(got.problems) > 0 {
			t.Errorf("%s: %s\n%s", name, got.problems.Error(), d)
		}
	}
}

func TestBundleRefuses(t *testing.T) {
	good := pack(t, Tree{"hostname": []byte("a")})
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }
	for name, c := range map[string]struct {
		packed []byte
		want   string
	}{
		"out of it":   {pack(t, nil, file("../../etc/shadow")), "points out of the bundle"},
		"absolute":    {pack(t, nil, file("/etc/edge/hostname")), "points out of the bundle"},
		"a link":      {pack(t, nil, tar.Header{Name: "secrets/a", Linkname: "/etc/shadow", Typeflag: tar.TypeSymlink}), "neither a file nor a folder"},
		"a hard link": {pack(t, nil, tar.Header{Name: "secrets/a", Linkname: "/etc/shadow", Typeflag: tar.TypeLink}), "neither a file nor a folder"},
		"twice":       {pack(t, nil, file("hostname"), file("./hostname")), "it is given twice"},
		"not a tar":   {[]byte("node: {}\n"), "not a whole tar"},
		"cut":         {good[:700], "not a whole tar"},
		"not gzip":    {[]byte{0x1f, 0x8b, 1, 2, 3}, "cannot be unpacked"},
		"a gzip bomb": {zip(t, pack(t, Tree{"secrets/a": make([]byte, maxFile+1)})), "it has more than 8 MiB"},
	} {
		b := newBuilder()
		b.bundle("bundle", c.packed)
		if !strings.Contains(b.problems.Error(), c.want) {
			t.Errorf("%s: %q, want %q", name, b.problems.Error(), c.want)
		}
		if c.want != "" && len(b.tree) > 1 {
			t.Errorf("%s: took %q", name, b.tree.names())
		}
	}
}

func FuzzBundle(f *testing.F) {
	f.Add(pack(f, Tree{"hostname": []byte("a"), "secrets/b/c": []byte("d")}))
	f.Add(zip(f, pack(f, Tree{"network/a.network": []byte("[Match]\n")})))
	f.Add(pack(f, nil, tar.Header{Name: "../a", Typeflag: tar.TypeReg}))
	f.Fuzz(func(t *testing.T, packed []byte) {
		b := newBuilder()
		b.bundle("bundle", packed)
		holds(t, b.tree)
		for _, line := range b.problems.Lines() {
			if strings.ContainsAny(line, "\n\x00\x1b") {
				t.Errorf("a problem could steer a terminal: %q", line)
			}
		}
	})
}

// holds checks what must be true of every tree, whatever it was made from.
func holds(t *testing.T, tree Tree) {
	t.Helper()
	size := 0
	for name, content := range tree {
		size += len(content)
		if why := partOf(name); why != "" || !filepath.IsLocal(name) || filepath.Clean(name) != name {
			t.Errorf("%q is in a tree: %s", name, why)
		}
	}
	if len(tree) > maxFiles || size > maxTree {
		t.Errorf("%d files, %d bytes", len(tree), size)
	}
}

func TestCredentials(t *testing.T) {
	want := goodTree(t).with(nil, "secrets/bgp/r.key", "secrets/tls/web.crt", "secrets/tls/web.key")
	dir, second := t.TempDir(), t.TempDir()
	write := func(dir, name string, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o400); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range want {
		switch {
		case name == "edge.yaml":
			write(dir, name, content)
		case strings.HasPrefix(name, "secrets/"):
			write(dir, "edge.secret."+filepath.Base(name), content)
		case strings.HasPrefix(name, "network/"):
			write(dir, "edge.network."+filepath.Base(name), content)
		case strings.HasPrefix(name, "health.d/"):
			write(dir, "edge.health."+filepath.Base(name), content)
		default:
			write(dir, "edge."+name, content)
		}
	}
	write(dir, "ssh.authorized_keys.root", []byte("not ours"))
	write(second, "edge.hostname", []byte("shadowed"))
	read := func(esp string, dirs ...string) (Tree, Problems, bool, error) {
		found, _, err := given{dirs: dirs, esp: esp}.read()
		got, problems, ok := credentials(found)
		return got, problems, ok, err
	}
	got, problems, ok, err := read("/nowhere", "/nowhere", dir, second)
	if err != nil || !ok || len(problems) > 0 {
		t.Fatal(ok, err, problems)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	write(second, "edge.bundle", pack(t, Tree{"hostname": []byte("of the fleet\n"), "secrets/more": []byte("x")}))
	write(second, "edge.secrets.typo", nil)
	got, problems, _, err = read("", dir, second)
	if err != nil || string(got["hostname"]) != string(want["hostname"]) || string(got["secrets/more"]) != "x" {
		t.Errorf("a bundle beside: %q %v", got.names(), err)
	}
	if !strings.Contains(problems.Error(), "credential edge.secrets.typo: nothing is known by this name") {
		t.Errorf("problems: %s", problems.Error())
	}
	if _, _, ok, err := read("", t.TempDir()); ok || err != nil {
		t.Errorf("an empty folder: %v %v", ok, err)
	}
}
