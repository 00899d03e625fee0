package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// serverHeader is where a download says who sends it.
const serverHeader = "X-Server"

// Download is an answer that a server sends slowly, over one connection. Its
// methods may be called by several goroutines at once.
type Download struct {
	// Source is the client's end of the connection, Target the VIP and its port.
	Source, Target netip.AddrPort
	// Server is who sends it.
	Server string

	stop context.CancelFunc
	done chan struct{}
	err  error // set before done is closed

	mu      sync.Mutex
	read    int64
	at      time.Time     // of the last read
	longest time.Duration // between two reads, since it was last asked for
}

// Download asks a server for a download, over a connection of its own, and
// returns when its answer begins. It goes on until the server ends it, the
// connection breaks, ctx ends, or Close.
func (c *Client) Download(ctx context.Context, ipv6 bool) (*Download, error) {
	vip := VIP4
	if ipv6 {
		vip = VIP6
	}
	d := &Download{Target: netip.AddrPortFrom(vip, DownloadPort), done: make(chan struct{})}
	t := c.Transport(Way{IPv6: ipv6})
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := c.Dial(ctx, network, address)
		if err == nil {
			at := conn.LocalAddr().(*net.TCPAddr).AddrPort()
			d.Source = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		}
		return conn, err
	}
	ctx, d.stop = context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/download", d.Target), nil)
	if err != nil {
		d.stop()
		return nil, fmt.Errorf("make request: %w", err)
	}
	resp, err := t.RoundTrip(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		err = errors.New(resp.Status)
	}
	if err != nil {
		d.stop()
		return nil, fmt.Errorf("begin download from %s: %w", d.Target, err)
	}
	d.Server, d.at = resp.Header.Get(serverHeader), time.Now()
	go d.take(resp.Body)
	return d, nil
}

// take reads until the end, which only an HTTP answer that is whole has.
func (d *Download) take(body io.ReadCloser) {
	defer close(d.done)
	defer d.stop()
	defer body.Close()
	buf, want := make([]byte, 32<<10), make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		from := d.took(n)
		fill(want[:n], from)
		switch {
		case !bytes.Equal(buf[:n], want[:n]):
			d.err = fmt.Errorf("download from %s: what came behind byte %d is not what was sent", d.Server, from)
			return
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			d.err = fmt.Errorf("download from %s broke after %d bytes: %w", d.Server, from+int64(n), err)
			return
		}
	}
}

// took notes a read of n bytes and returns how many were read before it.
func (d *Download) took(n int) (before int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before = d.read
	now := time.Now()
	d.longest = max(d.longest, now.Sub(d.at))
	d.read, d.at = d.read+int64(n), now
	return before
}

// Read is how many bytes have come.
func (d *Download) Read() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.read
}

// Stall is the longest pause between two reads since Stall was called last, also
// one that has not ended, if the download has not.
func (d *Download) Stall() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	longest := d.longest
	d.longest = 0
	select {
	case <-d.done:
	default:
		longest = max(longest, time.Since(d.at))
	}
	return longest
}

// Done is closed when the download has ended.
func (d *Download) Done() <-chan struct{} { return d.done }

// Err says how the download ended: nil if it is whole. Only after Done.
func (d *Download) Err() error { return d.err }

// Close gives the download up.
func (d *Download) Close() {
	d.stop()
	<-d.done
}

// fill writes the bytes of a download that begin at an offset. They do not
// repeat, so that one that is lost or doubled shows.
func fill(b []byte, offset int64) {
	for i := range b {
		x := (uint64(offset) + uint64(i)) * 0x9e3779b97f4a7c15
		x = (x ^ x>>32) * 0xbf58476d1ce4e5b9
		b[i] = byte(x >> 56)
	}
}
