package rpki

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestDataOutliveTheCache: whatever a cache does that has given data, short of a
// new session, they stay up to their time, not a moment longer, and the reason
// is shown.
func TestDataOutliveTheCache(t *testing.T) {
	v6Host := raw(1, 6, 0, append(append([]byte{1, 32, 48, 0, 0x20, 1, 0xd, 0xb8}, make([]byte, 11)...), 1, 0, 0, 0, 1)...)
	for name, test := range map[string]struct {
		answer []byte // to the Serial Query; then the connection is closed
		want   string
	}{
		"ends":                    {nil, "EOF"},
		"half a header":           {response(1, 7)[:5], "EOF"},
		"half a VRP":              {append(response(1, 7), prefix4(1, true, 9, 9)[:11]...), "EOF"},
		"half an end":             {append(response(1, 7), endOfData(7, 6, 1, 1, 1)[:23]...), "EOF"},
		"no end":                  {append(response(1, 7), prefix4(1, false, 2, 64500)...), "EOF"},
		"unknown withdrawal":      {append(append(response(1, 7), prefix4(1, false, 9, 9)...), endOfData(7, 6, 1, 1, 1)...), "was not announced"},
		"known withdrawal, twice": {bytes.Join([][]byte{response(1, 7), prefix4(1, false, 2, 64500), prefix4(1, false, 2, 64500), endOfData(7, 6, 1, 1, 1)}, nil), "was not announced"},
		"all again":               {bytes.Join([][]byte{response(1, 7), prefix4(1, true, 2, 64500), endOfData(7, 6, 1, 1, 1)}, nil), "there already"},
		"host bits":               {append(response(1, 7), v6Host...), "host bits"},
		"a huge PDU":              {[]byte{1, 9, 0, 0, 0xff, 0xff, 0xff, 0xff}, "length of 4294967295"},
		"another version":         {response(2, 7), "version 2"},
		"no data":                 {failure(1, codeNoData, nil, ""), "no data available"},
		"error with escapes":      {failure(1, 1, nil, "\x1b]0;x\a"), "internal error (]0;x)"},
		"what was not asked":      {prefix4(1, true, 2, 64500), "answers a query"},
		"zeros":                   {make([]byte, 64), "version 0"},
		"letters":                 {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), "version"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, inLab(only(cacheA), func(l *lab) {
				c := l.accept(cacheA)
				c.serve()
				expires := l.want(two()...).Expires
				c.expect(serialQuery(1, 7, 5))
				go io.Copy(io.Discard, c.conn) // the report
				if len(test.answer) > 0 {
					c.send(test.answer)
				}
				synctest.Wait()
				c.conn.Close()
				l.setRefuse(cacheA, true)
				if s := l.want(two()...); !strings.Contains(s.LastErr, test.want) || !s.Expires.Equal(expires) {
					t.Fatalf("%+v, want %q", s, test.want)
				}
				time.Sleep(time.Until(expires) - 1)
				if s := l.want(two()...); s.LastErr == "" {
					t.Errorf("%+v", s)
				}
				time.Sleep(time.Nanosecond)
				if _, s := l.wantUnknown(); s.LastErr == "" {
					t.Errorf("%+v", s)
				}
			}))
		})
	}
}

// TestSerialFlaps: serials that jump about cost a query a second, and the data
// are those of the last answer.
func TestSerialFlaps(t *testing.T) {
	synctest.Test(t, inLab(only(cacheA), func(l *lab) {
		c := l.accept(cacheA)
		c.serve()
		begin := time.Now()
		serials := []uint32{1<<32 - 1, 0, 5, 4, 1 << 31}
		last := uint32(5)
		for i := range 50 {
			next := serials[i%len(serials)]
			c.send(notification(1, 7, next))
			c.expect(serialQuery(1, 7, last))
			c.send(response(1, 7), prefix4(1, i%2 == 0, 9, 9), endOfData(7, next, 1, 1, 600))
			last = next
		}
		if d := time.Since(begin); d < 49*queryPause {
			t.Errorf("50 queries in %s", d)
		}
		if s := l.want(two()...); s.Serial != last {
			t.Errorf("%+v", s)
		}
	}))
}

// TestFlood: a cache that sends what costs us time and brings nothing is left.
func TestFlood(t *testing.T) {
	for name, pdu := range map[string][]byte{
		"old serial":   notification(1, 7, 5),
		"new serials":  notification(1, 7, 6),
		"in an answer": raw(1, 9, 0x100, make([]byte, 32)...), // a router key
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, inLab(Config{}, func(l *lab) {
				l.client.most = 5000
				l.set(only(cacheA))
				c := l.accept(cacheA)
				c.serve()
				l.want(two()...)
				if name == "in an answer" {
					c.expect(serialQuery(1, 7, 5))
					c.send(response(1, 7))
				}
				var report bytes.Buffer
				gone := make(chan bool)
				go func() { io.Copy(&report, c.conn); close(gone) }()
				sent := 0
				for ; sent < 10*maxNotes; sent++ {
					if _, err := c.conn.Write(pdu); err != nil {
						break
					}
				}
				<-gone
				if sent > maxNotes+maxPDU {
					t.Errorf("%d PDUs were read", sent)
				}
				if s := l.want(two()...); !strings.Contains(s.LastErr, "more than") {
					t.Errorf("%+v", s)
				}
			}))
		})
	}
}

// TestAllAgain: what an answer costs is paid for by the pause behind it, in a
// session and from one to the next.
func TestAllAgain(t *testing.T) {
	const n = 120_000 // 1.2 s
	pdus, count := internetPDUs(n)
	synctest.Test(t, inLab(only(cacheA), func(l *lab) {
		c := l.accept(cacheA)
		c.expect(resetQuery(1))
		c.send(response(1, 7), pdus, endOfData(7, 1, 1, 1, 600))
		synctest.Wait()
		begin := time.Now()
		c.send(notification(1, 7, 2))
		c.expect(serialQuery(1, 7, 1))
		if d := time.Since(begin); d < time.Duration(count)*pduShare {
			t.Errorf("asked after %s", d)
		}
		c.send(raw(1, 8, 0)) // everything again
		c.expect(resetQuery(1))
		c.send(response(1, 7), pdus, endOfData(7, 2, 1, 1, 600))
		synctest.Wait()
		begin = time.Now()
		c.conn.Close()
		l.accept(cacheA)
		if d := time.Since(begin); d < time.Duration(count)*pduShare {
			t.Errorf("connected after %s", d)
		}
	}))
}

// TestFileOfWrongKind: what is not a regular file is not even opened: the writer
// of a FIFO goes on waiting for whom it is for.
func TestFileOfWrongKind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
	f := &feed{c: New(Options{})}
	for _, name := range []string{path, filepath.Dir(path), "/dev/zero", "/proc/self/fd/0/.."} {
		if _, _, err := f.readFile(t.Context(), name, nil); err == nil {
			t.Errorf("%s can be read", name)
		}
	}
	file, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if !errors.Is(err, syscall.ENXIO) { // nobody has it open, or ever had
		t.Errorf("%v", err)
		file.Close()
	}
}

// TestFileHuge: a file that is too much is refused in little memory, wherever it
// is too much.
func TestFileHuge(t *testing.T) {
	const size = 4 << 20
	for _, test := range []struct{ head, part, want string }{
		{`{"x":`, "[", "values within values, 65 deep"},
		{`{"x":`, `{"x":`, "values within values, 65 deep"},
		{`{"roas":`, "[", "nesting"}, // of the decoder, or an error of type
		{`{"roas":[`, `{"asn":`, ""},
		{`{"roas":[{"asn":1,"prefix":"10.0.0.0/8","maxLength":`, "1", "a value of more than"},
		{`{"roas":[{"asn":`, "1", "a value of more than"},
		{`{"metadata":`, "[", ""},
		{`{"roas":[`, `{"asn":1,"prefix":"10.0.0.0/8"},`, "more than 100000 VRPs"},
		{`{"roas":[`, `{"asn":1,"prefix":"10.0.0.0/8","expires":1},`, "unexpected EOF"}, // they have expired
		{`{"x":[`, `1,`, "too many names and values"},
		{`{`, `"x":1,`, "too many names and values"},
		{`{"roas":[`, ` `, "a value of more than"},
		{"", "\x00", "invalid character"},
	} {
		before := heap()
		in := &repeat{text: test.part, left: size}
		_, err := parseFile(t.Context(), io.MultiReader(strings.NewReader(test.head), in), epoch(), 100_000)
		if err == nil || !strings.Contains(err.Error(), test.want) && test.want != "nesting" || len(err.Error()) > 2*maxText {
			t.Errorf("%s%s...: %.300v", test.head, test.part, err)
		}
		if in.heap > before+4*size {
			t.Errorf("%s%s...: %d MB", test.head, test.part, (in.heap-before)>>20)
		}
	}
}

// repeat is a text again and again.
type repeat struct {
	text  string
	left  int
	at    int
	reads int
	heap  uint64 // the most that was in use meanwhile, with garbage
}

func (r *repeat) Read(b []byte) (n int, err error) {
	if r.reads++; r.reads%64 == 0 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		r.heap = max(r.heap, m.HeapAlloc)
	}
	for ; n < len(b) && r.left > 0; n++ {
		b[n] = r.text[r.at]
		r.at = (r.at + 1) % len(r.text)
		r.left--
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// TestFileQuotes: no error is as long as what it is about.
func TestFileQuotes(t *testing.T) {
	long := strings.Repeat("1", maxValue/2)
	for _, text := range []string{
		`{"roas":[{"asn":1,"prefix":"10.0.0.0/8","maxLength":` + long + `}]}`,
		`{"roas":[{"asn":1,"prefix":"10.0.0.0/8","expires":1e` + long + `}]}`,
		`{"roas":[{"asn":` + long + `,"prefix":"10.0.0.0/8"}]}`,
		`{"roas":[{"asn":1,"prefix":"` + long + `"}]}`,
		`{"roas":[{"asn":1,"prefix":` + long + `}]}`,
		`{"metadata":{"buildtime":` + long + `}}`,
		`{"metadata":` + long + `}`,
		`{"` + long + `":}`,
	} {
		if _, err := parseFile(t.Context(), strings.NewReader(text), epoch(), 10); err == nil || len(err.Error()) > 2*maxText {
			t.Errorf("%.60s: %.100v", text, err)
		}
	}
}

// TestFileStopped: reading ends with the context, wherever it is.
func TestFileStopped(t *testing.T) {
	for _, part := range []string{`"x":[[1],2],`, `"roas":[` + strings.Repeat(`{"asn":1,"prefix":"10.0.0.0/8"},`, 5000)} {
		ctx, n := t.Context(), 0
		stopped := errors.New("stopped")
		in := &source{r: io.MultiReader(strings.NewReader("{"), &repeat{text: part, left: 1 << 30}), used: func() int64 { return 1 << 40 }, stop: func() error {
			if n++; n > 3 {
				return stopped
			}
			return ctx.Err()
		}}
		if _, err := parseFile(ctx, in, epoch(), 1<<30); !errors.Is(err, stopped) {
			t.Errorf("%v", err)
		}
	}
}

// TestFileFromTheFuture: a file is never younger than now, whatever it says and
// whatever its times are.
func TestFileFromTheFuture(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vrps.json")
	synctest.Test(t, inLab(Config{File: path}, func(l *lab) {
		if err := errors.Join(os.WriteFile(path+".new", []byte(plain), 0o644),
			os.Chtimes(path+".new", time.Time{}, time.Now().Add(1000*time.Hour)), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(filePause + 1)
		if s := l.want(inFile()...); s.Updated.After(time.Now()) || s.Expires.After(time.Now().Add(fileLife)) {
			t.Errorf("%+v", s)
		}
		time.Sleep(fileLife)
		l.wantUnknown()
	}))
}

// TestFileInPlace: another text of the same size and with the same time of
// writing is another text.
func TestFileInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vrps.json")
	synctest.Test(t, inLab(Config{File: path}, func(l *lab) {
		put(t, path, plain)
		time.Sleep(filePause + 1)
		l.want(inFile()...)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(path, []byte(strings.Replace(plain, "64500", "64509", 1)), 0o644), os.Chtimes(path, info.ModTime(), info.ModTime())); err != nil {
			t.Fatal(err)
		}
		time.Sleep(filePause + 1)
		l.want(vrp("192.0.2.0/24", 24, 64509), inFile()[1])
	}))
}

// deaf is a connection that has said all it will say.
type deaf struct {
	net.Conn
	in io.Reader
}

func (d deaf) Read(b []byte) (int, error)       { return d.in.Read(b) }
func (d deaf) Write(b []byte) (int, error)      { return len(b), nil }
func (d deaf) Close() error                     { return nil }
func (d deaf) SetReadDeadline(time.Time) error  { return nil }
func (d deaf) SetWriteDeadline(time.Time) error { return nil }

// FuzzSession: whatever a cache says, to a client with data or without, the
// session ends, and what is in use is sorted, bounded and can be asked, or is
// what it was.
func FuzzSession(f *testing.F) {
	answer := bytes.Join([][]byte{response(1, 7), prefix4(1, true, 2, 64500), prefix4(1, true, 3, 64501), endOfData(7, 5, 3600, 600, 7200)}, nil)
	f.Add(answer, uint8(1))
	f.Add(bytes.Join([][]byte{answer, notification(1, 7, 6), response(1, 7), prefix4(1, false, 2, 64500), endOfData(7, 6, 3600, 600, 7200)}, nil), uint8(1))
	f.Add(append(answer, notification(1, 8, 6)...), uint8(1))
	f.Add(append(raw(1, 8, 0), answer...), uint8(1))
	f.Add(bytes.Join([][]byte{notification(0, 3, 9), response(0, 3), prefix4(0, true, 2, 64500), endOfData0(3, 1)}, nil), uint8(0))
	f.Add(failure(0, codeVersion, resetQuery(1), "no"), uint8(0))
	f.Fuzz(func(t *testing.T, in []byte, rounds uint8) {
		c := New(Options{})
		c.most = 50
		c.mu.Lock()
		c.loop.Replace(only(cacheA))
		fd := &feed{c: c, term: c.loop.Term(), table: &rtrTable{}}
		c.mu.Unlock()
		at := netip.MustParseAddrPort(cacheA)
		s := &server{at: at, version: version, told: intervals{retry: firstRetry}}
		for _, said := range [][]byte{answer, in, in[:len(in)/2]}[rounds%2:] {
			said := bytes.NewReader(said)
			c.dial = func(_ context.Context, _ netip.AddrPort) (net.Conn, error) { return deaf{in: said}, nil }
			if err := fd.session(t.Context(), serverList{s}, s, 0); err == nil || len(err.Error()) > 4*maxText {
				t.Fatalf("%v", err)
			}
			set, status := c.Current()
			if set.Len() > 50 || status.VRPs != set.Len() || set.known == (set.why != "") && (set.known || set.Len() > 0) {
				t.Fatalf("%d VRPs, %+v", set.Len(), status)
			}
			for i, r := range set.records {
				if again, err := toRecord(r.vrp()); err != nil || again != r || i > 0 && compare(set.records[i-1], r) >= 0 {
					t.Fatalf("%v: %v", r, err)
				}
			}
			if set.known && status.Expires.Before(time.Now().Add(minExpire-time.Minute)) {
				t.Fatalf("%+v", status)
			}
			s.hold(errors.New(fmt.Sprint(rounds)), time.Now())
		}
	})
}
