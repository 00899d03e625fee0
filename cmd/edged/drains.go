package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
)

const (
	drainsFile = "drains.json"
	// byFileFile keeps what the drain file ordered last: while that cannot be
	// read, or is wrong, its orders stay in force, also over a restart.
	byFileFile = "drains-by-file.json"
)

// drains are the operator's orders to leave. They are kept on disk, since an
// order must outlive this process and the box's reboot. Those of the drain file
// are kept by that file instead.
type drains struct {
	dir  string
	list []edge.Drain
	// byFile is what the drain file says; fileErr what is wrong with it, and then
	// byFile is what it said before.
	byFile  []edge.Drain
	fileErr error
	// seen is the file as it was first seen at seenAt, read says that inFile is
	// what is in it.
	seen   fileStamp
	seenAt time.Time
	read   bool
	inFile []edge.Drain
	// byFileErr is why byFile could not be kept; tried again at the next look.
	byFileErr error
	// unkept says that the file on disk has orders that have ended, keepErr why.
	unkept  bool
	keepErr error
}

// openDrains reads what an earlier process kept. A file that cannot be read is
// an error: to ignore it would announce a prefix that an operator took out.
func openDrains(dir string) (*drains, error) {
	d := &drains{dir: dir}
	err := readState(dir, drainsFile, "drains", &d.list)
	return d, errors.Join(err, readState(dir, byFileFile, "drains by file", &d.byFile))
}

// all are the orders by command and by file.
func (d *drains) all() []edge.Drain { return slices.Concat(d.list, d.byFile) }

// of returns the order that concerns p: its own, else that for a service in it,
// else that for the whole node. vipOf tells where a service is: each prefix that
// attracts its packets is concerned.
func (d *drains) of(p netip.Prefix, vipOf func(edge.ServiceID) netip.Addr) *edge.Drain {
	var found *edge.Drain
	best := 0
	for _, o := range d.all() {
		rank := 0
		switch {
		case o.Prefix == p:
			rank = 3
		case o.Service != "" && p.Contains(vipOf(o.Service)):
			rank = 2
		case o.Service == "" && o.Prefix == netip.Prefix{}:
			rank = 1
		}
		if rank > best {
			found, best = &o, rank
		}
	}
	if found != nil && found.Service != "" {
		found.Reason = fmt.Sprintf("service %s: %s", found.Service, found.Reason)
	}
	return found
}

// node says whether the whole node is to leave.
func (d *drains) node() bool {
	return slices.ContainsFunc(d.all(), func(o edge.Drain) bool { return o.Service == "" && o.Prefix == netip.Prefix{} })
}

// expire forgets the orders by command that have ended, and reports them. They
// have ended even if that cannot be written down; it is tried again.
func (d *drains) expire(now time.Time) []edge.Drain {
	over := func(o edge.Drain) bool { return !o.Until.IsZero() && !now.Before(o.Until) }
	if !d.unkept && !slices.ContainsFunc(d.list, over) {
		return nil
	}
	var ended, left []edge.Drain
	for _, o := range d.list {
		if over(o) {
			ended = append(ended, o)
		} else {
			left = append(left, o)
		}
	}
	d.list = left
	d.keepErr = d.keep(left)
	d.unkept = d.keepErr != nil
	return ended
}

// add keeps an order; one for the same is replaced.
func (d *drains) add(o edge.Drain) error {
	return d.keep(append(d.without(o.Prefix, o.Service), o))
}

// remove takes an order back and says whether there was one.
func (d *drains) remove(p netip.Prefix, s edge.ServiceID) (bool, error) {
	list := d.without(p, s)
	if len(list) == len(d.list) {
		return false, nil
	}
	return true, d.keep(list)
}

func (d *drains) without(p netip.Prefix, s edge.ServiceID) []edge.Drain {
	return slices.DeleteFunc(slices.Clone(d.list), func(o edge.Drain) bool { return o.Prefix == p && o.Service == s })
}

// keep writes the list; on an error the old one is in force.
func (d *drains) keep(list []edge.Drain) error {
	if err := writeState(d.dir, drainsFile, "drains", list); err != nil {
		return err
	}
	d.list = list
	return nil
}

// replaceFile writes beside the file, syncs it, renames, and syncs the folder:
// after a power cut either the old or the new content is there.
func replaceFile(path string, b []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make state folder: %w", err)
	}
	if err := writeSynced(path+".new", b); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}
