package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

const (
	// maxSlices is how many slices are looked into, and maxDepth how deep.
	maxSlices = 1024
	maxDepth  = 8
)

// unitKind is the prober of kind unit: the control group that systemd has made
// for a unit (cgroup v2, or the unified half of a hybrid) has live processes. It
// asks the kernel rather than systemd, whose bus may hang when a box is sick.
type unitKind struct{ root string } // where the hierarchy is mounted

// Probe looks for the group of p.Unit; a name without a type is a service.
func (k unitKind) Probe(_ context.Context, p edge.Probe) error {
	name := p.Unit
	if !strings.Contains(name, ".") {
		name += ".service"
	}
	if p.Unit == "" || strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, ".") {
		return fmt.Errorf("%w: %q is not the name of a unit", edge.ErrUnknown, p.Unit)
	}
	root, err := k.unified()
	if err != nil {
		return err
	}
	b, err := newUnitSearch(name).find(root)
	switch {
	case gone(err), errors.Is(err, unix.ENODEV): // the last: it went while we read
		return fmt.Errorf("unit %s is not running", name)
	case err != nil:
		return fmt.Errorf("%w: look for unit %s: %w", edge.ErrUnknown, name, bare(err))
	}
	events, err := parseEvents(b)
	switch {
	case err != nil:
		return fmt.Errorf("%w: look for unit %s: %w", edge.ErrUnknown, name, err)
	case !events.populated:
		return fmt.Errorf("unit %s has no live process", name)
	case events.frozen:
		return fmt.Errorf("unit %s is frozen", name)
	}
	return nil
}

// unified returns the top of the hierarchy of cgroup v2 that systemd manages.
func (k unitKind) unified() (string, error) {
	for _, root := range []string{k.root, filepath.Join(k.root, "unified")} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, "system.slice")); err != nil {
			return "", fmt.Errorf("%w: %s has no system.slice: is systemd running?", edge.ErrUnknown, root)
		}
		return root, nil
	}
	return "", fmt.Errorf("%w: cgroup v2 is not mounted at %s", edge.ErrUnknown, k.root)
}

// unitSearch looks for the group of a unit.
type unitSearch struct {
	names [2]string // of the folder
	left  int       // slices that may still be looked into
}

func newUnitSearch(name string) *unitSearch {
	// systemd puts an underscore before names that are also the kernel's, as
	// in memory.service.
	return &unitSearch{names: [2]string{name, "_" + name}, left: maxSlices}
}

// find returns the events of the group of the unit: system.slice first, where
// most are, then all slices.
func (s *unitSearch) find(root string) ([]byte, error) {
	b, err := s.in(filepath.Join(root, "system.slice"))
	if gone(err) {
		return s.below(root, maxDepth)
	}
	return b, err
}

// in looks for the unit among the children of a slice.
func (s *unitSearch) in(slice string) (b []byte, err error) {
	for _, name := range s.names {
		if b, err = readSmall(filepath.Join(slice, name, "cgroup.events")); !gone(err) {
			break
		}
	}
	return b, err
}

// below looks into a slice and then into those that are in it.
func (s *unitSearch) below(slice string, depth int) ([]byte, error) {
	if s.left--; depth == 0 || s.left < 0 {
		return nil, errors.New("there are too many slices")
	}
	b, err := s.in(slice)
	if !gone(err) {
		return b, err
	}
	entries, err := os.ReadDir(slice)
	if err != nil && !gone(err) {
		return nil, err
	}
	for _, entry := range entries {
		if entry.IsDir() && strings.HasSuffix(entry.Name(), ".slice") {
			if b, err := s.below(filepath.Join(slice, entry.Name()), depth-1); !gone(err) {
				return b, err
			}
		}
	}
	return nil, fs.ErrNotExist
}

// groupEvents is what a file cgroup.events says.
type groupEvents struct{ populated, frozen bool }

// parseEvents reads a file of keys and values.
func parseEvents(b []byte) (groupEvents, error) {
	var e groupEvents
	known := false
	for line := range bytes.Lines(b) {
		key, value, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		switch key {
		case "populated":
			known = value == "0" || value == "1"
			e.populated = value == "1"
		case "frozen":
			e.frozen = value == "1"
		}
	}
	if !known {
		return e, errors.New("its cgroup.events does not say whether it is populated")
	}
	return e, nil
}
