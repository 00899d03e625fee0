package xdp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/flows"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// others is the table after backends b0 to b2 have left: only the flows that they
// have are theirs, the ring is b3's and b4's.
func others(b []edge.TableBackend) edge.Table {
	b = slices.Clone(b)
	for i := range b[:3] {
		b[i].Weight, b[i].KeepTCP, b[i].KeepOther = 0, true, true
	}
	return wireTable(b...)
}

func v1Options(dir string) Options {
	o, _ := Options{Dir: dir, Interfaces: []string{"up0"}, Flows: mostFlows, HalfFlows: mostFlows}.checked()
	return o
}

// The program of schema v1 forwards at full speed, is replaced by ours, and no
// packet is lost; its flows stay where they are, also when the ring is somebody
// else's.
func TestMigrateUnderLoad(t *testing.T) {
	o := v1Options(wireBox(t))
	b := pool(t, 5)
	v1Pins(t, o, wireTable(b[:3]...))
	before := linkID(t, filepath.Join(o.Dir, oldSchema, linkPin("up0")))
	heard := listen(t)
	w := startTraffic(t, 2000)
	w.goOn(t)

	first := w.opened.Load()
	f := openForwarder(t, o)
	check(t, f.Attached())
	last := w.opened.Load()
	w.goOn(t)
	apply(t, f, others(b))
	changed := w.opened.Load()
	w.goOn(t)
	check(t, w.end())
	heard()

	w.stayed(t, 0, first)
	// +1: who had just been opened.
	w.stayed(t, min(last+1, int64(len(w.flows))), int64(len(w.flows)))
	if got := identify(t, f).links; !slices.Equal(got, []link.ID{before}) {
		t.Errorf("links are %v, was %d", got, before)
	}
	if got := entries(t, o.Dir); !slices.Equal(got, []string{schema}) {
		t.Errorf("pins: %v", got)
	}
	for _, fl := range w.flows[changed+1:] {
		if n := fl.to[0].As4()[3] - 100; n < 3 {
			t.Errorf("a new flow went to b%d, which is in no ring", n)
			break
		}
	}
	st := stats(t, f)
	if st.Received > uint64(w.packets) || st.Received < uint64(w.packets)/2 {
		t.Errorf("%d packets were sent, %d are counted", w.packets, st.Received)
	}
	balanced(t, f)
	t.Logf("%d packets (%.0f a second): none lost, %d not counted; of %d flows opened meanwhile %d moved", w.packets,
		float64(w.packets)/w.took.Seconds(), uint64(w.packets)-st.Received, last+1-first, len(w.moved(first, min(last+1, int64(len(w.flows))))))
}

// What is carried over, compared in peace.
func TestMigrationCarriesAll(t *testing.T) {
	o := v1Options(wireBox(t))
	b := pool(t, 3)
	v1Pins(t, o, wireTable(b...))
	w := startTraffic(t, 400)
	check(t, w.end())
	remembered, counted := v1Size(t, o.Dir), v1Count(t, o.Dir)
	f := openForwarder(t, o)
	if counted != uint64(w.packets) {
		t.Fatalf("v1 counted %d of %d packets", counted, w.packets)
	}
	st := stats(t, f)
	balanced(t, f)
	var packets, flows, sent uint64
	for _, s := range st.Services {
		packets, flows = packets+s.Packets, flows+s.New
	}
	for _, c := range st.Backends {
		sent += c.Packets
	}
	if st.Received != counted || packets != counted || sent != counted || flows != uint64(remembered) || len(st.Services) != 4 || len(st.Backends) != 12 {
		t.Errorf("of %d packets and %d flows: received %d, of services %d, of backends %d, new flows %d; %d services, %d backends",
			counted, remembered, st.Received, packets, sent, flows, len(st.Services), len(st.Backends))
	}
	found := make(map[edge.FlowEntry]bool)
	check(t, f.Flows(func(e edge.FlowEntry) bool {
		found[e] = true
		return true
	}))
	for e := range found {
		to := fmt.Sprint("b", w.flows[int(e.Src.Port())-firstPort].to[0].As4()[3]-100)
		v, err := f.Lookup(edge.Flow{Src: e.Src, Dst: e.Dst, Protocol: e.Protocol}, nil)
		if err != nil || v.By != "table" || string(v.Backend) != to || string(e.Backend) != to || v.Service != e.Service || e.Half {
			t.Errorf("flow %+v went to %s, is looked up as %+v, %v", e, to, v, err)
		}
	}
	if len(found) != remembered || remembered != len(w.flows) {
		t.Errorf("%d flows are listed, v1 had %d, there are %d", len(found), remembered, len(w.flows))
	}
	trusted, err := newMirror[[16]byte, uint32](f.coll, edgeMapTrusted)
	if err != nil || len(trusted.have) != 2 {
		t.Errorf("trusted: %v, %v", trusted.have, err)
	}
	// The table that v1 was given changes nothing but what v1 did not know.
	p, err := f.state.plan(wireTable(b...), f.state.retired[0])
	check(t, err)
	if len(p.newServices)+len(p.newBackends) != 0 {
		t.Errorf("new ids: %v, %v", p.newServices, p.newBackends)
	}
	for id, want := range p.backend {
		if f.state.backend.have[id] != want {
			t.Errorf("backend %d is %+v, want %+v", id, f.state.backend.have[id], want)
		}
	}
	for k, want := range p.vip {
		if got := f.state.vip.have[k]; got != want {
			t.Errorf("vip %v is %#x, want %#x", k, got, want)
		}
	}
}

// A process may be killed between any two steps of a migration: packets are
// forwarded all the time, by the flows that there are, and the next process gets
// it done.
func TestMigrationCutShort(t *testing.T) {
	o := v1Options(wireBox(t))
	o.Interfaces = []string{"up0", "up1"}
	b := pool(t, 5)
	for n, steps := readSteps, 100; n <= steps; n++ {
		v1Pins(t, o, wireTable(b[:3]...))
		before := linkID(t, filepath.Join(o.Dir, oldSchema, linkPin("up0")))
		w := startTraffic(t, 50)
		first := w.opened.Load()
		steps = cutShort(t, o, n, true)
		w.goOn(t)
		f := openForwarder(t, o)
		check(t, f.Attached())
		apply(t, f, others(b))
		w.goOn(t)
		check(t, w.end())
		if moved := w.moved(0, first); len(moved) > 0 {
			t.Errorf("killed after step %d: %d flows have moved: %v ...", n, len(moved), moved[0])
		}
		if got := identify(t, f).links; len(got) != 2 || got[0] != before || !slices.Equal(entries(t, o.Dir), []string{schema}) {
			t.Errorf("killed after step %d: links %v, was %d; pins %v", n, got, before, entries(t, o.Dir))
		}
		check(t, f.Close())
		check(t, Remove(o.Dir))
	}
}

// A flow that v1 has remembered just before the program was replaced is carried
// over too.
func TestLastFlowsAreCarried(t *testing.T) {
	o := v1Options(wireBox(t))
	v1Pins(t, o, wireTable(pool(t, 3)...))
	w := startTraffic(t, 8)
	check(t, w.end())
	l, err := newLoader(o, edgeSpec(t))
	check(t, err)
	defer leave(l)
	steps, err := l.steps()
	check(t, err)
	src := addrPort(client4 + ":60000")
	for i, step := range steps {
		check(t, step())
		if i+1 != switched {
			continue
		}
		var k v1FlowKey
		var v v1Flow
		if !l.old.coll.Maps[edgeMapFlow].Iterate().Next(&k, &v) {
			t.Fatal("v1 has no flow")
		}
		k.Src, k.Sport = src.Addr().As16(), netOrder(src.Port())
		if netip.AddrFrom16(k.Dst).Is6() && !netip.AddrFrom16(k.Dst).Is4In6() {
			k.Src = addr(client6).As16()
		}
		check(t, l.old.coll.Maps[edgeMapFlow].Put(k, v))
	}
	if n := l.carrier.carried; n != 1 {
		t.Errorf("%d flows were carried over last", n)
	}
}

// switched is how many steps there are until up0 runs our program.
const switched = readSteps + 10

// The program has been at work since a migration was cut short: what it has
// learnt of a flow meanwhile is right, not what v1 knew.
func TestResumedMigrationKeepsFlows(t *testing.T) {
	o := v1Options(wireBox(t))
	v1Pins(t, o, wireTable(pool(t, 3)...))
	w := startTraffic(t, 40)
	check(t, w.end())
	cutShort(t, o, switched, true)
	if names, err := pinnedAs(filepath.Join(o.Dir, oldSchema), linkPrefix); err != nil || len(names) != 1 || len(entries(t, o.Dir)) != 2 {
		t.Fatalf("links of v1: %v, %v; pins %v", names, err, entries(t, o.Dir))
	}
	coll := &ebpf.Collection{Maps: make(map[string]*ebpf.Map)}
	defer coll.Close()
	for _, name := range []string{edgeMapFlow, edgeMapFlowDetail} {
		m, err := ebpf.LoadPinnedMap(filepath.Join(pinDir(o.Dir), name), nil)
		check(t, err)
		coll.Maps[name] = m
	}
	table, err := mapFlows(coll)
	check(t, err)
	now, err := monotonic()
	check(t, err)
	learnt := make(map[string]uint32)
	for hash, e := range table.All() {
		e.Backend = e.Backend%3 + 1 + (e.Backend-1)/3*3 // another of the same service
		table.Put(hash, e, flows.TickAt(now))
		learnt[fmt.Sprint(e.Tuple)] = e.Backend
	}
	check(t, table.unmap())
	f := openForwarder(t, o)
	for _, e := range f.flows.All() {
		if want := learnt[fmt.Sprint(e.Tuple)]; e.Backend != want {
			t.Errorf("flow %v follows backend %d, learnt was %d", e.Tuple, e.Backend, want)
		}
	}
	if len(learnt) < 40 || !slices.Equal(entries(t, o.Dir), []string{schema}) {
		t.Errorf("%d flows, pins %v", len(learnt), entries(t, o.Dir))
	}
}

// Any step of a migration may fail: all is as before then, and the next try
// succeeds.
func TestMigrationFails(t *testing.T) {
	o := v1Options(wireBox(t))
	o.Interfaces = []string{"up0", "up1"}
	b := pool(t, 5)
	v1Pins(t, o, wireTable(b[:3]...))
	old := filepath.Join(o.Dir, oldSchema)
	pins, before, prog := entries(t, old), linkID(t, filepath.Join(old, linkPin("up0"))), xdpOf(t, "up0").ProgId
	w := startTraffic(t, 50)
	first := w.opened.Load()
	for n, steps := readSteps, 100; n <= steps; n++ {
		steps = cutShort(t, o, n, false)
		if got := xdpOf(t, "up0").ProgId; got != prog || !slices.Equal(entries(t, o.Dir), []string{oldSchema}) || !slices.Equal(entries(t, old), pins) {
			t.Errorf("after step %d: up0 runs program %d, was %d; pins %v, %v", n, got, prog, entries(t, o.Dir), entries(t, old))
		}
		w.goOn(t)
	}
	f := openForwarder(t, o)
	apply(t, f, others(b))
	w.goOn(t)
	check(t, w.end())
	w.stayed(t, 0, first)
	if got := identify(t, f).links; got[0] != before {
		t.Errorf("links %v, was %d", got, before)
	}
}

// readSteps are the first steps of a load, which only look.
const readSteps = 3

// cutShort takes n steps of a load. Then the process is killed, or takes back
// what it did. It returns how many steps there are.
func cutShort(t *testing.T, o Options, n int, killed bool, change ...func(*ebpf.CollectionSpec)) int {
	t.Helper()
	l, err := newLoader(o, edgeSpec(t, change...))
	check(t, err)
	defer leave(l)
	steps, err := l.steps()
	check(t, err)
	for _, step := range steps[:n] {
		check(t, step())
	}
	if !killed && n < len(steps) { // after the last nothing can fail
		l.rollback()
		l.coll, l.links = nil, nil
	}
	if killed {
		return len(steps)
	}
	return len(steps) - 1
}

// The removal of the old pins is cut short: what is left of them is removed, and
// no flow is taken from it.
func TestOldPinsAreRemoved(t *testing.T) {
	o := v1Options(wireBox(t))
	b := pool(t, 3)
	v1Pins(t, o, wireTable(b...))
	kept := filepath.Join(o.Dir, "kept")
	check(t, os.Mkdir(kept, 0o700))
	for _, name := range []string{edgeMapSvc, edgeMapVerdictCount} {
		pinAgain(t, filepath.Join(o.Dir, oldSchema, name), filepath.Join(kept, name))
	}
	check(t, os.Rename(kept, filepath.Dir(o.Dir)+"/kept"))
	check(t, openForwarder(t, o).Close())
	check(t, os.Rename(filepath.Dir(o.Dir)+"/kept", filepath.Join(o.Dir, oldSchema)))
	check(t, openForwarder(t, o).Attached())
	if got := entries(t, o.Dir); !slices.Equal(got, []string{schema}) {
		t.Errorf("pins: %v", got)
	}
}

// pinAgain pins a map at another place too.
func pinAgain(t *testing.T, from, to string) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(from, nil)
	check(t, err)
	defer m.Close()
	again, err := m.Clone() // which does not know that it is pinned, and so does not move
	check(t, err)
	defer again.Close()
	check(t, again.Pin(to))
}

// Interfaces and the mode may change in the same step.
func TestMigrateToOtherInterfaces(t *testing.T) {
	o := v1Options(wireBox(t))
	v1Pins(t, o, wireTable(pool(t, 3)...))
	o.Interfaces, o.Mode = []string{"up1"}, edge.XDPGeneric
	f := openForwarder(t, o)
	check(t, f.Attached())
	if xdpOf(t, "up0").Attached {
		t.Error("up0 is still attached")
	}
	if n := len(stats(t, f).Services); n != 4 {
		t.Errorf("%d services", n)
	}
}

func TestMigrationRefuses(t *testing.T) {
	o := v1Options(wireBox(t))
	refused := func(wants ...string) {
		t.Helper()
		_, err := Open(t.Context(), o)
		for _, want := range append(wants, "rm -r "+o.Dir) {
			if !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v does not say %q", err, want)
			}
		}
		if !xdpOf(t, "up0").Attached || !slices.Equal(entries(t, o.Dir), []string{oldSchema}) {
			t.Errorf("attached %v, pins %v", xdpOf(t, "up0").Attached, entries(t, o.Dir))
		}
	}
	v1Pins(t, o, wireTable(pool(t, 3)...))
	old := filepath.Join(o.Dir, oldSchema)
	prog, err := ebpf.LoadPinnedProgram(filepath.Join(old, "prog"), nil)
	check(t, err)
	defer prog.Close()

	alien, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	check(t, err)
	defer alien.Close()
	lk, err := link.LoadPinnedLink(filepath.Join(old, linkPin("up0")), nil)
	check(t, err)
	defer lk.Close()
	check(t, lk.Update(alien))
	refused("the program of link_up0 has tag "+tag(t, alien), tag(t, prog))
	check(t, lk.Update(prog))

	m, err := ebpf.LoadPinnedMap(filepath.Join(old, edgeMapVip), nil)
	check(t, err)
	defer m.Close()
	check(t, os.Remove(filepath.Join(old, edgeMapVip)))
	refused("map vip of schema v1 is missing")
	pinAgain(t, filepath.Join(old, edgeMapAddr), filepath.Join(old, edgeMapVip))
	refused("map vip is not that of schema v1")
}
