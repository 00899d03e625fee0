package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Host is a machine of the lab: a network namespace without a name and a mount
// namespace, both kept by one OS thread. In its mount namespace /sys shows its
// own devices. All of that goes when the last process in it is gone.
// Its methods may be called by several goroutines at once.
type Host struct {
	name   string
	thread *thread
	ns     int    // fd of the network namespace
	inode  uint64 // of the network namespace: how its processes are known
	nl     *netlink.Handle
}

// newHost makes the namespaces with lo up and the sysctls that every host has.
func newHost(name string) (*Host, error) {
	h := &Host{name: name, ns: -1}
	t, err := startThread(h.setup)
	if err != nil {
		if h.ns >= 0 {
			unix.Close(h.ns)
		}
		return nil, fmt.Errorf("make host %s: %w", name, err)
	}
	h.thread = t
	if err := h.prepare(); err != nil {
		h.close()
		return nil, fmt.Errorf("prepare host %s: %w", name, err)
	}
	return h, nil
}

// setup runs on the host's thread. A private copy of the mount table comes
// first: nothing that is mounted here can reach the machine.
func (h *Host) setup() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare network and mounts: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("lab", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	var err error
	if h.ns, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	h.inode, err = inodeOf(h.ns)
	return err
}

func inodeOf(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("stat network namespace: %w", err)
	}
	return st.Ino, nil
}

// sysctls of every host: no duplicate address detection (a second per
// address), addresses survive a link that goes down, several equal paths are
// used by connection, and asymmetric routes (which anycast is) are fine.
func (h *Host) sysctls() map[string]string {
	return map[string]string{
		"ipv6/conf/all/accept_dad":            "0",
		"ipv6/conf/default/accept_dad":        "0",
		"ipv6/conf/default/dad_transmits":     "0",
		"ipv6/conf/default/accept_ra":         "0",
		"ipv6/conf/all/keep_addr_on_down":     "1",
		"ipv6/conf/default/keep_addr_on_down": "1",
		"ipv4/conf/all/rp_filter":             "0",
		"ipv4/conf/default/rp_filter":         "0",
		"ipv4/conf/all/send_redirects":        "0",
		"ipv4/conf/default/send_redirects":    "0",
		"ipv4/fib_multipath_hash_policy":      "1",
		"ipv6/fib_multipath_hash_policy":      "1",
	}
}

func (h *Host) prepare() error {
	for key, value := range h.sysctls() {
		if err := h.Sysctl(key, value); err != nil {
			return err
		}
	}
	err := h.Do(func() (err error) {
		h.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	lo, err := h.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := h.nl.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// Name is the host's name in the topology.
func (h *Host) Name() string { return h.name }

// Do runs f on a thread inside the host's namespaces. Sockets and files that f
// opens keep working afterwards. f must be short: there is one thread.
func (h *Host) Do(f func() error) error { return h.thread.do(f) }

// mount mounts a new file system of a kind at a folder, for this host only.
func (h *Host) mount(kind, at string) error {
	if err := h.Do(func() error { return unix.Mount("lab", at, kind, 0, "") }); err != nil {
		return fmt.Errorf("mount %s on %s of %s: %w", kind, at, h.name, err)
	}
	return nil
}

// Sysctl writes a setting under /proc/sys/net, such as "ipv4/ip_forward".
func (h *Host) Sysctl(key, value string) error {
	err := h.Do(func() error {
		return os.WriteFile(filepath.Join("/proc/sys/net", key), []byte(value), 0o644)
	})
	if err != nil {
		return fmt.Errorf("set sysctl on %s: %w", h.name, err)
	}
	return nil
}

// Listen is net.Listen inside the host. An address that the host does not have
// (a VIP before edged has added it) is fine.
func (h *Host) Listen(network, address string) (ln net.Listener, err error) {
	lc := net.ListenConfig{Control: freeBind}
	err = h.Do(func() error {
		ln, err = lc.Listen(context.Background(), network, address)
		return err
	})
	return ln, err
}

// ListenPacket is net.ListenPacket inside the host, with the freedom of Listen.
func (h *Host) ListenPacket(network, address string) (pc net.PacketConn, err error) {
	lc := net.ListenConfig{Control: freeBind}
	err = h.Do(func() error {
		pc, err = lc.ListenPacket(context.Background(), network, address)
		return err
	})
	return pc, err
}

// freeBind sets IP_FREEBIND, which covers IPv6 sockets as well.
func freeBind(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
	}); e != nil {
		return e
	}
	return err
}

// Dial connects from inside the host. The address is an IP and a port: names
// are not looked up. TCP ("tcp") waits outside the host's thread, so any number
// of calls may be under way; "udp" never waits.
func (h *Host) Dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial from %s: %w", h.name, err)
	}
	if network == "tcp" || network == "tcp4" || network == "tcp6" {
		return h.dialTCP(ctx, to)
	}
	err = h.Do(func() error {
		c, err = (&net.Dialer{}).DialContext(ctx, network, to.String())
		return err
	})
	return c, err
}

func (h *Host) dialTCP(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: err}
	}
	domain, sa := sockaddr(to)
	var fd int
	err := h.Do(func() (err error) {
		fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return fail(os.NewSyscallError("socket", err))
	}
	// Connect before the descriptor meets the poller: an unconnected socket
	// would look writable to it.
	err = unix.Connect(fd, sa)
	f := os.NewFile(uintptr(fd), "tcp:"+to.String())
	defer f.Close()
	if errors.Is(err, unix.EINPROGRESS) {
		err = waitConnected(ctx, f)
	}
	if err != nil {
		return fail(err)
	}
	c, err := net.FileConn(f)
	if err != nil {
		return fail(err)
	}
	return c, nil
}

func sockaddr(to netip.AddrPort) (int, unix.Sockaddr) {
	if to.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
}

// waitConnected waits until the connect that is in progress on f has ended.
func waitConnected(ctx context.Context, f *os.File) error {
	stop := context.AfterFunc(ctx, func() { f.SetWriteDeadline(aLongTimeAgo) })
	defer stop()
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var connectErr error
	err = rc.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			connectErr = err
		case code != 0:
			connectErr = os.NewSyscallError("connect", unix.Errno(code))
		default:
			_, err := unix.Getpeername(int(fd))
			return err == nil // else: woken too early
		}
		return true
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(err, connectErr)
}

// close ends the thread, and with it the namespaces, once nothing else of the
// lab is in them.
func (h *Host) close() {
	if h.nl != nil {
		h.nl.Close()
	}
	h.thread.stop()
	unix.Close(h.ns)
}
