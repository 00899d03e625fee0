package wire_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

func FuzzRead(f *testing.F) {
	f.Add(append(wire.Keepalive(), wire.EndOfRIB(edge.IPv4)...))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := wire.NewReader(bytes.NewReader(in))
		read := 0
		for {
			m, err := r.Read()
			if err != nil {
				var bad *wire.Error
				if !errors.As(err, &bad) && err != io.EOF && err != io.ErrUnexpectedEOF {
					t.Fatal(err)
				}
				return
			}
			if !bytes.Equal(m.Raw, in[read:read+len(m.Raw)]) || len(m.Raw) < wire.HeaderLen || len(m.Raw) > wire.MaxLen {
				t.Fatalf("%x at %d", m.Raw, read)
			}
			read += len(m.Raw)
		}
	})
}

// fuzzBody seeds with the committed messages, and puts the right header before
// each body: faults of the header are FuzzRead's.
func fuzzBody(f *testing.F, typ wire.Type, check func(testing.TB, []byte), dirs ...string) {
	for _, dir := range dirs {
		for _, c := range corpus(f, dir) {
			f.Add(c.raw[wire.HeaderLen:])
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		n := wire.HeaderLen + len(body)
		if n > wire.MaxLen {
			return
		}
		raw := append(bytes.Repeat([]byte{0xff}, 16), byte(n>>8), byte(n), byte(typ))
		check(t, append(raw, body...))
	})
}

func FuzzParseOpen(f *testing.F) { fuzzBody(f, wire.TypeOpen, checkOpen, "open") }

func FuzzParseUpdate(f *testing.F) { fuzzBody(f, wire.TypeUpdate, checkUpdate, "malformed") }

func FuzzParseNotification(f *testing.F) {
	f.Add([]byte("\x06\x02\x03abc"))
	f.Add([]byte("\x06\x09\x06\x04\x03abc"))
	fuzzBody(f, wire.TypeNotification, func(t testing.TB, raw []byte) {
		if n, err := wire.ParseNotification(raw); err == nil {
			checkNotification(t, n)
		}
	})
}
