package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// VolumeKind is the file system of a volume.
type VolumeKind string

// The kinds of volumes.
const (
	KindFAT VolumeKind = "fat"
	KindISO VolumeKind = "iso"
)

// fatSize is that of every FAT volume, in KiB.
const fatSize = 8 << 10

// Volume makes an image with files in it, by their paths, and a label.
func Volume(ctx context.Context, path string, kind VolumeKind, label string, files map[string]string) (err error) {
	tree, err := os.MkdirTemp(filepath.Dir(path), "volume-")
	if err != nil {
		return fmt.Errorf("make volume: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tree)) }()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !fs.ValidPath(name) {
			return fmt.Errorf("make volume: %q is no path in it", name)
		}
		at := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return fmt.Errorf("make volume: %w", err)
		}
		if err := os.WriteFile(at, []byte(files[name]), 0o644); err != nil {
			return fmt.Errorf("make volume: %w", err)
		}
	}
	if kind == KindISO {
		return tool(ctx, "xorriso", "-as", "mkisofs", "-quiet", "-V", label, "-J", "-R", "-o", path, tree)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make volume: %w", err)
	}
	if err := tool(ctx, "mkfs.vfat", "-C", "-n", label, path, fmt.Sprint(fatSize)); err != nil {
		return err
	}
	return fillFAT(ctx, path, tree)
}

func fillFAT(ctx context.Context, path, tree string) error {
	top, err := filepath.Glob(filepath.Join(tree, "*"))
	if err != nil || len(top) == 0 {
		return errors.Join(err, errors.New("make volume: it has no files"))
	}
	args := append([]string{"-s", "-i", path}, top...)
	if err := tool(ctx, "mcopy", append(args, "::/")...); err != nil {
		return fmt.Errorf("fill volume with %s: %w", strings.Join(top, " "), err)
	}
	return nil
}
