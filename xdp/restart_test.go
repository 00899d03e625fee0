package xdp

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// edgeSpec is the embedded object, as another version of us would have it.
func edgeSpec(t testing.TB, change ...func(*ebpf.CollectionSpec)) *ebpf.CollectionSpec {
	t.Helper()
	spec, err := loadEdge()
	check(t, err)
	for _, c := range change {
		c(spec)
	}
	return spec
}

// otherVersion makes the program another one that does the same: an instruction
// more has another tag.
func otherVersion(constant int32) func(*ebpf.CollectionSpec) {
	return func(spec *ebpf.CollectionSpec) {
		p := spec.Programs[edgeProgEdge]
		p.Instructions = slices.Insert(p.Instructions, 1, asm.Mov.Imm(asm.R0, constant))
	}
}

// openVersion is Open of another version of us.
func openVersion(t testing.TB, o Options, change ...func(*ebpf.CollectionSpec)) (*Forwarder, error) {
	t.Helper()
	o, err := o.checked()
	check(t, err)
	check(t, makeDir(o.Dir))
	f, err := open(o, edgeSpec(t, change...))
	if err == nil {
		t.Cleanup(func() { f.Close() })
	}
	return f, err
}

func tag(t testing.TB, p *ebpf.Program) string {
	t.Helper()
	s, err := tagOf(p)
	check(t, err)
	return s
}

func progPins(t testing.TB, dir string) []string {
	t.Helper()
	names, err := pinnedAs(dir, progPrefix)
	check(t, err)
	return names
}

func linkID(t testing.TB, pin string) link.ID {
	t.Helper()
	lk, err := link.LoadPinnedLink(pin, nil)
	check(t, err)
	defer lk.Close()
	info, err := lk.Info()
	check(t, err)
	return info.ID
}

// Processes come and go, the same version and others, while packets flow as fast
// as they can: none is lost, no flow moves, and the link is the same all the time.
func TestRestartUnderLoad(t *testing.T) {
	o := Options{Dir: wireBox(t), Interfaces: []string{"up0"}, Flows: mostFlows}
	f := openForwarder(t, o)
	apply(t, f, wireTable(pool(t, 3)...))
	first := identify(t, f)
	heard := listen(t)
	w := startTraffic(t, 200)
	const restarts = 12
	progs := make(map[uint32]bool)
	for i := range restarts {
		w.goOn(t)
		check(t, f.Close())
		w.goOn(t)
		var change []func(*ebpf.CollectionSpec)
		if i%2 == 0 {
			change = append(change, otherVersion(int32(i)))
		}
		var err error
		f, err = openVersion(t, o, change...)
		check(t, err)
		apply(t, f, wireTable(pool(t, 3)...))
		got := identify(t, f)
		progs[got.prog] = true
		if got.flow != first.flow || !slices.Equal(got.links, first.links) {
			t.Errorf("adopted %+v, first was %+v", got, first)
		}
		if pins := progPins(t, pinDir(o.Dir)); !slices.Equal(pins, []string{progPrefix + tag(t, f.program())}) {
			t.Errorf("programs pinned: %v", pins)
		}
	}
	w.goOn(t)
	check(t, w.end())
	heard()
	w.stayed(t, 0, int64(len(w.flows)))
	if len(progs) != restarts {
		t.Errorf("%d programs ran, want %d", len(progs), restarts)
	}
	st := stats(t, f)
	if st.Received != uint64(w.packets) || verdictCount(st, "backend") != uint64(w.packets) {
		t.Errorf("%d packets were sent, %d received, %d forwarded", w.packets, st.Received, verdictCount(st, "backend"))
	}
	t.Logf("%d restarts, %d packets of %d flows (%.0f a second): none lost, no flow moved", restarts, w.packets, len(w.flows), float64(w.packets)/w.took.Seconds())
}

// An upgrade keeps maps and links; the program is another. One that was cut short
// is completed: the links may run the old or the new program then.
func TestProgramIsReplaced(t *testing.T) {
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0", "up1"}, Flows: 100}
	f, err := openVersion(t, o, otherVersion(1))
	check(t, err)
	before := identify(t, f)
	old, err := f.program().Clone()
	check(t, err)
	defer old.Close()
	check(t, f.Close())

	f = openForwarder(t, o)
	check(t, f.Attached())
	after := identify(t, f)
	if after.prog == before.prog || after.flow != before.flow || !slices.Equal(after.links, before.links) {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if got := xdpOf(t, "up1").ProgId; got != after.prog {
		t.Errorf("up1 runs program %d, not %d", got, after.prog)
	}
	check(t, f.uplinks[1].link.Update(old))
	check(t, old.Pin(filepath.Join(pinDir(o.Dir), progPrefix+tag(t, old))))
	check(t, f.Close())
	f = openForwarder(t, o)
	if got := identify(t, f); !same(after, got) || xdpOf(t, "up1").ProgId != after.prog {
		t.Errorf("after a cut upgrade %+v, want %+v; up1 runs %d", got, after, xdpOf(t, "up1").ProgId)
	}
	if pins := progPins(t, pinDir(o.Dir)); !slices.Equal(pins, []string{progPrefix + tag(t, f.program())}) {
		t.Errorf("programs pinned: %v", pins)
	}
}

// The same as TestMigrationCutShort for a new program over the same maps.
func TestUpgradeCutShort(t *testing.T) {
	o := v1Options(wireBox(t))
	o.Interfaces = []string{"up0", "up1"}
	b := pool(t, 3)
	f := openForwarder(t, o)
	apply(t, f, wireTable(b...))
	first := identify(t, f)
	check(t, f.Close())
	w := startTraffic(t, 50)
	for _, killed := range []bool{true, false} {
		for n, steps := readSteps, 100; n <= steps; n++ {
			before := xdpOf(t, "up0").ProgId
			steps = cutShort(t, o, n, killed, otherVersion(int32(n)))
			w.goOn(t)
			if !killed && n < steps && (xdpOf(t, "up0").ProgId != before || len(progPins(t, pinDir(o.Dir))) != 1) {
				t.Errorf("step %d failed: up0 runs program %d, was %d; pins %v", n, xdpOf(t, "up0").ProgId, before, entries(t, pinDir(o.Dir)))
			}
			// Another version still comes next.
			f, err := openVersion(t, o, otherVersion(int32(-n)))
			check(t, err)
			check(t, f.Attached())
			if got := identify(t, f); got.flow != first.flow || !slices.Equal(got.links, first.links) ||
				!slices.Equal(progPins(t, pinDir(o.Dir)), []string{progPrefix + tag(t, f.program())}) {
				t.Errorf("step %d, killed %v: %+v, first was %+v; pins %v", n, killed, got, first, entries(t, pinDir(o.Dir)))
			}
			check(t, f.Close())
		}
	}
	check(t, w.end())
	w.stayed(t, 0, int64(len(w.flows)))
}

// A tag knows nothing of the constants of a program.
func TestOtherConstants(t *testing.T) {
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0"}, Flows: 100, HalfFlows: 100}
	f := openForwarder(t, o)
	before := identify(t, f)
	check(t, f.Close())
	o, err := o.checked()
	check(t, err)
	l, err := newLoader(o, edgeSpec(t))
	check(t, err)
	check(t, l.spec.Variables[edgeVarHalfPlaces].Set(uint32(1)))
	check(t, l.run())
	if tag(t, l.program()) != progPins(t, pinDir(o.Dir))[0][len(progPrefix):] {
		t.Fatal("the constant changed the tag")
	}
	now := xdpOf(t, "up0").ProgId
	leave(l)
	if now == before.prog {
		t.Error("the program with the old constants stays")
	}
	f = openForwarder(t, o)
	if got := identify(t, f); got.prog == now || !slices.Equal(got.links, before.links) {
		t.Errorf("%+v, before %+v, the other constants had %d", got, before, now)
	}
}

// leave closes all that a process holds, as its end would.
func leave(l *loader) {
	for _, u := range l.links {
		u.link.Close()
	}
	if l.coll != nil {
		l.coll.Close()
	}
	l.close()
	l.nl.Close()
}

// A program that somebody else put in the place of ours is refused, with its tag
// and ours, and goes on as it is.
func TestAlienProgram(t *testing.T) {
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0", "up1"}, Flows: 100}
	alien, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	check(t, err)
	defer alien.Close()
	f := openForwarder(t, o)
	ours := tag(t, f.program())
	pin := filepath.Join(pinDir(o.Dir), progPrefix+ours)
	own, err := f.program().Clone()
	check(t, err)
	defer own.Close()
	up1 := f.uplinks[1].link
	refused := func(what string) {
		t.Helper()
		check(t, f.Close())
		for range 2 { // a refusal changes nothing
			_, err := openVersion(t, o, otherVersion(9))
			if !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), tag(t, alien)) || !strings.Contains(err.Error(), ours) ||
				!strings.Contains(err.Error(), "rm -r "+o.Dir) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	check(t, up1.Update(alien))
	up1Pin := filepath.Join(pinDir(o.Dir), linkPin("up1"))
	refused("the program of a link")
	lk, err := link.LoadPinnedLink(up1Pin, nil)
	check(t, err)
	defer lk.Close()
	if info, err := own.Info(); err != nil || xdpOf(t, "up1").ProgId == xdpOf(t, "up0").ProgId {
		t.Errorf("the alien was replaced: %v, %v", info, err)
	}
	check(t, lk.Update(own))

	f = openForwarder(t, o)
	check(t, os.Remove(pin))
	check(t, alien.Pin(pin))
	refused("the pinned program")
	check(t, os.Remove(pin))
	check(t, own.Pin(pin))
	check(t, openForwarder(t, o).Attached())
}
