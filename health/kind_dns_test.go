package health

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/catchment-dev/edge"
)

// dnsmasq starts a name server that knows one zone.
func dnsmasq(t *testing.T) netip.AddrPort {
	t.Helper()
	at := serverPort(t)
	lines := []string{
		fmt.Sprintf("port=%d", at.Port()), "listen-address=127.0.0.1", "bind-interfaces", "no-resolv", "no-hosts",
		"user=root", "keep-in-foreground", "log-facility=-", "pid-file=", "local=/example.test/",
		"host-record=www.example.test,192.0.2.1,2001:db8::1", "host-record=www.example.test,192.0.2.2",
		"cname=alias.example.test,www.example.test",
		`txt-record=note.example.test,"all is ","well"`,
		"dns-rr=example.test,2," + rdata("ns.example.test"),
		"dns-rr=example.test,6," + rdata("ns.example.test", "admin.example.test") + "78a3f2d500001c2000000e100012750000000384",
	}
	for i := range 8 {
		lines = append(lines, fmt.Sprintf("txt-record=large.example.test,%c%s", 'a'+i, strings.Repeat("x", 200)))
	}
	file := filepath.Join(t.TempDir(), "dnsmasq.conf")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon(t, accepts(at), "dnsmasq", "-C", file)
	return at
}

// rdata writes names as they are in the data of a record, in hex.
func rdata(names ...string) string {
	var b []byte
	for _, name := range names {
		for label := range strings.SplitSeq(name, ".") {
			b = append(append(b, byte(len(label))), label...)
		}
		b = append(b, 0)
	}
	return hex.EncodeToString(b)
}

func TestDNS(t *testing.T) {
	t.Parallel()
	at, refused := dnsmasq(t), closedPort(t)
	p := func(name, kind, want string) edge.Probe {
		return edge.Probe{Addr: at, Name: name, RecordType: kind, Expect: want}
	}
	over := func(p edge.Probe) edge.Probe {
		p.TCP = true
		return p
	}
	to := func(to netip.AddrPort, source string) edge.Probe {
		p := edge.Probe{Addr: to, Name: "www.example.test", RecordType: "A"}
		if source != "" {
			p.Source = netip.MustParseAddr(source)
		}
		return p
	}
	checks(t, edge.ProbeDNS, []check{
		{"any A", p("www.example.test", "A", ""), ""},
		{"one of two", p("www.example.test", "A", "192.0.2.2"), ""},
		{"over TCP", over(p("www.example.test.", "a", "192.0.2.1")), ""},
		{"AAAA", p("www.example.test", "AAAA", "2001:DB8:0::1"), ""},
		{"case", p("WWW.Example.Test", "A", ""), ""},
		{"alias", p("alias.example.test", "A", "192.0.2.1"), ""},
		{"TXT", p("note.example.test", "TXT", "all is well"), ""},
		{"NS", p("example.test", "NS", "NS.example.test"), ""},
		{"SOA", p("example.test", "SOA", "ns.example.test. admin.example.test. 2024010453 7200 3600 1209600 900"), ""},
		{"cut off, again over TCP", p("large.example.test", "TXT", "h"+strings.Repeat("x", 200)), ""},
		{"source", to(at, "127.0.0.9"), ""},
		{"source over TCP", over(to(at, "127.0.0.9")), ""},
		{"not among them", p("www.example.test", "A", "192.0.2.9"), `no record A of www.example.test. is "192.0.2.9": answered 192.0.2.1, 192.0.2.2`},
		{"not among many", p("large.example.test", "TXT", "none"), `no record TXT of large.example.test. is "none": answered a`},
		{"no record of the type", p("note.example.test", "AAAA", ""), "answered without a record AAAA of note.example.test."},
		{"no such name", p("none.example.test", "A", ""), "answered NXDOMAIN"},
		{"not its zone", p("www.example.org", "A", ""), "answered REFUSED"},
		{"refused", to(refused, ""), fmt.Sprintf("ask %s: connection refused", refused)},
		{"refused over TCP", over(to(refused, "")), fmt.Sprintf("connect %s: connection refused", refused)},
		{"bad type", p("www.example.test", "MX", ""), `unknown: record type "MX" is not A, AAAA, TXT, NS or SOA`},
		{"bad name", p("www..test", "A", ""), `unknown: name "www..test"`},
		{"long name", p(strings.Repeat("a.", 200), "A", ""), `unknown: name "a.a.`},
		{"source of the other family", to(at, "::1"), "unknown: source ::1 is not of the family"},
		{"source that is not ours", to(at, "192.0.2.9"), "unknown: bind to source 192.0.2.9"},
	})
}

// dnsLiar answers each query over UDP, and over TCP at the same port, with what
// lie makes of it.
func dnsLiar(t *testing.T, lie func(m *dnsmessage.Message, tcp bool) [][]byte) netip.AddrPort {
	t.Helper()
	ln := listen(t, "127.0.0.1:0")
	pc := must(net.ListenPacket("udp", ln.Addr().String()))
	t.Cleanup(func() { pc.Close() })
	go func() {
		buf := make([]byte, 1024)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			for _, b := range lie(&m, false) {
				_, _ = pc.WriteTo(b, from)
			}
		}
	}()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 1024)
			n, _ := c.Read(buf)
			var m dnsmessage.Message
			if n > 2 && m.Unpack(buf[2:n]) == nil {
				for _, b := range lie(&m, true) {
					_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
				}
			}
			c.Close()
		}
	}()
	return netip.MustParseAddrPort(ln.Addr().String())
}

// reply is the right answer to m, after change.
func reply(m *dnsmessage.Message, change func(*dnsmessage.Message)) []byte {
	a := *m
	a.Response = true
	a.Questions = append([]dnsmessage.Question{}, m.Questions...)
	a.Answers = []dnsmessage.Resource{{
		Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 5},
		Body:   &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}},
	}}
	change(&a)
	return must(a.Pack())
}

// liars are servers, and what is said of them.
func liars() map[string]dnsLie {
	name := dnsmessage.MustNewName
	one := func(change func(*dnsmessage.Message)) func(*dnsmessage.Message, bool) [][]byte {
		return func(m *dnsmessage.Message, _ bool) [][]byte { return [][]byte{reply(m, change)} }
	}
	right := func(*dnsmessage.Message) {}
	return map[string]dnsLie{
		"right":          {one(right), ""},
		"other id":       {one(func(m *dnsmessage.Message) { m.ID++ }), "no answer within 250ms; datagrams came that do not answer the question"},
		"other name":     {one(func(m *dnsmessage.Message) { m.Questions[0].Name = name("evil.test.") }), "no answer within 250ms; datagrams"},
		"other type":     {one(func(m *dnsmessage.Message) { m.Questions[0].Type = dnsmessage.TypeMX }), "no answer within 250ms; datagrams"},
		"no question":    {one(func(m *dnsmessage.Message) { m.Questions = nil }), "no answer within 250ms; datagrams"},
		"a query":        {one(func(m *dnsmessage.Message) { m.Response = false }), "no answer within 250ms; datagrams"},
		"an update":      {one(func(m *dnsmessage.Message) { m.OpCode = 5 }), "no answer within 250ms; datagrams"},
		"silent":         {func(*dnsmessage.Message, bool) [][]byte { return nil }, "no answer within 250ms"},
		"other owner":    {one(func(m *dnsmessage.Message) { m.Answers[0].Header.Name = name("evil.test.") }), "answered without a record A of"},
		"SERVFAIL":       {one(func(m *dnsmessage.Message) { m.RCode, m.Questions = 2, nil }), "answered SERVFAIL"},
		"FORMERR":        {one(func(m *dnsmessage.Message) { m.RCode = 1 }), "answered FORMERR"},
		"NOTIMP":         {one(func(m *dnsmessage.Message) { m.RCode = 4 }), "answered NOTIMP"},
		"code 9":         {one(func(m *dnsmessage.Message) { m.RCode = 9 }), "answered response code 9"},
		"always cut off": {one(func(m *dnsmessage.Message) { m.Truncated = true }), "the answer over TCP is cut off"},
		"short": {func(m *dnsmessage.Message, _ bool) [][]byte {
			b := reply(m, right)
			return [][]byte{b[:len(b)-3]}
		}, "read answer: malformed"},
		"garbage, then right": {func(m *dnsmessage.Message, _ bool) [][]byte {
			return [][]byte{nil, {1}, make([]byte, 600), reply(m, func(m *dnsmessage.Message) { m.ID ^= 1 }), reply(m, right)}
		}, ""},
		"cut off, then closed": {func(m *dnsmessage.Message, tcp bool) [][]byte {
			if tcp {
				return nil
			}
			return [][]byte{reply(m, func(m *dnsmessage.Message) { m.Truncated = true })}
		}, "over TCP: connection closed too early"},
		"cut off, then a stranger": {func(m *dnsmessage.Message, tcp bool) [][]byte {
			return [][]byte{reply(m, func(m *dnsmessage.Message) {
				if m.Truncated = !tcp; tcp {
					m.ID++
				}
			})}
		}, "not an answer to the question"},
		"a ring of aliases": {one(func(m *dnsmessage.Message) {
			q := m.Questions[0].Name
			m.Answers[0].Body = &dnsmessage.CNAMEResource{CNAME: name("b.test.")}
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: name("b.test."), Class: dnsmessage.ClassINET},
				Body:   &dnsmessage.CNAMEResource{CNAME: q},
			})
		}), "answered without a record A of"},
	}
}

type dnsLie struct {
	lie  func(*dnsmessage.Message, bool) [][]byte
	want string
}

func TestDNSLiars(t *testing.T) {
	t.Parallel()
	for what, c := range liars() {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := edge.Probe{Kind: edge.ProbeDNS, Addr: dnsLiar(t, c.lie), Name: "www.example.test", RecordType: "A"}
			if strings.HasPrefix(c.want, "no answer") {
				p.Timeout = 250 * time.Millisecond
			}
			expect(t, try(t, p), c.want)
		})
	}
}

// FuzzDNSAnswer: whatever arrives is judged without a crash, and passes only as
// an answer with our id and the record that is wanted.
func FuzzDNSAnswer(f *testing.F) {
	q := must(newQuery(edge.Probe{Name: "www.example.test", RecordType: "A"}))
	q.id = 0x1234
	var m dnsmessage.Message
	if err := m.Unpack(q.wire); err != nil {
		f.Fatal(err)
	}
	m.ID = q.id
	right := reply(&m, func(*dnsmessage.Message) {})
	f.Add(right)
	f.Add(reply(&m, func(m *dnsmessage.Message) { m.Truncated = true }))
	f.Add(reply(&m, func(m *dnsmessage.Message) { m.RCode, m.Questions = 3, nil }))
	f.Add(right[:len(right)-3])
	f.Add([]byte{0x12, 0x34, 0x80})
	f.Fuzz(func(t *testing.T, b []byte) {
		err := q.judge(b, "192.0.2.1")
		if err == nil && (b[0] != 0x12 || b[1] != 0x34 || !strings.Contains(string(b), "\xc0\x00\x02\x01")) {
			t.Errorf("passed on %q", b)
		}
		if err != nil && len(err.Error()) > 500 {
			t.Errorf("%d bytes of text", len(err.Error()))
		}
	})
}
