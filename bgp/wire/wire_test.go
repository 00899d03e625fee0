package wire_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// unhex reads hex digits with any spaces between them.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	must(t, err)
	return b
}

// message puts a header with the right length before a body in hex digits.
func message(t testing.TB, typ wire.Type, body string) []byte {
	t.Helper()
	b := unhex(t, body)
	n := wire.HeaderLen + len(b)
	head := append(bytes.Repeat([]byte{0xff}, 16), byte(n>>8), byte(n), byte(typ))
	return append(head, b...)
}

// failure asserts that err is an *Error with these numbers and data.
func failure(t testing.TB, err error, code, subcode uint8, data string) {
	t.Helper()
	var bad *wire.Error
	if !errors.As(err, &bad) {
		t.Fatalf("error %v (%T), want an *Error %d/%d", err, err, code, subcode)
	}
	if bad.Code != code || bad.Subcode != subcode || !bytes.Equal(bad.Data, unhex(t, data)) {
		t.Errorf("%s: %d/%d with data %x, want %d/%d with %s", bad, bad.Code, bad.Subcode, bad.Data, code, subcode, data)
	}
	if bad.Text == "" {
		t.Error("an error without a text")
	}
	n, err := wire.ParseNotification(bad.Notification())
	must(t, err)
	if n.Code != code || n.Subcode != subcode {
		t.Errorf("the notification says %s", n)
	}
}

const marker = "ffffffffffffffffffffffffffffffff"

func TestReaderFaults(t *testing.T) {
	for _, c := range []struct {
		name, in      string
		code, subcode uint8
		data          string
	}{
		{"marker", "ffffffffffffffffffffffffffffff00 0013 04", 1, 1, ""},
		{"all zero", strings.Repeat("00", 19), 1, 1, ""},
		{"an HTTP request", hex.EncodeToString([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")), 1, 1, ""},
		{"length 0", marker + "0000 04", 1, 2, "0000"},
		{"length 18", marker + "0012 04", 1, 2, "0012"},
		{"length 4097", marker + "1001 02", 1, 2, "1001"},
		{"length 65535", marker + "ffff 02", 1, 2, "ffff"},
		{"type 0", marker + "0013 00", 1, 3, "00"},
		{"type 6", marker + "0017 06", 1, 3, "06"},
		{"type 128, the old route refresh", marker + "0017 80", 1, 3, "80"},
		{"short OPEN", marker + "001c 01", 1, 2, "001c"},
		{"short UPDATE", marker + "0016 02", 1, 2, "0016"},
		{"short NOTIFICATION", marker + "0014 03", 1, 2, "0014"},
		{"long KEEPALIVE", marker + "0014 04 00", 1, 2, "0014"},
		{"short ROUTE-REFRESH", marker + "0016 05", 1, 2, "0016"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := wire.NewReader(bytes.NewReader(unhex(t, c.in)))
			_, err := r.Read()
			failure(t, err, c.code, c.subcode, c.data)
			if _, again := r.Read(); again != err {
				t.Errorf("then %v, want the same again", again)
			}
		})
	}
}

func TestReader(t *testing.T) {
	long := message(t, wire.TypeUpdate, strings.Repeat("00", wire.MaxLen-wire.HeaderLen))
	all := [][]byte{wire.Keepalive(), long, wire.EndOfRIB(edge.IPv6), wire.Notify(6, 2, nil), message(t, wire.TypeRouteRefresh, "00010001")}
	stream := bytes.Join(all, nil)
	for name, in := range map[string]io.Reader{
		"at once":       bytes.NewReader(stream),
		"byte by byte":  iotest.OneByteReader(bytes.NewReader(stream)),
		"with the data": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		t.Run(name, func(t *testing.T) {
			r := wire.NewReader(in)
			for _, want := range all {
				m, err := r.Read()
				must(t, err)
				if !bytes.Equal(m.Raw, want) || m.Type != wire.Type(want[18]) {
					t.Fatalf("%s %x, want %x", m.Type, m.Raw, want)
				}
			}
			if _, err := r.Read(); err != io.EOF {
				t.Errorf("at the end: %v, want EOF", err)
			}
		})
	}
}

// TestReaderErrors: a stream that ends within a message is not a good end, a
// timeout loses nothing, and a reader that gives nothing is no busy loop.
func TestReaderErrors(t *testing.T) {
	whole := wire.Notify(6, 4, []byte("abc"))
	for n := 1; n < len(whole); n++ {
		if _, err := wire.NewReader(bytes.NewReader(whole[:n])).Read(); err != io.ErrUnexpectedEOF {
			t.Fatalf("end after %d bytes: %v", n, err)
		}
		r := wire.NewReader(io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(os.ErrDeadlineExceeded)))
		if _, err := r.Read(); err != os.ErrDeadlineExceeded {
			t.Fatalf("timeout after %d bytes: %v", n, err)
		}
	}
	stutter := &stutter{rest: whole}
	r := wire.NewReader(stutter)
	for {
		m, err := r.Read()
		if err == nil {
			if !bytes.Equal(m.Raw, whole) {
				t.Errorf("%x", m.Raw)
			}
			break
		}
		if err != os.ErrDeadlineExceeded {
			t.Fatal(err)
		}
	}
	if stutter.timeouts != len(whole) {
		t.Errorf("%d timeouts, want one for each of %d bytes", stutter.timeouts, len(whole))
	}
	if _, err := wire.NewReader(nothing{}).Read(); err != io.ErrNoProgress {
		t.Errorf("a reader of nothing: %v", err)
	}
}

// stutter gives one byte, then a timeout, and so on.
type stutter struct {
	rest     []byte
	timeouts int
	late     bool
}

func (s *stutter) Read(p []byte) (int, error) {
	if s.late = !s.late; s.late {
		s.timeouts++
		return 0, os.ErrDeadlineExceeded
	}
	p[0], s.rest = s.rest[0], s.rest[1:]
	return 1, nil
}

type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, nil }

func TestTypes(t *testing.T) {
	var got []string
	for i := range wire.Type(7) {
		got = append(got, i.String())
	}
	want := []string{"type 0", "OPEN", "UPDATE", "NOTIFICATION", "KEEPALIVE", "ROUTE-REFRESH", "type 6"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// TestWrongMessage: the parsers do not trust that the bytes came from a Reader.
func TestWrongMessage(t *testing.T) {
	parsers := map[string]func([]byte) error{
		"open":         func(b []byte) error { _, err := wire.ParseOpen(b); return err },
		"update":       func(b []byte) error { _, err := wire.ParseUpdate(b, true); return err },
		"notification": func(b []byte) error { _, err := wire.ParseNotification(b); return err },
		"refresh": func(b []byte) error {
			if _, ok := wire.ParseRouteRefresh(b); !ok {
				return errors.New("refused")
			}
			return nil
		},
	}
	tooLong := append(wire.EndOfRIB(edge.IPv4), 0)
	for name, parse := range parsers {
		for _, b := range [][]byte{nil, {0xff}, wire.Keepalive(), wire.Keepalive()[:18], tooLong, tooLong[:21], make([]byte, 100)} {
			if parse(b) == nil {
				t.Errorf("%s of %x was taken", name, b)
			}
		}
	}
}

func TestEndOfRIB(t *testing.T) {
	for _, f := range []edge.Family{edge.IPv4, edge.IPv6} {
		u, err := wire.ParseUpdate(wire.EndOfRIB(f), true)
		must(t, err)
		if diff := cmp.Diff(wire.Update{EndOfRIB: f}, u, exported); diff != "" {
			t.Errorf("%s (-want +got):\n%s", f, diff)
		}
	}
}

func TestRouteRefresh(t *testing.T) {
	for body, want := range map[string]edge.Family{
		"00010001": edge.IPv4, "00020001": edge.IPv6,
		"00010101": "", "00010201": "", // RFC 7313: begin, end
		"00010002": "", "00010080": "", "00190046": "", "00000001": "", "01010001": "",
		"0001000101400003010203": "", // RFC 5291: a filter
	} {
		f, ok := wire.ParseRouteRefresh(message(t, wire.TypeRouteRefresh, body))
		if f != want || ok != (want != "") {
			t.Errorf("%s: %q, %v, want %q", body, f, ok, want)
		}
	}
}

// corpusFile is a file of testdata/malformed or testdata/open.
type corpusFile struct {
	name, source, want string
	raw                []byte
}

// corpus reads files of comment lines, "# source: ..." and "# want: ...", and
// one message in hex digits.
func corpus(t testing.TB, dir string) (files []corpusFile) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", dir, "*.hex"))
	must(t, err)
	if len(names) == 0 {
		t.Fatalf("testdata/%s is empty", dir)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		must(t, err)
		f := corpusFile{name: strings.TrimSuffix(filepath.Base(name), ".hex")}
		var digits strings.Builder
		for line := range strings.Lines(string(b)) {
			line = strings.TrimSpace(line)
			if v, ok := strings.CutPrefix(line, "# source: "); ok {
				f.source = v
			} else if v, ok := strings.CutPrefix(line, "# want: "); ok {
				f.want = v
			} else {
				digits.WriteString(line)
			}
		}
		if f.raw = unhex(t, digits.String()); f.source == "" || f.want == "" {
			t.Fatalf("%s names no source or says not what is wanted", name)
		}
		files = append(files, f)
	}
	return files
}

// TestMutants: whatever happens to sound and unsound messages on their way,
// nothing panics, and what is returned keeps its promises.
func TestMutants(t *testing.T) {
	seeds := slices.Concat(corpus(t, "malformed"), corpus(t, "open"))
	rnd := rand.New(rand.NewPCG(4, 271))
	for range 200 {
		for _, s := range seeds {
			raw := bytes.Clone(s.raw)
			for range 1 + rnd.IntN(4) {
				raw[wire.HeaderLen+rnd.IntN(len(raw)-wire.HeaderLen)] = byte(rnd.Uint32())
			}
			checkUpdate(t, raw)
			checkOpen(t, raw)
		}
	}
}
