package xdp

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/catchment-dev/edge/xdp/nic"
	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// loader is one transaction: its steps do it, rollback takes back what they
// did. A process may also end between any two of them: each leaves pins that the
// next loader completes or clears away, and packets are forwarded meanwhile.
type loader struct {
	o     Options
	spec  *ebpf.CollectionSpec
	sizes nic.Sizes
	nl    *netlink.Handle
	dir   string   // of the pins: where they are, or will be
	old   *oldPins // those of the schema before; nil if there are none

	coll     *ebpf.Collection
	pinned   map[ebpf.MapID]bool // ids of the pinned maps
	recorded []recorded
	carrier  *flowCarrier
	links    []uplink
	undo     []func() error
	held     []io.Closer // for undo
}

func newLoader(o Options, spec *ebpf.CollectionSpec) (*loader, error) {
	if err := size(spec, o); err != nil {
		return nil, err
	}
	sizes, err := sizesOf(spec, o)
	if err != nil {
		return nil, err
	}
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &loader{o: o, spec: spec, sizes: sizes, nl: nl, dir: pinDir(o.Dir)}, nil
}

// close lets go of what only a rollback would have needed.
func (l *loader) close() {
	for _, c := range l.held {
		c.Close()
	}
}

func (l *loader) run() error {
	steps, err := l.steps()
	if err != nil {
		return err
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) rollback() {
	for _, undo := range slices.Backward(l.undo) {
		if err := undo(); err != nil {
			l.o.Log.Error("undo of a failed load", "error", err)
		}
	}
}

// steps are what brings the pins from what they are to what is asked for.
// Renaming the new pins into place (commit) is what cannot be lost any more:
// whoever finds them there goes on with them, before that they are cleared away.
func (l *loader) steps() ([]func() error, error) {
	ours, err := l.look()
	if err != nil {
		return nil, err
	}
	steps := []func() error{l.checkKernel, func() error { return l.planMemory(!ours) }, l.checkInterfaces, l.clear}
	switch {
	case ours:
		steps = append(steps, l.reload, l.checkLinks, l.recordProgram)
	case l.old != nil:
		steps = append(steps, l.create, l.checkLinks, l.describeHost, l.carryTables, l.build, l.carryFlows, l.carryCounters, l.commit)
	default:
		steps = append(steps, l.create, l.build, l.commit)
	}
	take := l.takeLink
	if l.old != nil && !ours {
		take = l.switchLink
	}
	for _, ifname := range l.o.Interfaces {
		steps = append(steps, func() error { return take(ifname) })
	}
	if l.old != nil {
		last := l.carryLastFlows
		if ours {
			last = l.carryMissingFlows
		}
		steps = append(steps, last)
		for _, ifname := range l.o.Interfaces {
			steps = append(steps, func() error { return l.moveLink(ifname) })
		}
	}
	return append(steps, l.settleProgram, l.finish), nil
}

// look finds out which pins are there. Those of a schema that it does not know
// are refused: loading beside them would leave two programs fighting for the
// interfaces.
func (l *loader) look() (ours bool, err error) {
	entries, err := os.ReadDir(l.o.Dir)
	if err != nil {
		return false, fmt.Errorf("list pins: %w", err)
	}
	for _, e := range entries {
		switch name := e.Name(); name {
		case buildName:
		case schema:
			ours = true
		case oldSchema:
			l.old = &oldPins{dir: filepath.Join(l.o.Dir, name)}
			l.held = append(l.held, l.old)
		default:
			return false, l.incompatible(explainSchema(name))
		}
	}
	return ours, nil
}

// explainSchema says what is wrong with a schema that is not known.
func explainSchema(name string) error {
	digits, numbered := strings.CutPrefix(name, "v")
	n, err := strconv.ParseUint(digits, 10, 32)
	own, _ := strconv.ParseUint(schema[1:], 10, 32)
	switch {
	case !numbered || err != nil:
		return fmt.Errorf("%s among the pins is no schema of theirs", name)
	case n > own:
		return fmt.Errorf("a newer version has pinned schema %s, and this one knows none above %s: packets are still forwarded, "+
			"and the newer version, started again, goes on with it", name, schema)
	}
	return fmt.Errorf("schema %s is pinned, and this version takes over %s and %s only: a version in between would migrate it",
		name, oldSchema, schema)
}

func (l *loader) incompatible(why error) error {
	return fmt.Errorf("%w: %w; to start afresh remove it, rm -r %s, which detaches the program and forgets all flows",
		ErrIncompatible, why, l.o.Dir)
}

// clear removes what a crash in the middle of a load has left, which an older
// version has perhaps attached.
func (l *loader) clear() error {
	if err := errors.Join(removePinDir(buildDir(l.o.Dir)), removeIfThere(filepath.Join(l.dir, nextPin))); err != nil {
		return fmt.Errorf("clear an unfinished load: %w", err)
	}
	return nil
}

// create loads new maps and the program. Nothing refers to them yet.
func (l *loader) create() error {
	coll, err := ebpf.NewCollection(l.spec)
	if err != nil {
		return fmt.Errorf("load data plane: %w", explainLoad(err))
	}
	return l.keep(coll)
}

// reload loads the program over the pinned maps.
func (l *loader) reload() error {
	pinned, err := l.pinnedMaps()
	if err != nil {
		return err
	}
	coll, err := ebpf.NewCollectionWithOptions(l.spec, ebpf.CollectionOptions{MapReplacements: pinned})
	for _, m := range pinned {
		m.Close() // the collection has its own
	}
	if err != nil {
		return fmt.Errorf("load program over pinned maps: %w", explainLoad(err))
	}
	return l.keep(coll)
}

// keep makes coll the one to return, closed if the transaction fails.
func (l *loader) keep(coll *ebpf.Collection) error {
	l.coll = coll
	l.undo = append(l.undo, func() error { coll.Close(); return nil })
	l.pinned = make(map[ebpf.MapID]bool)
	for name, m := range coll.Maps {
		if !isPinned(name) {
			continue
		}
		info, err := m.Info()
		if err != nil {
			return fmt.Errorf("read map %s: %w", name, err)
		}
		id, _ := info.ID()
		l.pinned[id] = true
	}
	return nil
}

func (l *loader) program() *ebpf.Program { return l.coll.Programs[edgeProgEdge] }

// pinnedMaps opens the pinned maps and checks that they are as ours would be.
func (l *loader) pinnedMaps() (map[string]*ebpf.Map, error) {
	pinned := make(map[string]*ebpf.Map)
	for _, name := range slices.Sorted(maps.Keys(l.spec.Maps)) {
		if !isPinned(name) {
			continue
		}
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

// isPinned says whether a map outlives the process: the constants of a program
// do so with the program, and a bpffs takes no dot.
func isPinned(name string) bool { return !strings.HasPrefix(name, ".") }

// build pins the maps and the program where nobody looks for them.
func (l *loader) build() error {
	dir := buildDir(l.o.Dir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make directory of the pins: %w", err)
	}
	l.undo = append(l.undo, func() error { return os.RemoveAll(dir) })
	for name, m := range l.coll.Maps {
		if !isPinned(name) {
			continue
		}
		if err := m.Pin(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	tag, err := tagOf(l.program())
	if err != nil {
		return err
	}
	if err := l.program().Pin(filepath.Join(dir, progPrefix+tag)); err != nil {
		return fmt.Errorf("pin program: %w", err)
	}
	return nil
}

// commit puts the new pins in place, all at once.
func (l *loader) commit() error {
	if err := os.Rename(buildDir(l.o.Dir), l.dir); err != nil {
		return fmt.Errorf("put pins in place: %w", err)
	}
	l.undo = append(l.undo, func() error { return os.RemoveAll(l.dir) })
	l.o.Log.Info("data plane loaded", "interfaces", l.o.Interfaces, "mode", l.o.Mode, "flows", l.o.Flows)
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// finish comes after everything that can fail: it detaches the interfaces that
// have left the configuration, and removes the pins of old programs and of the
// old schema. What cannot be done now is tried by the next load.
func (l *loader) finish() error {
	if l.detachRest() {
		l.forgetPrograms() // else one of them may still run
	}
	if l.old != nil {
		if err := removePinDir(l.old.dir); err != nil {
			l.o.Log.Error("pins of the old schema stay", "dir", l.old.dir, "error", err)
		}
	}
	return nil
}
