package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// blocklist is a file of source prefixes, as it was read.
type blocklist struct {
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
	b, err := os.ReadFile(path)
	if err != nil {
		return blocklist{}, fmt.Errorf("read node.forwarder.blocklist_file: %w", err)
	}
	l := blocklist{hash: sha256.Sum256(b)}
	var errs []error
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan() && len(errs) < maxBlockErrors; n++ {
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
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	if err := errors.Join(errs...); err != nil {
		return blocklist{}, fmt.Errorf("read node.forwarder.blocklist_file: %w", err)
	}
	return l, nil
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

// block has the forwarder drop what comes from the sources of l, if that is not
// what it does already.
func (d *daemon) block(ctx context.Context, l blocklist) error {
	if d.blocking && l.hash == d.blockHash {
		return nil
	}
	if err := d.fwd.Block(ctx, l.sources); err != nil {
		return err
	}
	d.blocking, d.blockHash = true, l.hash
	return nil
}

// openBlocklist puts the list of the file in force at the start. A bad one is an
// alarm and not the end: the list of the process before stays.
func (d *daemon) openBlocklist(ctx context.Context, l blocklist, err error) {
	if err == nil {
		err = d.block(ctx, l)
	}
	if d.blockErr = err; err != nil {
		d.log.Error("blocklist is not in force", "err", err)
	}
}
