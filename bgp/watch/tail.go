package watch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
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
			sleep(ctx, filePause)
		}
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
	in := newLines(file)
	if size := info.Size(); info.Mode().IsRegular() && size > maxBacklog {
		if _, err := file.Seek(size-maxBacklog, io.SeekStart); err != nil {
			return barePath(err)
		}
		in.skip = true // in the middle of a line
	}
	f.up()
	for replaced := false; ; {
		if err := f.drain(ctx, file, in); err != nil {
			return err
		}
		if replaced {
			if in.partial() {
				f.dropped(errors.New("the file ended within it"))
			}
			return nil
		}
		mark, err := markOf(file, info)
		if err != nil {
			return err
		}
		sleep(ctx, filePause)
		if err := f.restart(file, info, mark, in); err != nil {
			return err
		}
		if replaced, err = f.replaced(path, info); err != nil {
			return err
		}
	}
}

// openFeed opens a file that can be followed. Not blocking: a FIFO would wait
// for a writer.
func openFeed(path string) (*os.File, fs.FileInfo, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, barePath(err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeNamedPipe {
		err = errors.New("neither a regular file nor a FIFO")
	}
	if err != nil {
		file.Close()
		return nil, nil, barePath(err)
	}
	return file, info, nil
}

// drain reads up to the end that the file has now, or that the writers of the
// FIFO have come to.
func (f *feed) drain(ctx context.Context, file *os.File, in *lines) error {
	for ctx.Err() == nil {
		if in.in.Buffered() == 0 {
			file.SetReadDeadline(time.Now().Add(fifoPause)) // a regular file has none, and needs none
		}
		line, err := in.next()
		switch {
		case err == nil:
			f.line(line)
		case errors.Is(err, errLong):
			f.dropped(err)
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		default:
			return barePath(err)
		}
	}
	return ctx.Err()
}

// mark is how far a regular file was read, and the last bytes before: a file
// that was truncated may be longer than that again when we look.
type mark struct {
	at   int64
	last [64]byte
}

// markOf returns the zero value for a FIFO.
func markOf(file *os.File, info fs.FileInfo) (m mark, err error) {
	if !info.Mode().IsRegular() {
		return m, nil
	}
	if m.at, err = file.Seek(0, io.SeekCurrent); err != nil {
		return m, barePath(err)
	}
	return m, m.read(file)
}

// read reads the bytes before the mark. That there are none is no error.
func (m *mark) read(file *os.File) error {
	n := min(m.at, int64(len(m.last)))
	m.last = [64]byte{}
	if _, err := file.ReadAt(m.last[:n], m.at-n); err != nil && !errors.Is(err, io.EOF) {
		return barePath(err)
	}
	return nil
}

// restart begins anew with a file that was truncated.
func (f *feed) restart(file *os.File, info fs.FileInfo, before mark, in *lines) error {
	now := before
	if !info.Mode().IsRegular() {
		return nil
	}
	if err := now.read(file); err != nil || now == before {
		return err
	}
	if in.partial() {
		f.dropped(errors.New("the file was truncated within it"))
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return barePath(err)
	}
	*in = lines{in: bufio.NewReaderSize(file, 1<<16)}
	return nil
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
