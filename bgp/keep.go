package bgp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// maxKept bounds the state file, in bytes.
const maxKept = 16 << 20

// kept is the content of the state file. It holds no secret: an intent names
// password files, not passwords.
type kept struct {
	// BootID is that of the boot in which the intent was accepted: after a
	// reboot nobody has said yet that this box may announce.
	BootID string      `json:"boot_id"`
	Intent edge.Intent `json:"intent"`
	// Refused are the announcements that were not let through: without it a
	// restart would do so before the VRPs are there.
	Refused map[netip.Prefix]edge.Reason `json:"refused,omitempty"`
}

// keep is the state file, as Run sees it.
type keep struct {
	path  string // empty: none is kept
	saved []byte // what the file holds
	err   string // why it does not hold the intent in force; empty: it does
	tried time.Time
}

// save keeps the intent for a restart. It cannot be let fail the Set: the
// announcements matter more than the file. But it is shown, and tried again each
// second, since after a restart the file's intent would be in force.
func (s *Speaker) save() {
	k := &s.keep
	if k.path == "" || s.intent == nil {
		return
	}
	k.tried = s.now()
	err := k.put(kept{Intent: *s.intent, Refused: s.verdict.refused})
	switch {
	case err == nil && k.err != "":
		s.log.Info("the intent is kept again", "file", k.path)
		k.err = ""
	case err != nil && err.Error() != k.err:
		s.log.Error("keep intent", "err", err)
		k.err = err.Error()
	}
}

// put writes the file, if that says anything new.
func (k *keep) put(content kept) error {
	var err error
	if content.BootID, err = bootID(); err != nil {
		return err
	}
	b, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encode state file: %w", err)
	}
	if len(b) >= maxKept {
		return fmt.Errorf("write state file: %d bytes are more than %d", len(b), maxKept)
	}
	if bytes.Equal(b, k.saved) {
		return nil
	}
	if err := replaceFile(k.path, b); err != nil {
		return err
	}
	k.saved = b
	return nil
}

// restore brings about the intent of the state file under one fresh lease, so
// that a restart of this process alone needs nobody else. Whatever is wrong
// with the file, the speaker starts: empty, then. It does not wait until the
// intent is brought about.
func (s *Speaker) restore(ctx context.Context) {
	if s.keep.path == "" {
		return
	}
	k, err := load(s.keep.path)
	if errors.Is(err, fs.ErrNotExist) {
		s.log.Info("start without intent: none was kept", "file", s.keep.path)
		return
	}
	if err != nil {
		s.log.Error("start without intent: the kept one cannot be used", "file", s.keep.path, "err", err)
		return
	}
	in := k.Intent
	s.intent, s.restored = &in, s.now()
	s.verdict.refused = k.Refused
	s.judge()
	s.lease.renew(s.now(), in.Speaker.Lease)
	s.log.Info("restored the kept intent", "generation", in.Generation, "announcements", len(in.Announcements), "peers", len(in.Speaker.Peers), "lease", in.Speaker.Lease)
	if err := s.apply(ctx); err != nil {
		s.log.Error("apply kept intent", "err", err)
	}
}

// load reads a state file that was written in this boot.
func load(path string) (kept, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not block
	if err != nil {
		return kept{}, fmt.Errorf("open state file: %w", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return kept{}, errors.Join(errors.New("open state file: not a regular file"), err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKept))
	if err != nil {
		return kept{}, fmt.Errorf("read state file: %w", err)
	}
	id, err := bootID()
	if err != nil {
		return kept{}, err
	}
	return decodeKept(b, id)
}

func decodeKept(b []byte, bootID string) (kept, error) {
	var k kept
	// Keys that are not known are ignored: another version of edgebgp may have
	// written the file.
	if err := json.Unmarshal(b, &k); err != nil {
		return kept{}, fmt.Errorf("decode state file: %w", err)
	}
	if k.BootID != bootID {
		return kept{}, errors.New("it was written before the last reboot")
	}
	if err := validate(k.Intent); err != nil {
		return kept{}, err
	}
	k.Intent = normal(k.Intent)
	return k, nil
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// replaceFile puts b at path so that a reader finds the old content or the
// new, whole. There is no fsync: the file need not outlive the boot.
func replaceFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return fmt.Errorf("make state file %s: %w", path, cause(err))
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		// Without the name of the new file, which is another one each time.
		return fmt.Errorf("write state file %s: %w", path, cause(err))
	}
	return nil
}

// cause is what the kernel has said, without the name of the file.
func cause(err error) error {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no
	}
	return err
}
