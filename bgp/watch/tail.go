package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/catchment-dev/edge/bgp/internal/follow"
)

const (
	filePause = 250 * time.Millisecond // between two looks at the end of a file
	fifoPause = time.Second            // between two looks whether a FIFO is another
)

// followFile reads what is in the file and what is appended to it, until ctx
// ends. Where it is replaced, the old one is read to its end first.
func (f *feed) followFile(ctx context.Context, path string) {
	for ctx.Err() == nil {
		err := f.tail(ctx, path)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			f.down(err)
			follow.Pause(ctx, filePause)
			continue
		}
		f.gap() // its writer may have gone on with the old one
	}
}

// tail reads one file until another one stands in its place, which is nil.
func (f *feed) tail(ctx context.Context, path string) error {
	file, info, err := openFeed(path)
	if err != nil {
		return err
	}
	defer file.Close()
	stop := context.AfterFunc(ctx, func() { file.Close() }) // wakes a read of a FIFO
	defer stop()
	from := &growing{file: file, regular: info.Mode().IsRegular()}
	in := newLines(from)
	if size := info.Size(); from.regular && size > maxBacklog {
		if err := from.seek(size - maxBacklog); err != nil {
			return err
		}
		in.skip = true // in the middle of a line
	}
	f.up()
	for replaced := false; ; {
		if err := f.drain(ctx, from, in); err != nil {
			return err
		}
		if replaced {
			if in.partial() {
				f.dropped(errors.New("the file ended within it"))
			}
			return nil
		}
		follow.Pause(ctx, filePause)
		if replaced, err = f.replaced(path, info); err != nil {
			return err
		}
	}
}

// openFeed opens a file that can be followed. Not blocking: a FIFO would wait
// for a writer. It is looked at before as well: to open some devices does things.
func openFeed(path string) (*os.File, fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err == nil {
		err = followable(info)
	}
	if err != nil {
		return nil, nil, barePath(err)
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, barePath(err)
	}
	if info, err = file.Stat(); err == nil {
		err = followable(info)
	}
	if err != nil {
		file.Close()
		return nil, nil, barePath(err)
	}
	return file, info, nil
}

func followable(info fs.FileInfo) error {
	if !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeNamedPipe {
		return errors.New("neither a regular file nor a FIFO")
	}
	return nil
}

// drain reads up to the end that the file has now, or that the writers of the
// FIFO have come to.
func (f *feed) drain(ctx context.Context, from *growing, in *lines) error {
	for ctx.Err() == nil {
		if in.in.Buffered() == 0 {
			from.file.SetReadDeadline(time.Now().Add(fifoPause)) // a regular file has none, and needs none
		}
		line, err := in.next()
		switch {
		case err == nil:
			f.line(line)
		case errors.Is(err, errLong):
			f.dropped(err)
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case errors.Is(err, errTruncated):
			f.gap() // what was written since we looked last is gone
			if in.partial() {
				f.dropped(errTruncated)
			}
			if err := from.seek(0); err != nil {
				return err
			}
			*in = *newLines(from)
		default:
			return barePath(err)
		}
	}
	return ctx.Err()
}

// growing reads a file that grows. With each read it looks whether what it has
// read before is still there: a file that was truncated may be longer than that
// again by the time we look.
type growing struct {
	file    *os.File
	regular bool // or it is a FIFO, where there is nothing to look at
	at      int64
	last    []byte // the bytes before at, at most markSize
}

const markSize = 64

var errTruncated = errors.New("the file was truncated within it")

// seek goes to a place in the file.
func (g *growing) seek(at int64) error {
	if _, err := g.file.Seek(at, io.SeekStart); err != nil {
		return barePath(err)
	}
	last := make([]byte, min(at, markSize))
	n, err := g.file.ReadAt(last, at-int64(len(last)))
	if err != nil && !errors.Is(err, io.EOF) {
		return barePath(err)
	}
	g.at, g.last = at, last[:n]
	return nil
}

// Read looks after it has read: what came of another text is not used.
func (g *growing) Read(b []byte) (int, error) {
	n, err := g.file.Read(b)
	if !g.regular {
		return n, err
	}
	var now [markSize]byte
	m, lost := g.file.ReadAt(now[:len(g.last)], g.at-int64(len(g.last)))
	switch {
	case lost != nil && !errors.Is(lost, io.EOF):
		return 0, lost
	case string(now[:m]) != string(g.last):
		return 0, errTruncated
	}
	g.at += int64(n)
	g.last = append(g.last, b[max(0, n-markSize):n]...)
	g.last = slices.Delete(g.last, 0, max(0, len(g.last)-markSize))
	return n, err
}

// replaced says whether another file is in the place of the one that was
// opened. While there is none, the writer may still have the old one.
func (f *feed) replaced(path string, opened fs.FileInfo) (bool, error) {
	now, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		f.trouble("the file has been removed or renamed, and none has taken its place")
		return false, nil
	}
	if err != nil {
		return false, barePath(err)
	}
	f.up()
	return !os.SameFile(now, opened), nil
}

// barePath takes out of an error the path, which is the Source.
func barePath(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return fmt.Errorf("%s: %w", pe.Op, pe.Err)
	}
	return err
}
