package slot

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"
)

// The files of a payload beside those that its manifest names.
const (
	ManifestName  = "manifest.json"
	SignatureName = "manifest.json.sig"
)

const (
	// ManifestFormat is the one that this code reads. A key that an older reader
	// would have to know makes another one.
	ManifestFormat = 1
	maxManifest    = 64 << 10 // bytes
	maxSignature   = 4 << 10
	maxPart        = 16 << 30
	maxUKI         = 256 << 20
)

// Part is what a file of a payload is for.
type Part string

// The parts, in the order in which they are written: nothing must point to a root
// that is not whole.
const (
	Verity Part = "verity"
	Root   Part = "root"
	Kernel Part = "uki"
)

func parts() []Part { return []Part{Verity, Root, Kernel} }

// File is a file of a payload. It is compressed with zstd.
type File struct {
	Part Part   `json:"part"`
	Name string `json:"name"`
	// Size and SHA256 (hex) are those of what is written, the others of the file.
	Size         int64  `json:"size"`
	SHA256       string `json:"sha256"`
	PackedSize   int64  `json:"packed_size"`
	PackedSHA256 string `json:"packed_sha256"`
}

// Manifest says what a payload is. Its bytes are signed.
type Manifest struct {
	Format   int       `json:"format"`
	Version  string    `json:"version"`
	Profile  string    `json:"profile"`
	Arch     string    `json:"arch"`
	Commit   string    `json:"commit"`
	Created  time.Time `json:"created"`
	RootHash string    `json:"roothash"` // of dm-verity, 64 hex digits
	Files    []File    `json:"files"`
}

// ParseManifest reads a manifest strictly: a key that it does not know, a part that
// is missing or twice, a name that is a path and a size out of range are errors.
func ParseManifest(b []byte) (*Manifest, error) {
	if len(b) > maxManifest {
		return nil, fmt.Errorf("read manifest: %d bytes, at most %d", len(b), maxManifest)
	}
	// The format first: what is newer has other keys, and that is not its mistake.
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	if head.Format != ManifestFormat {
		return nil, fmt.Errorf("read manifest: its format is %d, and this version reads %d: upgrade to a version in between first", head.Format, ManifestFormat)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	m := &Manifest{}
	if err := d.Decode(m); err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("read manifest: something follows its end")
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	return m, nil
}

// Of the words and names of a manifest, in bytes.
const longestWord, longestName = 64, 200

var (
	plainName = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._+~^-]*$`)
	plainWord = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._-]*$`)
)

func (m *Manifest) check() error {
	if err := CheckVersion(m.Version); err != nil {
		return err
	}
	for key, word := range map[string]string{"profile": m.Profile, "arch": m.Arch} {
		if len(word) > longestWord || !plainWord.MatchString(word) {
			return fmt.Errorf("%s: %.70q is no word", key, word)
		}
	}
	if !isSHA256(m.RootHash) {
		return errors.New("roothash: not 64 hex digits")
	}
	if len(m.Files) != len(parts()) {
		return fmt.Errorf("files: %d of them, want one for each of %v", len(m.Files), parts())
	}
	for _, p := range parts() {
		i := slices.IndexFunc(m.Files, func(f File) bool { return f.Part == p })
		if i < 0 {
			return fmt.Errorf("files: no %s", p)
		}
		if err := m.Files[i].check(); err != nil {
			return fmt.Errorf("files: %s: %w", p, err)
		}
	}
	return nil
}

func (f File) check() error {
	least, most := int64(1), int64(maxPart)
	if f.Part == Kernel {
		least, most = leastUKI, maxUKI
	}
	switch {
	case len(f.Name) > longestName || !plainName.MatchString(f.Name) || f.Name == ManifestName || f.Name == SignatureName:
		return fmt.Errorf("name: %.70q is not the plain name of a file", f.Name)
	case f.Size < least || f.Size > most:
		return fmt.Errorf("size: %d is not in %d to %d", f.Size, least, most)
	case f.PackedSize <= 0 || f.PackedSize > most:
		return fmt.Errorf("packed_size: %d is not in 1 to %d", f.PackedSize, most)
	case !isSHA256(f.SHA256):
		return errors.New("sha256: not 64 hex digits")
	case !isSHA256(f.PackedSHA256):
		return errors.New("packed_sha256: not 64 hex digits")
	}
	return nil
}

// isSHA256 takes lower case only: the same sum is the same text.
func isSHA256(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32 && hex.EncodeToString(b) == s
}

// File returns the file for a part. The manifest is one that was parsed.
func (m *Manifest) File(p Part) File {
	for _, f := range m.Files {
		if f.Part == p {
			return f
		}
	}
	return File{Part: p}
}

// PackedSize is what has to be fetched, in bytes.
func (m *Manifest) PackedSize() (n int64) {
	for _, f := range m.Files {
		n += f.PackedSize
	}
	return n
}
