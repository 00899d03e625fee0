// Package socket is how the processes of a box talk: HTTP and JSON over unix
// sockets. It owns the listening and the calling, and knows none of the
// documents. All four commands use it.
package socket

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/catchment-dev/edge"
)

// Group is the group that may use a shared socket, if the box has it.
const Group = "edge"

// maxBody bounds a request, maxAnswer an answer, in bytes: edgebgp says of each
// peer what it holds.
const (
	maxBody   = 16 << 20
	maxAnswer = 128 << 20
)

// Listen makes the unix socket at path for root alone: mode 0600. Of a process
// that is another user it is open to that user's group too, mode 0660: in the units
// each daemon has a group of its own, which only who is to call it is a member of.
// A socket that a dead process left is replaced; a live one is an error.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make folder of socket: %w", err)
	}
	switch c, err := net.DialTimeout("unix", path, time.Second); {
	case err == nil:
		c.Close()
		return nil, fmt.Errorf("listen on %s: another process answers there", path)
	case !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist):
		// Any other error, such as a full queue, is not the word of a dead one.
		return nil, fmt.Errorf("listen on %s: another process may be there: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	mode := os.FileMode(0o600)
	if os.Geteuid() != 0 {
		mode = 0o660
	}
	if err := os.Chmod(path, mode); err != nil {
		ln.Close()
		return nil, fmt.Errorf("restrict socket: %w", err)
	}
	return ln, nil
}

// Share gives the socket at path to the group "edge" as well, where the box has
// one: mode 0660. Only edged's socket is for people; what the daemons say to
// each other is nobody else's.
func Share(path string) error {
	g, err := user.LookupGroup(Group)
	if err != nil {
		return nil // no such group: root only
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return fmt.Errorf("read gid of group %s: %w", Group, err)
	}
	if err := os.Chown(path, -1, gid); err != nil {
		return fmt.Errorf("give socket to group %s: %w", Group, err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return fmt.Errorf("open socket to group %s: %w", Group, err)
	}
	return nil
}

// Serve answers on ln until ctx ends, then closes every connection and returns
// nil.
func Serve(ctx context.Context, ln net.Listener, h http.Handler) error {
	srv := &http.Server{
		Handler:           http.MaxBytesHandler(h, maxBody),
		ReadHeaderTimeout: 5 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	}
	return nil
}

// JSON answers with v.
func JSON(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		code, b = http.StatusInternalServerError, []byte(`{"error":"encode answer"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	w.Write(append(b, '\n')) // the reader may be gone: nothing to do about it
}

// Fail answers with err as an edge.Problem.
func Fail(w http.ResponseWriter, code int, err error) {
	JSON(w, code, edge.Problem{Error: err.Error()})
}

// Read decodes the body of r into v; an unknown field is an error.
func Read(r *http.Request, v any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	return nil
}

// Client calls the process behind one unix socket. It may be used by several
// goroutines at once.
type Client struct {
	path string
	http *http.Client
}

// NewClient returns a client of the socket at path. It connects when used.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	return &Client{path: path, http: &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConns: 2, IdleConnTimeout: 30 * time.Second}}}
}

// Close gives back idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Call sends in (nil: no body) and decodes the answer into out (nil: ignored).
// An answer that is not 2xx is a *Refusal. A json.RawMessage is sent as it is.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.Open(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(b) > maxAnswer {
		err = fmt.Errorf("larger than %d bytes", maxAnswer)
	}
	if err != nil {
		return fmt.Errorf("read answer of %s: %w", c.path, err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("decode answer of %s: %w", c.path, err)
	}
	return nil
}

// Open is Call for an answer that is read as a stream. The caller closes its
// body.
func (c *Client) Open(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, encoded := in.(json.RawMessage)
		if !encoded {
			var err error
			if b, err = json.Marshal(in); err != nil {
				return nil, fmt.Errorf("encode request: %w", err)
			}
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", c.path, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	var p edge.Problem
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if json.Unmarshal(b, &p) != nil || p.Error == "" {
		p.Error = resp.Status
	}
	return nil, &Refusal{resp.StatusCode, p.Error}
}

// Refusal is an answer that is not 2xx.
type Refusal struct {
	Code int    // of HTTP
	Text string // of its edge.Problem
}

func (r *Refusal) Error() string { return r.Text }
