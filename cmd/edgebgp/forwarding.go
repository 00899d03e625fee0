package main

import (
	"fmt"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of linux/bpf.h: what x/sys does not have.
const (
	linkTypeXDP = 6
	// infoRoom is more than struct bpf_link_info has in any kernel.
	infoRoom = 256
	// infoIfindex is where the interface of an XDP link is in it: the union begins
	// behind three words, at a multiple of eight.
	infoIfindex = 16
)

// forwards says whether the data plane is alive: under dir, where edged has
// pinned it, there are XDP links, and each is attached to an interface. It works
// without edged, which may be restarting too. Opening a pin needs the right to
// read it, and CAP_BPF where the kernel wants that.
func forwards(dir string) error {
	// One folder for each layout of the pins.
	pins, err := filepath.Glob(filepath.Join(dir, "*", "link_*"))
	if err != nil {
		return fmt.Errorf("look for pinned links: %w", err)
	}
	if len(pins) == 0 {
		return fmt.Errorf("no link is pinned under %s", dir)
	}
	for _, pin := range pins {
		ifindex, err := attachedTo(pin)
		if err != nil {
			return err
		}
		if ifindex == 0 {
			return fmt.Errorf("the link %s is attached to no interface any more", pin)
		}
	}
	return nil
}

// attachedTo returns the index of the interface of a pinned XDP link, 0 if that
// is gone.
func attachedTo(pin string) (ifindex uint32, err error) {
	path, err := unix.BytePtrFromString(pin)
	if err != nil {
		return 0, fmt.Errorf("open link %s: %w", pin, err)
	}
	get := struct { // of union bpf_attr
		path  uint64
		fd    uint32
		flags uint32
	}{path: uint64(uintptr(unsafe.Pointer(path)))}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET, uintptr(unsafe.Pointer(&get)), unsafe.Sizeof(get))
	runtime.KeepAlive(path)
	if errno != 0 {
		return 0, fmt.Errorf("open link %s: %w", pin, errno)
	}
	defer unix.Close(int(fd))
	var info [infoRoom / 8]uint64 // aligned as the kernel's
	ask := struct {
		fd, length uint32
		info       uint64
	}{uint32(fd), infoRoom, uint64(uintptr(unsafe.Pointer(&info)))}
	_, _, errno = unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET_INFO_BY_FD, uintptr(unsafe.Pointer(&ask)), unsafe.Sizeof(ask))
	runtime.KeepAlive(&info)
	if errno != 0 {
		return 0, fmt.Errorf("look at link %s: %w", pin, errno)
	}
	words := (*[infoRoom / 4]uint32)(unsafe.Pointer(&info))
	if words[0] != linkTypeXDP {
		return 0, fmt.Errorf("%s is no XDP link", pin)
	}
	return words[infoIfindex/4], nil
}
