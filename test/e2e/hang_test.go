package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// hangingFile is a path on a FUSE whose server never answers; abort has the kernel
// fail what waits for it.
func hangingFile() (path string, abort func(), err error) {
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return "", nil, err
	}
	fs, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return "", nil, err
	}
	defer unix.Close(fs)
	for _, o := range []string{fmt.Sprintf("fd=%d", dev.Fd()), "rootmode=40000", "user_id=0", "group_id=0"} {
		key, value, _ := strings.Cut(o, "=")
		if err := unix.FsconfigSetString(fs, key, value); err != nil {
			return "", nil, err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return "", nil, err
	}
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	return fmt.Sprintf("/proc/%d/fd/%d/drain", os.Getpid(), m), func() { dev.Close(); unix.Close(m) }, err
}

// drainFileHangs: a drain file on a file system that does not answer is an alarm and
// changes nothing, also over a restart; after a reboot nothing is announced.
func drainFileHangs(ctx context.Context, _ *testing.T, w world) error {
	box := w.Lab.Boxes["c1"]
	path, abort, err := hangingFile()
	if err != nil {
		return err
	}
	defer abort()
	file := filepath.Join(filepath.Dir(box.ConfigPath()), "drain")
	if err := os.Symlink(path, file); err != nil {
		return err
	}
	defer os.Remove(file)
	if err := story.Until(ctx, "the hang is told of", hangs(ctx, box, time.Time{})); err != nil {
		return err
	}
	if err := outlivesLease(ctx, box); err != nil {
		return err
	}
	killed := time.Now()
	if err := box.Daemon(lab.Control).Kill(ctx); err != nil {
		return err
	}
	if err := story.Until(ctx, "the new edged tells of it too, and keeps what is on the air", hangs(ctx, box, killed)); err != nil {
		return err
	}
	if err := forgetAll(ctx, box); err != nil {
		return err
	}
	if err := story.Until(ctx, "nothing new is announced", withheld(ctx, box)); err != nil {
		return err
	}
	abort()
	if err := os.Remove(file); err != nil {
		return err
	}
	return w.Settle(ctx)
}

// hangs wants an edged that was started after that to tell of the file, and all that
// it announces to be as it was.
func hangs(ctx context.Context, box *lab.Box, after time.Time) func() error {
	return func() error {
		st, err := box.Status(ctx)
		if err != nil {
			return err
		}
		if !st.Started.After(after) || !strings.Contains(strings.Join(st.Alarms, "\n"), "does not answer since") {
			return fmt.Errorf("alarms %q", st.Alarms)
		}
		for _, d := range st.Decisions {
			if d.Rung != edge.Announced {
				return fmt.Errorf("%s is %s: %s", d.Prefix, d.Rung, d.Reason)
			}
		}
		return nil
	}
}

// outlivesLease looks for longer than the lease whether the control loop turns.
func outlivesLease(ctx context.Context, box *lab.Box) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(edgeLease + 3*time.Second); time.Now().Before(until); <-tick.C {
		st, err := box.Status(ctx)
		if err != nil {
			return err
		}
		if age := time.Since(st.Time); age > 5*time.Second {
			return fmt.Errorf("the loop has stopped %s ago", age)
		}
		for _, a := range st.Speaker.Announcements {
			if a.Degrade {
				return errors.New("the lease has run out")
			}
		}
	}
	return nil
}

// forgetAll leaves edged and edgebgp as after a reboot.
func forgetAll(ctx context.Context, box *lab.Box) error {
	if err := box.Daemon(lab.Control).Kill(ctx); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(box.RunDir(), "edgebgp.state")); err != nil {
		return err
	}
	return box.Daemon(lab.Speaker).Kill(ctx)
}

func withheld(ctx context.Context, box *lab.Box) func() error {
	return func() error {
		st, err := box.Status(ctx)
		if err != nil {
			return err
		}
		if len(st.Decisions) == 0 {
			return errors.New("nothing is decided")
		}
		for _, d := range st.Decisions {
			if d.Rung.OnAir() || !strings.Contains(string(d.Reason), "has not answered since edged started") {
				return fmt.Errorf("%s is %s: %s", d.Prefix, d.Rung, d.Reason)
			}
		}
		return nil
	}
}
