package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// blocklist is a file of source prefixes, as it was read.
type blocklist struct {
	path    string
	sources []netip.Prefix
	hash    [sha256.Size]byte
}

// maxBlockErrors bounds how many bad lines one message names: it is for a person.
const maxBlockErrors = 10

// readBlocklist reads one prefix or address a line. Empty lines and what follows
// a # do not count. An empty path is an empty list.
func readBlocklist(path string) (blocklist, error) {
	if path == "" {
		return blocklist{}, nil
	}
	b, err := readRegular(path)
	if err != nil {
		return blocklist{}, fmt.Errorf("read node.forwarder.blocklist_file: %w", err)
	}
	l := blocklist{path: path, hash: sha256.Sum256(b)}
	var errs []error
	lines := bufio.NewScanner(bytes.NewReader(b))
	n := 1
	for ; lines.Scan() && len(errs) < maxBlockErrors; n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := parseBlocked(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %w", path, n, err))
			continue
		}
		l.sources = append(l.sources, p)
	}
	if err := lines.Err(); err != nil {
		errs = append(errs, fmt.Errorf("%s: line %d is longer than any prefix: %w", path, n, err))
	}
	if err := errors.Join(errs...); err != nil {
		return blocklist{}, fmt.Errorf("read node.forwarder.blocklist_file: %w", err)
	}
	return l, nil
}

// maxBlockFile bounds a blocklist, in bytes: of what a forwarder can hold at all.
const maxBlockFile = 1 << 30

// readRegular reads a file and nothing else: a pipe would keep the reader, a
// device never end.
func readRegular(path string) ([]byte, error) {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case st.Size() > maxBlockFile:
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read", path, st.Size(), maxBlockFile)
	}
	return os.ReadFile(path)
}

// parseBlocked reads a prefix or an address. One of no bits would block everybody:
// a mistake, and never what is meant.
func parseBlocked(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil || p.Addr().Is4In6():
		return p, fmt.Errorf("%.60q is neither a prefix (192.0.2.0/24) nor an address", text)
	case p != p.Masked():
		return p, fmt.Errorf("%s has bits behind its length: is %s meant?", p, p.Masked())
	case p.Bits() == 0:
		return p, fmt.Errorf("%s would block everybody", p)
	}
	return p, nil
}

// blocker puts blocklists in force, in a goroutine of its own: a million prefixes
// take seconds, and the control loop has a lease to renew. Until one is in force
// the one before is, also that of the process before.
type blocker struct {
	fwd interface {
		Block(ctx context.Context, sources []netip.Prefix) error
	}
	log *slog.Logger
	// next holds the list that is wanted, if it is not being worked on yet.
	next chan blocklist
	// reading is full while a file is being read, which may take within.
	reading chan struct{}
	within  time.Duration
	// err is why the list that was wanted last is not in force; nil: it is, or is
	// on its way.
	err atomic.Pointer[error]
}

func newBlocker(log *slog.Logger) *blocker {
	return &blocker{log: log, next: make(chan blocklist, 1), reading: make(chan struct{}, 1), within: blockRead}
}

// blockRead is how long a blocklist may take to be read. A file system that hangs
// must hold up neither the start of edged nor an operator: the list before stays in
// force, and it is told.
const blockRead = 5 * time.Second

// read is readBlocklist within that time. No second file is read while the kernel
// holds one, since each costs a thread.
func (b *blocker) read(path string) (blocklist, error) {
	late := time.NewTimer(b.within)
	defer late.Stop()
	silent := fmt.Errorf("read node.forwarder.blocklist_file: %s has not answered within %s", path, b.within)
	select {
	case b.reading <- struct{}{}:
	case <-late.C:
		return blocklist{}, silent
	}
	var l blocklist
	var err error
	done := make(chan struct{})
	go func() {
		l, err = readBlocklist(path)
		<-b.reading
		close(done)
	}()
	select {
	case <-done:
		return l, err
	case <-late.C:
		return blocklist{}, silent
	}
}

// want has l put in force soon. It waits for nothing; one goroutine may call it.
func (b *blocker) want(l blocklist) {
	select {
	case <-b.next: // overtaken before it was looked at
	default:
	}
	b.next <- l
}

// refused notes that a list could not be read at all.
func (b *blocker) refused(err error) {
	b.log.Error("blocklist is not in force", "err", err)
	b.err.Store(&err)
}

func (b *blocker) run(ctx context.Context) error {
	var have *[sha256.Size]byte
	for {
		select {
		case <-ctx.Done():
			return nil
		case l := <-b.next:
			if have != nil && *have == l.hash {
				b.err.Store(nil)
				continue
			}
			if err := b.fwd.Block(ctx, l.sources); err != nil {
				if ctx.Err() == nil {
					b.refused(err)
				}
				continue
			}
			have = &l.hash
			b.err.Store(nil)
		}
	}
}
