package rpki

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

// What a cache sends; none of it is written by the code under test.

func raw(version, kind byte, session uint16, body ...byte) []byte {
	b := []byte{version, kind, byte(session >> 8), byte(session)}
	b = binary.BigEndian.AppendUint32(b, uint32(8+len(body)))
	return append(b, body...)
}

func u32(n ...uint32) []byte {
	var b []byte
	for _, v := range n {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

func response(version byte, session uint16) []byte { return raw(version, 3, session) }

func notification(version byte, session uint16, serial uint32) []byte {
	return raw(version, 0, session, u32(serial)...)
}

func endOfData(session uint16, serial, refresh, retry, expire uint32) []byte {
	return raw(1, 7, session, u32(serial, refresh, retry, expire)...)
}

func endOfData0(session uint16, serial uint32) []byte { return raw(0, 7, session, u32(serial)...) }

// prefix4 is 192.0.N.0/24-24 of an AS.
func prefix4(version byte, announce bool, n byte, asn uint32) []byte {
	flags := byte(0)
	if announce {
		flags = 1
	}
	return raw(version, 4, 0, append([]byte{flags, 24, 24, 0, 192, 0, n, 0}, u32(asn)...)...)
}

func failure(version byte, code uint16, quoted []byte, text string) []byte {
	body := append(u32(uint32(len(quoted))), quoted...)
	body = append(body, u32(uint32(len(text)))...)
	return raw(version, 10, code, append(body, text...)...)
}

// parse is what the session does with the bytes of one PDU.
func parse(b []byte) (pdu, error) {
	if len(b) < headerSize {
		return pdu{}, errors.New("short")
	}
	n, err := pduLength(b)
	if err != nil {
		return pdu{}, err
	}
	if n > len(b) {
		return pdu{}, errors.New("short")
	}
	return parsePDU(b[:n])
}

func TestParsePDU(t *testing.T) {
	v6 := append([]byte{1, 32, 48, 0, 0x20, 0x01, 0x0d, 0xb8}, make([]byte, 12)...)
	for _, test := range []struct {
		name string
		in   []byte
		want string // of the error
		code uint16
	}{
		{"notify", notification(1, 7, 8), "", 0},
		{"response", response(0, 7), "", 0},
		{"end 1", endOfData(1, 2, 3, 4, 5), "", 0},
		{"end 0", endOfData0(1, 2), "", 0},
		{"end of the other version", raw(0, 7, 1, u32(2, 3, 4, 5)...), "length of 24", codeCorrupt},
		{"end of the other version", raw(1, 7, 1, u32(2)...), "length of 12", codeCorrupt},
		{"ipv4", prefix4(1, true, 2, 64500), "", 0},
		{"ipv4 with unknown flags", raw(1, 4, 9, append([]byte{0xff, 24, 24, 9, 192, 0, 2, 0}, u32(1)...)...), "", 0},
		{"ipv4 too long", raw(1, 4, 0, append([]byte{1, 33, 33, 0, 192, 0, 2, 0}, u32(1)...)...), "length 33", codeCorrupt},
		{"ipv4 maximum", raw(1, 4, 0, append([]byte{1, 24, 33, 0, 192, 0, 2, 0}, u32(1)...)...), "maximum length 33", codeCorrupt},
		{"ipv4 below", raw(1, 4, 0, append([]byte{1, 24, 23, 0, 192, 0, 2, 0}, u32(1)...)...), "maximum length 23", codeCorrupt},
		{"ipv4 host bits", raw(1, 4, 0, append([]byte{1, 24, 24, 0, 192, 0, 2, 1}, u32(1)...)...), "host bits", codeCorrupt},
		{"ipv4 as ipv6", raw(1, 6, 0, append([]byte{1, 24, 24, 0, 192, 0, 2, 0}, u32(1)...)...), "length of 20", codeCorrupt},
		{"ipv6", raw(1, 6, 0, append(v6, u32(1)...)...), "", 0},
		{"ipv6 too long", raw(1, 6, 0, append([]byte{1, 129, 129}, make([]byte, 21)...)...), "length 129", codeCorrupt},
		{"router key", raw(1, 9, 0x100, make([]byte, 120)...), "", 0},
		{"router key short", raw(1, 9, 0x100, make([]byte, 20)...), "length of 28", codeCorrupt},
		{"router key in version 0", raw(0, 9, 0x100, make([]byte, 120)...), "version 0", codeKind},
		{"aspa", raw(2, 11, 0, make([]byte, 12)...), "type 11", codeKind},
		{"a query", raw(1, 2, 0), "type 2", codeKind},
		{"error", failure(1, 2, raw(1, 2, 0), "none yet"), "", 0},
		{"error without either", failure(1, 2, nil, ""), "", 0},
		{"error that quotes too much", raw(1, 10, 0, u32(5, 0)...), "quotes 5", codeCorrupt},
		{"error that quotes far too much", raw(1, 10, 0, u32(0xffffffff, 0)...), "quotes 4294967295", codeCorrupt},
		{"error with too much text", raw(1, 10, 0, u32(0, 1)...), "text", codeCorrupt},
		{"error with too little text", raw(1, 10, 0, u32(0, 0, 0)...), "text", codeCorrupt},
		{"no length", []byte{1, 3, 0, 0, 0, 0, 0, 0}, "length of 0", codeCorrupt},
		{"all lengths", []byte{1, 10, 0, 0, 0xff, 0xff, 0xff, 0xff}, "length of 4294967295", codeCorrupt},
		{"long", raw(1, 9, 0, make([]byte, maxPDU)...), "length of 8200", codeCorrupt},
	} {
		_, err := parse(test.in)
		var bad *pduError
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.want == "":
		case !errors.As(err, &bad) || bad.code != test.code || !strings.Contains(bad.text, test.want):
			t.Errorf("%s: %v, want %q with code %d", test.name, err, test.want, test.code)
		}
	}
}

func TestWriteIsRFC8210(t *testing.T) {
	r, _ := toRecord(vrp("192.0.2.0/24", 24, 64500))
	for _, test := range []struct{ got, want []byte }{
		{resetQuery(1), raw(1, 2, 0)},
		{serialQuery(0, 0x1234, 7), raw(0, 1, 0x1234, u32(7)...)},
		{errorReport(1, 6, raw(1, 3, 1), "why"), failure(1, 6, raw(1, 3, 1), "why")},
		{prefixPDU(1, r), prefix4(1, true, 2, 64500)},
	} {
		if !bytes.Equal(test.got, test.want) {
			t.Errorf("got  %x\nwant %x", test.got, test.want)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                   "plain",
		"nul\x00":                 "nul",
		"\x1b[31mred\n":           "[31mred",
		"bad \xff utf":            "bad  utf",
		strings.Repeat("ä", 1000): strings.Repeat("ä", maxText/2),
	} {
		if got := printable([]byte(in)); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
}

// FuzzPDU: no bytes crash the parser, and a prefix that it takes is one that
// can be validated against and that is written the same.
func FuzzPDU(f *testing.F) {
	for _, b := range [][]byte{
		notification(1, 7, 8), endOfData(1, 2, 3, 4, 5), prefix4(1, true, 2, 64500), failure(1, 2, raw(1, 2, 0), "none yet"),
		raw(1, 6, 0, append([]byte{1, 32, 48, 0, 0x20, 0x01, 0x0d, 0xb8}, make([]byte, 16)...)...), raw(1, 9, 0x100, make([]byte, 120)...),
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parse(b)
		if err != nil || p.kind != kindIPv4 && p.kind != kindIPv6 {
			return
		}
		r := p.record
		r.withdraw = false
		if again, err := toRecord(r.vrp()); err != nil || again != r {
			t.Fatalf("%v is the VRP %v, which is %v, %v", r, r.vrp(), again, err)
		}
		if again, err := parse(prefixPDU(p.version, p.record)); err != nil || again.record != p.record {
			t.Fatalf("%v is written as %v, %v", p.record, again.record, err)
		}
	})
}
