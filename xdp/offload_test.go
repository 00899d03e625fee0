package xdp

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtool commands (linux/ethtool.h) that switch an offload.
const (
	setTxChecksum = 0x17
	setTSO        = 0x1f
	setGSO        = 0x24
	setGRO        = 0x2c
)

// offloadsOff makes a veth send only what is on the wire: with checksums left
// to hardware that is not there, nothing survives an encapsulation.
func offloadsOff(t testing.TB, name string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(fd)
	// TSO and GSO need the checksum offload, so they go first.
	for _, cmd := range []uint32{setTSO, setGSO, setGRO, setTxChecksum} {
		value := struct{ cmd, data uint32 }{cmd, 0}
		req := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&value)}
		copy(req.name[:], name)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
		if errno != 0 {
			t.Fatalf("switch off offload %#x of %s: %v", cmd, name, errno)
		}
	}
}
