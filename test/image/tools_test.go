package image

import (
	"bytes"
	"context"
	"debug/pe"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/vm"
)

// makeQEMU puts the qemu that runs the machines into a folder.
func makeQEMU(ctx context.Context, dir string) error {
	cmd := exec.CommandContext(ctx, "./qemu.sh", dir)
	cmd.Env = append(os.Environ(), "CACHE="+*cache)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make qemu: %w\n%s", err, out)
	}
	return nil
}

// addr is the machine's address at its router.
func (s *site) addr() netip.Addr { return netip.MustParseAddr(s.Boxes[boxName].Addr4) }

// hashOf is a password as /etc/shadow has it.
func hashOf(ctx context.Context, password string) (string, error) {
	cmd := exec.CommandContext(ctx, "openssl", "passwd", "-6", "-stdin")
	cmd.Stdin = strings.NewReader(password)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("hash password: %w", err)
	}
	return string(out), nil
}

// addRescueNet gives the router the address of the one who comes to help.
func addRescueNet(h *lab.Host) error {
	err := h.Do(func() error {
		link, err := netlink.LinkByName(boxName)
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr("169.254.77.2/16")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, addr); !errors.Is(err, unix.EEXIST) {
			return err
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("add an address of the rescue network: %w", err)
	}
	return nil
}

// changeUKI changes a byte of the command line of a UKI on a disk.
func changeUKI(ctx context.Context, s vm.Spec, name string) error {
	file := filepath.Join(s.Dir, "uki")
	if err := espOf(s).Get(ctx, name, file); err != nil {
		return err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	f, err := pe.NewFile(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("change UKI: %w", err)
	}
	section := f.Section(".cmdline")
	if section == nil {
		return errors.New("change UKI: it has no .cmdline")
	}
	at := bytes.Index(b[section.Offset:section.Offset+section.Size], []byte("panic=10"))
	if at < 0 {
		return errors.New("change UKI: its command line has no panic=10")
	}
	b[int(section.Offset)+at+len("panic=1")] = '9'
	if err := os.WriteFile(file, b, 0o644); err != nil {
		return err
	}
	return espOf(s).Put(ctx, file, name)
}
