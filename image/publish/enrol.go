package main

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
	"unicode/utf16"
)

// guid is an EFI_GUID as it lies in memory: the first three fields little-endian.
type guid [16]byte

// The GUIDs of the UEFI specification, 2.10: 3.3 (variables), 32.4.1
// (certificates), 8.2.1 (PKCS #7), 32.6.1 (db).
func globalVariable() guid   { return newGUID(0x8be4df61, 0x93ca, 0x11d2, 0xaa0d00e098032b8c) }
func securityDatabase() guid { return newGUID(0xd719b2cb, 0x3d3a, 0x4596, 0xa3bcdad00e67656f) }
func certX509() guid         { return newGUID(0xa5c059a1, 0x94e4, 0x4aa7, 0x87b5ab155c2bf072) }
func certPKCS7() guid        { return newGUID(0x4aafd29d, 0x68df, 0x49ee, 0x8aa9347d375665a7) }

func newGUID(a uint32, b, c uint16, d uint64) (g guid) {
	binary.LittleEndian.PutUint32(g[:], a)
	binary.LittleEndian.PutUint16(g[4:], b)
	binary.LittleEndian.PutUint16(g[6:], c)
	binary.BigEndian.PutUint64(g[8:], d)
	return g
}

// attributes of the variables: NON_VOLATILE, BOOTSERVICE_ACCESS, RUNTIME_ACCESS
// and TIME_BASED_AUTHENTICATED_WRITE_ACCESS.
const attributes = 0x27

func runEnrol(args []string, stderr io.Writer) error {
	set, at := flags("enrol", stderr)
	k := set.String("key", "", "the key that signs")
	current := set.String("cert", "", "its certificate, PEM")
	next := set.String("next", "", "the certificate of the key that comes after it, PEM")
	out := set.String("out", "", "the folder to write PK.auth, KEK.auth and db.auth into")
	if err := parse(set, args, "key", "cert", "next", "out"); err != nil {
		return err
	}
	files, err := enrol(key(*k), *current, *next, stamp(*at))
	if err != nil {
		return fmt.Errorf("make the files of Secure Boot: %w", err)
	}
	named := map[string][]byte{}
	for name, b := range files {
		named[filepath.Join(*out, name+".auth")] = b
	}
	return writeAll(named)
}

// enrol returns PK, KEK and db as signed variables, in the form that systemd-boot
// hands to the firmware. Both certificates are in KEK and db, so that what the
// next key signs boots on every box that was ever set up, and can change the lists
// when the first one is lost.
func enrol(k key, current, next string, at time.Time) (map[string][]byte, error) {
	var ders [][]byte
	for _, name := range []string{current, next} {
		der, err := readCertificate(name)
		if err != nil {
			return nil, err
		}
		ders = append(ders, der)
	}
	if bytes.Equal(ders[0], ders[1]) {
		return nil, errors.New("the certificate of the next key is that of the first one: a key that is lost would lock out all boxes")
	}
	out := map[string][]byte{}
	for _, v := range []struct {
		name   string
		vendor guid
		certs  [][]byte
	}{
		{"PK", globalVariable(), ders[:1]},
		{"KEK", globalVariable(), ders},
		{"db", securityDatabase(), ders},
	} {
		var lists []byte
		for _, der := range v.certs {
			lists = append(lists, signatureList(der)...)
		}
		signature, err := k.cms(signedBytes(v.name, v.vendor, at, lists), current)
		if err != nil {
			return nil, err
		}
		signed, err := unwrap(signature)
		if err != nil {
			return nil, err
		}
		out[v.name] = variable(at, signed, lists)
	}
	return out, nil
}

// readCertificate returns the DER of a certificate that firmware takes.
func readCertificate(name string) ([]byte, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("%s: no certificate in PEM", name)
	}
	if next, _ := pem.Decode(rest); next != nil {
		return nil, fmt.Errorf("%s: more than one certificate: want that of the key alone", name)
	}
	if _, err := x509.ParseCertificate(block.Bytes); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return block.Bytes, nil
}

// signatureList is an EFI_SIGNATURE_LIST (UEFI 2.10, 32.4.1) of one certificate.
// Its owner is nobody: the field says who put it there, and nothing reads it.
func signatureList(der []byte) []byte {
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) } // to memory: no error
	size := uint32(16 + len(der))
	put(certX509())
	put([]uint32{28 + size, 0, size})
	put(guid{})
	b.Write(der)
	return b.Bytes()
}

// efiTime is an EFI_TIME (UEFI 2.10, 8.3): its pads, nanoseconds and zone must be
// zero in a signed variable (8.2.2).
func efiTime(t time.Time) []byte {
	b := make([]byte, 16)
	binary.LittleEndian.PutUint16(b, uint16(t.Year()))
	b[2], b[3], b[4], b[5], b[6] = byte(t.Month()), byte(t.Day()), byte(t.Hour()), byte(t.Minute()), byte(t.Second())
	return b
}

// signedBytes are what the signature of a variable covers (UEFI 2.10, 8.2.2).
func signedBytes(name string, vendor guid, at time.Time, value []byte) []byte {
	var b bytes.Buffer
	for _, unit := range utf16.Encode([]rune(name)) {
		b.Write([]byte{byte(unit), byte(unit >> 8)})
	}
	b.Write(vendor[:])
	b.Write(binary.LittleEndian.AppendUint32(nil, attributes))
	b.Write(efiTime(at))
	b.Write(value)
	return b.Bytes()
}

// variable is an EFI_VARIABLE_AUTHENTICATION_2 with the value behind it.
func variable(at time.Time, signed, value []byte) []byte {
	b := efiTime(at)
	b = binary.LittleEndian.AppendUint32(b, uint32(24+len(signed)))
	b = binary.LittleEndian.AppendUint16(b, 0x0200) // WIN_CERTIFICATE, revision
	b = binary.LittleEndian.AppendUint16(b, 0x0ef1) // WIN_CERT_TYPE_EFI_GUID
	id := certPKCS7()
	b = append(b, id[:]...)
	b = append(b, signed...)
	return append(b, value...)
}

// unwrap takes the SignedData out of its ContentInfo: firmware wants it bare.
func unwrap(der []byte) ([]byte, error) {
	var info struct {
		Type    asn1.ObjectIdentifier
		Content asn1.RawValue `asn1:"tag:0"`
	}
	if rest, err := asn1.Unmarshal(der, &info); err != nil || len(rest) > 0 || len(info.Content.Bytes) == 0 || info.Content.Bytes[0] != 0x30 {
		return nil, fmt.Errorf("openssl's signature is no ContentInfo: %w", err)
	}
	return info.Content.Bytes, nil
}
