// Package verity reads what veritysetup wrote of a partition, tells which root
// hash it belongs to, and has the kernel check each block that is read.
//
// It owns the superblock (cryptsetup's docs/v1.6.0 verity on-disk format,
// format 1), the root hash of a hash area, and the table of the dm-verity
// target, which panics on the first block that is not what it was. It never
// makes a hash tree, it knows SHA-256 and blocks of 4096 bytes alone, and it
// takes the root hash from its caller: who trusts it has to say why.
//
// Process: the initrd, and edgectl, which looks at a slot that it has written.
package verity

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
)

// BlockSize of data and of hashes, in bytes.
const BlockSize = 4096

// mostSalt is the room for the salt in a superblock, in bytes.
const mostSalt = 256

// ErrNone says that there is no superblock: nothing was written here, or
// something else.
var ErrNone = errors.New("no verity superblock")

// Hash is a SHA-256 of a block with the salt in front of it.
type Hash [sha256.Size]byte

// String is the hash in lower-case hexadecimal digits, as in roothash=.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// ParseHash reads 64 hexadecimal digits.
func ParseHash(s string) (h Hash, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(h) {
		return Hash{}, fmt.Errorf("root hash %.80q: want %d hexadecimal digits", s, 2*len(h))
	}
	return Hash(b), nil
}

// Superblock is what stands in front of a hash area.
type Superblock struct {
	UUID   [16]byte
	Blocks uint64 // of data that are hashed; 2 or more
	Salt   []byte // up to 256 bytes; may be empty
}

// Parse reads a superblock from the first 512 bytes of a hash area.
func Parse(b []byte) (Superblock, error) {
	if len(b) < 512 || !bytes.Equal(b[:8], []byte("verity\x00\x00")) {
		return Superblock{}, ErrNone
	}
	le := binary.LittleEndian
	algorithm, _, _ := bytes.Cut(b[32:64], []byte{0})
	salt := le.Uint16(b[80:])
	s := Superblock{UUID: [16]byte(b[16:]), Blocks: le.Uint64(b[72:])}
	switch {
	case le.Uint32(b[8:]) != 1 || le.Uint32(b[12:]) != 1:
		return Superblock{}, fmt.Errorf("verity version %d, hash type %d: only 1 and 1 are known", le.Uint32(b[8:]), le.Uint32(b[12:]))
	case string(algorithm) != "sha256":
		return Superblock{}, fmt.Errorf("verity algorithm %q: only sha256 is known", algorithm)
	case le.Uint32(b[64:]) != BlockSize || le.Uint32(b[68:]) != BlockSize:
		return Superblock{}, fmt.Errorf("verity blocks of %d and %d bytes: only %d is known", le.Uint32(b[64:]), le.Uint32(b[68:]), BlockSize)
	case salt > mostSalt:
		return Superblock{}, fmt.Errorf("a verity salt of %d bytes", salt)
	case s.Blocks < 2 || s.Blocks > 1<<40:
		// With one block there is no tree: its hash would be the data's own.
		return Superblock{}, fmt.Errorf("verity over %d blocks", s.Blocks)
	}
	s.Salt = slices.Clone(b[88 : 88+int(salt)])
	return s, nil
}

// Area is a hash area that was looked at.
type Area struct {
	Superblock
	Root Hash // of the top block: the data's, if the tree below it is whole
}

// Read reads the superblock and the top block of the tree, which is behind it.
// That the rest of the area, and the data, belong to it is what the kernel
// finds out block by block.
func Read(hashes io.ReaderAt) (Area, error) {
	b := make([]byte, 2*BlockSize)
	if _, err := hashes.ReadAt(b, 0); err != nil {
		return Area{}, fmt.Errorf("read verity superblock: %w", err)
	}
	s, err := Parse(b)
	if err != nil {
		return Area{}, err
	}
	return Area{Superblock: s, Root: sha256.Sum256(slices.Concat(s.Salt, b[BlockSize:]))}, nil
}

// Bytes is how many bytes of data are hashed.
func (s Superblock) Bytes() int64 { return int64(s.Blocks) * BlockSize }

// table is the line of parameters of the dm-verity target
// (Documentation/admin-guide/device-mapper/verity.rst). Devices are MAJOR:MINOR.
// A block that is wrong panics: the machine resets, and the boot counts as one
// that failed. To give an error to the reader alone would leave a box that runs
// on with half of its programs.
func (s Superblock) table(root Hash, data, hashes string) string {
	salt := "-"
	if len(s.Salt) > 0 {
		salt = hex.EncodeToString(s.Salt)
	}
	return fmt.Sprintf("1 %s %s %d %d %d 1 sha256 %s %s 1 panic_on_corruption", data, hashes, BlockSize, BlockSize, s.Blocks, root, salt)
}
