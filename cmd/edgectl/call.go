package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"unicode"

	"github.com/catchment-dev/edge/cmd/internal/socket"
)

// call asks edged and decodes its answer into out. Its errors say what to do.
func (o *options) call(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	c := socket.NewClient(o.socket)
	defer c.Close()
	err := c.Call(ctx, method, path, in, out)
	if err == nil {
		return nil
	}
	return problem{o.remedy(ctx, method, err)}
}

// remedy turns an error of a call into what happened, where, and what to do.
// What edged refused is passed on as it is, as a refusal.
func (o *options) remedy(ctx context.Context, method string, err error) error {
	var op *net.OpError
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("no permission for %s: be root, or a member of the group edge", o.socket)
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("edged does not answer on %s: is it running?", o.socket)
	case ctx.Err() == context.DeadlineExceeded && method != "GET":
		return fmt.Errorf("edged did not answer on %s within %s; the order may still be done: look with edgectl status", o.socket, o.timeout)
	case ctx.Err() == context.DeadlineExceeded:
		return fmt.Errorf("edged did not answer on %s within %s: is it busy or stuck? its log may say", o.socket, o.timeout)
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case errors.As(err, &op), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("edged broke the connection on %s: %w; its log may say why", o.socket, err)
	}
	return refusal{err}
}

// refusal is an answer of edged that is a "no", in its own words.
type refusal struct{ error }

// json writes v as the answer of -o json.
func (o *options) json(v any) error {
	enc := json.NewEncoder(o.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return problem{fmt.Errorf("write output: %w", err)}
	}
	return nil
}

// write writes text to standard output.
func (o *options) write(text string) error {
	if _, err := o.stdout.Write([]byte(text)); err != nil {
		return problem{fmt.Errorf("write output: %w", err)}
	}
	return nil
}

// clean replaces what could steer a terminal: texts of errors come from other
// boxes, and from what probes were answered.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// line is clean for one line.
func line(s string) string { return strings.ReplaceAll(clean(s), "\n", " | ") }
