package proxy

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/catchment-dev/edge"
)

// MaxTicketKeys is how many keys of session tickets may be in use at once: a
// rotation needs two, and one that is accepted for longer is one more.
const MaxTicketKeys = 8

// maxTicketFile bounds a file of ticket keys, in bytes.
const maxTicketFile = 16 << 10

// ticketKey encrypts session tickets. Who has it can read what was recorded: it
// is in no log, no error and no state.
type ticketKey [32]byte

// name tells keys apart for people, as guard.KeyName does for those of the
// gossip: the first 8 hex digits of the SHA-256.
func (k ticketKey) name() string {
	sum := sha256.Sum256(k[:])
	return hex.EncodeToString(sum[:4])
}

// ticketKeysOf reads the ticket keys that cfg names.
func ticketKeysOf(cfg *edge.Config) ([]ticketKey, error) {
	keys, err := readTicketKeys(cfg.Fleet.Proxy.TicketKeyFile)
	if err != nil {
		return nil, fmt.Errorf("fleet.proxy.ticket_key_file: %w", err)
	}
	return keys, nil
}

// readTicketKeys reads a file of ticket keys, one a line: 32 bytes in base64
// each. The first encrypts. Empty lines and those that begin with # are left
// out. No path: no keys.
func readTicketKeys(path string) ([]ticketKey, error) {
	if path == "" {
		return nil, nil
	}
	b, err := readTicketFile(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("read ticket keys: %w: edgeproxy runs as user %s, which must be able to read it", err, whoami())
	case err != nil:
		return nil, fmt.Errorf("read ticket keys: %w", err)
	}
	keys, err := parseTicketKeys(b)
	if err != nil {
		return nil, fmt.Errorf("read ticket keys: %s: %w", path, err)
	}
	return keys, nil
}

func readTicketFile(path string) ([]byte, error) {
	// To open a pipe would wait for somebody to write into it.
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	// A group may read it: on an appliance it is root's, and of edgeproxy's group.
	if mode := st.Mode().Perm(); mode&0o007 != 0 {
		return nil, fmt.Errorf("everybody on this box may use %s (mode %04o); chmod 0600 %s, and make new keys if somebody may have read these", path, mode, path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTicketFile+1))
	if err == nil && len(b) > maxTicketFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxTicketFile)
	}
	return b, err
}

func parseTicketKeys(b []byte) ([]ticketKey, error) {
	var keys []ticketKey
	n := 0
	for text := range strings.Lines(string(b)) {
		n++
		text = strings.TrimSpace(text)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(raw) != len(ticketKey{}) {
			return nil, fmt.Errorf("line %d does not hold 32 bytes in base64; make a key with: openssl rand -base64 32", n)
		}
		key := ticketKey(raw)
		if slices.Contains(keys, key) {
			return nil, fmt.Errorf("the key of line %d is given twice; remove one of the two lines", n)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 || len(keys) > MaxTicketKeys {
		return nil, fmt.Errorf("%d ticket keys are not from 1 to %d", len(keys), MaxTicketKeys)
	}
	return keys, nil
}

// tickets are the keys of session tickets, with the TLS configuration that has
// them: crypto/tls keeps both in one, and takes no key back that it was given
// once other than for other keys.
type tickets struct {
	keys []ticketKey
	tls  *tls.Config
	// err says why keys of the file are not in use: then they are this process's
	// own.
	err error
}

// ticketsOf are the tickets for keys. Without any, crypto/tls makes its own and
// changes them each day: those of before are kept, so that a reload costs no
// client its session.
func (s *Server) ticketsOf(keys []ticketKey, before *tickets) *tickets {
	if before != nil && slices.Equal(keys, before.keys) {
		return &tickets{keys: keys, tls: before.tls}
	}
	t := &tickets{keys: keys, tls: s.tlsConfig()}
	if len(keys) > 0 {
		raw := make([][32]byte, len(keys))
		for i, k := range keys {
			raw[i] = k
		}
		t.tls.SetSessionTicketKeys(raw)
	}
	return t
}

// names are the keys in use, the one that encrypts first; none if they are the
// process's own.
func (t *tickets) names() []string {
	var out []string
	for _, k := range t.keys {
		out = append(out, k.name())
	}
	return out
}
