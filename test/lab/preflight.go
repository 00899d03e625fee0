package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Preflight says, one line each, what this machine lacks for a lab. It changes
// nothing.
func Preflight() error {
	if os.Geteuid() != 0 {
		return errors.New("the lab needs root: network namespaces and XDP")
	}
	return errors.Join(
		needTool("bird", "bird2"), needTool("birdc", "bird2"), needTool("vtysh", "frr"),
		needFile(filepath.Join(frrDir, "zebra"), "frr"),
		needFile(filepath.Join(frrDir, "staticd"), "frr"),
		needFile(filepath.Join(frrDir, "bgpd"), "frr"),
		needFile(filepath.Join(frrDir, "bfdd"), "frr"),
		needTUN(), needBPF(), needVeth(),
	)
}

func needTool(name, pkg string) error {
	if _, err := exec.LookPath(name); err != nil {
		return fmt.Errorf("%s is missing: apt-get install %s", name, pkg)
	}
	return nil
}

func needFile(path, pkg string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%s is missing: apt-get install %s", path, pkg)
	}
	return nil
}

func needTUN() error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/dev/net/tun cannot be opened (%w): modprobe tun", err)
	}
	return unix.Close(fd)
}

func needBPF() error {
	b, err := os.ReadFile("/proc/filesystems")
	if err != nil || !strings.Contains(string(b), "\tbpf\n") {
		return errors.New("the kernel has no bpf file system (CONFIG_BPF_SYSCALL)")
	}
	return nil
}

// needVeth tries, in a namespace that goes with its thread.
func needVeth() error {
	t, err := startThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("network and mount namespaces cannot be made: %w", err)
		}
		nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("netlink cannot be opened: %w", err)
		}
		defer nl.Close()
		if err := nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "try"}, PeerName: "try-peer"}); err != nil {
			return fmt.Errorf("veth links cannot be made (%w): modprobe veth", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.stop()
	return nil
}
