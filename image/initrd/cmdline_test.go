package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseCmdline(t *testing.T) {
	hash, other := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	good := map[string]string{
		"alone":         "roothash=" + hash + " edge.version=1.2.0",
		"among others":  "console=ttyS0 quiet roothash=" + hash + "\tpanic=10 edge.version=1.2.0\n",
		"quoted":        `x="a b" "roothash=` + hash + `" edge.version="1.2.0"`,
		"twice the one": "roothash=" + hash + " edge.version=1.2.0 roothash=" + hash,
		"for init only": "roothash=" + hash + " edge.version=1.2.0 -- roothash=" + other,
		"upper case":    "roothash=" + strings.ToUpper(hash) + " edge.version=1.2.0",
	}
	for name, line := range good {
		got, err := parseCmdline(line)
		if err != nil || got.root.String() != hash || got.version != "1.2.0" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	bad := map[string]struct{ line, want string }{
		"nothing":         {"", "no roothash="},
		"no root hash":    {"edge.version=1 quiet", "no roothash="},
		"an empty one":    {"roothash= edge.version=1", "no roothash="},
		"only for init":   {"edge.version=1 -- roothash=" + hash, "no roothash="},
		"two":             {"roothash=" + hash + " edge.version=1 roothash=" + other, "two values of roothash="},
		"one is empty":    {"roothash=" + hash + " roothash= edge.version=1", "two values"},
		"short":           {"roothash=abcd edge.version=1", "64 hexadecimal digits"},
		"no digits":       {"roothash=" + strings.Repeat("x", 64) + " edge.version=1", "64 hexadecimal digits"},
		"no version":      {"roothash=" + hash, "no edge.version="},
		"a path":          {"roothash=" + hash + " edge.version=../1", "no edge.version="},
		"a long version":  {"roothash=" + hash + " edge.version=" + strings.Repeat("1", 65), "no edge.version="},
		"another's words": {"usrhash=" + hash + " edge.version=1", "no roothash="},
	}
	for name, c := range bad {
		if got, err := parseCmdline(c.line); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v, want %q", name, got, err, c.want)
		}
	}
}

func TestWords(t *testing.T) {
	got := words("  a b=\"c d\"\te\"f\"g \"h i\" -- j\n")
	if diff := cmp.Diff([]string{"a", "b=c d", "efg", "h i"}, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseCmdline(f *testing.F) {
	f.Add("roothash=" + strings.Repeat("ab", 32) + " edge.version=1.2.0 quiet")
	f.Add(`a="b c" -- d`)
	f.Fuzz(func(t *testing.T, line string) {
		got, err := parseCmdline(line)
		if err == nil && (got.root == rootHash{} && !strings.Contains(line, strings.Repeat("0", 64)) || !isVersion(got.version)) {
			t.Errorf("%q: %+v", line, got)
		}
		if slices.Contains(words(line), "") {
			t.Errorf("%q has an empty word", line)
		}
	})
}

func TestConsoleLevel(t *testing.T) {
	for text, want := range map[string]int{"4\t4\t1\t7\n": 4, "7\t4\t1\t7\n": 7, "": 0, "x\t1": 0} {
		if got := consoleLevel(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestRecords(t *testing.T) {
	got := records("a\n\n" + strings.Repeat("b", 2000) + "\r\nc")
	if len(got) != 5 || got[0] != "a" || got[4] != "c" || len(got[1]) != mostRecord || len(got[1])+len(got[2])+len(got[3]) != 2000 {
		t.Errorf("%d records: %.30q", len(got), got)
	}
}
