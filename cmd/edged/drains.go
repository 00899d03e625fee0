package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/catchment-dev/edge"
)

// drains are the operator's orders to leave. They are kept on disk, since an
// order must outlive this process and the box's reboot.
type drains struct {
	path string
	list []edge.Drain
}

// openDrains reads what an earlier process kept. A file that cannot be read is
// an error: to ignore it would announce a prefix that an operator took out.
func openDrains(dir string) (*drains, error) {
	d := &drains{path: filepath.Join(dir, "drains.json")}
	b, err := os.ReadFile(d.path)
	if errors.Is(err, os.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read drains: %w", err)
	}
	if err := json.Unmarshal(b, &d.list); err != nil {
		return nil, fmt.Errorf("read drains: %s: %w; mend or remove the file", d.path, err)
	}
	return d, nil
}

// of returns the order that concerns p: its own, else that for all prefixes.
func (d *drains) of(p netip.Prefix) *edge.Drain {
	var all *edge.Drain
	for i := range d.list {
		switch {
		case d.list[i].Prefix == p:
			return &d.list[i]
		case d.list[i].Prefix == netip.Prefix{}:
			all = &d.list[i]
		}
	}
	return all
}

// add keeps an order; one for the same prefix is replaced.
func (d *drains) add(o edge.Drain) error {
	list := append(d.without(o.Prefix), o)
	return d.keep(list)
}

// remove takes an order back and says whether there was one.
func (d *drains) remove(p netip.Prefix) (bool, error) {
	list := d.without(p)
	if len(list) == len(d.list) {
		return false, nil
	}
	return true, d.keep(list)
}

func (d *drains) without(p netip.Prefix) []edge.Drain {
	return slices.DeleteFunc(slices.Clone(d.list), func(o edge.Drain) bool { return o.Prefix == p })
}

// keep writes the list; on an error the old one is in force.
func (d *drains) keep(list []edge.Drain) error {
	b, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return fmt.Errorf("encode drains: %w", err)
	}
	if err := replaceFile(d.path, append(b, '\n')); err != nil {
		return fmt.Errorf("keep drains: %w", err)
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
