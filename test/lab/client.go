package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// Client is a host that asks for things. Its methods may be called by several
// goroutines at once.
type Client struct {
	*Host
	trust *x509.CertPool
}

// Way is how a client asks. The zero Way asks over IPv4 by HTTP/1.1, with a
// connection per request.
type Way struct {
	// IPv6 asks VIP6 instead of VIP4.
	IPv6 bool
	// KeepAlive uses connections again.
	KeepAlive bool
	// HTTP2 speaks it over TLS, if the other side does.
	HTTP2 bool
}

// Transport returns a transport whose connections start inside the host. A
// host name in a URL, whichever, stands for the VIP; an address for itself. It
// trusts the lab's certificates. The caller closes its idle connections.
func (c *Client) Transport(w Way) *http.Transport {
	vip := VIP4
	if w.IPv6 {
		vip = VIP6
	}
	return &http.Transport{
		DisableKeepAlives: !w.KeepAlive, ForceAttemptHTTP2: w.HTTP2, MaxIdleConnsPerHost: 256,
		TLSClientConfig: &tls.Config{RootCAs: c.trust},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			if _, err := netip.ParseAddr(host); err != nil {
				host = vip.String()
			}
			return c.Dial(ctx, network, net.JoinHostPort(host, port))
		},
	}
}

// Get asks for a URL that an origin answers, and reads who served it. An
// answer that is not 200 is an error.
func (c *Client) Get(ctx context.Context, url string, w Way) (Answer, error) {
	t := c.Transport(w)
	defer t.CloseIdleConnections()
	return get(ctx, t, url)
}

func get(ctx context.Context, t *http.Transport, url string) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Answer{}, fmt.Errorf("make request: %w", err)
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return Answer{}, fmt.Errorf("get %s: %w", url, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return Answer{}, fmt.Errorf("read answer of %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return Answer{}, fmt.Errorf("get %s: %s: %.200s", url, resp.Status, body)
	}
	var a Answer
	if err := json.Unmarshal(body, &a); err != nil {
		return Answer{}, fmt.Errorf("decode answer of %s: %w: %.200q", url, err, body)
	}
	return a, nil
}

// RTT is how long a TCP connection takes to open: one round trip.
func (c *Client) RTT(ctx context.Context, to netip.AddrPort) (time.Duration, error) {
	start := time.Now()
	conn, err := c.Dial(ctx, "tcp", to.String())
	if err != nil {
		return 0, err
	}
	took := time.Since(start)
	return took, conn.Close()
}

// Echo sends a datagram to the UDP service and returns which box answered.
func (c *Client) Echo(ctx context.Context) (box string, err error) {
	conn, err := c.Dial(ctx, "udp", netip.AddrPortFrom(EchoVIP, EchoPort).String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(aLongTimeAgo) })
	defer stop()
	if _, err := conn.Write([]byte("who")); err != nil {
		return "", fmt.Errorf("ask echo: %w", err)
	}
	buf := make([]byte, 128)
	n, err := conn.Read(buf)
	if err != nil {
		return "", fmt.Errorf("read echo: %w", err)
	}
	return string(buf[:n]), nil
}
