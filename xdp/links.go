package xdp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// pinDirs are where pins of links may be: a migration moves them last of all.
func (l *loader) pinDirs() []string {
	if l.old != nil {
		return []string{l.dir, l.old.dir}
	}
	return []string{l.dir}
}

// linkPins returns the pins of an interface's link: one, or none.
func (l *loader) linkPins(ifname string) ([]string, error) {
	var pins []string
	for _, dir := range l.pinDirs() {
		pin := filepath.Join(dir, linkPin(ifname))
		switch _, err := os.Stat(pin); {
		case err == nil:
			pins = append(pins, pin)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("look at pinned link of interface %s: %w", ifname, err)
		}
	}
	return pins, nil
}

// takeLink makes an interface run our program: by the link that is pinned, if it
// fits, else by a new one.
func (l *loader) takeLink(ifname string) error {
	pins, err := l.linkPins(ifname)
	if err != nil {
		return err
	}
	for _, pin := range pins {
		if kept, err := l.keepLink(ifname, pin); err != nil || kept {
			return err
		}
	}
	if err := l.attach(ifname); err != nil {
		return err
	}
	l.o.Log.Info("program attached", "interface", ifname)
	return nil
}

// attach attaches the program to an interface and pins the link.
func (l *loader) attach(ifname string) error {
	lk, err := attach(l.nl, l.program(), ifname, l.o.Mode)
	if err != nil {
		return err
	}
	pin := filepath.Join(l.dir, linkPin(ifname))
	l.undo = append(l.undo, func() error { return errors.Join(lk.Detach(), removeIfThere(pin), lk.Close()) })
	if err := lk.Pin(pin); err != nil {
		return fmt.Errorf("pin link of interface %s: %w", ifname, err)
	}
	l.links = append(l.links, uplink{ifname, lk})
	return nil
}

// keepLink adopts the pinned link of an interface, with our program, if it
// still holds there in the mode asked for; if not, it makes room for a new one.
func (l *loader) keepLink(ifname, pin string) (bool, error) {
	lk, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return false, fmt.Errorf("open pinned link of interface %s: %w", ifname, err)
	}
	l.undo = append(l.undo, lk.Close)
	if why := checkAttached(l.nl, lk, ifname, l.o.Mode); why != nil {
		l.o.Log.Info("link is not kept", "interface", ifname, "reason", why)
		return false, l.discard(lk, ifname, pin)
	}
	runs, err := programOf(lk)
	if err != nil {
		return false, fmt.Errorf("read link of interface %s: %w", ifname, err)
	}
	l.held = append(l.held, runs)
	l.links = append(l.links, uplink{ifname, lk})
	if sameProgram(runs, l.program()) {
		return true, nil
	}
	if err := lk.Update(l.program()); err != nil {
		return false, fmt.Errorf("replace program of interface %s: %w", ifname, err)
	}
	l.undo = append(l.undo, func() error { return lk.Update(runs) })
	return true, nil
}

// discard ends a link in the wrong mode or to an interface that is gone: the
// kernel does not run two modes at once. If the transaction fails later, an
// interface that ran a program runs it again.
func (l *loader) discard(lk link.Link, ifname, pin string) error {
	info, err := lk.Info()
	if err != nil {
		return fmt.Errorf("read link of interface %s: %w", ifname, err)
	}
	dev, errDev := l.nl.LinkByName(ifname)
	var runs *ebpf.Program
	if errDev == nil && int(info.XDP().Ifindex) == dev.Attrs().Index {
		if runs, err = ebpf.NewProgramFromID(info.Program); err != nil {
			return fmt.Errorf("open program of interface %s: %w", ifname, err)
		}
		l.held = append(l.held, runs)
	}
	if err := detachPin(pin); err != nil {
		return err
	}
	if runs == nil {
		return nil // it ran nowhere
	}
	mode := attachedAs(dev)
	l.undo = append(l.undo, func() error {
		back, err := attach(l.nl, runs, ifname, mode)
		if err != nil {
			return err
		}
		return errors.Join(back.Pin(pin), back.Close())
	})
	return nil
}

// moveLink moves the pin of a link from the old schema's to ours.
func (l *loader) moveLink(ifname string) error {
	from, to := filepath.Join(l.old.dir, linkPin(ifname)), filepath.Join(l.dir, linkPin(ifname))
	switch err := os.Rename(from, to); {
	case errors.Is(err, fs.ErrNotExist):
		return nil // moved before, or attached anew
	case err != nil:
		return fmt.Errorf("move pin of interface %s: %w", ifname, err)
	}
	l.undo = append(l.undo, func() error { return os.Rename(to, from) })
	return nil
}

// detachRest detaches the interfaces that nobody asks for, and says whether all
// of them are.
func (l *loader) detachRest() (all bool) {
	all = true
	wanted := make(map[string]bool)
	for _, ifname := range l.o.Interfaces {
		wanted[linkPin(ifname)] = true
	}
	for _, dir := range l.pinDirs() {
		names, err := pinnedAs(dir, linkPrefix)
		if err != nil {
			l.o.Log.Error("look for interfaces to detach", "error", err)
			all = false
		}
		for _, name := range names {
			if wanted[name] {
				continue
			}
			if err := detachPin(filepath.Join(dir, name)); err != nil {
				l.o.Log.Error("interface stays attached", "pin", name, "error", err)
				all = false
				continue
			}
			l.o.Log.Info("program detached", "pin", name)
		}
	}
	return all
}
