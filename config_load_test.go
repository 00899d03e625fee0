package edge

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestLoad(t *testing.T) {
	c, err := Load("testdata/example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Hash) != 64 {
		t.Errorf("hash %q is not SHA-256 in hex", c.Hash)
	}
	same, err := Parse("other name", []byte(read(t, "testdata/example.yaml")))
	if err != nil || same.Hash != c.Hash {
		t.Errorf("the same bytes gave %v, hash %q, want %q", err, same.Hash, c.Hash)
	}
}

func TestLoadUnreadable(t *testing.T) {
	var places Errors
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) || errors.As(err, &places) {
		t.Errorf("a missing file gave %v", err)
	}
	large := filepath.Join(t.TempDir(), "large.yaml")
	if err := errors.Join(os.WriteFile(large, nil, 0o600), os.Truncate(large, 1<<30)); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(large); !errors.As(err, &places) || !strings.Contains(err.Error(), "larger than 1048576 bytes") {
		t.Errorf("a file of 1 GiB gave %v", err)
	}
	// Nobody writes into the pipe: to open it would wait for ever.
	pipe := filepath.Join(t.TempDir(), "pipe.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, "/dev/zero"} {
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s gave %v", path, err)
		}
	}
}

// TestErrors edits a file and compares all that is reported. A case of a file of
// cases is: old text, "=>", new text, "!!", the errors (none: it is taken).
func TestErrors(t *testing.T) {
	for file, cases := range map[string]string{
		"testdata/example.yaml": "testdata/errors.txt", "testdata/forwarder.yaml": "testdata/forwarder-errors.txt",
		"testdata/bgp.yaml": "testdata/bgp-errors.txt", "testdata/health.yaml": "testdata/health-errors.txt",
		"testdata/guard.yaml": "testdata/guard-errors.txt",
	} {
		base := read(t, file)
		for i, one := range strings.Split(read(t, cases), "\n\n") {
			edit, want, ok := strings.Cut(strings.TrimSuffix(one, "\n"), "\n!!")
			old, new, ok2 := strings.Cut(edit, "\n=>\n")
			if !ok || !ok2 || !strings.Contains(base, old) {
				t.Errorf("%s, case %d: cannot be read, or edits text that is not in %s:\n%s", cases, i, file, one)
				continue
			}
			got := ""
			if _, err := Parse("edge.yaml", []byte(strings.Replace(base, old, new, 1))); err != nil {
				got = "\n" + err.Error()
			}
			if got != want {
				t.Errorf("%s, case %d: %s => %s\n got:%s\nwant:%s", cases, i, old, new, got, want)
			}
		}
	}
}

func TestErrorsAllAtOnceInOrder(t *testing.T) {
	src := read(t, "testdata/example.yaml")
	for old, new := range map[string]string{
		"name: a1": "name: A1", "asn: 64512": "asn: none", "port: 443": "port: 70000",
		"kind: forwarder,": "kind: magic,", "hold: 10s": "hold: 10", "mode: native": "mod: native",
	} {
		src = strings.Replace(src, old, new, 1)
	}
	_, err := Parse("f", []byte(src))
	var errs Errors
	if !errors.As(err, &errs) || len(errs) != 6 {
		t.Fatalf("want 6 errors, got:\n%v", err)
	}
	if !slices.IsSortedFunc(errs, func(a, b Error) int { return a.Line - b.Line }) {
		t.Errorf("not in the order of the file:\n%v", err)
	}
}

func TestParseWholeFiles(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{"empty", "", "f:1:1: the file is empty: expected the sections node and fleet"},
		{"comment", "# nothing\n", "f:1:1: the file is empty: expected the sections node and fleet"},
		{"document start", "---\n", "f:1:1: the file is empty: expected the sections node and fleet"},
		{"scalar", "hello", `f:1:1: expected a mapping (key: value), found the value "hello"`},
		{"list", "- a\n", "f:1:1: expected a mapping (key: value), found a list"},
		{"null", "~", "f:1:1: expected a mapping (key: value), found nothing"},
		{"other keys", "a: 1\nb: 2\n", "f:1:1: a: the file has no such key; it has fleet, node\n" +
			"f:1:1: fleet: missing; expected a section\nf:1:1: node: missing; expected a section\n" +
			"f:2:1: b: the file has no such key; it has fleet, node"},
		{"NUL", "node:\n  name: a\x00", "f:2:10: character U+0000 is not allowed"},
		{"BOM", "\ufeffnode:", "f:1:1: character U+FEFF is not allowed"},
		{"not UTF-8", "node: \"\xe9\"", "f:1:8: byte 0xe9 is not UTF-8"},
		{"two documents", "a: 1\n---\nb: 2\n", "f:2:1: only one YAML document is taken; this begins another"},
		{"after the end", "a: 1\n...\nb: 2\n", "f:1:1: expected one YAML document, found 2"},
		{"tab", "node:\n\tname: a\n", "f:2:1: not valid YAML: found character '\\t' that cannot start any token"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Parse("f", []byte(c.src)); err == nil || strings.ReplaceAll(err.Error(), "\t", `\t`) != c.want {
				t.Errorf("got:\n%v\nwant:\n%s", err, c.want)
			}
		})
	}
}

// TestParseHostile: what is made to cost time or the stack is refused soon.
func TestParseHostile(t *testing.T) {
	const n = 1 << 16
	rep := func(s string) string { return strings.Repeat(s, n/len(s)) }
	var bomb strings.Builder
	fmt.Fprint(&bomb, "a: &a [x, x]\n")
	for c := 'b'; c < 'z'; c++ {
		fmt.Fprintf(&bomb, "%c: &%c [*%c, *%c, *%c, *%c]\n", c, c, c-1, c-1, c-1, c-1)
	}
	stairs := ""
	for i := range 1400 {
		stairs += strings.Repeat(" ", i) + "a:\n"
	}
	for name, src := range map[string]string{
		"alias bomb": bomb.String(), "stairs": stairs, "flow lists": rep("["), "flow maps": rep("{a: "), "block lists": rep("- "),
		"colons": rep(": "), "line of keys": rep("a: "), "flow colons": "[" + rep("a: "), "keys": rep("a: b\n"), "empty keys": rep("a:\n"),
		"items": "node:\n" + rep("- a\n"), "quotes": rep("'"), "commas": "[" + rep(","), "closed": rep("]"), "anchors": rep("&a "),
		"tags": rep("!a "), "complex": rep("? "), "documents": rep("---\n"), "long": "node: " + rep("x"), "literal": "a: |\n" + rep(" x\n"),
		"escapes": `a: "` + rep(`\n`) + `"`, "wide": "{" + rep("a: b,") + "}", "wide node": "{node: {" + rep("a: b,")[:n/2] + "}}",
		"many sites": "fleet: {sites: [" + rep("{name: a},") + "]}", "digits": "fleet: {nodes: " + rep("1") + "}", "comments": rep("# x\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			_, err := Parse("f", []byte(src))
			var errs Errors
			if !errors.As(err, &errs) || len(errs) == 0 || len(errs) > maxErrors+1 {
				t.Fatalf("got %d errors", len(errs))
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("took %s", took)
			}
			if len(errs[0].Error()) > 1000 {
				t.Errorf("an error of %d bytes: %.200s", len(errs[0].Error()), errs[0].Error())
			}
		})
	}
}

// keyOf is a key as the file has it, another for each n.
func keyOf(n int) string {
	return NodeKey{0: 1, 30: byte(n >> 8), 31: byte(n)}.String()
}

// TestParseLarge: a fleet of the size of a very large one, cross-checked.
func TestParseLarge(t *testing.T) {
	var b strings.Builder
	b.WriteString("node: {name: n0, key_file: /n, forwarder: {interfaces: [eth0]}, bgp: {asn: 1}}\nfleet:\n  ring_seed_file: /s\n  guard: {key_file: /k}\n")
	section := func(name string, n int, line string) {
		fmt.Fprintf(&b, "  %s:\n", name)
		for i := range n {
			b.WriteString("  - " + strings.NewReplacer("#", fmt.Sprint(i), "@", fmt.Sprintf("%d.%d", i/250, i%250), "KEY", keyOf(i)).Replace(line) + "\n")
		}
	}
	section("sites", 1000, "{name: s#}")
	section("nodes", 1000, `{name: n#, site: s#, address4: 10.0.@, gossip: "10.0.@:7946", public_key: KEY}`)
	section("prefixes", 1000, "{prefix: 20.@.0/24}")
	section("services", MaxServices, `{name: v#, vip: 20.@.1, port: 53, protocol: udp, backends: [{name: a, address: 10.9.@}]}`)
	began := time.Now()
	c, err := Parse("f", []byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); len(c.Fleet.Services) != MaxServices || took > 20*time.Second {
		t.Errorf("%d services in %s", len(c.Fleet.Services), took)
	}
}
