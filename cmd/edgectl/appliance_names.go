package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/catchment-dev/edge/image/slot"
)

// espChecked is there once edge-esp has checked the EFI partition in this boot: no two
// names of it share what they hold.
const espChecked = slot.RunDir + "/esp-checked"

// named is a file of the EFI partition with the name of a UKI.
type named struct {
	slot.UKI
	file slot.ESPFile
	sum  string // hex SHA-256; "": it is no program
}

// oneName leaves one name of a version that is good, without a counter. There are two
// after a power cut in a rename, be it by systemd-boot or by systemd-bless-boot, and what
// is under one of them may be cut. m is its manifest; nil: none is kept.
func (b *box) oneName(ctx context.Context, version string, m *slot.Manifest) (said string, err error) {
	w := &slot.Writer{ESP: slot.Folder(b.path(ukiFolder))}
	all, err := b.namesOf(w.ESP, version)
	if err != nil || len(all) < 2 {
		return "", err
	}
	if _, err := os.Stat(b.path(espChecked)); err != nil {
		return "", fmt.Errorf("the EFI partition has both %s and %s, and was not checked since, so that they may share their content: systemctl status edge-esp says why", all[0].file.Name, all[1].file.Name)
	}
	keep, err := whole(all, m)
	if err != nil {
		return "", err
	}
	for _, o := range all {
		if o.file.Name == keep.file.Name {
			continue
		}
		if err := w.ESP.Remove(o.file.Name); err != nil {
			return "", fmt.Errorf("remove %s: %w", o.file.Name, err)
		}
		said += fmt.Sprintf("removed %s: the power failed in a rename, and %s is whole. ", o.file.Name, keep.file.Name)
	}
	if keep.Counted {
		// systemd-bless-boot has found the other name, and left it at that.
		err = w.Recount(ctx, keep.UKI, slot.UKI{Version: version})
	}
	return said, err
}

// namesOf are all files that are called by a version, with their sums.
func (b *box) namesOf(esp slot.ESP, version string) ([]named, error) {
	files, err := esp.List()
	if err != nil {
		return nil, fmt.Errorf("list UKIs: %w", err)
	}
	var out []named
	for _, f := range files {
		u, ok := slot.ParseUKI(f.Name)
		if !ok || u.Version != version {
			continue
		}
		out = append(out, named{UKI: u, file: f})
	}
	if len(out) < 2 { // it is the usual one: nothing to be read
		return out, nil
	}
	for i := range out {
		if !out[i].file.Bootable {
			continue
		}
		if out[i].sum, err = fileSum(b.path(ukiFolder + "/" + out[i].file.Name)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func fileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read UKI: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read UKI: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// whole is the one of several names to keep: by its manifest, or else the only program,
// or one of those that are equal. One without a counter is the better name.
func whole(all []named, m *slot.Manifest) (named, error) {
	var found []named
	for _, n := range all {
		if n.sum == "" || m != nil && n.sum != m.File(slot.Kernel).SHA256 {
			continue
		}
		if len(found) > 0 && n.sum != found[0].sum {
			return named{}, fmt.Errorf("the EFI partition has both %s and %s, and they differ: remove the one that is not whole", found[0].file.Name, n.file.Name)
		}
		found = append(found, n)
	}
	if len(found) == 0 {
		return named{}, errors.New("the EFI partition has several names of this version, and none that is whole: put it back from its payload, as " + slot.UKI{Version: all[0].Version}.Name())
	}
	for _, n := range found {
		if !n.Counted {
			return n, nil
		}
	}
	return found[0], nil
}
