package slot

import (
	"bytes"
	"debug/pe"
	"fmt"
	"io"
	"slices"
	"strings"
)

// CheckCommandLine says why a UKI does not start the root of its manifest: its
// sealed command line must have roothash=HEX and edge.version=V. Else a UKI could
// boot another root than the one that was written with it (systemd#32653).
func CheckCommandLine(uki io.ReaderAt, m *Manifest) error {
	f, err := pe.NewFile(uki)
	if err != nil {
		return fmt.Errorf("read UKI: %w", err)
	}
	s := f.Section(".cmdline")
	if s == nil {
		return fmt.Errorf("read UKI: no section .cmdline")
	}
	if s.Size > maxCommandLine {
		return fmt.Errorf("read UKI: a command line of %d bytes, at most %d", s.Size, maxCommandLine)
	}
	b, err := s.Data()
	if err != nil {
		return fmt.Errorf("read command line of UKI: %w", err)
	}
	b, _, _ = bytes.Cut(b, []byte{0})
	words := strings.Fields(string(b))
	for _, want := range []string{"roothash=" + m.RootHash, "edge.version=" + m.Version} {
		key, _, _ := strings.Cut(want, "=")
		has := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return !strings.HasPrefix(w, key+"=") })
		if len(has) != 1 || has[0] != want {
			return fmt.Errorf("the UKI is sealed with %.200q, and the manifest says %s: the payload is wrong", strings.Join(has, " "), want)
		}
	}
	return nil
}

const maxCommandLine = 64 << 10 // bytes
