package xdp

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OffloadsOff has an interface put on the wire what it says: no checksum, no
// segmentation and no coalescing is left to hardware. A veth needs it, on every
// sender whose packets meet the program: a checksum that is still to be filled
// in is wrong once the packet is encapsulated (DESIGN section 5). A feature that
// the driver does not have is no error. The interface is one of the calling
// thread's network namespace (linux/ethtool.h, SIOCETHTOOL).
func OffloadsOff(ifname string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	// TSO and GSO need the checksum offload, so they go first.
	for _, cmd := range []uint32{unix.ETHTOOL_STSO, unix.ETHTOOL_SGSO, unix.ETHTOOL_SGRO, unix.ETHTOOL_STXCSUM} {
		if err := ethtoolSet(fd, ifname, cmd, 0); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("switch off offload %#x of %s: %w", cmd, ifname, err)
		}
	}
	return nil
}

// ethtoolSet sends a struct ethtool_value: the command and the value.
func ethtoolSet(fd int, ifname string, cmd, value uint32) error {
	arg := [2]uint32{cmd, value}
	req := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&arg)}
	copy(req.name[:unix.IFNAMSIZ-1], ifname)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	runtime.KeepAlive(&arg)
	if errno != 0 {
		return errno
	}
	return nil
}
