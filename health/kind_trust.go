package health

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
)

// maxCAFile is how large a file of roots may be, in bytes. The bundle of a
// system has about a quarter of it.
const maxCAFile = 1 << 20

// maxCAFiles is how many files of roots are remembered; a configuration that
// names more, or many in turn, has them read again.
const maxCAFiles = 64

// trust remembers the roots of CA files, since to parse a bundle takes longer
// than all the rest of a probe. It may be used by several goroutines at once.
type trust struct {
	patience *patience

	mu    sync.Mutex
	files map[string]caFile
}

func newTrust(s *patience) *trust { return &trust{patience: s, files: map[string]caFile{}} }

// caFile is a file that was read, and how it looked then.
type caFile struct {
	size    int64
	changed time.Time
	pool    *x509.CertPool
}

// roots returns the roots that p verifies with; nil: those of the system, or
// none since it does not verify. Its errors are unknown: without roots there is
// no telling whom to trust.
func (t *trust) roots(ctx context.Context, p edge.Probe) (*x509.CertPool, error) {
	if p.CAFile == "" || p.Insecure {
		return nil, nil
	}
	said, err := t.patience.call(ctx, "roots "+p.CAFile, func() (any, error) { return t.read(p.CAFile) })
	if err != nil {
		return nil, fmt.Errorf("read CA file %s: %w", p.CAFile, ofThisBox(explain(ctx, err, p.Timeout)))
	}
	return said.(*x509.CertPool), nil
}

func (t *trust) read(name string) (*x509.CertPool, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	f := t.files[name]
	t.mu.Unlock()
	if f.pool != nil && f.size == info.Size() && f.changed.Equal(info.ModTime()) {
		return f.pool, nil
	}
	if f.pool, err = readRoots(name, info); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.files) >= maxCAFiles {
		clear(t.files)
	}
	t.files[name] = caFile{size: info.Size(), changed: info.ModTime(), pool: f.pool}
	return f.pool, nil
}

func readRoots(name string, info os.FileInfo) (*x509.CertPool, error) {
	switch {
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case info.Size() > maxCAFile:
		return nil, fmt.Errorf("it is larger than %d bytes", maxCAFile)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, errors.New("it holds no certificate in PEM")
	}
	return pool, nil
}
