package xdp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// uplink is an interface that the pinned program is attached to.
type uplink struct {
	name string
	link link.Link
}

// What IFLA_XDP_ATTACHED says (linux/if_link.h).
const (
	attachedNative  = 1
	attachedGeneric = 2
)

// attach links prog to an interface. The link ends with the returned value,
// unless it is pinned.
func attach(nl *netlink.Handle, prog *ebpf.Program, ifname string, mode edge.XDPMode) (link.Link, error) {
	dev, err := nl.LinkByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", ifname, err)
	}
	flags := link.XDPDriverMode
	if mode == edge.XDPGeneric {
		flags = link.XDPGenericMode
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: dev.Attrs().Index, Flags: flags})
	if err != nil {
		return nil, explainAttach(err, dev.Attrs(), mode)
	}
	return l, nil
}

// explainAttach says what an operator can do about the kernel's refusal.
func explainAttach(err error, dev *netlink.LinkAttrs, mode edge.XDPMode) error {
	hint := ""
	switch {
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		hint = "another XDP program is attached to it: see `bpftool net`, detach that one first"
	case mode == edge.XDPGeneric:
		hint = "see the kernel log"
	case errors.Is(err, unix.ERANGE), errors.Is(err, unix.EINVAL) && dev.MTU > 1500:
		hint = fmt.Sprintf("its MTU of %d may be too large for native XDP, or receive offloads (LRO) are on: lower the one, "+
			"switch off the other (ethtool -K %s lro off), or choose mode generic", dev.MTU, dev.Name)
	default:
		hint = "its driver may have no native XDP: choose another interface, or mode generic, which is slow"
	}
	return fmt.Errorf("attach program to interface %s in %s mode: %w (%s)", dev.Name, mode, err, hint)
}

// checkAttached says what is wrong with the attachment of prog to an interface.
func checkAttached(nl *netlink.Handle, l link.Link, ifname string, mode edge.XDPMode) error {
	dev, err := nl.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("interface %s is not there: %w", ifname, err)
	}
	info, err := l.Info()
	if err != nil {
		return fmt.Errorf("read link of interface %s: %w", ifname, err)
	}
	if x := info.XDP(); x == nil || int(x.Ifindex) != dev.Attrs().Index {
		return fmt.Errorf("interface %s has been replaced since the program was attached", ifname)
	}
	if got := attachedAs(dev); got != mode {
		return fmt.Errorf("interface %s runs the program in mode %q, not %s", ifname, got, mode)
	}
	if id := dev.Attrs().Xdp.ProgId; id != uint32(info.Program) {
		return fmt.Errorf("interface %s runs program %d, not ours, %d", ifname, id, info.Program)
	}
	return nil
}

// attachedAs returns how an interface runs an XDP program; empty if it does not.
func attachedAs(dev netlink.Link) edge.XDPMode {
	x := dev.Attrs().Xdp
	switch {
	case x == nil || !x.Attached:
		return ""
	case x.AttachMode == attachedNative:
		return edge.XDPNative
	case x.AttachMode == attachedGeneric:
		return edge.XDPGeneric
	}
	return edge.XDPMode(fmt.Sprintf("attach mode %d", x.AttachMode))
}

// Attached returns nil if the program is really attached, as asked for, to
// every uplink and to every interface given to Attach; else what is not.
func (f *Forwarder) Attached() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, u := range f.uplinks {
		errs = append(errs, checkAttached(f.nl, u.link, u.name, f.mode))
	}
	for name, l := range f.extra {
		errs = append(errs, checkAttached(f.nl, l, name, f.mode))
	}
	return errors.Join(errs...)
}

// Pinned says which pins somebody has removed. Until this process ends all goes
// on as it is, since it holds what was pinned; so it is a matter for a person,
// and none of the site's health.
func (f *Forwarder) Pinned() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for _, u := range f.uplinks {
		names = append(names, linkPin(u.name))
	}
	for name := range f.coll.Maps {
		if isPinned(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var errs []error
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(pinDir(f.o.Dir), name)); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Attach runs the program on one more interface too, until Detach, Close or
// the end of the process. It fails if the interface is attached already.
func (f *Forwarder) Attach(ifname string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, err := attach(f.nl, f.program(), ifname, f.mode)
	if err != nil {
		return err
	}
	if old := f.extra[ifname]; old != nil {
		old.Close() // of an interface that is gone: the new one has its name
	}
	f.extra[ifname] = l
	return f.refreshLinks()
}

// Detach takes back an Attach. It never detaches an uplink.
func (f *Forwarder) Detach(ifname string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.extra[ifname]
	if l == nil {
		return fmt.Errorf("detach interface %s: it was not attached by Attach", ifname)
	}
	delete(f.extra, ifname)
	if err := l.Close(); err != nil {
		return fmt.Errorf("detach interface %s: %w", ifname, err)
	}
	return f.refreshLinks()
}

func (f *Forwarder) program() *ebpf.Program { return f.coll.Programs[edgeProgEdge] }

// AttachPassStub attaches a program that passes everything to an interface in
// native mode. For tests only: a veth delivers what an XDP program sends out of
// its peer only if it has a program of its own. Close detaches it.
func AttachPassStub(ifname string) (io.Closer, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "pass",
		Type: ebpf.XDP,
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R0, 2), // XDP_PASS
			asm.Return(),
		},
		License: "Dual BSD/GPL",
	})
	if err != nil {
		return nil, fmt.Errorf("load pass stub: %w", err)
	}
	defer prog.Close() // the link holds it
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer nl.Close()
	return attach(nl, prog, ifname, edge.XDPNative)
}
