package vm

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/test/lab"
)

// ReplaceLink puts a TAP in the place of an interface of a host: with its name, its
// addresses and its MTU. What was at the far end of the old one is cut off; what is at
// the file is in its place. The interface goes with the file and with the host.
func ReplaceLink(h *lab.Host, name string) (*os.File, error) {
	var f *os.File
	err := h.Do(func() (err error) {
		f, err = replaceLink(name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("put a TAP in the place of %s of %s: %w", name, h.Name(), err)
	}
	return f, nil
}

func replaceLink(name string) (*os.File, error) {
	old, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	addrs, err := netlink.AddrList(old, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkDel(old); err != nil {
		return nil, err
	}
	f, err := openTAP(name)
	if err != nil {
		return nil, err
	}
	if err := raise(name, old.Attrs().MTU, addrs); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openTAP makes a TAP without the header by which a guest would leave checksums and
// segments to a card that is not there: XDP does not work with them.
func openTAP(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make device: %w", err)
	}
	return os.NewFile(uintptr(fd), "tap:"+name), nil
}

func raise(name string, mtu int, addrs []netlink.Addr) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMTU(link, mtu); err != nil {
		return err
	}
	for _, a := range addrs {
		if ip, _ := netip.AddrFromSlice(a.IP); ip.IsLinkLocalUnicast() {
			continue // that of the old one's hardware address
		}
		add := &netlink.Addr{IPNet: &net.IPNet{IP: a.IP, Mask: a.Mask}, Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(link, add); err != nil {
			return fmt.Errorf("add %s: %w", a.IPNet, err)
		}
	}
	return netlink.LinkSetUp(link)
}
