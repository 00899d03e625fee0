package xdp

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// recorded is a program that is ours: it is pinned under its own tag. The next
// one is pinned before the first link runs it, and the one before is removed
// after the last has left it, so a link that runs any other program was changed
// by somebody else.
type recorded struct {
	tag  string
	prog *ebpf.Program
}

// tagOf asks the kernel for the tag of a program: it has changed how it computes
// them (6.18), so only two of its own answers can be compared.
func tagOf(p *ebpf.Program) (string, error) {
	info, err := p.Info()
	if err != nil {
		return "", fmt.Errorf("read program tag: %w", err)
	}
	return info.Tag, nil
}

// readRecorded opens the pinned programs.
func (l *loader) readRecorded() error {
	names, err := pinnedAs(l.dir, progPrefix)
	if err != nil {
		return err
	}
	for _, name := range names {
		prog, err := ebpf.LoadPinnedProgram(filepath.Join(l.dir, name), nil)
		if err != nil {
			return l.incompatible(fmt.Errorf("open pinned program %s: %w", name, err))
		}
		l.held = append(l.held, prog)
		tag, err := tagOf(prog)
		if err != nil {
			return err
		}
		want := strings.TrimPrefix(name, progPrefix)
		if tag != want {
			return l.alien("the pinned program", tag, []string{want})
		}
		l.recorded = append(l.recorded, recorded{tag, prog})
	}
	return nil
}

func (l *loader) alien(whose, tag string, ours []string) error {
	return l.incompatible(fmt.Errorf("%s has tag %s, and ours %s: somebody has replaced it", whose, tag, strings.Join(ours, " or ")))
}

// checkLinks refuses links that run a program which is not ours, before anything
// is changed.
func (l *loader) checkLinks() error {
	if err := l.readRecorded(); err != nil {
		return err
	}
	own, err := tagOf(l.program())
	if err != nil {
		return err
	}
	tags := []string{own}
	for _, r := range l.recorded {
		if r.tag != own {
			tags = append(tags, r.tag)
		}
	}
	if l.old != nil {
		if err := l.old.open(); err != nil {
			return l.incompatible(err)
		}
	}
	for _, dir := range l.pinDirs() {
		names, err := pinnedAs(dir, linkPrefix)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := l.checkLink(filepath.Join(dir, name), tags); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *loader) checkLink(pin string, tags []string) error {
	lk, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return fmt.Errorf("open pinned link %s: %w", pin, err)
	}
	defer lk.Close()
	runs, err := programOf(lk)
	if err != nil {
		return fmt.Errorf("read link %s: %w", pin, err)
	}
	defer runs.Close()
	tag, err := tagOf(runs)
	if err != nil {
		return err
	}
	if slices.Contains(tags, tag) || l.old != nil && l.old.owns(runs) {
		return nil
	}
	if l.old != nil {
		tags = append(tags, l.old.tags()...)
	}
	return l.alien("the program of "+filepath.Base(pin), tag, tags)
}

// recordProgram takes the pinned program instead of the one just loaded, if they
// are the same; if not, it records the new one.
func (l *loader) recordProgram() error {
	own, err := tagOf(l.program())
	if err != nil {
		return err
	}
	i := slices.IndexFunc(l.recorded, func(r recorded) bool { return r.tag == own })
	if i >= 0 {
		same, err := l.isSame(l.recorded[i].prog)
		if err != nil {
			return err
		}
		if !same { // by its constants, of which a tag knows nothing
			l.o.Log.Info("program is replaced", "tag", own, "reason", "other constants")
			return nil
		}
		pinned, err := l.recorded[i].prog.Clone()
		if err != nil {
			return fmt.Errorf("take pinned program: %w", err)
		}
		l.program().Close()
		l.coll.Programs[edgeProgEdge] = pinned
		l.o.Log.Info("data plane adopted", "tag", own, "interfaces", l.o.Interfaces)
		return nil
	}
	var before []string
	for _, r := range l.recorded {
		before = append(before, r.tag)
	}
	l.o.Log.Info("program is replaced", "old_tag", strings.Join(before, " "), "new_tag", own)
	pin := filepath.Join(l.dir, progPrefix+own)
	l.undo = append(l.undo, func() error { return removeIfThere(pin) })
	if err := l.program().Pin(pin); err != nil {
		return fmt.Errorf("pin program: %w", err)
	}
	return nil
}

// settleProgram pins the program that all links run now, if one with the same
// tag is pinned.
func (l *loader) settleProgram() error {
	own, err := tagOf(l.program())
	if err != nil {
		return err
	}
	for _, r := range l.recorded {
		if r.tag == own && !sameProgram(r.prog, l.program()) {
			if err := l.replacePin(progPrefix + own); err != nil {
				return err
			}
		}
	}
	return nil
}

// forgetPrograms removes the pins of programs that no link runs any more.
func (l *loader) forgetPrograms() {
	for _, r := range l.recorded {
		if own, err := tagOf(l.program()); err != nil || r.tag == own {
			continue
		}
		if err := removeIfThere(filepath.Join(l.dir, progPrefix+r.tag)); err != nil {
			l.o.Log.Error("the program before stays pinned", "tag", r.tag, "error", err)
		}
	}
}

// replacePin pins the new program over one with the same tag.
func (l *loader) replacePin(name string) error {
	tmp := filepath.Join(l.dir, nextPin)
	if err := l.program().Pin(tmp); err != nil {
		return fmt.Errorf("pin program: %w", err)
	}
	l.undo = append(l.undo, func() error { return removeIfThere(tmp) })
	if err := os.Rename(tmp, filepath.Join(l.dir, name)); err != nil {
		return fmt.Errorf("put program in place: %w", err)
	}
	return nil
}

// isSame says whether a program with our tag is the one just loaded: works on
// the pinned maps, with the same constants.
func (l *loader) isSame(p *ebpf.Program) (bool, error) {
	mapsA, constA, errA := l.partsOf(p)
	mapsB, constB, errB := l.partsOf(l.program())
	if err := errors.Join(errA, errB); err != nil {
		return false, err
	}
	return slices.Equal(mapsA, mapsB) && bytes.Equal(constA, constB), nil
}

// partsOf returns the pinned maps that a program uses and its constants.
func (l *loader) partsOf(p *ebpf.Program) (pinned []ebpf.MapID, constants []byte, err error) {
	ids, err := mapsOf(p)
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		if l.pinned[id] {
			pinned = append(pinned, id)
			continue
		}
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return nil, nil, fmt.Errorf("open map %d of program: %w", id, err)
		}
		if m.Flags()&unix.BPF_F_RDONLY_PROG != 0 {
			var b []byte
			b, err = m.LookupBytes(uint32(0))
			constants = append(constants, b...)
		}
		m.Close()
		if err != nil {
			return nil, nil, fmt.Errorf("read constants of program: %w", err)
		}
	}
	slices.Sort(pinned)
	return pinned, constants, nil
}

func mapsOf(p *ebpf.Program) ([]ebpf.MapID, error) {
	info, err := p.Info()
	if err != nil {
		return nil, fmt.Errorf("read maps of program: %w", err)
	}
	ids, _ := info.MapIDs()
	return ids, nil
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
