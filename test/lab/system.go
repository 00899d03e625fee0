package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// StartSystem starts a command as the first process of a system of its own: as root of
// the machine, with namespaces of its own for mounts, processes, host name, IPC and
// control groups, over the network of the box, whose daemons the lab then does not
// start. Box.Config has what they would be told.
//
// What it does to its mounts nobody else sees. It ends with the lab at the latest, and
// all its processes with it. A box may have one after the other.
func (l *Lab) StartSystem(b *Box, cmd *exec.Cmd) (*Process, error) {
	group, err := l.newGroup(b.name)
	if err != nil {
		return nil, fmt.Errorf("start system on %s: %w", b.name, err)
	}
	defer group.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	return b.Host.Start(cmd)
}

// newGroup makes the control group of a box, below that of the lab, which the janitor
// knows of before it is there. Two systems cannot share one, and what the one before
// has left in it is not of the next.
func (l *Lab) newGroup(box string) (*os.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.group == "" {
		top, err := groupTop()
		if err != nil {
			return nil, err
		}
		l.group = filepath.Join(top, filepath.Base(l.dir))
		if err := l.janitor.tell("group "+l.group, -1); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(l.group, box)
	if err := removeGroup(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make control group: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open control group: %w", err)
	}
	return f, nil
}

// groupTop is where version 2 of the control groups is mounted.
func groupTop() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("find control groups: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.Contains(line, " - cgroup2 ") {
			return f[4], nil
		}
	}
	return "", errors.New("find control groups: no cgroup2 is mounted")
}

// groupLimit is how long the kernel may take to let go of the last process of a group,
// groupEvery how often that is looked at: there is nothing to wait on.
const (
	groupLimit = 20 * time.Second
	groupEvery = 5 * time.Millisecond
)

// removeGroup removes a control group of a lab, and those in it; nothing else. Whoever
// is in it is killed. None is no error.
func removeGroup(dir string) error {
	if !strings.Contains(dir, "/"+dirPrefix) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), groupLimit)
	defer cancel()
	return UntilEvery(ctx, groupEvery, "the control group of the lab is removed", func() error {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) // Linux 5.14
		return removeGroups(dir)
	})
}

// removeGroups removes the deepest first.
func removeGroups(dir string) error {
	below, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, d := range below {
		if d.IsDir() {
			err = errors.Join(err, removeGroups(filepath.Join(dir, d.Name())))
		}
	}
	if rmErr := unix.Rmdir(dir); rmErr != nil && !errors.Is(rmErr, unix.ENOENT) {
		err = errors.Join(err, fmt.Errorf("remove %s: %w", dir, rmErr))
	}
	return err
}
