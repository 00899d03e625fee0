package guard

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/memberlist"

	"github.com/catchment-dev/edge"
)

// MaxKeys is how many gossip keys may be in use at once: a rotation needs two.
const MaxKeys = 8

// maxKeyFile bounds a file of keys, in bytes.
const maxKeyFile = 16 << 10

// readKeyFile reads a small file and says who may read it.
func readKeyFile(path string) ([]byte, os.FileMode, error) {
	// To open a pipe would wait for somebody to write into it.
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err == nil && len(b) > maxKeyFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxKeyFile)
	}
	return b, st.Mode().Perm(), err
}

// ReadNodeKey reads the private key of a node. A file that others than its owner
// may read is refused.
func ReadNodeKey(path string) (ed25519.PrivateKey, error) {
	b, mode, err := readKeyFile(path)
	if err != nil {
		return nil, fmt.Errorf("read node key: %w", err)
	}
	if mode&0o077 != 0 {
		return nil, fmt.Errorf("read node key: others than its owner may use %s (mode %04o); chmod 0600 %s, and make a new key if somebody may have read this one", path, mode, path)
	}
	key, err := parseNodeKey(b)
	if err != nil {
		return nil, fmt.Errorf("read node key: %s %w; make one with: edgectl guard key --out FILE", path, err)
	}
	return key, nil
}

// parseNodeKey reads PEM (RFC 7468) of PKCS#8 (RFC 8410).
func parseNodeKey(b []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("does not hold a PEM block PRIVATE KEY")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("does not hold a private key in PKCS#8")
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("holds a key of another kind (%T), not Ed25519", key)
	}
	return private, nil
}

// CheckNodeKey says what is wrong with key as the private key of node self.
func CheckNodeKey(key ed25519.PrivateKey, self edge.NodeID, roster []edge.Node) error {
	if len(key) != ed25519.PrivateKeySize {
		return fmt.Errorf("check node key: it has %d bytes, not %d", len(key), ed25519.PrivateKeySize)
	}
	public := PublicKey(key)
	for _, n := range roster {
		switch {
		case n.ID == self && n.PublicKey == public:
			return nil
		case n.ID != self && n.PublicKey == public:
			return fmt.Errorf("check node key: it is that of node %s, not of %s: each node has its own, and a private key is never copied", n.ID, self)
		}
	}
	for _, n := range roster {
		if n.ID == self {
			return fmt.Errorf("check node key: its public half is %s, but public_key of node %s is %s: correct public_key on every box, or use the other key", public, self, n.PublicKey)
		}
	}
	return fmt.Errorf("check node key: node %s is not in the roster", self)
}

// PublicKey is the public half of a node's key, as the roster has it.
func PublicKey(key ed25519.PrivateKey) edge.NodeKey {
	return edge.NodeKey(key.Public().(ed25519.PublicKey))
}

// ReadGossipKeys reads a file of gossip keys, one a line: 32 bytes in base64 each.
// The first encrypts. Empty lines and those that begin with # are left out.
func ReadGossipKeys(path string) ([][]byte, error) {
	b, _, err := readKeyFile(path)
	if err != nil {
		return nil, fmt.Errorf("read gossip keys: %w", err)
	}
	keys, err := parseGossipKeys(b)
	if err != nil {
		return nil, fmt.Errorf("read gossip keys: %s: %w", path, err)
	}
	return keys, nil
}

func parseGossipKeys(b []byte) ([][]byte, error) {
	var keys [][]byte
	n := 0
	for text := range strings.Lines(string(b)) {
		n++
		text = strings.TrimSpace(text)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(key) != 32 {
			return nil, fmt.Errorf("line %d does not hold 32 bytes in base64; make a key with: openssl rand -base64 32", n)
		}
		keys = append(keys, key)
	}
	return keys, checkGossipKeys(keys)
}

func checkGossipKeys(keys [][]byte) error {
	if len(keys) == 0 || len(keys) > MaxKeys {
		return fmt.Errorf("%d gossip keys are not from 1 to %d", len(keys), MaxKeys)
	}
	for i, k := range keys {
		if len(k) != 32 {
			return fmt.Errorf("gossip key %d has %d bytes, not 32", i+1, len(k))
		}
		if has(keys[:i], k) {
			return fmt.Errorf("gossip key %d is given twice", i+1)
		}
	}
	return nil
}

func has(keys [][]byte, key []byte) bool {
	return slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
}

// KeyName tells gossip keys apart for people: the first 8 hex digits of the
// SHA-256.
func KeyName(key []byte) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:4])
}

// Rekey changes the gossip keys in a running guard: the first encrypts from now
// on, all are accepted. Nothing is lost if every node accepts a key before one
// encrypts with it, and drops it only when none does any more. On an error all is
// as before.
func (g *Guard) Rekey(keys [][]byte) error {
	if err := g.keys.set(keys); err != nil {
		return fmt.Errorf("change gossip keys: %w", err)
	}
	return nil
}

// keyring is memberlist's, changed so that no reader is disturbed: it hands out
// its list without a copy, and removes from the middle in place.
type keyring struct {
	mu   sync.Mutex
	ring *memberlist.Keyring
}

func newKeyring(keys [][]byte) (*keyring, error) {
	if err := checkGossipKeys(keys); err != nil {
		return nil, err
	}
	ring, err := memberlist.NewKeyring(keys, keys[0])
	if err != nil {
		return nil, fmt.Errorf("make keyring: %w", err)
	}
	return &keyring{ring: ring}, nil
}

// set goes over to keys. What is dropped goes to the end of the list first, where
// removing it writes nothing: each key that stays and stands behind it encrypts
// for a moment, which is no harm, since the others have it too if the steps of a
// rotation are kept apart.
func (k *keyring) set(keys [][]byte) error {
	if err := checkGossipKeys(keys); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	errs := []error{k.ring.AddKey(keys[0]), k.ring.UseKey(keys[0])}
	now := slices.Clone(k.ring.GetKeys())
	first := slices.IndexFunc(now, func(o []byte) bool { return !has(keys, o) })
	if first >= 0 {
		moved := false
		for _, o := range now[first:] {
			if has(keys, o) {
				errs, moved = append(errs, k.ring.UseKey(o)), true
			}
		}
		if moved {
			errs = append(errs, k.ring.UseKey(keys[0]))
		}
	}
	now = slices.Clone(k.ring.GetKeys())
	for _, o := range slices.Backward(now) {
		if !has(keys, o) {
			errs = append(errs, k.ring.RemoveKey(o))
		}
	}
	for _, key := range keys {
		errs = append(errs, k.ring.AddKey(key))
	}
	return errors.Join(errs...)
}

// names are the keys in use, the one that encrypts first.
func (k *keyring) names() []string {
	var out []string
	for _, key := range k.ring.GetKeys() {
		out = append(out, KeyName(key))
	}
	return out
}
