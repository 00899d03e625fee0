package health

import (
	"encoding/binary"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of a run. None of them waits, so the runtime is not told of
// them (RawSyscall): it would keep its monitor thread awake, every 20 µs, to see
// whether they are over. Measured, 3 of the 28 µs of CPU time of a run. They also
// do without the conversions of x/sys/unix, and without memory.

// rawAddr is an address and a port as the kernel takes them: struct sockaddr_in
// or sockaddr_in6, without a scope. Two that are equal are ==.
type rawAddr struct {
	raw  [unix.SizeofSockaddrInet6]byte
	size uint32
}

func newRawAddr(to netip.AddrPort) (a rawAddr) {
	binary.BigEndian.PutUint16(a.raw[2:], to.Port())
	if addr := to.Addr().Unmap(); addr.Is4() {
		binary.NativeEndian.PutUint16(a.raw[:], unix.AF_INET)
		ip := addr.As4()
		copy(a.raw[4:], ip[:])
		a.size = unix.SizeofSockaddrInet4
	} else {
		binary.NativeEndian.PutUint16(a.raw[:], unix.AF_INET6)
		ip := addr.As16()
		copy(a.raw[8:], ip[:])
		a.size = unix.SizeofSockaddrInet6
	}
	return a
}

// connectTo begins a connection, or says how far one is that has been begun.
func connectTo(fd int, to *rawAddr) error {
	_, _, no := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to.raw)), uintptr(to.size))
	return failed(no)
}

// disconnect makes a TCP socket as good as new; a connection that stands is
// reset.
func disconnect(fd int) error {
	nowhere := rawAddr{size: unix.SizeofSockaddrInet4} // and AF_UNSPEC is 0
	return connectTo(fd, &nowhere)
}

// send writes b, which is not empty, or a part of it.
func send(fd int, b []byte) (int, error) {
	n, _, no := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	if no != 0 {
		return 0, no
	}
	return int(n), nil
}

// receive reads into b, which is not empty.
func receive(fd int, b []byte) (int, error) {
	n, _, no := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	if no != 0 {
		return 0, no
	}
	return int(n), nil
}

// meetsItself says whether a connection to an address is one with itself. Where
// nobody listens on a local port from which the kernel may also connect, it does
// so now and then (simultaneous open, RFC 9293 section 3.5).
func meetsItself(fd int, to *rawAddr) bool {
	here := rawAddr{size: unix.SizeofSockaddrInet6}
	_, _, no := unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&here.raw)), uintptr(unsafe.Pointer(&here.size)))
	return no == 0 && here == *to
}

// ready fills in what an epoll has to report at the moment, and says how much.
func ready(epoll int, events []unix.EpollEvent) int {
	n, _, no := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if no != 0 {
		return 0
	}
	return int(n)
}

// failed is nil for 0, which as an error it would not be.
func failed(no unix.Errno) error {
	if no != 0 {
		return no
	}
	return nil
}

// nap lets answers gather, or time pass until the next tick.
func nap(d time.Duration) { time.Sleep(d) }
