package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// Bounds of a drain file.
const (
	maxDrainFile  = 64 << 10 // bytes
	maxDrainLines = 256
)

// fileStamp tells whether a file has changed since it was read; the zero one is
// that of no file.
type fileStamp struct {
	path    string
	inode   uint64
	changed time.Time // of the inode too: a file that is moved in has its own times
	size    int64
}

func stampFile(path string) (fileStamp, error) {
	if path == "" {
		return fileStamp{}, nil
	}
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fileStamp{}, nil
	case err != nil:
		return fileStamp{}, fmt.Errorf("read drain file: %w", err)
	case !st.Mode().IsRegular(): // a pipe would block, a device never end
		return fileStamp{}, fmt.Errorf("read drain file: %s is not a regular file", path)
	}
	out := fileStamp{path: path, changed: st.ModTime(), size: st.Size()}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		out.inode, out.changed = sys.Ino, time.Unix(sys.Ctim.Unix())
	}
	return out, nil
}

// fileSettle is how long a drain file must have been as it is before an order
// ends that is in it no more, or an empty one drains the node: who writes a file
// anew takes it away for a moment, or has it half written.
const fileSettle = 2 * time.Second

// follow takes in the drain file. A new order counts at once. A file that is wrong,
// or does not answer, changes nothing, and says so: neither is a node brought back
// by a slip of the pen, nor taken out.
func (d *drains) follow(path string, now time.Time) {
	look, ok := d.file.ask(path, now)
	if ok {
		d.fileErr = stays(look.err)
	} else if late := d.file.silence(path, now); late != nil {
		d.fileErr = stays(late)
	}
	if ok && look.seen && (look.stamp != d.seen || d.seenAt.IsZero()) {
		d.seen, d.seenAt = look.stamp, now
	}
	if !ok || look.err != nil {
		d.order(unended(d.byFile, now))
		return
	}
	list := look.list
	if now.Sub(d.seenAt) < fileSettle {
		list = slices.DeleteFunc(slices.Clone(list), func(o edge.Drain) bool { return look.stamp.size == 0 })
		for _, o := range d.byFile {
			if !slices.ContainsFunc(list, func(n edge.Drain) bool { return n.Prefix == o.Prefix && n.Service == o.Service }) {
				list = append(list, o)
			}
		}
	}
	d.order(unended(list, now))
}

// stays adds to an error, if it is one, what becomes of the orders.
func stays(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w; what it ordered before stays in force", err)
}

// order makes list what the drain file orders, and keeps it.
func (d *drains) order(list []edge.Drain) {
	same := slices.EqualFunc(list, d.byFile, func(a, b edge.Drain) bool {
		return a.Since.Equal(b.Since) && a.Until.Equal(b.Until) && a.Prefix == b.Prefix && a.Service == b.Service && a.Reason == b.Reason
	})
	if !same {
		d.byFile = list
		d.keeper.keep(byFileFile, "what the drain file orders", list)
	}
}

func readDrainFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not block
	if err != nil {
		return nil, fmt.Errorf("read drain file: %w", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && !st.Mode().IsRegular() { // else a pipe that came meanwhile is an empty file
		return nil, fmt.Errorf("read drain file: %s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxDrainFile+1))
	if err == nil && len(b) > maxDrainFile {
		err = fmt.Errorf("larger than %d bytes", maxDrainFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read drain file %s: %w", path, err)
	}
	return b, nil
}

func unended(list []edge.Drain, now time.Time) []edge.Drain {
	var out []edge.Drain
	for _, o := range list {
		if o.Until.IsZero() || now.Before(o.Until) {
			out = append(out, o)
		}
	}
	return out
}

// parseDrainFile reads a drain file: a line is "node", "prefix P" or
// "service S", then perhaps "until TIME" (RFC 3339), then the reason. A "#"
// starts a comment. A file without a line drains the node.
func parseDrainFile(text string) ([]edge.Drain, error) {
	var out []edge.Drain
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		o, err := parseDrainLine(words)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if out = append(out, o); len(out) > maxDrainLines {
			return nil, fmt.Errorf("more than %d lines", maxDrainLines)
		}
	}
	if len(out) == 0 {
		out = []edge.Drain{{Reason: "the drain file is there", ByFile: true}}
	}
	return out, nil
}

func parseDrainLine(words []string) (edge.Drain, error) {
	o := edge.Drain{ByFile: true}
	what, words := words[0], words[1:]
	if what != "node" && len(words) == 0 {
		return o, fmt.Errorf("%q names nothing: expected node, prefix P or service S", what)
	}
	var err error
	switch what {
	case "node":
	case "prefix":
		if o.Prefix, err = netip.ParsePrefix(words[0]); err != nil || o.Prefix != o.Prefix.Masked() {
			return o, fmt.Errorf("%q is not a prefix without host bits", words[0])
		}
		words = words[1:]
	case "service":
		o.Service, words = edge.ServiceID(words[0]), words[1:]
	default:
		return o, fmt.Errorf("%q: expected node, prefix P or service S", what)
	}
	if len(words) > 0 && words[0] == "until" {
		if len(words) < 2 {
			return o, errors.New("until without a time")
		}
		if o.Until, err = time.Parse(time.RFC3339, words[1]); err != nil {
			return o, fmt.Errorf("until %s: expected a time like 2026-01-02T15:04:05Z", words[1])
		}
		words = words[2:]
	}
	o.Reason = strings.ToValidUTF8(strings.Join(words, " "), "?")
	if len(o.Reason) > maxReason {
		return o, fmt.Errorf("the reason has %d bytes, at most %d are taken", len(o.Reason), maxReason)
	}
	if o.Reason == "" {
		o.Reason = "by the drain file"
	}
	return o, nil
}
