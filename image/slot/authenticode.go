package slot

import (
	"bufio"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// The types of entries of an EFI_SIGNATURE_LIST (UEFI 2.10, section 32.4.1), as they
// lie in memory. Others are not looked at: they allow nothing that is of ours.
const (
	listX509     = "a159c0a5e494a74a87b5ab155c2bf072"
	listSHA256   = "2616c4c14c509240aca941f936934328"
	listX509Body = "92a4d23bc0967940b420fcf98ef103ed" // EFI_CERT_X509_SHA256
)

// parseSignatures reads EFI_SIGNATURE_LISTs, one after another. Nothing is none.
func parseSignatures(b []byte) (s signatures, err error) {
	const listHead, owner = 28, 16
	s = signatures{sums: map[[32]byte]bool{}, bodies: map[[32]byte]bool{}}
	for len(b) > 0 {
		if len(b) < listHead {
			return s, fmt.Errorf("%d bytes are no signature list", len(b))
		}
		kind := hex.EncodeToString(b[:16])
		length, head, size := uint64(binary.LittleEndian.Uint32(b[16:])), uint64(binary.LittleEndian.Uint32(b[20:])), uint64(binary.LittleEndian.Uint32(b[24:]))
		if length > uint64(len(b)) || length < listHead+head || size <= owner || (length-listHead-head)%size != 0 {
			return s, fmt.Errorf("a signature list of %d bytes, with a head of %d and entries of %d, in %d bytes", length, head, size, len(b))
		}
		for entries := b[listHead+head : length]; len(entries) > 0; entries = entries[size:] {
			value := entries[owner:size]
			switch {
			case kind == listX509:
				s.certificates = append(s.certificates, value)
			case kind == listSHA256 && len(value) == sha256.Size:
				s.sums[[32]byte(value)] = true
			case kind == listX509Body && len(value) >= sha256.Size: // a time is behind it
				s.bodies[[32]byte(value[:32])] = true
			}
		}
		b = b[length:]
	}
	return s, nil
}

// What is taken of a program.
const (
	mostHead  = 4096    // bytes until the end of its optional header
	mostTable = 1 << 20 // of its signatures
)

// layout is where in a PE program is what its sum does not cover, in bytes from its
// beginning (Windows Authenticode Portable Executable Signature Format, 1.0).
type layout struct {
	checksum, entry int64 // 4 and 8 bytes
	table, length   int64 // of the certificate table; 0, 0: none
}

// parseLayout reads the head of a program of so many bytes.
func parseLayout(head []byte, size int64) (l layout, err error) {
	if len(head) < 0x40 || string(head[:2]) != "MZ" {
		return l, errors.New("it does not begin as a program does")
	}
	at := int64(binary.LittleEndian.Uint32(head[0x3c:]))
	const coff, fixed = 24, 64 + 4 // signature and header; the optional header up to its checksum
	if at+coff+fixed > int64(len(head)) || string(head[at:at+4]) != "PE\x00\x00" {
		return l, errors.New("it has no PE header")
	}
	optional, directories := at+coff, int64(0)
	switch binary.LittleEndian.Uint16(head[optional:]) {
	case 0x10b:
		directories = optional + 96
	case 0x20b:
		directories = optional + 112
	default:
		return l, errors.New("its optional header is of no known kind")
	}
	const certificates = 4 // the fifth of the directories
	l.checksum, l.entry = optional+64, directories+8*certificates
	if l.entry+8 > int64(len(head)) || l.entry+8 > size || binary.LittleEndian.Uint32(head[directories-4:]) <= certificates {
		return l, errors.New("it has no place for a certificate table")
	}
	l.table, l.length = int64(binary.LittleEndian.Uint32(head[l.entry:])), int64(binary.LittleEndian.Uint32(head[l.entry+4:]))
	switch {
	case l.length == 0:
		l.table = size
	case l.table < l.entry+8 || l.table+l.length > size || l.length > mostTable:
		return l, fmt.Errorf("its certificate table, %d bytes at %d, is not in its %d bytes, or above %d", l.length, l.table, size, mostTable)
	}
	return l, nil
}

// readProgram reads a program of so many bytes once, from its beginning, and returns
// its certificate table and its Authenticode sum. The sum is right for a program whose
// sections follow one another, as those of a UKI do.
func readProgram(from io.Reader, size int64) (table []byte, digest [32]byte, err error) {
	in := bufio.NewReaderSize(from, mostHead)
	head, err := in.Peek(mostHead)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, digest, err
	}
	l, err := parseLayout(head, size)
	if err != nil {
		return nil, digest, err
	}
	h, at := sha256.New(), int64(0)
	table = make([]byte, l.length)
	for _, part := range []struct {
		end     int64
		covered bool
	}{{l.checksum, true}, {l.checksum + 4, false}, {l.entry, true}, {l.entry + 8, false}, {l.table, true}} {
		to := io.Writer(h)
		if !part.covered {
			to = io.Discard
		}
		if _, err := io.CopyN(to, in, part.end-at); err != nil {
			return nil, digest, short(err)
		}
		at = part.end
	}
	if _, err := io.ReadFull(in, table); err != nil {
		return nil, digest, short(err)
	}
	if _, err := io.CopyN(h, in, size-at-l.length); err != nil {
		return nil, digest, short(err)
	}
	return table, [32]byte(h.Sum(nil)), nil
}

func short(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends too early")
	}
	return err
}

// parseTable reads the WIN_CERTIFICATEs of a certificate table, each of which begins
// at a multiple of 8. Those that are not of PKCS #7 are left out, as firmware does.
func parseTable(b []byte) (out []*signedData, err error) {
	const head, pkcs7 = 8, 2
	for len(b) > 0 {
		if len(b) < head {
			return nil, fmt.Errorf("%d bytes are no certificate", len(b))
		}
		length := uint64(binary.LittleEndian.Uint32(b))
		if length <= head || length > uint64(len(b)) {
			return nil, fmt.Errorf("a certificate of %d bytes, in %d", length, len(b))
		}
		if binary.LittleEndian.Uint16(b[6:]) == pkcs7 {
			s, err := parseSigned(b[head:length])
			if err != nil {
				return nil, err
			}
			out = append(out, s)
		}
		b = b[min((length+7)&^7, uint64(len(b))):]
	}
	return out, nil
}

// parseSigned reads a ContentInfo with a SignedData. What follows fills it up to 8 bytes.
func parseSigned(der []byte) (*signedData, error) {
	var info struct {
		Type    asn1.ObjectIdentifier
		Content asn1.RawValue `asn1:"tag:0"`
	}
	if _, err := asn1.Unmarshal(der, &info); err != nil {
		return nil, err
	}
	s := &signedData{}
	if _, err := asn1.Unmarshal(info.Content.Bytes, s); err != nil {
		return nil, err
	}
	return s, nil
}
