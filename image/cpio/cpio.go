// Package cpio writes archives of the newc format, which the kernel unpacks as
// its first root file system.
//
// It owns the format (Documentation/driver-api/early-userspace/buffer-format.rst
// of the kernel). The same calls give the same bytes on every machine: all files
// belong to root, were changed at the epoch and have inodes in the order in
// which they were added. It never reads a file and never compresses.
//
// Process: the build of the image.
package cpio

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
)

// The kinds of files, as in the mode of stat(2).
const (
	kindDir  = 0o040000
	kindFile = 0o100000
	kindLink = 0o120000
	kindMask = 0o170000
)

// mostName is the longest name in bytes: PATH_MAX of the kernel with its zero.
const mostName = 4095

// Writer writes one archive. The first error is kept: each later call and
// Close give it again. It is not safe for concurrent use.
type Writer struct {
	out     io.Writer
	written int64
	inode   uint32
	seen    map[string]bool // name: is a directory
	err     error
}

// NewWriter gives a writer that writes to out without a buffer.
func NewWriter(out io.Writer) *Writer { return &Writer{out: out, seen: map[string]bool{}} }

// Dir adds a directory with the permissions of mode. One that is there already
// is left as it is.
func (w *Writer) Dir(name string, mode fs.FileMode) error {
	if w.err == nil && w.seen[name] {
		return nil
	}
	return w.add(name, kindDir|uint32(mode.Perm()), nil)
}

// File adds a regular file with the permissions of mode.
func (w *Writer) File(name string, mode fs.FileMode, data []byte) error {
	return w.add(name, kindFile|uint32(mode.Perm()), data)
}

// Symlink adds a symbolic link to target, which is not looked at.
func (w *Writer) Symlink(name, target string) error {
	return w.add(name, kindLink|0o777, []byte(target))
}

// Close writes the end of the archive. It does not close what it wrote to.
func (w *Writer) Close() error {
	w.entry("TRAILER!!!", 0, 0, nil)
	err := w.err
	if err == nil {
		w.err = errors.New("the archive is closed")
	}
	return err
}

// add adds a file and the directories that lead to it: the kernel makes none.
func (w *Writer) add(name string, mode uint32, data []byte) error {
	if w.err == nil {
		w.err = w.check(name, data)
	}
	if w.err == nil && path.Dir(name) != "." {
		w.err = w.Dir(path.Dir(name), 0o755)
	}
	if w.err != nil {
		return w.err
	}
	w.seen[name] = mode&kindMask == kindDir
	w.inode++
	w.entry(name, w.inode, mode, data)
	return w.err
}

func (w *Writer) check(name string, data []byte) error {
	_, twice := w.seen[name]
	isDir, there := w.seen[path.Dir(name)]
	switch {
	case !fs.ValidPath(name) || name == "." || len(name) > mostName || name == "TRAILER!!!":
		return fmt.Errorf("add %q: not a name below the root", name)
	case twice:
		return fmt.Errorf("add %s: it is there already", name)
	case there && !isDir:
		return fmt.Errorf("add %s: %s is not a directory", name, path.Dir(name))
	case int64(len(data)) > 0xffffffff:
		return fmt.Errorf("add %s: %d bytes do not fit into the format", name, len(data))
	}
	return nil
}

// entry writes a header, the name with its zero, and the data, each padded to
// four bytes.
func (w *Writer) entry(name string, inode, mode uint32, data []byte) {
	links := 1
	if mode&kindMask == kindDir {
		links = 2
	}
	w.write(fmt.Appendf(nil, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		inode, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name))
	w.write(data)
}

func (w *Writer) write(b []byte) {
	for _, part := range [][]byte{b, make([]byte, -(w.written+int64(len(b)))&3)} {
		if w.err != nil {
			return
		}
		n, err := w.out.Write(part)
		w.written += int64(n)
		if err != nil {
			w.err = fmt.Errorf("write archive: %w", err)
		}
	}
}
