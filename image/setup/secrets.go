package setup

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// reader is which daemon opens a file.
type reader string

// The readers. edged and edgebgp open their files themselves, edgeproxy too;
// what everybody may know is opened by any of them.
const (
	byEdged   reader = "edged"
	byEdgebgp reader = "edgebgp"
	byProxy   reader = "edgeproxy"
	byAll     reader = "all"
)

// use is one file that a configuration names.
type use struct {
	key, path string
	by        reader
	// check says what is wrong with the content, never what is in it.
	check func([]byte) error
}

// uses are the files that c names and that hold secrets or keys. That edgebgp
// opens the keys of BGP, while edged only looks at their size and time, is in
// bgp/key.go and config_load.go of edge.
func uses(c *edge.Config, t Tree) []use {
	self := c.Self()
	out := []use{
		{"node.key_file", c.Local.KeyFile, byEdged, func(b []byte) error { return checkNodeKey(b, self) }},
		{"fleet.ring_seed_file", c.Fleet.RingSeedFile, byEdged, checkSeed},
		{"fleet.guard.key_file", c.Fleet.Guard.KeyFile, byEdged, checkKeyList},
		{"node.forwarder.blocklist_file", c.Local.Forwarder.Blocklist, byEdged, nil},
	}
	for i, p := range c.Local.Speaker.Peers {
		out = append(out, use{fmt.Sprintf("node.bgp.peers[%d].password_file", i), p.PasswordFile, byEdgebgp, checkBGPKey})
	}
	out = append(out, use{"fleet.proxy.ticket_key_file", c.Fleet.Proxy.TicketKeyFile, byProxy, checkKeyList})
	for i, cert := range c.Fleet.Proxy.Certificates {
		at := fmt.Sprintf("fleet.proxy.certificates[%d]", i)
		chain, _ := t.at(cert.CertFile)
		out = append(out,
			use{at + ".cert_file", cert.CertFile, byAll, checkPEM},
			use{at + ".key_file", cert.KeyFile, byProxy, func(b []byte) error { return checkTLSKey(chain, b) }})
	}
	for i, p := range c.Fleet.Health.Probes {
		out = append(out, use{fmt.Sprintf("fleet.health.probes[%d].ca_file", i), p.CAFile, byAll, checkPEM})
		program, _, _ := strings.Cut(p.Command, "\x00")
		out = append(out, use{fmt.Sprintf("fleet.health.probes[%d].command", i), program, byAll, nil})
	}
	return out
}

// at returns the file that edge.yaml calls path.
func (t Tree) at(path string) ([]byte, bool) {
	name, ours := strings.CutPrefix(path, Root+"/")
	b, ok := t[name]
	return b, ok && ours
}

// checkFiles judges every file that c names below Root. What is elsewhere is no
// part of the configuration, and its daemon says what it thinks of it.
func checkFiles(c *edge.Config, t Tree) (problems Problems) {
	owner := map[string]use{}
	for _, u := range uses(c, t) {
		name, ours := strings.CutPrefix(u.path, Root+"/")
		if u.path == "" || !ours {
			continue
		}
		line := lineOf(t[configFile], u.path)
		fail := func(remedy, format string, args ...any) {
			problems = append(problems, Problem{File: configFile, Line: line, Message: u.key + ": " + fmt.Sprintf(format, args...), Remedy: remedy})
		}
		content, ok := t[name]
		if !ok {
			fail("add it, as "+Root+"/secrets/NAME with the file in secrets/", "%s is not in this configuration", u.path)
			continue
		}
		if first, had := owner[name]; had && first.by != u.by {
			fail("give each a file of its own", "%s is that of %s as well, which another daemon opens", u.path, first.key)
			continue
		}
		owner[name] = u
		if u.check != nil {
			if err := u.check(content); err != nil {
				problems.at(name, "", "%s: %v", u.key, err)
			}
		}
	}
	return problems
}

// lineOf is the first line of src that has text; 0 if none has.
func lineOf(src []byte, text string) int {
	before, _, ok := bytes.Cut(src, []byte(text))
	if !ok {
		return 0
	}
	return 1 + bytes.Count(before, []byte("\n"))
}

// The checks of contents are those of the daemons, of which floor 1 can import
// none: cmd/edgectl's tests hold them against package guard.

func checkNodeKey(b []byte, self edge.Node) error {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "PRIVATE KEY" {
		return errors.New("it does not hold a PEM block PRIVATE KEY; make a key with: edgectl guard key --out FILE")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	private, ok := key.(ed25519.PrivateKey)
	if err != nil || !ok {
		return errors.New("it does not hold an Ed25519 key in PKCS#8; make a key with: edgectl guard key --out FILE")
	}
	if public := edge.NodeKey(private.Public().(ed25519.PublicKey)); public != self.PublicKey {
		return fmt.Errorf("its public half is %s, but fleet.nodes says %s of %s", public, self.PublicKey, self.ID)
	}
	return nil
}

func checkSeed(b []byte) error {
	if n := len(bytes.TrimSpace(b)); n < 16 || n > 64 {
		return fmt.Errorf("it has %d characters, 16 to 64 are needed; make one with: openssl rand -hex 32", n)
	}
	return nil
}

// maxKeys and maxKeyBytes are the bounds of package guard, and of package proxy.
const (
	maxKeys     = 8
	maxKeyBytes = 16 << 10
)

// checkKeyList judges keys of the gossip or of session tickets, one a line.
func checkKeyList(b []byte) error {
	if len(b) > maxKeyBytes {
		return fmt.Errorf("it has more than %d bytes", maxKeyBytes)
	}
	seen, n := map[string]bool{}, 0
	for line := range bytes.Lines(b) {
		n++
		text := strings.TrimSpace(string(line))
		if text == "" || text[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(key) != 32 {
			return fmt.Errorf("line %d does not hold 32 bytes in base64; make a key with: openssl rand -base64 32", n)
		}
		if seen[string(key)] {
			return fmt.Errorf("the key of line %d is given twice", n)
		}
		seen[string(key)] = true
	}
	if len(seen) == 0 || len(seen) > maxKeys {
		return fmt.Errorf("it has %d keys, not from 1 to %d", len(seen), maxKeys)
	}
	return nil
}

func checkBGPKey(b []byte) error {
	switch key := strings.TrimRight(string(b), "\r\n"); {
	case key == "":
		return errors.New("it is empty")
	case len(key) > unix.TCP_MD5SIG_MAXKEYLEN:
		return fmt.Errorf("the key is longer than %d bytes", unix.TCP_MD5SIG_MAXKEYLEN)
	}
	return nil
}

func checkPEM(b []byte) error {
	if !x509.NewCertPool().AppendCertsFromPEM(b) {
		return errors.New("it holds no certificate in PEM")
	}
	return nil
}

func checkTLSKey(chain, key []byte) error {
	if checkPEM(chain) != nil {
		return nil // there is another problem for that, or it is not ours to see
	}
	if _, err := tls.X509KeyPair(chain, key); err != nil {
		return errors.New("it is not the private key of its certificate, in PEM")
	}
	return nil
}
