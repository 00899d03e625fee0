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

// save keeps the intent for a restart. It cannot be let fail the Set: the
// announcements matter more than the file.
func (s *Speaker) save() {
	if s.statePath == "" {
		return
	}
	id, err := bootID()
	if err != nil {
		s.log.Error("keep intent", "err", err)
		return
	}
	b, err := json.Marshal(kept{BootID: id, Intent: *s.intent, Refused: s.verdict.refused})
	if err != nil {
		s.log.Error("keep intent", "err", err)
		return
	}
	if bytes.Equal(b, s.saved) {
		return // a mere renewal
	}
	if err := replaceFile(s.statePath, b); err != nil {
		s.log.Error("keep intent", "err", err)
		return
	}
	s.saved = b
}

// restore brings about the intent of the state file under one fresh lease, so
// that a restart of this process alone needs nobody else. Whatever is wrong
// with the file, the speaker starts: empty, then.
func (s *Speaker) restore(ctx context.Context) {
	if s.statePath == "" {
		return
	}
	k, err := load(s.statePath)
	if errors.Is(err, fs.ErrNotExist) {
		s.log.Info("start without intent: none was kept", "file", s.statePath)
		return
	}
	if err != nil {
		s.log.Error("start without intent: the kept one cannot be used", "file", s.statePath, "err", err)
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
		return fmt.Errorf("make state file: %w", err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write state file: %w", err)
	}
	return nil
}
