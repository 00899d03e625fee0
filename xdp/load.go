package xdp

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// loader is one transaction: run does it, rollback takes back what it did.
type loader struct {
	o    Options
	spec *ebpf.CollectionSpec
	nl   *netlink.Handle
	dir  string // of the pins: where they are, or will be

	coll  *ebpf.Collection
	links []uplink
	undo  []func() error
	held  []*ebpf.Program // for undo
}

// close lets go of what only a rollback would have needed.
func (l *loader) close() {
	for _, p := range l.held {
		p.Close()
	}
}

func (l *loader) run() error {
	if err := l.checkSchema(); err != nil {
		return err
	}
	// A crash in the middle of a first load leaves this, perhaps attached.
	if err := removePinDir(buildDir(l.o.Dir)); err != nil {
		return fmt.Errorf("clear an unfinished load: %w", err)
	}
	_, err := os.Stat(l.dir)
	switch {
	case err == nil:
		return l.adopt()
	case errors.Is(err, fs.ErrNotExist):
		return l.fresh()
	}
	return fmt.Errorf("look at pins: %w", err)
}

func (l *loader) rollback() {
	for _, undo := range slices.Backward(l.undo) {
		if err := undo(); err != nil {
			l.o.Log.Error("undo of a failed load", "error", err)
		}
	}
}

// checkSchema refuses the pins of another schema: loading beside them would
// leave two programs fighting for the interfaces.
func (l *loader) checkSchema() error {
	entries, err := os.ReadDir(l.o.Dir)
	if err != nil {
		return fmt.Errorf("list pins: %w", err)
	}
	for _, e := range entries {
		if name := e.Name(); name != schema && name != filepath.Base(buildDir(l.o.Dir)) {
			return l.incompatible(fmt.Errorf("schema %s is pinned, this is %s", name, schema))
		}
	}
	return nil
}

func (l *loader) incompatible(why error) error {
	return fmt.Errorf("%w: %w; to start afresh remove it, rm -r %s, which detaches the program and forgets all flows",
		ErrIncompatible, why, l.o.Dir)
}

// fresh loads everything anew. Nothing is in l.dir before the last step.
func (l *loader) fresh() error {
	coll, err := ebpf.NewCollection(l.spec)
	if err != nil {
		return fmt.Errorf("load data plane: %w", err)
	}
	l.keep(coll)
	final := l.dir
	l.dir = buildDir(l.o.Dir)
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		return fmt.Errorf("make directory of the pins: %w", err)
	}
	l.undo = append(l.undo, func() error { return os.RemoveAll(buildDir(l.o.Dir)) })
	for name, m := range coll.Maps {
		if err := m.Pin(filepath.Join(l.dir, name)); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	if err := l.program().Pin(filepath.Join(l.dir, progPin)); err != nil {
		return fmt.Errorf("pin program: %w", err)
	}
	for _, name := range l.o.Interfaces {
		if err := l.attach(name); err != nil {
			return err
		}
	}
	if err := os.Rename(l.dir, final); err != nil {
		return fmt.Errorf("put pins in place: %w", err)
	}
	l.dir = final
	l.o.Log.Info("data plane loaded", "interfaces", l.o.Interfaces, "mode", l.o.Mode, "flows", l.o.Flows)
	return nil
}

// keep makes coll the one to return, closed if the transaction fails.
func (l *loader) keep(coll *ebpf.Collection) {
	l.coll = coll
	l.undo = append(l.undo, func() error { coll.Close(); return nil })
}

func (l *loader) program() *ebpf.Program { return l.coll.Programs[edgeProgEdge] }

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

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// adopt takes over what is pinned: the maps always, the program if it is the
// one that this binary would load.
func (l *loader) adopt() error {
	pinned, err := l.pinnedMaps()
	if err != nil {
		return err
	}
	coll, err := ebpf.NewCollectionWithOptions(l.spec, ebpf.CollectionOptions{MapReplacements: pinned})
	for _, m := range pinned {
		m.Close() // the collection has its own
	}
	if err != nil {
		return fmt.Errorf("load program over pinned maps: %w", err)
	}
	l.keep(coll)
	same, err := l.adoptProgram()
	if err != nil {
		return err
	}
	rest, err := l.adoptLinks()
	if err != nil {
		return err
	}
	if !same {
		if err := l.replacePin(); err != nil {
			return err
		}
	}
	l.detach(rest)
	return nil
}

// adoptProgram replaces the program just loaded by the pinned one if they are
// the same, and says whether they are. Both tags are asked of the kernel, which
// changed how it computes them in 6.18.
func (l *loader) adoptProgram() (bool, error) {
	old, err := ebpf.LoadPinnedProgram(filepath.Join(l.dir, progPin), nil)
	if err != nil {
		return false, l.incompatible(fmt.Errorf("open pinned program: %w", err))
	}
	a, errA := old.Info()
	b, errB := l.program().Info()
	if err := errors.Join(errA, errB); err != nil {
		old.Close()
		return false, fmt.Errorf("read program tag: %w", err)
	}
	if a.Tag != b.Tag {
		old.Close()
		l.o.Log.Info("program is replaced", "old_tag", a.Tag, "new_tag", b.Tag)
		return false, nil
	}
	l.program().Close()
	l.coll.Programs[edgeProgEdge] = old
	l.o.Log.Info("data plane adopted", "tag", a.Tag, "interfaces", l.o.Interfaces)
	return true, nil
}

// pinnedMaps opens the pinned maps and checks that they are as ours would be.
func (l *loader) pinnedMaps() (map[string]*ebpf.Map, error) {
	pinned := make(map[string]*ebpf.Map)
	for _, name := range slices.Sorted(maps.Keys(l.spec.Maps)) {
		m, err := ebpf.LoadPinnedMap(filepath.Join(l.dir, name), nil)
		if err == nil {
			pinned[name] = m
			err = l.spec.Maps[name].Compatible(m)
		}
		if err != nil {
			for _, m := range pinned {
				m.Close()
			}
			return nil, l.incompatible(fmt.Errorf("map %s: %w", name, err))
		}
	}
	return pinned, nil
}

// replacePin pins the new program over the old one's pin, once all links run
// it: after a crash in between, the next loader sees that they do not agree.
func (l *loader) replacePin() error {
	tmp := filepath.Join(l.dir, newProgPin)
	if err := removeIfThere(tmp); err != nil {
		return fmt.Errorf("clear an unfinished upgrade: %w", err)
	}
	if err := l.program().Pin(tmp); err != nil {
		return fmt.Errorf("pin program: %w", err)
	}
	l.undo = append(l.undo, func() error { return removeIfThere(tmp) })
	if err := os.Rename(tmp, filepath.Join(l.dir, progPin)); err != nil {
		return fmt.Errorf("put program in place: %w", err)
	}
	return nil
}

// adoptLinks brings the links to what is asked for: those that fit stay, the
// missing are attached. It returns the pins of interfaces that are not asked for.
func (l *loader) adoptLinks() ([]string, error) {
	pins, err := pinnedLinks(l.dir)
	if err != nil {
		return nil, err
	}
	for _, ifname := range l.o.Interfaces {
		kept := false
		if i := slices.Index(pins, linkPin(ifname)); i >= 0 {
			pins = slices.Delete(pins, i, i+1)
			if kept, err = l.keepLink(ifname); err != nil {
				return nil, err
			}
		}
		if kept {
			continue
		}
		if err := l.attach(ifname); err != nil {
			return nil, err
		}
		l.o.Log.Info("program attached", "interface", ifname)
	}
	return pins, nil
}

// keepLink adopts the pinned link of an interface, with our program, if it
// still holds there in the mode asked for; if not, it makes room for a new one.
func (l *loader) keepLink(ifname string) (bool, error) {
	lk, err := link.LoadPinnedLink(filepath.Join(l.dir, linkPin(ifname)), nil)
	if err != nil {
		return false, fmt.Errorf("open pinned link of interface %s: %w", ifname, err)
	}
	l.undo = append(l.undo, lk.Close)
	runs, err := programOf(lk)
	if err != nil {
		return false, fmt.Errorf("read link of interface %s: %w", ifname, err)
	}
	l.held = append(l.held, runs)
	if why := checkAttached(l.nl, lk, ifname, l.o.Mode); why != nil {
		l.o.Log.Info("link is not kept", "interface", ifname, "reason", why)
		return false, l.discard(lk, ifname, runs)
	}
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

// programOf opens the program that a link runs: not always the pinned one, if
// an upgrade was cut short.
func programOf(lk link.Link) (*ebpf.Program, error) {
	info, err := lk.Info()
	if err != nil {
		return nil, err
	}
	return ebpf.NewProgramFromID(info.Program)
}

func sameProgram(a, b *ebpf.Program) bool {
	ia, errA := a.Info()
	ib, errB := b.Info()
	if errA != nil || errB != nil {
		return false
	}
	x, okX := ia.ID()
	y, okY := ib.ID()
	return okX && okY && x == y
}

// discard ends a link in the wrong mode or to an interface that is gone: the
// kernel does not run two modes at once. If the transaction fails later, an
// interface that ran a program runs it again.
func (l *loader) discard(lk link.Link, ifname string, runs *ebpf.Program) error {
	path := filepath.Join(l.dir, linkPin(ifname))
	info, err := lk.Info()
	if err != nil {
		return fmt.Errorf("read link of interface %s: %w", ifname, err)
	}
	dev, errDev := l.nl.LinkByName(ifname)
	if err := detachPin(path); err != nil {
		return err
	}
	if errDev != nil || int(info.XDP().Ifindex) != dev.Attrs().Index {
		return nil // it ran nowhere
	}
	mode := attachedAs(dev)
	l.undo = append(l.undo, func() error {
		back, err := attach(l.nl, runs, ifname, mode)
		if err != nil {
			return err
		}
		return errors.Join(back.Pin(path), back.Close())
	})
	return nil
}

// detach is the last step, after everything that can fail: the interfaces that
// left the configuration. What cannot be detached now is tried by the next load.
func (l *loader) detach(pins []string) {
	for _, pin := range pins {
		if err := detachPin(filepath.Join(l.dir, pin)); err != nil {
			l.o.Log.Error("interface stays attached", "pin", pin, "error", err)
			continue
		}
		l.o.Log.Info("program detached", "pin", pin)
	}
}
