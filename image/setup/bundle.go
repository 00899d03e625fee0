package setup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"path"
	"strings"
)

// bundle takes the files of a tar, plain or by gzip, into b. from names the
// bundle in problems.
func (b *builder) bundle(from string, packed []byte) {
	var r io.Reader = bytes.NewReader(packed)
	if bytes.HasPrefix(packed, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(r)
		if err != nil {
			b.problems.at(from, "", "it cannot be unpacked: %v", err)
			return
		}
		// Padding and headers come on top of what the files may have.
		r = io.LimitReader(z, maxTree+maxLooked*2048)
	}
	t := tar.NewReader(r)
	for range maxLooked {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			b.problems.at(from, "make it with: tar -cf FILE -C FOLDER .", "it is not a whole tar: %v", err)
			return
		}
		if !b.member(from, h, t) {
			return
		}
	}
	b.problems.at(from, "", "it has more than %d entries", maxLooked)
}

// member takes one entry; false ends the reading.
func (b *builder) member(from string, h *tar.Header, r io.Reader) bool {
	name := path.Clean(h.Name)
	switch {
	case path.IsAbs(h.Name), name == "..", strings.HasPrefix(name, "../"):
		b.problems.at(from, "", "%s points out of the bundle", clip(h.Name))
		return true
	case name == ".", ignored(name), h.Typeflag == tar.TypeDir, h.Typeflag == tar.TypeXGlobalHeader: // that of git archive
		return true
	case h.Typeflag != tar.TypeReg:
		b.problems.at(clip(name), "put the file itself there", "it is neither a file nor a folder")
		return true
	case h.Size < 0 || !b.room(name, h.Size):
		return true
	}
	content, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		b.problems.at(from, "", "%s cannot be read: %v", name, err)
		return false
	}
	b.put(name, content)
	return true
}
