package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func blockFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "block")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadBlocklist(t *testing.T) {
	l, err := readBlocklist(blockFile(t, "# of the abuse desk\n192.0.2.0/24\n\n 2001:db8::/32 # a network\n198.51.100.7\r\n2001:db8::1"))
	if err != nil {
		t.Fatal(err)
	}
	var want []netip.Prefix
	for _, s := range []string{"192.0.2.0/24", "2001:db8::/32", "198.51.100.7/32", "2001:db8::1/128"} {
		want = append(want, netip.MustParsePrefix(s))
	}
	if !slices.Equal(l.sources, want) {
		t.Errorf("read %v, want %v", l.sources, want)
	}
	if l, err := readBlocklist(""); err != nil || len(l.sources) != 0 {
		t.Errorf("no file: %v, %v", l, err)
	}
}

func TestReadBlocklistMistakes(t *testing.T) {
	path := blockFile(t, "192.0.2.0/24\n192.0.2.1/24\n\nexample.net\n0.0.0.0/0\n::ffff:192.0.2.1\nfe80::1%eth0\n192.0.2.0/33\n")
	_, err := readBlocklist(path)
	if err == nil {
		t.Fatal("mistakes are taken")
	}
	for _, want := range []string{
		":2: 192.0.2.1/24 has bits behind its length: is 192.0.2.0/24 meant?",
		`:4: "example.net" is neither`, ":5: 0.0.0.0/0 would block everybody", ":6: ", ":7: ", ":8: ",
	} {
		if !strings.Contains(err.Error(), path+want) {
			t.Errorf("error does not say %q: %v", want, err)
		}
	}
	if _, err := readBlocklist(blockFile(t, strings.Repeat("x\n", 1000))); strings.Count(err.Error(), "\n") >= maxBlockErrors {
		t.Errorf("the message has %d lines", strings.Count(err.Error(), "\n"))
	}
	if _, err := readBlocklist("/nonexistent"); err == nil || !strings.Contains(err.Error(), "blocklist_file") {
		t.Errorf("missing file: %v", err)
	}
}
