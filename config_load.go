package edge

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// MaxConfigSize bounds a configuration file, in bytes.
const MaxConfigSize = 1 << 20

// maxErrors bounds what Parse reports: nobody reads more, and a file of
// garbage has one error a line.
const maxErrors = 500

// Load reads and parses the file at path. A configuration that is not valid
// is an Errors; anything else says that the file could not be read.
func Load(path string) (*Config, error) {
	// To open a pipe would wait for somebody to write into it.
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return nil, fmt.Errorf("read config: %s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	defer f.Close()
	// One byte over the limit is enough for Parse to see that it is too much.
	src, err := io.ReadAll(io.LimitReader(f, MaxConfigSize+1))
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	c, err := Parse(path, src)
	if err != nil {
		return nil, err
	}
	for i := range c.Local.Speaker.Peers {
		p := &c.Local.Speaker.Peers[i]
		p.KeyStamp = stampOf(p.PasswordFile)
	}
	return c, nil
}

// stampOf tells two contents of a file apart without looking at them: it goes
// into states and diffs, where nothing of a secret may be, not even a hash.
func stampOf(path string) string {
	if path == "" {
		return ""
	}
	st, err := os.Stat(path)
	if err != nil {
		return "none" // who reads it says why
	}
	return fmt.Sprintf("%d bytes, %s", st.Size(), st.ModTime().UTC().Format(time.RFC3339Nano))
}

// Parse turns the YAML of src into the typed configuration in one strict step.
// name is what errors call the file. The error is an Errors with everything
// that is wrong, in the order of the file; the Config is nil then.
func Parse(name string, src []byte) (*Config, error) {
	c, r := parse(name, src)
	if len(r.errs) > 0 {
		return nil, r.sorted()
	}
	sum := sha256.Sum256(src)
	c.Hash = hex.EncodeToString(sum[:])
	return c, nil
}

// parse is Parse with the reader that was used: it knows all keys.
func parse(name string, src []byte) (*Config, *reader) {
	r := newReader(name)
	root, ok := r.document(src)
	if !ok {
		return nil, r
	}
	c := r.config(root)
	checkConfig(r, c)
	return c, r
}

// Error is one thing that is wrong with a configuration.
type Error struct {
	File string `json:"file"`
	// Line and Column count from 1; a column is a character, not a byte.
	Line   int `json:"line"`
	Column int `json:"column"`
	// Path names the key, as in fleet.services[0].vip. Empty if it is the file
	// itself that cannot be read as YAML.
	Path string `json:"path,omitempty"`
	// Msg says what is wrong and what was expected.
	Msg string `json:"message"`
}

// Error returns "FILE:LINE:COLUMN: PATH: MSG".
func (e Error) Error() string {
	at := fmt.Sprintf("%s:%d:%d: ", e.File, e.Line, e.Column)
	if e.Path != "" {
		at += e.Path + ": "
	}
	return at + e.Msg
}

// Errors are all that is wrong with a configuration, in the order of the file.
type Errors []Error

// Error returns one line for each error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// sorted returns the errors in the order of the file, at most maxErrors and
// one that says how many were left out.
func (r *reader) sorted() Errors {
	slices.SortStableFunc(r.errs, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path))
	})
	r.errs = slices.Compact(r.errs)
	if n := len(r.errs) - maxErrors; n > 0 {
		last := r.errs[maxErrors]
		last.Path, last.Msg = "", fmt.Sprintf("and %d more errors from here on", n)
		return append(r.errs[:maxErrors:maxErrors], last)
	}
	return r.errs
}
