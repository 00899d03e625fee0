package http1

import (
	"bufio"
	"errors"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// RequestHead is the head of a request, checked.
type RequestHead struct {
	Method string
	// Target is in origin form (or "*"): an absolute form has been taken
	// apart. It is passed on byte for byte.
	Target string
	// Host is the authority, as sent.
	Host string
	// Minor is 0 or 1: the version is HTTP/1.Minor.
	Minor int
	// Header is without Host.
	Header Header
	// Length is that of the body: bytes, or Chunked.
	Length int64
}

// ResponseHead is the head of a response, checked but for its length, which
// depends on the request.
type ResponseHead struct {
	Status int
	Minor  int
	Header Header
}

// ReadRequest reads a request's head. A *Fault says what was wrong with it;
// any other error is that of br, io.EOF only if nothing was read.
func ReadRequest(br *bufio.Reader) (RequestHead, error) {
	var h RequestHead
	left := MaxRequestHead
	line, err := readLine(br, &left)
	if err == nil && line == "" {
		// RFC 9112 section 2.2: one empty line before a request is ignored,
		// some old clients send it after a body.
		line, err = readLine(br, &left)
	}
	if err != nil {
		return h, err
	}
	if err := h.parseLine(line); err != nil {
		return h, err
	}
	if h.Header, err = readFields(br, &left); err != nil {
		return h, noEOF(err)
	}
	if err := h.settle(); err != nil {
		return h, err
	}
	return h, nil
}

func (h *RequestHead) parseLine(line string) error {
	parts := strings.Split(line, " ")
	if len(parts) != 3 {
		return fault(400, "the request line is not METHOD TARGET VERSION")
	}
	h.Method, h.Target = parts[0], parts[1]
	if !ValidToken(h.Method) {
		return fault(400, "the method is not a token")
	}
	switch v := parts[2]; {
	case v == "HTTP/1.1":
		h.Minor = 1
	case v == "HTTP/1.0":
		h.Minor = 0
	case len(v) == 8 && strings.HasPrefix(v, "HTTP/") && isDigit(v[5]) && v[6] == '.' && isDigit(v[7]):
		return fault(505, "version %s is not served", v)
	default:
		return fault(400, "the version is not HTTP/1.1")
	}
	return nil
}

// settle finds out whom the request is for and how long its body is.
func (h *RequestHead) settle() error {
	hosts := h.Header.Values("Host")
	if len(hosts) != 1 {
		return fault(400, "there are %d Host fields, not one", len(hosts))
	}
	h.Host = hosts[0]
	if !ValidHost(h.Host) {
		return fault(400, "the Host is not a host with an optional port")
	}
	h.Header.Keep(func(n string) bool { return !strings.EqualFold(n, "Host") })
	if err := h.settleTarget(); err != nil {
		return err
	}
	var err error
	h.Length, err = requestLength(h.Header, h.Minor)
	return err
}

func (h *RequestHead) settleTarget() error {
	if h.Method == "CONNECT" {
		return fault(501, "CONNECT is not served")
	}
	if !strings.HasPrefix(h.Target, "/") && h.Target != "*" {
		if err := h.splitAbsolute(); err != nil {
			return err
		}
	}
	return CheckTarget(h.Method, h.Target)
}

// splitAbsolute takes "http://host/path" apart. RFC 9112 section 3.2.2 lets it
// override Host; a request in which they differ is refused instead, since the
// next reader may believe the other one.
func (h *RequestHead) splitAbsolute() error {
	_, rest, ok := strings.Cut(h.Target, "://")
	scheme := strings.ToLower(h.Target[:len(h.Target)-len(rest)])
	if !ok || scheme != "http://" && scheme != "https://" {
		return fault(400, "the target is neither a path nor an http URL")
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	if !strings.EqualFold(rest[:end], h.Host) {
		return fault(400, "the authority of the target is not the Host")
	}
	h.Target = rest[end:]
	switch {
	case h.Target == "" && h.Method == "OPTIONS":
		h.Target = "*"
	case !strings.HasPrefix(h.Target, "/"):
		h.Target = "/" + h.Target
	}
	return nil
}

// CheckTarget says whether target can be sent on as the target of a request:
// origin form of visible ASCII without a fragment, or "*" for OPTIONS.
func CheckTarget(method, target string) error {
	if target == "*" {
		if method != "OPTIONS" {
			return fault(400, "the target * is for OPTIONS only")
		}
		return nil
	}
	if !strings.HasPrefix(target, "/") {
		return fault(400, "the target is not a path")
	}
	for i := range len(target) {
		if c := target[i]; c <= ' ' || c >= 0x7f || c == '#' {
			return fault(400, "the target holds a byte that must be percent-encoded")
		}
	}
	return nil
}

// ReadResponse reads a response's head; errors are as those of ReadRequest.
func ReadResponse(br *bufio.Reader) (ResponseHead, error) {
	var h ResponseHead
	left := MaxResponseHead
	line, err := readLine(br, &left)
	if err != nil {
		return h, err
	}
	version, rest, _ := strings.Cut(line, " ")
	switch version {
	case "HTTP/1.1":
		h.Minor = 1
	case "HTTP/1.0":
	default:
		return h, fault(502, "the answer is not HTTP/1.1")
	}
	code, _, _ := strings.Cut(rest, " ")
	if len(code) != 3 || !isDigit(code[0]) || !isDigit(code[1]) || !isDigit(code[2]) || code[0] == '0' {
		return h, fault(502, "the status is not three digits")
	}
	h.Status, _ = strconv.Atoi(code) // three digits
	h.Header, err = readFields(br, &left)
	return h, noEOF(err)
}

// readLine reads one line without its CRLF and takes its length from *left.
func readLine(br *bufio.Reader, left *int) (string, error) {
	b, err := br.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) || len(b) > MaxLine+2 || len(b) > *left {
		return "", fault(431, "a line or the head is too long")
	}
	if err != nil {
		if len(b) > 0 {
			err = noEOF(err)
		}
		return "", err
	}
	*left -= len(b)
	if len(b) < 2 || b[len(b)-2] != '\r' {
		return "", fault(400, "a line does not end with CRLF")
	}
	return string(b[:len(b)-2]), nil
}

func readFields(br *bufio.Reader, left *int) (Header, error) {
	h := make(Header, 0, 16)
	for {
		line, err := readLine(br, left)
		if err != nil || line == "" {
			return h, noEOF(err)
		}
		if len(h) == MaxFields {
			return nil, fault(431, "there are more than %d fields", MaxFields)
		}
		f, err := parseField(line)
		if err != nil {
			return nil, err
		}
		h = append(h, f)
	}
}

func parseField(line string) (Field, error) {
	if line[0] == ' ' || line[0] == '\t' {
		return Field{}, fault(400, "a field is folded over two lines")
	}
	name, value, ok := strings.Cut(line, ":")
	if !ok || !ValidToken(name) {
		return Field{}, fault(400, "a field has no name that is a token and ends with a colon")
	}
	value = strings.Trim(value, " \t")
	if !ValidValue(value) {
		return Field{}, fault(400, "a field value holds a control byte")
	}
	return Field{name, value}, nil
}

// noEOF turns an end in the middle of a message into an error that nobody can
// take for a clean end.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// ValidToken says whether s is a token (RFC 9110 section 5.6.2).
func ValidToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !isAlpha(c) && !isDigit(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// ValidValue says whether s can be the value of a field.
func ValidValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// ValidHost says whether s is a host name or address with an optional port,
// as a Host field has it.
func ValidHost(s string) bool {
	host, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host, port = s[:i], s[i+1:]
		if _, err := strconv.ParseUint(port, 10, 16); err != nil && port != "" {
			return false
		}
	}
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		a, err := netip.ParseAddr(host[1 : len(host)-1])
		return err == nil && a.Is6() && a.Zone() == ""
	}
	for i := range len(host) {
		if c := host[i]; !isAlpha(c) && !isDigit(c) && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return host != ""
}

func isAlpha(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
