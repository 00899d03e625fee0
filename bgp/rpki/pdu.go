package rpki

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The PDU types of RFC 8210 section 5.
const (
	kindNotify    = 0
	kindSerial    = 1 // query
	kindReset     = 2 // query
	kindResponse  = 3
	kindIPv4      = 4
	kindIPv6      = 6
	kindEnd       = 7 // of data
	kindCacheRest = 8 // the cache has no difference for us: ask for all
	kindRouterKey = 9 // version 1
	kindError     = 10
)

// The error codes of RFC 8210 section 12.
const (
	codeCorrupt       = 0
	codeNoData        = 2
	codeVersion       = 4 // not supported
	codeKind          = 5 // not supported
	codeUnknownRecord = 6
	codeDuplicate     = 7
	codeOtherVersion  = 8 // than negotiated
)

const (
	headerSize = 8
	// maxPDU bounds the two kinds without a fixed length. A router key has
	// about 120 bytes, an error report quotes a query of ours and has a text.
	maxPDU  = 8192
	maxText = 256 // of an error report that is shown, in bytes
	version = 1   // the highest that we speak
)

// pdu is one PDU from a cache.
type pdu struct {
	version, kind uint8
	session       uint16 // error report: the code
	serial        uint32
	// Of End of Data in version 1, in seconds; zero in version 0.
	refresh, retry, expire uint32
	record                 record
	text                   string // of an error report
}

// pduError is a PDU that cannot be taken, with the code that the cache is told.
type pduError struct {
	code uint16
	text string
}

func (e *pduError) Error() string { return e.text }

func corrupt(format string, args ...any) error {
	return &pduError{codeCorrupt, fmt.Sprintf(format, args...)}
}

// pduLength returns the length of the PDU that begins with header, in bytes, or
// an error if no such PDU exists. A version that we do not speak is left to the
// session: an error report is understood in any.
func pduLength(header []byte) (int, error) {
	length := binary.BigEndian.Uint32(header[4:])
	low, high := uint32(headerSize), uint32(headerSize)
	switch kind := header[1]; kind {
	case kindResponse, kindCacheRest:
	case kindNotify:
		low, high = 12, 12
	case kindIPv4:
		low, high = 20, 20
	case kindIPv6:
		low, high = 32, 32
	case kindEnd:
		low, high = 24, 24
		if header[0] == 0 {
			low, high = 12, 12
		}
	case kindRouterKey:
		if header[0] == 0 {
			return 0, &pduError{codeKind, "a router key in version 0"}
		}
		low, high = 32, maxPDU
	case kindError:
		low, high = 16, maxPDU
	default:
		return 0, &pduError{codeKind, fmt.Sprintf("PDU type %d is not one that a cache sends in version %d", kind, header[0])}
	}
	if length < low || length > high {
		return 0, corrupt("a PDU of type %d has a length of %d bytes", header[1], length)
	}
	return int(length), nil
}

// parsePDU reads one PDU of the length that pduLength has accepted. Fields
// without a meaning are ignored (RFC 8210 section 5).
func parsePDU(b []byte) (pdu, error) {
	p := pdu{version: b[0], kind: b[1], session: binary.BigEndian.Uint16(b[2:])}
	body := b[headerSize:]
	switch p.kind {
	case kindNotify:
		p.serial = binary.BigEndian.Uint32(body)
	case kindEnd:
		p.serial = binary.BigEndian.Uint32(body)
		if len(body) > 4 {
			p.refresh, p.retry, p.expire = binary.BigEndian.Uint32(body[4:]), binary.BigEndian.Uint32(body[8:]), binary.BigEndian.Uint32(body[12:])
		}
	case kindIPv4, kindIPv6:
		var err error
		p.record, err = parseRecord(body, p.kind == kindIPv6)
		return p, err
	case kindError:
		return p, p.parseError(body)
	}
	return p, nil
}

// parseRecord reads the body of an IPv4 or IPv6 prefix: flags, prefix length,
// maximum length, a zero, the address, the AS.
func parseRecord(b []byte, v6 bool) (record, error) {
	r := record{v6: v6, bits: b[1], max: b[2], withdraw: b[0]&1 == 0}
	most := uint8(32)
	if v6 {
		most = 128
		r.hi, r.lo, r.asn = binary.BigEndian.Uint64(b[4:]), binary.BigEndian.Uint64(b[12:]), binary.BigEndian.Uint32(b[20:])
	} else {
		r.hi, r.asn = uint64(binary.BigEndian.Uint32(b[4:]))<<32, binary.BigEndian.Uint32(b[8:])
	}
	if r.bits > r.max || r.max > most {
		return record{}, corrupt("a prefix has the length %d and the maximum length %d of %d", r.bits, r.max, most)
	}
	if r.cut(r.bits) != r {
		return record{}, corrupt("the prefix %s has host bits", r.vrp().Prefix)
	}
	return r, nil
}

// parseError reads the body of an error report: the length of the quoted PDU,
// the PDU, the length of the text, the text.
func (p *pdu) parseError(b []byte) error {
	quoted := uint64(binary.BigEndian.Uint32(b))
	if quoted+8 > uint64(len(b)) {
		return corrupt("an error report of %d bytes quotes %d", len(b), quoted)
	}
	b = b[4+quoted:]
	if uint64(binary.BigEndian.Uint32(b))+4 != uint64(len(b)) {
		return corrupt("the text of an error report has not the length that it says")
	}
	p.text = printable(b[4:])
	return nil
}

// printable makes the words of a stranger fit for a log and a terminal.
func printable(b []byte) string {
	b = b[:min(len(b), maxText)] // half of a rune at the end is dropped below
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, string(b)))
}

// header begins a PDU of ours.
func header(version, kind uint8, session uint16, length int) []byte {
	b := make([]byte, 0, length)
	b = append(b, version, kind)
	b = binary.BigEndian.AppendUint16(b, session)
	return binary.BigEndian.AppendUint32(b, uint32(length))
}

func resetQuery(version uint8) []byte { return header(version, kindReset, 0, headerSize) }

func serialQuery(version uint8, session uint16, serial uint32) []byte {
	return binary.BigEndian.AppendUint32(header(version, kindSerial, session, 12), serial)
}

// errorReport tells the cache what was wrong with the PDU it sent; quoted may
// be the beginning of it.
func errorReport(version uint8, code uint16, quoted []byte, text string) []byte {
	b := header(version, kindError, code, headerSize+4+len(quoted)+4+len(text))
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(quoted))), quoted...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(text))), text...)
}

// prefixPDU is the PDU of a record: what an error report about it quotes.
func prefixPDU(version uint8, r record) []byte {
	kind, length := uint8(kindIPv4), 20
	if r.v6 {
		kind, length = kindIPv6, 32
	}
	flags := byte(1)
	if r.withdraw {
		flags = 0
	}
	b := append(header(version, kind, 0, length), flags, r.bits, r.max, 0)
	if r.v6 {
		b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, r.hi), r.lo)
	} else {
		b = binary.BigEndian.AppendUint32(b, uint32(r.hi>>32))
	}
	return binary.BigEndian.AppendUint32(b, r.asn)
}
