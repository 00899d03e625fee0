package watch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// ris is a line as RIS Live sends it.
func ris(host, peer, path, more string) string {
	return fmt.Sprintf(`{"type":"ris_message","data":{"timestamp":1767225600.25,"peer":"%s","peer_asn":"3333","id":"x","host":"%s","type":"UPDATE","path":%s,"community":[[1,2]],"origin":"IGP",%s}}`, peer, host, path, more)
}

func announce(prefix string) string {
	return `"announcements":[{"next_hop":"2001:db8::1,fe80::1","prefixes":["` + prefix + `"]}]`
}

func TestParseLine(t *testing.T) {
	now := start().Add(time.Hour)
	at := start().Add(250 * time.Millisecond)
	for _, test := range []struct {
		in   string
		want message
	}{
		{ris("rrc00", "193.0.0.56", `[3333,65001,64500]`, announce("192.0.2.0/24")),
			message{routes: []Route{{Prefix: prefix("192.0.2.0/24"), ASPath: []uint32{3333, 65001, 64500}, Peer: "rrc00 193.0.0.56", At: at}}}},
		{ris("rrc00.ripe.net", "2001:db8::1", `[3333,[65001,64500],4294967295]`, `"announcements":[{"next_hop":"x","prefixes":["2001:db8::/32","192.0.2.0/24"]},{"prefixes":["::/0"]}],"withdrawals":["0.0.0.0/0"]`),
			message{routes: []Route{
				{Prefix: prefix("0.0.0.0/0"), Peer: "rrc00.ripe.net 2001:db8::1", At: at, Withdrawn: true},
				{Prefix: prefix("2001:db8::/32"), ASPath: []uint32{3333, 65001, 64500, 1<<32 - 1}, Peer: "rrc00.ripe.net 2001:db8::1", At: at},
				{Prefix: prefix("192.0.2.0/24"), ASPath: []uint32{3333, 65001, 64500, 1<<32 - 1}, Peer: "rrc00.ripe.net 2001:db8::1", At: at},
				{Prefix: prefix("::/0"), ASPath: []uint32{3333, 65001, 64500, 1<<32 - 1}, Peer: "rrc00.ripe.net 2001:db8::1", At: at},
			}}},
		{`{"type":"ris_message","data":{"peer":"p","type":"UPDATE","withdrawals":["192.0.2.0/24"]}}`,
			message{routes: []Route{{Prefix: prefix("192.0.2.0/24"), Peer: "p", At: now, Withdrawn: true}}}},
		{`{"type":"ris_message","data":{"timestamp":8e9,"host":"h","type":"UPDATE","path":[1],"announcements":[{"prefixes":["192.0.2.0/24"]}]}}`, // in the future
			message{routes: []Route{{Prefix: prefix("192.0.2.0/24"), ASPath: []uint32{1}, Peer: "h", At: now}}}},
		{`{"type":"ris_message","data":{"host":"rrc00","peer":"p","type":"RIS_PEER_STATE","state":"down"}}`, message{lost: "rrc00 p"}},
		{`{"type":"ris_message","data":{"host":"rrc00","peer":"p","type":"RIS_PEER_STATE","state":"connected"}}`, message{}},
		{`{"type":"ris_error","data":{"message":"no such\u001b[2J host"}}`, message{notice: "the feed reports: no such[2J host"}},
		{`{"type":"ris_message","data":{"host":"rrc00","type":"KEEPALIVE"}}`, message{}},
		{`{"type":"ris_message","data":{"host":"rrc00","type":"OPEN","direction":"sent","capabilities":{}}}`, message{}},
		{`{"type":"pong","data":null}`, message{}},
		{`{}`, message{}},
		{`null`, message{}},
		{`{"type":"ris_rrc_list","data":["rrc00"]}`, message{}},
		{`{"type":"ris_message"}`, message{}},
		{`{"type":"ris_message","data":null}`, message{}},
		{ris("h", "p", `null`, `"announcements":[]`), message{}},
		{ris("h", "p", "[ 1 ,\t[ 2,3 ]\n, 4 ]", announce("192.0.2.0/24")),
			message{routes: []Route{{Prefix: prefix("192.0.2.0/24"), ASPath: []uint32{1, 2, 3, 4}, Peer: "h p", At: at}}}},
		{ris("h", "p", `[1]`, announce("192.0.2.0/24")+`,"Path":[2]`),
			message{routes: []Route{{Prefix: prefix("192.0.2.0/24"), ASPath: []uint32{2}, Peer: "h p", At: at}}}},
		{ris("h", "p", `[1]`, announce("192.0.2.0/24")+`,"announcements":[]`), message{}},
		{`{"type":"ris_message","type":"pong","data":{}}`, message{}},
	} {
		got, err := parseLine([]byte(test.in), now)
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(message{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", test.in, err, diff)
		}
	}
}

func TestParseLineRefuses(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{"", "not a message"},
		{"data: {}", "not a message"},
		{"[]", "not a message"},
		{"\xff\x00", "not a message"},
		{`{"type":"ris_message"`, "not a message"},
		{`{"type":"ris_message","data":[]}`, "not a message"},
		{`{"type":"ris_message","data":{"type":"UPDATE"}}`, "without a host"},
		{ris("h", "p", `[1]`, announce("192.0.2.0")), `"192.0.2.0" is not a prefix`},
		{ris("h", "p", `[1]`, announce("::ffff:192.0.2.0/120")), "not a prefix"},
		{ris("h", "p", `[1]`, announce("fe80::1%eth0/64")), "not a prefix"},
		{ris("h", "p", `[1]`, `"withdrawals":["x"]`), `"x" is not a prefix`},
		{ris("h", "p", `[1]`, `"withdrawals":[1]`), "not a message"},
		{ris("h", "p", `[]`, announce("192.0.2.0/24")), "without a path"},
		{ris("h", "p", `{}`, announce("192.0.2.0/24")), "not a list"},
		{ris("h", "p", `1`, announce("192.0.2.0/24")), "not a list"},
		{ris("h", "p", `"]"`, announce("192.0.2.0/24")), "not a list"},
		{ris("h", "p", `["],"]`, announce("192.0.2.0/24")), "not an AS number"},
		{ris("h", "p", `[{"a":[1]}]`, announce("192.0.2.0/24")), "not an AS number"},
		{ris("h", "p", `[1.0]`, announce("192.0.2.0/24")), "not an AS number"},
		{ris("h", "p", `[1e3]`, announce("192.0.2.0/24")), "not an AS number"},
		{ris("h", "p", `[true]`, announce("192.0.2.0/24")), "not an AS number"},
		{ris("h", "p", `[`+strings.Repeat("9", 100_000)+`]`, announce("192.0.2.0/24")), "not an AS number"},
		{ris("h", "p", strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000), announce("192.0.2.0/24")), "not a message"},
		{ris("h", "p", `[1]`, announce("192.0.2.0/24")+`,"path":null`), "without a path"},
		{ris("h", "p", `[1]`, `"withdrawals":[null]`), `"" is not a prefix`},
		{ris("h", "p", `[1]`, `"withdrawals":{}`), "not a message"},
		{ris("h", "p", `[1]`, `"announcements":["192.0.2.0/24"]`), "not a message"},
		{ris("h", "p", `[1]`, `"timestamp":`+strings.Repeat("9", 1000)), "not a message"},
		{ris("h", "p", `["1"]`, announce("192.0.2.0/24")), "not an AS number"},
		{ris("h", "p", `[null]`, announce("192.0.2.0/24")), "not an AS number"},
		{ris("h", "p", `[-1]`, announce("192.0.2.0/24")), "not an AS number"},
		{ris("h", "p", `[4294967296]`, announce("192.0.2.0/24")), "not an AS number"},
		{ris("h", "p", `[1,[2,[3]]]`, announce("192.0.2.0/24")), "not an AS number"},
		{ris("h", "p", `[`+strings.Repeat("1,", maxHops)+`1]`, announce("192.0.2.0/24")), "more than 4096 ASes"},
		{`{"type":"ris_message","data":{"timestamp":-1,"host":"h","type":"UPDATE"}}`, "timestamp -1"},
		{`{"type":"ris_message","data":{"timestamp":1e300,"host":"h","type":"UPDATE"}}`, "timestamp 1e+300"},
		{`{"type":"ris_message","data":{"timestamp":"now","host":"h","type":"UPDATE"}}`, "not a message"},
	} {
		if m, err := parseLine([]byte(test.in), start()); err == nil || !strings.Contains(err.Error(), test.want) || len(m.routes) > 0 {
			t.Errorf("%.80s: %v, want %q", test.in, err, test.want)
		}
	}
}

// readLines returns the lines that a reader gives, "long" for one that is too
// long, and whether one was cut off.
func readLines(r io.Reader) (out []string, partial bool) {
	in := newLines(r)
	for {
		line, err := in.next()
		switch {
		case errors.Is(err, errLong):
			out = append(out, "long")
		case err != nil:
			return out, in.partial()
		default:
			out = append(out, string(line))
		}
	}
}

func TestLines(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, test := range []struct {
		in, want string
		partial  bool
	}{
		{"", "", false},
		{"a\nb\r\n\n  \nc\n", "a b c", false},
		{"a\nb", "a", true},
		{x(maxLine-1) + "\na\n", x(maxLine-1) + " a", false},
		{x(maxLine) + "\na\n", "long a", false},
		{x(5*maxLine) + "\na\n" + x(maxLine+7) + "\n" + x(100_000) + "\nb", "long a long " + x(100_000), true},
		{x(2 * maxLine), "long", true},
		{x(maxBacklog+2*maxLine) + "\na\n", "long long a", false},
		{"a\n" + x(1<<16) + "\nb\n", "a " + x(1<<16) + " b", false},
	} {
		for name, r := range map[string]io.Reader{"whole": strings.NewReader(test.in), "halves": iotest.HalfReader(strings.NewReader(test.in))} {
			got, partial := readLines(r)
			if strings.Join(got, " ") != test.want || partial != test.partial {
				t.Errorf("%s %.20q: %d lines, %.40q, %v", name, test.in, len(got), got, partial)
			}
		}
	}
	if got, _ := readLines(iotest.OneByteReader(strings.NewReader("ab\n\ncd\n"))); strings.Join(got, " ") != "ab cd" {
		t.Errorf("%q", got)
	}
}

// feedOf returns a follower of the feed that there is now.
func feedOf(w *Watcher) *feed {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &feed{w: w, term: w.loop.Term()}
}

// TestLinesMemory: nothing is held of a long line that is over.
func TestLinesMemory(t *testing.T) {
	in := newLines(strings.NewReader(strings.Repeat("x", maxLine-1) + "\na\n"))
	for range 2 {
		if _, err := in.next(); err != nil {
			t.Fatal(err)
		}
	}
	if cap(in.buf) > 1<<16 {
		t.Errorf("%d bytes", cap(in.buf))
	}
}

// FuzzLine: no bytes crash the reader of lines, the parser or the judge, and a
// line that is refused has no effect.
func FuzzLine(f *testing.F) {
	for _, line := range []string{
		ris("rrc00", "193.0.0.56", `[3333,65001,64500]`, announce("192.0.2.0/24")),
		ris("rrc00", "2001:db8::1", `[3333,[1,2]]`, announce("2001:db8:1::/48")+`,"withdrawals":["192.0.2.0/25"]`),
		`{"type":"ris_message","data":{"host":"rrc00","peer":"p","type":"RIS_PEER_STATE","state":"down"}}`,
		`{"type":"ris_error","data":{"message":"no"}}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := newLines(bytes.NewReader(b))
		w := New(Options{})
		if err := w.Set(Config{Own: []Own{own("192.0.2.0/24"), own("2001:db8::/32")}, URL: "http://192.0.2.1/", MissingAfter: 1}); err != nil {
			t.Fatal(err)
		}
		fd := feedOf(w)
		var lines uint64
		for {
			line, err := in.next()
			if err != nil {
				break
			}
			lines++
			m, err := parseLine(line, start())
			if err != nil && len(m.routes) > 0 {
				t.Fatal("a line that is refused has routes")
			}
			for _, r := range m.routes {
				if !r.Prefix.IsValid() || r.Prefix.Addr().Is4In6() || r.Withdrawn == (len(r.ASPath) > 0) || r.At.After(start()) || len(r.Peer) > 2*maxPeer+1 {
					t.Fatalf("%+v", r)
				}
			}
			fd.line(line)
		}
		s := w.State()
		if s.Lines != lines || s.Dropped > s.Lines {
			t.Fatalf("%d lines, %+v", lines, s)
		}
		for _, a := range s.Alarms {
			if strings.ContainsAny(a.Evidence, "\x00\x1b\n") {
				t.Fatalf("%q", a.Evidence)
			}
		}
	})
}
