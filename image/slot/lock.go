package slot

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Lock makes this process the only one that changes slots, UKIs and their state
// until unlock, or until it ends, however it ends. by names it for others to read.
func Lock(path, by string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	// Whoever may open a file may lock it, also if he can only read it.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder, _ := io.ReadAll(io.LimitReader(f, 200))
		f.Close()
		who := strings.TrimSpace(string(holder))
		if who == "" {
			who = "a process that has not said its name"
		}
		return nil, fmt.Errorf("the slots are being changed by %s: wait until it is done", who)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// The name is for people; that the lock is held does not depend on it.
	if f.Truncate(0) == nil {
		f.WriteAt([]byte(by+"\n"), 0)
	}
	return func() {
		f.Truncate(0)
		f.Close()
	}, nil
}
