package setup

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// secretMark is in every secret of a good tree that is text: it must never be
// found in what people or other programs read.
const secretMark = "hunter2"

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// goodTree is a whole configuration with one of everything. It is the same for
// all tests of a process, and each gets a map of its own.
func goodTree(t testing.TB) Tree {
	t.Helper()
	public, private := must2(ed25519.GenerateKey(rand.Reader))
	tlsPublic, tlsPrivate := must2(ed25519.GenerateKey(rand.Reader))
	_, gossip := must2(ed25519.GenerateKey(rand.Reader))
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "edge"}, NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"www.example.net"}}
	der := must(x509.CreateCertificate(rand.Reader, cert, cert, tlsPublic, tlsPrivate))
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return Tree{
		"edge.yaml":                 []byte(config(base64.StdEncoding.EncodeToString(public), 3)),
		"network/10-uplink.network": []byte("# the uplink\n[Match]\nName=eth0\n\n[Network]\nAddress=10.0.0.1/24\nGateway=10.0.0.254\nDNS=10.0.0.53\n"),
		"network/20-wg.netdev":      []byte("[NetDev]\nName=wg0\nKind=wireguard\n[WireGuard]\nPrivateKey=" + secretMark + "\n"),
		"network/10-uplink.link":    []byte("[Match]\nOriginalName=eth0\n[Link]\nMTUBytes=1500\n"),
		"authorized_keys":           ssh.MarshalAuthorizedKey(must(ssh.NewPublicKey(public))),
		"hostname":                  []byte("edge-a1.example.net\n"),
		"password":                  []byte("$y$j9T$" + secretMark + "abc$0123456789abcdefghijklmnopqrstuvwxyzABCDEFG\n"),
		"secrets/node.key":          pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(private))}),
		"secrets/ring.seed":         []byte(hex.EncodeToString(private[:16]) + "\n"),
		"secrets/gossip.key":        []byte("# rotate by adding a line\n" + base64.StdEncoding.EncodeToString(gossip[:32]) + "\n"),
		"secrets/bgp/r.key":         []byte(secretMark + "-bgp\n"),
		"secrets/tickets.key":       []byte("# the first encrypts\n" + base64.StdEncoding.EncodeToString(private[:32]) + "\n"),
		"secrets/tls/web.crt":       chain,
		"secrets/tls/web.key":       pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(tlsPrivate))}),
		"secrets/old-gossip.key":    []byte(secretMark + "\n"),
		"secrets/blocked.txt":       []byte("203.0.113.0/24\n"),
		"health.d/10-disk":          []byte("#!/bin/sh\nexit 0\n"),
	}
}

func must2[T, U any](t T, u U, err error) (T, U) {
	if err != nil {
		panic(err)
	}
	return t, u
}

// config is an edge.yaml of a fleet of one; hold is a setting to change.
func config(public string, hold int) string {
	return fmt.Sprintf(`node:
  name: a1
  key_file: /etc/edge/secrets/node.key
  proxy_user: edgeproxy
  forwarder: {interfaces: [eth0], blocklist_file: /etc/edge/secrets/blocked.txt}
  bgp:
    asn: 64512
    peers:
      - {name: r, address: 10.0.0.254, asn: 65001, hold: %ds, keepalive: 1s, password_file: /etc/edge/secrets/bgp/r.key}
fleet:
  ring_seed_file: /etc/edge/secrets/ring.seed
  sites: [{name: a}]
  nodes: [{name: a1, site: a, address4: 10.0.0.1, gossip: "10.0.0.1:7946", public_key: "%s"}]
  prefixes: [{prefix: 198.51.100.0/24}]
  services: [{name: web, vip: 198.51.100.10, port: 443, protocol: tcp, proxy: https}]
  regions: [{name: east, capacity: 500, upstreams: [{name: o, address: "10.0.0.9:8080"}]}]
  proxy:
    certificates: [{cert_file: /etc/edge/secrets/tls/web.crt, key_file: /etc/edge/secrets/tls/web.key}]
    ticket_key_file: /etc/edge/secrets/tickets.key
    routes: [{hosts: [], path_prefix: /}]
  guard: {key_file: /etc/edge/secrets/gossip.key}
  health:
    probes: [{name: own, kind: command, command: [/etc/edge/health.d/10-disk, -q]}]
`, hold, public)
}

// with is t with some files replaced, or taken away (nil).
func (t Tree) with(files map[string]string, without ...string) Tree {
	out := maps.Clone(t)
	for name, text := range files {
		out[name] = []byte(text)
	}
	for _, name := range without {
		delete(out, name)
	}
	return out
}

// changed is t with another setting, and so another digest.
func (t Tree) changed(old, now string) Tree {
	text := string(t[configFile])
	if n := len(text); n == 0 {
		panic("no configuration")
	}
	return t.with(map[string]string{configFile: replaceOnce(text, old, now)})
}

func replaceOnce(text, old, now string) string {
	i := 0
	for ; i+len(old) <= len(text); i++ {
		if text[i:i+len(old)] == old {
			return text[:i] + now + text[i+len(old):]
		}
	}
	panic("not in the text: " + old)
}

// writeTree writes files as an operator would.
func writeTree(t testing.TB, dir string, tree Tree) string {
	t.Helper()
	for name, content := range tree {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
