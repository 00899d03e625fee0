package main

import (
	"fmt"
	"os"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// account is a user to become.
type account struct {
	name   string
	uid    int
	gid    int
	groups []uint32
}

// lookUp finds a user; nil for "" and for root, which need no change.
func lookUp(name string) (*account, error) {
	if name == "" {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("look up node.proxy_user: %w", err)
	}
	a := &account{name: name}
	if a.uid, err = strconv.Atoi(u.Uid); err != nil {
		return nil, fmt.Errorf("read uid of %s: %w", name, err)
	}
	if a.uid == 0 {
		return nil, nil
	}
	if a.gid, err = strconv.Atoi(u.Gid); err != nil {
		return nil, fmt.Errorf("read gid of %s: %w", name, err)
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("look up groups of %s: %w", name, err)
	}
	for _, s := range ids {
		gid, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read groups of %s: %w", name, err)
		}
		a.groups = append(a.groups, uint32(gid))
	}
	return a, nil
}

// become replaces this process by itself as another user, with the same pid and
// sockets and without any privilege. The user needs to read the configuration
// and the TLS keys, and to execute this file. It returns only an error.
func (d *daemon) become(who *account, s *sockets, pid pidFile) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own executable: %w", err)
	}
	if err := os.Chown(string(pid), who.uid, who.gid); err != nil { // so that it can be emptied
		return fmt.Errorf("give pid file to %s: %w", who.name, err)
	}
	if err := giveAccessLog(d.cfg.Fleet.Proxy.AccessLog, who); err != nil {
		return err
	}
	files, err := s.files()
	if err != nil {
		return err
	}
	fds, err := copies(files)
	if err != nil {
		return err
	}
	env := append(os.Environ(), passedFDs+"="+strconv.Itoa(os.Getpid())+":"+strings.Join(fds, ","))
	// From here on this thread is another one than the rest of the process;
	// execve makes the process what this thread is.
	runtime.LockOSThread()
	if err := who.drop(); err != nil {
		return err
	}
	err = syscall.Exec(exe, os.Args, env)
	return fmt.Errorf("run %s as user %s: %w", exe, who.name, err)
}

// giveAccessLog makes the file as root, in whatever folder it is, for the user.
func giveAccessLog(path string, who *account) error {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return fmt.Errorf("make access log: %w", err)
	}
	defer f.Close()
	if err := f.Chown(who.uid, who.gid); err != nil {
		return fmt.Errorf("give access log to %s: %w", who.name, err)
	}
	return nil
}

// copies returns descriptors that stay open over an execve, wherever the kernel
// puts them. The numbers that sd_listen_fds(3) would want, 3 and up, may be the
// Go runtime's own by now.
func copies(files []*os.File) ([]string, error) {
	var fds []string
	for _, f := range files {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD, 3)
		if err != nil {
			return nil, fmt.Errorf("copy %s: %w", f.Name(), err)
		}
		fds = append(fds, strconv.Itoa(fd))
	}
	return fds, nil
}

// drop makes the calling thread, which must be locked, the user: for good, with
// no capability left (capabilities(7), "effect of user ID changes") and none to
// be had from a file.
func (a *account) drop() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up privileges: %w", err)
	}
	groups := a.groups
	if len(groups) == 0 {
		groups = []uint32{uint32(a.gid)}
	}
	// The wrappers of package syscall change all threads; here only this one
	// may change, since the others still hold what they opened as root.
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0)
	if errno != 0 {
		return fmt.Errorf("set groups of %s: %w", a.name, errno)
	}
	gid, uid := uintptr(a.gid), uintptr(a.uid)
	if _, _, errno = unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); errno != 0 {
		return fmt.Errorf("set group of %s: %w", a.name, errno)
	}
	if _, _, errno = unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
		return fmt.Errorf("become %s: %w", a.name, errno)
	}
	return nil
}
