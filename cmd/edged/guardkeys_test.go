package main

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard"
)

// pemOf is the key file of a node.
func pemOf(t *testing.T, seed []byte) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(ed25519.NewKeyFromSeed(seed))
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// TestTicketDiff: a reload tells which keys edgeproxy goes over to.
func TestTicketDiff(t *testing.T) {
	const at = "content of fleet.proxy.ticket_key_file: keys "
	for _, c := range []struct {
		was, now []string
		want     string
	}{
		{nil, nil, ""}, {[]string{"a"}, []string{"a"}, ""}, {nil, []string{}, ""},
		{[]string{"a"}, []string{"a", "b"}, at + "a -> a, b"},
		{[]string{"a", "b"}, []string{"b", "a"}, at + "a, b -> b, a"},
		{nil, []string{"a"}, at + "of its own -> a"}, {[]string{"a"}, nil, at + "a -> of its own"},
	} {
		if got := strings.Join(ticketDiff(c.was, c.now), "\n"); got != c.want {
			t.Errorf("%q -> %q: %q, want %q", c.was, c.now, got, c.want)
		}
	}
}

// TestReadGuardKeys: an operator's mistake names the key of the file, and what is
// wrong; what has changed is told without a secret.
func TestReadGuardKeys(t *testing.T) {
	dir := t.TempDir()
	c := &edge.Config{}
	c.Local.ID, c.Local.KeyFile, c.Fleet.Guard.KeyFile = "a", filepath.Join(dir, "a"), filepath.Join(dir, "gossip")
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(dir, name)
		os.Remove(path)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	pems := map[edge.NodeID]string{}
	for i, id := range []edge.NodeID{"a", "b", "spare"} {
		seed := []byte(strings.Repeat(string(rune('1'+i)), 32))
		pems[id] = string(pemOf(t, seed))
		if id != "spare" {
			c.Fleet.Nodes = append(c.Fleet.Nodes, edge.Node{ID: id, PublicKey: guard.PublicKey(ed25519.NewKeyFromSeed(seed))})
		}
	}
	old, next := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("o", 32))), base64.StdEncoding.EncodeToString([]byte(strings.Repeat("n", 32)))
	write("a", pems["a"], 0o600)
	write("gossip", old+"\n", 0o600)
	first, err := readGuardKeys(c)
	if err != nil {
		t.Fatal(err)
	}
	write("gossip", next+"\n"+old+"\n", 0o600)
	second, err := readGuardKeys(c)
	if err != nil {
		t.Fatal(err)
	}
	want := "content of fleet.guard.key_file: keys " + first.names() + " -> " + second.names()
	if got := first.diff(second); len(got) != 1 || got[0] != want || len(first.names()) != 8 || len(second.names()) != 18 {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := first.diff(first); len(got) > 0 {
		t.Errorf("no change gives %q", got)
	}
	for _, bad := range []struct {
		name, text string
		mode       os.FileMode
		want       string
	}{
		{"a", pems["a"], 0o644, "node.key_file: read node key: others than its owner may use " + dir + "/a (mode 0644); chmod 0600 " + dir + "/a"},
		{"a", pems["b"], 0o600, "node.key_file: check node key: it is that of node b, not of a"},
		{"a", pems["spare"], 0o600, "but public_key of node a is"},
		{"gossip", "secret\n", 0o600, "fleet.guard.key_file: read gossip keys: " + dir + "/gossip: line 1 does not hold 32 bytes in base64"},
	} {
		write("a", pems["a"], 0o600)
		write(bad.name, bad.text, bad.mode)
		if _, err := readGuardKeys(c); err == nil || !strings.Contains(err.Error(), bad.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v, want %q", err, bad.want)
		}
	}
}
