package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// sweepLimit is how long a sweep goes on killing. SIGKILL takes a process with
// much memory, or a page fault under way, a moment.
const sweepLimit = time.Minute

// sweep kills every process in the network namespaces with these inode numbers
// and waits until there is none. The caller holds the namespaces open, so that
// the numbers cannot be used again. Nothing but the lab can have put a process
// there: they have no name.
func sweep(inodes []uint64) error {
	limit := time.Now().Add(sweepLimit)
	for {
		left, err := killIn(inodes)
		if err != nil || left == 0 {
			return err
		}
		if time.Now().After(limit) {
			return fmt.Errorf("end processes of the lab: %d did not end within %s", left, sweepLimit)
		}
		time.Sleep(5 * time.Millisecond) // poll: these are not our children
	}
}

// killIn kills once and says how many processes it found.
func killIn(inodes []uint64) (int, error) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	found := 0
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || pid == os.Getpid() || !livesIn(pid, inodes) {
			continue
		}
		found++
		kill(pid, inodes)
	}
	return found, nil
}

// livesIn says whether a thread of a process is in one of the namespaces: any,
// since edged has threads that visit another one, the main thread too. A process
// that has ended (a zombie too) is in none.
func livesIn(pid int, inodes []uint64) bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/ns/net", pid))
	return err == nil && slices.ContainsFunc(tasks, func(path string) bool {
		var st unix.Stat_t
		return unix.Stat(path, &st) == nil && slices.Contains(inodes, st.Ino)
	})
}

// kill looks again once it holds the process by a descriptor: between the
// listing and now the pid could have become another process.
func kill(pid int, inodes []uint64) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // gone
	}
	defer unix.Close(fd)
	if livesIn(pid, inodes) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
