package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func reader(s string) *bufio.Reader { return bufio.NewReaderSize(strings.NewReader(s), 16<<10) }

func head(lines ...string) string { return strings.Join(lines, "\r\n") + "\r\n\r\n" }

func TestReadRequest(t *testing.T) {
	tests := map[string]struct {
		in                   string
		target, host         string
		length               int64
		fields, minor, fault int // fault is the status, 0 for none
	}{
		"plain":               {in: head("GET /a?b=c HTTP/1.1", "Host: h", "A: 1"), target: "/a?b=c", host: "h", fields: 1, minor: 1},
		"1.0":                 {in: head("GET / HTTP/1.0", "Host: h"), target: "/", host: "h"},
		"empty line first":    {in: "\r\n" + head("GET / HTTP/1.1", "Host: h"), target: "/", host: "h", minor: 1},
		"absolute form":       {in: head("GET http://h:80/x HTTP/1.1", "Host: h:80"), target: "/x", host: "h:80", minor: 1},
		"absolute, no path":   {in: head("GET HTTP://h?q HTTP/1.1", "Host: H"), target: "/?q", host: "H", minor: 1},
		"asterisk":            {in: head("OPTIONS * HTTP/1.1", "Host: h"), target: "*", host: "h", minor: 1},
		"absolute asterisk":   {in: head("OPTIONS http://h HTTP/1.1", "Host: h"), target: "*", host: "h", minor: 1},
		"v6 host":             {in: head("GET / HTTP/1.1", "Host: [::1]:8080"), target: "/", host: "[::1]:8080", minor: 1},
		"length":              {in: head("POST / HTTP/1.1", "Host: h", "Content-Length: 12"), target: "/", host: "h", length: 12, fields: 1, minor: 1},
		"chunked":             {in: head("POST / HTTP/1.1", "Host: h", "transfer-encoding: Chunked"), target: "/", host: "h", length: Chunked, fields: 1, minor: 1},
		"value with tabs":     {in: head("GET / HTTP/1.1", "Host: h", "A: \t a\tb \t"), target: "/", host: "h", fields: 1, minor: 1},
		"raw bytes in value":  {in: head("GET / HTTP/1.1", "Host: h", "A: \xff"), target: "/", host: "h", fields: 1, minor: 1},
		"odd but legal path":  {in: head("GET //a/../%zz;x=|{}\" HTTP/1.1", "Host: h"), target: "//a/../%zz;x=|{}\"", host: "h", minor: 1},
		"te and cl":           {in: head("POST / HTTP/1.1", "Host: h", "Content-Length: 3", "Transfer-Encoding: chunked"), fault: 400},
		"two cl":              {in: head("POST / HTTP/1.1", "Host: h", "Content-Length: 3", "Content-Length: 3"), fault: 400},
		"cl list":             {in: head("POST / HTTP/1.1", "Host: h", "Content-Length: 3, 3"), fault: 400},
		"cl plus":             {in: head("POST / HTTP/1.1", "Host: h", "Content-Length: +3"), fault: 400},
		"cl empty":            {in: head("POST / HTTP/1.1", "Host: h", "Content-Length:"), fault: 400},
		"cl underscore":       {in: head("POST / HTTP/1.1", "Host: h", "Content-Length: 1_0"), fault: 400},
		"cl hex":              {in: head("POST / HTTP/1.1", "Host: h", "Content-Length: 0x10"), fault: 400},
		"cl too large":        {in: head("POST / HTTP/1.1", "Host: h", "Content-Length: 99999999999999999999"), fault: 400},
		"te twice":            {in: head("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), fault: 501},
		"te list":             {in: head("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: gzip, chunked"), fault: 501},
		"te comma":            {in: head("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: ,chunked"), fault: 501},
		"te with vt":          {in: head("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: \x0bchunked"), fault: 400},
		"te cr":               {in: head("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: \rchunked"), fault: 400},
		"te in 1.0":           {in: head("POST / HTTP/1.0", "Host: h", "Transfer-Encoding: chunked"), fault: 400},
		"space before colon":  {in: head("POST / HTTP/1.1", "Host: h", "Transfer-Encoding : chunked"), fault: 400},
		"obs-fold":            {in: head("GET / HTTP/1.1", "Host: h", "A: b", " c"), fault: 400},
		"fold at once":        {in: head("GET / HTTP/1.1", " Host: h"), fault: 400},
		"bare lf":             {in: "GET / HTTP/1.1\nHost: h\n\n", fault: 400},
		"bare lf in fields":   {in: "GET / HTTP/1.1\r\nHost: h\nA: b\r\n\r\n", fault: 400},
		"cr in value":         {in: head("GET / HTTP/1.1", "Host: h", "A: b\rC: d"), fault: 400},
		"nul in value":        {in: head("GET / HTTP/1.1", "Host: h", "A: b\x00"), fault: 400},
		"no colon":            {in: head("GET / HTTP/1.1", "Host: h", "A"), fault: 400},
		"no name":             {in: head("GET / HTTP/1.1", "Host: h", ": b"), fault: 400},
		"no host":             {in: head("GET / HTTP/1.1", "A: b"), fault: 400},
		"two hosts":           {in: head("GET / HTTP/1.1", "Host: h", "Host: h"), fault: 400},
		"empty host":          {in: head("GET / HTTP/1.1", "Host:"), fault: 400},
		"host with userinfo":  {in: head("GET / HTTP/1.1", "Host: a@h"), fault: 400},
		"host with path":      {in: head("GET / HTTP/1.1", "Host: h/x"), fault: 400},
		"host list":           {in: head("GET / HTTP/1.1", "Host: a, b"), fault: 400},
		"host with bad port":  {in: head("GET / HTTP/1.1", "Host: h:99999"), fault: 400},
		"authority not host":  {in: head("GET http://a/ HTTP/1.1", "Host: b"), fault: 400},
		"other scheme":        {in: head("GET ftp://h/ HTTP/1.1", "Host: h"), fault: 400},
		"relative target":     {in: head("GET a HTTP/1.1", "Host: h"), fault: 400},
		"fragment":            {in: head("GET /#a HTTP/1.1", "Host: h"), fault: 400},
		"raw byte in target":  {in: head("GET /\x80 HTTP/1.1", "Host: h"), fault: 400},
		"tab in target":       {in: head("GET /\t HTTP/1.1", "Host: h"), fault: 400},
		"asterisk, no option": {in: head("GET * HTTP/1.1", "Host: h"), fault: 400},
		"connect":             {in: head("CONNECT h:443 HTTP/1.1", "Host: h:443"), fault: 501},
		"two spaces":          {in: head("GET  / HTTP/1.1", "Host: h"), fault: 400},
		"space at the end":    {in: head("GET / HTTP/1.1 ", "Host: h"), fault: 400},
		"no version":          {in: head("GET /", "Host: h"), fault: 400},
		"lower case version":  {in: head("GET / http/1.1", "Host: h"), fault: 400},
		"version 1.2":         {in: head("GET / HTTP/1.2", "Host: h"), fault: 505},
		"version 2.0":         {in: head("PRI * HTTP/2.0"), fault: 505},
		"version 11":          {in: head("GET / HTTP/1.11", "Host: h"), fault: 400},
		"bad method":          {in: head("G{T / HTTP/1.1", "Host: h"), fault: 400},
		"tls hello":           {in: "\x16\x03\x01\x02\x00\x01\x00\x01\n", fault: 400},
		"two empty lines":     {in: "\r\n\r\n" + head("GET / HTTP/1.1", "Host: h"), fault: 400},
		"long line":           {in: head("GET /"+strings.Repeat("a", MaxLine)+" HTTP/1.1", "Host: h"), fault: 431},
		"endless line":        {in: "GET /" + strings.Repeat("a", 1<<20), fault: 431},
		"long head":           {in: head("GET / HTTP/1.1", "Host: h", strings.Repeat("A: "+strings.Repeat("b", 4000)+"\r\n", 5)), fault: 431},
		"many fields":         {in: head("GET / HTTP/1.1", "Host: h", strings.Repeat("A: b\r\n", MaxFields)), fault: 431},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h, err := ReadRequest(reader(tt.in))
			var f *Fault
			if errors.As(err, &f) {
				if f.Status != tt.fault || f.Reason == "" {
					t.Fatalf("fault %d %q, want %d", f.Status, f.Reason, tt.fault)
				}
				return
			}
			if err != nil || tt.fault != 0 {
				t.Fatalf("got %+v, %v, want fault %d", h, err, tt.fault)
			}
			if h.Target != tt.target || h.Host != tt.host || h.Length != tt.length || len(h.Header) != tt.fields || h.Minor != tt.minor {
				t.Errorf("got %+v, want %+v", h, tt)
			}
		})
	}
}

func TestReadRequestCutShort(t *testing.T) {
	whole := head("POST /a HTTP/1.1", "Host: h", "Content-Length: 5")
	for i := range whole {
		_, err := ReadRequest(reader(whole[:i]))
		want := io.ErrUnexpectedEOF
		if i == 0 {
			want = io.EOF
		}
		if !errors.Is(err, want) {
			t.Errorf("after %d bytes: %v", i, err)
		}
	}
}

func TestReadResponse(t *testing.T) {
	tests := map[string]struct {
		in, method string
		length     int64
		bad        bool
	}{
		"length":         {in: head("HTTP/1.1 200 OK", "Content-Length: 5"), length: 5},
		"no reason":      {in: head("HTTP/1.1 200", "Content-Length: 5"), length: 5},
		"chunked":        {in: head("HTTP/1.1 200 OK", "Transfer-Encoding: chunked"), length: Chunked},
		"until close":    {in: head("HTTP/1.0 200 OK"), length: UntilClose},
		"head":           {in: head("HTTP/1.1 200 OK", "Content-Length: 5"), method: "HEAD"},
		"head chunked":   {in: head("HTTP/1.1 200 OK", "Transfer-Encoding: chunked"), method: "HEAD"},
		"304":            {in: head("HTTP/1.1 304 x", "Content-Length: 5")},
		"204":            {in: head("HTTP/1.1 204 x")},
		"te and cl":      {in: head("HTTP/1.1 200 OK", "Content-Length: 5", "Transfer-Encoding: chunked"), bad: true},
		"gzip":           {in: head("HTTP/1.1 200 OK", "Transfer-Encoding: gzip"), bad: true},
		"chunked in 1.0": {in: head("HTTP/1.0 200 OK", "Transfer-Encoding: chunked"), bad: true},
		"two lengths":    {in: head("HTTP/1.1 200 OK", "Content-Length: 5", "Content-Length: 5"), bad: true},
		"status 099":     {in: head("HTTP/1.1 099 x"), bad: true},
		"status 2000":    {in: head("HTTP/1.1 2000 x"), bad: true},
		"other protocol": {in: head("SSH-2.0-x"), bad: true},
		"bare lf":        {in: "HTTP/1.1 200 OK\n\n", bad: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h, err := ReadResponse(reader(tt.in))
			var n int64
			if err == nil {
				n, err = ResponseLength(tt.method, h)
			}
			if (err != nil) != tt.bad || n != tt.length {
				t.Errorf("length %d, %v; want %d, bad %v", n, err, tt.length, tt.bad)
			}
		})
	}
}

func TestBody(t *testing.T) {
	tests := map[string]struct {
		in, want string
		length   int64
		rest     string // what must be left in the reader
		trailer  int
		err      string
	}{
		"none":                 {length: 0, in: "next", rest: "next"},
		"counted":              {length: 5, in: "hellonext", want: "hello", rest: "next"},
		"counted, short":       {length: 5, in: "hel", want: "hel", err: "unexpected EOF"},
		"until close":          {length: UntilClose, in: "hello", want: "hello"},
		"chunks":               {length: Chunked, in: "5\r\nhello\r\n6;a=b\r\n world\r\n0\r\n\r\nnext", want: "hello world", rest: "next"},
		"upper hex":            {length: Chunked, in: "A\r\n0123456789\r\n0\r\n\r\n", want: "0123456789"},
		"empty":                {length: Chunked, in: "0\r\n\r\nnext", rest: "next"},
		"trailers":             {length: Chunked, in: "0\r\nA: b\r\nContent-Length: 5\r\nHost: x\r\n\r\n", trailer: 1},
		"no last chunk":        {length: Chunked, in: "5\r\nhello\r\n", want: "hello", err: "unexpected EOF"},
		"no end of trailers":   {length: Chunked, in: "5\r\nhello\r\n0\r\n", want: "hello", err: "unexpected EOF"},
		"cut in a chunk":       {length: Chunked, in: "5\r\nhel", want: "hel", err: "unexpected EOF"},
		"bare lf in size":      {length: Chunked, in: "5\nhello\r\n0\r\n\r\n", err: "CRLF"},
		"bare lf after data":   {length: Chunked, in: "5\r\nhello\n0\r\n\r\n", want: "hello", err: "CRLF"},
		"longer than its size": {length: Chunked, in: "5\r\nhelloo\r\n0\r\n\r\n", want: "hello", err: "longer"},
		"0x":                   {length: Chunked, in: "0x5\r\nhello\r\n0\r\n\r\n", err: "number"},
		"plus":                 {length: Chunked, in: "+5\r\nhello\r\n0\r\n\r\n", err: "number"},
		"minus":                {length: Chunked, in: "-5\r\nhello\r\n0\r\n\r\n", err: "number"},
		"underscore":           {length: Chunked, in: "1_0\r\nhello\r\n0\r\n\r\n", err: "number"},
		"space":                {length: Chunked, in: "5 \r\nhello\r\n0\r\n\r\n", err: "number"},
		"nothing":              {length: Chunked, in: "\r\nhello\r\n0\r\n\r\n", err: "number"},
		"too many digits":      {length: Chunked, in: "0000000000000005\r\nhello\r\n0\r\n\r\n", err: "number"},
		"cr in extension":      {length: Chunked, in: "5;a\rb\r\nhello\r\n0\r\n\r\n", err: "number"},
		"long extension":       {length: Chunked, in: "5;" + strings.Repeat("a", 300) + "\r\nhello\r\n0\r\n\r\n", err: "too long"},
		"bad trailer":          {length: Chunked, in: "0\r\nA b\r\n\r\n", err: "colon"},
		"folded trailer":       {length: Chunked, in: "0\r\nA: b\r\n c\r\n\r\n", err: "folded"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			br := reader(tt.in)
			b := NewBody(br, tt.length)
			got, err := io.ReadAll(b)
			if string(got) != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("got %q, %v; want %q, %q", got, err, tt.want, tt.err)
			}
			if err != nil {
				if _, again := b.Read(make([]byte, 1)); again != err || b.Done() {
					t.Errorf("the error does not stick: %v", again)
				}
				return
			}
			rest, _ := io.ReadAll(br)
			if !b.Done() || string(rest) != tt.rest || len(b.Trailer()) != tt.trailer {
				t.Errorf("done %v, rest %q, trailer %v", b.Done(), rest, b.Trailer())
			}
		})
	}
}

func TestHeader(t *testing.T) {
	h := Header{{"A", "1"}, {"b", "x, Y ,,"}, {"B", "z"}}
	shared := h
	h.Set("a", "2")
	if got := h.Tokens("B"); strings.Join(got, "|") != "x|y|z" {
		t.Errorf("tokens %v", got)
	}
	if h.Get("A") != "2" || shared.Get("A") != "1" || h.Get("C") != "" {
		t.Errorf("%v, %v", h, shared)
	}
}

// FuzzRequest: what is accepted must be written out again as a message that
// reads the same, whatever it was.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(head("GET /a HTTP/1.1", "Host: h", "A: b")))
	f.Add([]byte(head("POST http://h/ HTTP/1.1", "Host: h", "Transfer-Encoding: chunked") + "5;x\r\nhello\r\n0\r\nT: u\r\n\r\n"))
	f.Add([]byte(head("POST / HTTP/1.0", "Host: [::1]:1", "Content-Length: 3") + "abc"))
	f.Fuzz(func(t *testing.T, in []byte) {
		br := bufio.NewReaderSize(bytes.NewReader(in), 16<<10)
		h, err := ReadRequest(br)
		if err != nil {
			return
		}
		body := NewBody(br, h.Length)
		data, bodyErr := io.ReadAll(body)
		var out bytes.Buffer
		bw := bufio.NewWriter(&out)
		WriteRequest(bw, h.Method, h.Target, append(Header{{"Host", h.Host}}, h.Header...))
		if h.Length == Chunked {
			WriteChunk(bw, data)
			WriteLastChunk(bw, body.Trailer())
		} else {
			bw.Write(data)
		}
		bw.Flush()
		br2 := bufio.NewReaderSize(&out, 16<<10)
		h2, err := ReadRequest(br2)
		if err != nil {
			t.Fatalf("%q was accepted, what is written for it is not: %v", in, err)
		}
		if h2.Target != h.Target || h2.Host != h.Host || h2.Method != h.Method || len(h2.Header) != len(h.Header) || h2.Length != h.Length && h.Minor == 1 {
			t.Fatalf("%+v became %+v", h, h2)
		}
		if bodyErr != nil {
			return
		}
		data2, err := io.ReadAll(NewBody(br2, h2.Length))
		if err != nil || !bytes.Equal(data, data2) {
			t.Fatalf("body %q became %q, %v", data, data2, err)
		}
	})
}

// FuzzResponse: nothing that an upstream sends may crash the reader or read as
// more than was there.
func FuzzResponse(f *testing.F) {
	f.Add([]byte(head("HTTP/1.1 200 OK", "Content-Length: 5")+"hello"), false)
	f.Add([]byte(head("HTTP/1.1 200 OK", "Transfer-Encoding: chunked")+"5\r\nhello\r\n0\r\n\r\n"), false)
	f.Add([]byte(head("HTTP/1.0 304 x")), true)
	f.Fuzz(func(t *testing.T, in []byte, isHead bool) {
		br := bufio.NewReaderSize(bytes.NewReader(in), 16<<10)
		h, err := ReadResponse(br)
		if err != nil {
			return
		}
		method := "GET"
		if isHead {
			method = "HEAD"
		}
		n, err := ResponseLength(method, h)
		if err != nil {
			return
		}
		data, err := io.ReadAll(NewBody(br, n))
		if len(data) > len(in) || err == nil && n >= 0 && int64(len(data)) != n {
			t.Fatalf("%d bytes of %d, length %d", len(data), len(in), n)
		}
	})
}
