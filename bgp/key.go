package bgp

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// keyOf returns the MD5 key that p is to have. The file is read when the peer is
// added or names another file or content. A file that was merely written to is
// not: whoever orders a new key has to know that it ends the session.
func (g *peering) keyOf(p edge.Peer) (string, error) {
	if g.link != nil && g.refusal == "" && g.peer.PasswordFile == p.PasswordFile && g.peer.KeyStamp == p.KeyStamp {
		return g.key, nil
	}
	return readKey(p)
}

// readKey returns the MD5 key of p: the content of its file without the line
// end. Empty if p has none configured.
func readKey(p edge.Peer) (string, error) {
	if p.PasswordFile == "" {
		return "", nil
	}
	st, err := os.Stat(p.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("read password file: %w", err)
	}
	if !st.Mode().IsRegular() { // a pipe would block, a device never end
		return "", fmt.Errorf("read password file %s: not a regular file", p.PasswordFile)
	}
	f, err := os.Open(p.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("read password file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, unix.TCP_MD5SIG_MAXKEYLEN+3)) // key, line end, one too many
	if err != nil {
		return "", fmt.Errorf("read password file: %w", err)
	}
	key := strings.TrimRight(string(b), "\r\n")
	switch {
	case key == "":
		return "", fmt.Errorf("password file %s is empty", p.PasswordFile)
	case len(key) > unix.TCP_MD5SIG_MAXKEYLEN:
		return "", fmt.Errorf("password in %s is longer than %d bytes", p.PasswordFile, unix.TCP_MD5SIG_MAXKEYLEN)
	}
	return key, nil
}
