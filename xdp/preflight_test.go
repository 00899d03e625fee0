package xdp

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/xdp/nic"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
)

// setMTU sets it on both ends of a veth.
func setMTU(t testing.TB, mtu int, names ...string) {
	t.Helper()
	for _, name := range names {
		dev, err := netlink.LinkByName(name)
		check(t, err)
		check(t, netlink.LinkSetMTU(dev, mtu))
	}
}

// All interfaces that are unfit are named at once, and no map has been made.
func TestPreflight(t *testing.T) {
	var log bytes.Buffer
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0", "lo", "up1", "nope"}, Flows: 100, Log: slog.New(slog.NewTextHandler(&log, nil))}
	setMTU(t, 9000, "up1", "peer1")
	_, err := Open(t.Context(), o)
	for _, want := range []string{"lo: it has no native XDP", "MTU", "ip link set peer1 mtu", "find interface nope"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if strings.Contains(fmt.Sprint(err), "up0") || len(entries(t, o.Dir)) != 0 || xdpOf(t, "up0").Attached {
		t.Errorf("error %v, left behind %v", err, entries(t, o.Dir))
	}
	// What is no obstacle is told.
	check(t, netlink.LinkSetDown(up(t, "up0")))
	o.Interfaces = []string{"up0"}
	log.Reset()
	check(t, openForwarder(t, o).Close())
	if !strings.Contains(log.String(), `finding="it is down" remedy="ip link set up0 up"`) {
		t.Errorf("log: %s", log.String())
	}
}

// An interface on which the program runs is taken over whatever is found.
func TestAdoptUnfitInterface(t *testing.T) {
	var log bytes.Buffer
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0"}, Flows: 100}
	f := openForwarder(t, o)
	before := identify(t, f)
	check(t, f.Close())
	// The kernel lets nobody make a veth unfit while a native program runs on it,
	// so the finding is made up.
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	checked, err := o.checked()
	check(t, err)
	l, err := newLoader(checked, edgeSpec(t))
	check(t, err)
	defer leave(l)
	fatal := func(string) ([]nic.Finding, error) {
		return []nic.Finding{{Interface: "up0", Fatal: true, What: "it burns", Remedy: "water"}}, errors.New("no answer")
	}
	check(t, l.judgeInterfaces(fatal))
	if !strings.Contains(log.String(), `finding="it burns" remedy=water`) {
		t.Errorf("log: %s", log.String())
	}
	l.o.Interfaces = []string{"up0", "up1"}
	if err := l.judgeInterfaces(fatal); err == nil || strings.Count(err.Error(), "it burns: water") != 1 {
		t.Errorf("for up1, where it is not attached yet: %v", err)
	}
	if got := identify(t, openForwarder(t, o)); !same(got, before) {
		t.Errorf("adopted %+v, was %+v", got, before)
	}
}

// locked is what the kernel says that a map takes.
func locked(t testing.TB, m *ebpf.Map) int64 {
	t.Helper()
	info, err := m.Info()
	check(t, err)
	n, ok := info.Memlock()
	if !ok {
		t.Fatal("the kernel does not say what a map takes")
	}
	return int64(n)
}

// Memory is what the kernel says, with room for another table of each service.
func TestMemory(t *testing.T) {
	d := oneBox(t)
	check(t, d.Block(t.Context(), nil))
	var kernel int64
	for name, m := range d.coll.Maps {
		if isPinned(name) {
			kernel += locked(t, m)
		}
	}
	for id := range d.state.tables {
		var inner ebpf.MapID
		check(t, d.state.svc.Lookup(id, &inner))
		m, err := ebpf.NewMapFromID(inner)
		check(t, err)
		kernel += 2 * locked(t, m)
		check(t, m.Close())
	}
	if got := stats(t, d.Forwarder).Memory; got < kernel-kernel/100 || got > kernel+kernel/20 {
		t.Errorf("memory is %d, the kernel says %d", got, kernel)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	var log bytes.Buffer
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0"}, Flows: 100_000, Services: 10, Blocked: 1000, Memory: 40 << 20,
		Log: slog.New(slog.NewTextHandler(&log, nil))}
	_, err := Open(t.Context(), o)
	for _, want := range []string{"memory_limit is 40.0 MiB", "raise it to ", "lower node.forwarder.flows from 100000 to "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if len(entries(t, o.Dir)) != 0 {
		t.Errorf("left behind: %v", entries(t, o.Dir))
	}
	needed := regexp.MustCompile(`raise it to (\d+)MiB`).FindStringSubmatch(err.Error())
	mib, err := strconv.ParseInt(needed[1], 10, 64)
	check(t, err)
	o.Memory = mib << 20
	log.Reset()
	f := openForwarder(t, o)
	if !regexp.MustCompile(`msg="memory of the data plane" bytes=\d+ at_most=\d+ maps\.flow=\d+`).MatchString(log.String()) {
		t.Errorf("log: %s", log.String())
	}
	// A blocklist that fits, and one that does not.
	block := func(n int) error {
		var all []netip.Prefix
		for i := range n {
			all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)}), 32))
		}
		return f.Block(t.Context(), all)
	}
	check(t, block(1000))
	if err := block(50_000); err == nil || !strings.Contains(err.Error(), "block ") || !strings.Contains(err.Error(), "instead of 50000") {
		t.Errorf("a large blocklist: %v", err)
	}
	if got := stats(t, f); got.Blocked != 1000 || got.Memory > o.Memory {
		t.Errorf("blocked %d, memory %d of %d", got.Blocked, got.Memory, o.Memory)
	}
	check(t, block(500))
	check(t, f.Close())
	// What is there is taken over, and a warning given.
	o.Memory = 1 << 20
	log.Reset()
	check(t, openForwarder(t, o).Close())
	if !strings.Contains(log.String(), "takes more memory than it may") {
		t.Errorf("log: %s", log.String())
	}
	// A migration makes new maps.
	check(t, os.Rename(pinDir(o.Dir), filepath.Join(o.Dir, oldSchema)))
	if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "memory_limit") {
		t.Errorf("migration beyond the limit: %v", err)
	}
}

// The kernel that this runs on has all that is needed, and a lack has one
// message.
func TestKernel(t *testing.T) {
	spec := edgeSpec(t)
	needs := needsOf(spec)
	check(t, judgeKernel(6<<16, needs))
	var names []string
	for _, n := range needs {
		if err := n.probe(); err != nil {
			t.Errorf("%s: %v", n.what, err)
		}
		names = append(names, n.what)
	}
	for _, want := range []string{"maps of type RingBuf", "maps of type LPMTrie", "map flag 0x400", "helper FnXdpLoadBytes (189)", "helper FnKtimeGetCoarseNs (160)"} {
		if !slices.Contains(names, want) {
			t.Errorf("%q is not among what is needed: %s", want, strings.Join(names, ", "))
		}
	}
	// No kernel has this helper.
	p := spec.Programs[edgeProgEdge]
	p.Instructions = slices.Insert(p.Instructions, 1, asm.BuiltinFunc(9999).Call())
	err := judgeKernel(5<<16|10<<8|3, append(needsOf(spec), need{"sense", func() error { return ebpf.ErrNotSupported }}))
	want := "this kernel, 5.10.3, cannot run the data plane: it lacks helper BuiltinFunc(9999) (9999), sense; install Linux 6.1.0 or later"
	if err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0"}, Flows: 100}
	o, err = o.checked()
	check(t, err)
	check(t, makeDir(o.Dir))
	if _, err := open(o, spec); err == nil || !strings.Contains(err.Error(), "it lacks helper") || len(entries(t, o.Dir)) != 0 {
		t.Errorf("error %v, left behind %v", err, entries(t, o.Dir))
	}
}
