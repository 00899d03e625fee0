package health

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/catchment-dev/edge"
)

// maxBody is how much of an answer's body is searched, in bytes; maxAnswer how
// much is read in all, with the head and with the sizes of chunks, which can be
// several times as long as what is in them.
const (
	maxBody   = 64 << 10
	maxAnswer = 16 * maxBody
)

// HTTP is the prober of URLs, http and https: one GET of p.URL over a new
// connection, HTTP/1.1, no redirect followed. It speaks the protocol itself
// rather than through http.Client: a connection that is used once needs no
// pool, no goroutines and no second opinion on what went wrong.
//
// The zero value probes from this network namespace.
type HTTP struct {
	// Dial opens the connection; nil: a plain dial from p.Source. It may come from
	// another network namespace.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Roots verify certificates; nil: those of the system.
	Roots *x509.CertPool
}

// Probe asks p.URL and compares the answer with p.Status and p.Body. Only the
// deadline of ctx bounds it; p.Timeout is for the text of its error.
func (h HTTP) Probe(ctx context.Context, p edge.Probe) error {
	_, err := h.Weigh(ctx, p)
	return err
}

// Weigh is Probe, and returns what the answer says of the target's weight in
// the header WeightHeader: an integer from 0 to edge.MaxWeight in decimal
// digits. Anything else and the header twice give nil; what an answer says that
// neither passes nor is full is of no use.
func (h HTTP) Weigh(ctx context.Context, p edge.Probe) (*int, error) {
	u, address, err := target(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", edge.ErrUnknown, err)
	}
	d := h.Dial
	if d == nil {
		d = from(p.Source)
	}
	c, err := connect(ctx, d, p, address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	// Its deadline is on the connection; this is for being stopped.
	raw := c
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	if u.Scheme == "https" {
		if c, err = h.handshake(ctx, c, p, u); err != nil {
			return nil, err
		}
	}
	return ask(ctx, c, p, u)
}

// target checks p.URL and returns it with the address to connect to. A URL that
// cannot be asked is bad configuration, never a failure of the target.
func target(p edge.Probe) (*url.URL, string, error) {
	u, err := url.Parse(p.URL)
	if err != nil {
		return nil, "", fmt.Errorf("read url: %w", err)
	}
	port := u.Port()
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, "", fmt.Errorf("url %q is not http or https", p.URL)
	case port == "" && u.Scheme == "http":
		port = "80"
	case port == "":
		port = "443"
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil {
		return nil, "", fmt.Errorf("url %q: its host is not an address", p.URL)
	}
	if strings.ContainsAny(p.Host, " \t\r\n/") {
		return nil, "", fmt.Errorf("host %q is not a host name", p.Host)
	}
	return u, net.JoinHostPort(u.Hostname(), port), nil
}

func (h HTTP) handshake(ctx context.Context, c net.Conn, p edge.Probe, u *url.URL) (net.Conn, error) {
	name := u.Hostname()
	if p.Host != "" {
		name = p.Host
		if host, _, err := net.SplitHostPort(p.Host); err == nil {
			name = host
		}
	}
	t := tls.Client(c, &tls.Config{
		ServerName: name,
		RootCAs:    h.Roots,
		// Asked for by the configuration: the probe then proves that the
		// service answers, not who it is.
		InsecureSkipVerify: p.Insecure,
		NextProtos:         []string{"http/1.1"},
	})
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("tls handshake with %s: %w", name, broken(ctx, err, p))
	}
	return t, nil
}

// ask sends the request, judges the answer and reads the weight in it.
func ask(ctx context.Context, c net.Conn, p edge.Probe, u *url.URL) (*int, error) {
	if _, err := c.Write(request(p, u, "close")); err != nil {
		return nil, fmt.Errorf("send request: %w", broken(ctx, err, p))
	}
	return judge(ctx, c, p)
}

// request is the whole of what is sent. connection is what becomes of the
// connection after it (RFC 9110 section 7.6.1).
func request(p edge.Probe, u *url.URL, connection string) []byte {
	return []byte("GET " + u.RequestURI() + " HTTP/1.1\r\nHost: " + cmp.Or(p.Host, u.Host) +
		"\r\nUser-Agent: catchment-probe\r\nAccept: */*\r\nConnection: " + connection + "\r\n\r\n")
}

// judge reads an answer as far as it must, compares it with what p wants and
// returns the weight in it.
func judge(ctx context.Context, r io.Reader, p edge.Probe) (*int, error) {
	limited := &io.LimitedReader{R: r, N: maxHead}
	answer, err := readHead(bufio.NewReader(limited))
	if err != nil && limited.N <= 0 {
		return nil, errHead
	}
	limited.N += maxAnswer
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", broken(ctx, err, p))
	}
	if err := judgeStatus(answer.StatusCode, p); err != nil {
		return weight(answer.Header), err
	}
	if p.Body != "" {
		if err := search(ctx, answer.Body, p); err != nil {
			return nil, err
		}
	}
	return weight(answer.Header), nil
}

// judgeStatus compares the status of an answer with what p wants.
func judgeStatus(status int, p edge.Probe) error {
	want := cmp.Or(p.Status, http.StatusOK)
	switch status {
	case want:
		return nil
	case p.FullStatus:
		return fmt.Errorf("%w: answered %d", edge.ErrFull, status)
	}
	return fmt.Errorf("answered %d, expected %d", status, want)
}

// readHead reads up to the head of the final answer: informational ones (RFC
// 9110 section 15.2) may come before it.
func readHead(r *bufio.Reader) (*http.Response, error) {
	for range 5 {
		answer, err := http.ReadResponse(r, nil)
		if err != nil {
			return nil, err
		}
		if answer.StatusCode >= 200 || answer.StatusCode == http.StatusSwitchingProtocols {
			return answer, nil
		}
	}
	return nil, errors.New("too many informational answers")
}

// search reads the body until it holds p.Body: an answer that goes on for ever
// passes as soon as it has said what was expected.
func search(ctx context.Context, body io.Reader, p edge.Probe) error {
	var seen []byte
	chunk := make([]byte, 4096)
	body = io.LimitReader(body, maxBody)
	for {
		n, err := body.Read(chunk)
		from := max(0, len(seen)-len(p.Body)+1)
		seen = append(seen, chunk[:n]...)
		if bytes.Contains(seen[from:], []byte(p.Body)) {
			return nil
		}
		if err == io.EOF {
			return fmt.Errorf("answered %d bytes without %.60q", len(seen), p.Body)
		}
		if err != nil {
			return fmt.Errorf("read body: %w", broken(ctx, err, p))
		}
	}
}

// broken is explain for a connection that was open already: its end, early or
// not, needs better words than "EOF".
func broken(ctx context.Context, err error, p edge.Probe) error {
	err = explain(ctx, err, p.Timeout)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("connection closed too early")
	}
	return err
}
