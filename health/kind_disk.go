package health

import (
	"context"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// diskKind is the prober of kind disk: the file system of p.File can be written
// to and has room, in bytes and in inodes, for somebody who is not root.
type diskKind struct{ patience *patience }

func (k diskKind) Probe(ctx context.Context, p edge.Probe) error {
	said, err := k.patience.call(ctx, "statfs "+p.File, func() (any, error) {
		var s unix.Statfs_t
		err := unix.Statfs(p.File, &s)
		return s, err
	})
	if err != nil {
		return fmt.Errorf("look at the file system of %s: %w", p.File, denied(explain(ctx, err, p.Timeout)))
	}
	return judgeDisk(p, said.(unix.Statfs_t))
}

// judgeDisk compares the state of a file system with what p wants.
func judgeDisk(p edge.Probe, s unix.Statfs_t) error {
	if s.Flags&unix.ST_RDONLY != 0 {
		return fmt.Errorf("file system of %s is mounted read-only", p.File)
	}
	block := s.Frsize
	if block <= 0 {
		block = s.Bsize
	}
	free := float64(s.Bavail) * float64(block)
	if free < float64(p.MinFreeBytes) {
		return fmt.Errorf("file system of %s has %s free, wanted %s", p.File, sizeText(free), sizeText(float64(p.MinFreeBytes)))
	}
	// As df does: what is kept for root does not count at all.
	if err := enough(p, "bytes", s.Bavail, s.Blocks-s.Bfree+s.Bavail); err != nil {
		return err
	}
	if s.Files == 0 {
		return nil // it makes inodes as it needs them
	}
	return enough(p, "inodes", s.Ffree, s.Files)
}

// enough checks that free is p.MinFreePercent of all.
func enough(p edge.Probe, what string, free, all uint64) error {
	if all == 0 || float64(free)*100 >= float64(p.MinFreePercent)*float64(all) {
		return nil
	}
	return fmt.Errorf("file system of %s has %d %% of its %s free, wanted %d %%", p.File,
		int(float64(free)*100/float64(all)), what, p.MinFreePercent)
}

// sizeText writes a number of bytes with one decimal at most: it shall not change
// with each file that somebody writes.
func sizeText(bytes float64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for bytes >= 1024 && len(units) > 1 {
		bytes, units = bytes/1024, units[1:]
	}
	// Down, so that what is short of a bound never looks like it.
	return strconv.FormatFloat(float64(int(bytes*10))/10, 'f', -1, 64) + " " + units[0]
}
