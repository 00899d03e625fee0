package main

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// disableOffloads switches off what a veth would leave to hardware that is not
// there: transmit checksums and segmentation (linux/ethtool.h, ETHTOOL_S*).
// The device is that of the calling thread's network namespace.
func disableOffloads(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	for _, cmd := range []uint32{unix.ETHTOOL_STXCSUM, unix.ETHTOOL_STSO, unix.ETHTOOL_SGSO} {
		if err := ethtoolSet(fd, name, cmd, 0); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("switch off offload %#x of %s: %w", cmd, name, err)
		}
	}
	return nil
}

// ethtoolSet sends struct ethtool_value by SIOCETHTOOL.
func ethtoolSet(fd int, name string, cmd, value uint32) error {
	type ifreq struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	arg := [2]uint32{cmd, value}
	var req ifreq
	copy(req.name[:unix.IFNAMSIZ-1], name)
	req.data = unsafe.Pointer(&arg)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	runtime.KeepAlive(&arg)
	if errno != 0 {
		return errno
	}
	return nil
}
