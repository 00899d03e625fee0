package xdp

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// quietPair makes a namespace with two veths that say nothing by themselves.
func quietPair(t *testing.T) string {
	t.Helper()
	newNS(t)
	sysctl(t, "ipv6/conf/default/disable_ipv6", "1")
	veth(t, "up0", "peer0")
	veth(t, "up1", "peer1")
	return bpffs(t) + "/edge"
}

func xdpOf(t testing.TB, ifname string) *netlink.LinkXdp {
	t.Helper()
	dev, err := netlink.LinkByName(ifname)
	check(t, err)
	if dev.Attrs().Xdp == nil {
		return &netlink.LinkXdp{}
	}
	return dev.Attrs().Xdp
}

// identity is what must not change when a process adopts the data plane.
type identity struct {
	prog  uint32
	links []link.ID
	flow  ebpf.MapID
}

func identify(t testing.TB, f *Forwarder) identity {
	t.Helper()
	var id identity
	info, err := f.program().Info()
	check(t, err)
	p, _ := info.ID()
	id.prog = uint32(p)
	for _, u := range f.uplinks {
		l, err := u.link.Info()
		check(t, err)
		id.links = append(id.links, l.ID)
	}
	m, err := f.coll.Maps[edgeMapFlow].Info()
	check(t, err)
	id.flow, _ = m.ID()
	return id
}

func same(a, b identity) bool {
	return a.prog == b.prog && a.flow == b.flow && slices.Equal(a.links, b.links)
}

func entries(t testing.TB, dir string) []string {
	t.Helper()
	es, err := os.ReadDir(dir)
	check(t, err)
	var names []string
	for _, e := range es {
		names = append(names, e.Name())
	}
	return names
}

func TestAdopt(t *testing.T) {
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0", "up1"}, Flows: 100}
	f := openForwarder(t, o)
	check(t, f.Attached())
	before := identify(t, f)
	check(t, f.Close())
	if !xdpOf(t, "up0").Attached || !xdpOf(t, "up1").Attached {
		t.Fatal("detached by Close")
	}
	f = openForwarder(t, o)
	check(t, f.Attached())
	if after := identify(t, f); !same(before, after) {
		t.Errorf("before %+v, adopted %+v", before, after)
	}
}

func TestInterfacesComeAndGo(t *testing.T) {
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0"}, Flows: 100}
	f := openForwarder(t, o)
	id := identify(t, f)
	for _, c := range []struct {
		use  []string
		kept bool // up0's link is the first one
	}{{[]string{"up0", "up1"}, true}, {[]string{"up1"}, false}, {[]string{"up0"}, false}} {
		check(t, f.Close())
		o.Interfaces = c.use
		f = openForwarder(t, o)
		check(t, f.Attached())
		if got := identify(t, f); got.prog != id.prog || got.flow != id.flow || c.kept != (got.links[0] == id.links[0]) {
			t.Errorf("%v: %+v, first %+v", c.use, got, id)
		}
		for _, name := range []string{"up0", "up1"} {
			if got := xdpOf(t, name).Attached; got != slices.Contains(c.use, name) {
				t.Errorf("%v: %s attached: %v", c.use, name, got)
			}
		}
		if got := stats(t, f).Interfaces; !slices.Equal(got, c.use) {
			t.Errorf("stats name %v, want %v", got, c.use)
		}
	}
}

func TestModeChanges(t *testing.T) {
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0"}, Flows: 100}
	for _, mode := range []edge.XDPMode{edge.XDPNative, edge.XDPGeneric, edge.XDPNative} {
		o.Mode = mode
		f := openForwarder(t, o)
		check(t, f.Attached())
		if got := xdpOf(t, "up0").AttachMode; (got == attachedNative) != (mode == edge.XDPNative) {
			t.Errorf("mode %s is attached as %d", mode, got)
		}
		check(t, f.Close())
	}
}

// lo has no native XDP.
func TestNativeRefused(t *testing.T) {
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0", "lo"}, Flows: 100}
	_, err := Open(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "interface lo: it has no native XDP") || !strings.Contains(err.Error(), "mode: generic") {
		t.Errorf("error is %v", err)
	}
	if xdpOf(t, "up0").Attached || len(entries(t, o.Dir)) != 0 {
		t.Errorf("left behind: attached=%v, %v", xdpOf(t, "up0").Attached, entries(t, o.Dir))
	}
	// The same on top of a running one: it must go on as it was.
	o.Interfaces = []string{"up0"}
	f := openForwarder(t, o)
	before := identify(t, f)
	check(t, f.Close())
	o.Interfaces = []string{"up1", "lo"}
	if _, err := Open(t.Context(), o); err == nil {
		t.Fatal("native mode on lo is accepted")
	}
	if xdpOf(t, "up1").Attached {
		t.Error("up1 stays attached after a failed open")
	}
	o.Interfaces = []string{"up0"}
	f = openForwarder(t, o)
	check(t, f.Attached())
	if after := identify(t, f); !same(before, after) {
		t.Errorf("before %+v, after a failed open %+v", before, after)
	}
	check(t, f.Close())
	// Generic on lo works, and is refused natively later: it must run on.
	check(t, Remove(o.Dir))
	o.Interfaces, o.Mode = []string{"lo"}, edge.XDPGeneric
	check(t, openForwarder(t, o).Close())
	o.Mode = edge.XDPNative
	if _, err := Open(t.Context(), o); err == nil {
		t.Fatal("native mode on lo is accepted")
	}
	if xdpOf(t, "lo").AttachMode != attachedGeneric {
		t.Error("the generic program is gone after native was refused")
	}
	o.Mode = edge.XDPGeneric
	check(t, openForwarder(t, o).Attached())
}

func TestBusyInterface(t *testing.T) {
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0"}, Flows: 100}
	stub, err := AttachPassStub("up0")
	check(t, err)
	_, err = Open(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "another XDP program") {
		t.Errorf("error is %v", err)
	}
	check(t, stub.Close())
	check(t, openForwarder(t, o).Attached())
}

func TestIncompatible(t *testing.T) {
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0"}, Flows: 100}
	check(t, openForwarder(t, o).Close())
	o.Flows = 200
	_, err := Open(t.Context(), o)
	if !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), "map flow") || !strings.Contains(err.Error(), "remove") {
		t.Errorf("another size of the flow table: %v", err)
	}
	if !xdpOf(t, "up0").Attached {
		t.Error("the old data plane is gone")
	}
	check(t, Remove(o.Dir))
	if xdpOf(t, "up0").Attached {
		t.Error("attached after Remove")
	}
	if _, err := os.Stat(o.Dir); err == nil {
		t.Error("directory is there after Remove")
	}
	check(t, Remove(o.Dir))
	check(t, openForwarder(t, o).Close())

	for name, want := range map[string]string{
		"v0": "schema v0 is pinned, and this version takes over v1 and v2 only",
		"v3": "a newer version has pinned schema v3", "v10": "a newer version has pinned schema v10", "vX": "vX among the pins is no schema",
	} {
		check(t, os.Mkdir(filepath.Join(o.Dir, name), 0o700))
		if _, err := Open(t.Context(), o); !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "rm -r "+o.Dir) {
			t.Errorf("error %v does not say %q and what to do", err, want)
		}
		check(t, os.Remove(filepath.Join(o.Dir, name)))
	}
	check(t, openForwarder(t, o).Attached())
}

// A crash in the middle of the first load leaves an attached program and half
// the pins.
func TestUnfinishedLoad(t *testing.T) {
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0"}, Flows: 100}
	check(t, openForwarder(t, o).Close())
	check(t, os.Rename(pinDir(o.Dir), buildDir(o.Dir)))
	check(t, os.Remove(filepath.Join(buildDir(o.Dir), edgeMapFlow)))
	f := openForwarder(t, o)
	check(t, f.Attached())
	if got := entries(t, o.Dir); !slices.Equal(got, []string{schema}) {
		t.Errorf("pins: %v", got)
	}
}

func TestInterfaceIsReplaced(t *testing.T) {
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0"}, Flows: 100}
	f := openForwarder(t, o)
	dev, err := netlink.LinkByName("up0")
	check(t, err)
	check(t, netlink.LinkDel(dev))
	if err := f.Attached(); err == nil || !strings.Contains(err.Error(), "up0 is not there") {
		t.Errorf("without the interface: %v", err)
	}
	veth(t, "up0", "peer0")
	if err := f.Attached(); err == nil || !strings.Contains(err.Error(), "up0 has been replaced") {
		t.Errorf("another interface of that name: %v", err)
	}
	check(t, f.Close())
	check(t, openForwarder(t, o).Attached())
}

func TestExtraInterface(t *testing.T) {
	f := openForwarder(t, Options{Dir: quietPair(t), Interfaces: []string{"up0"}, Flows: 100})
	check(t, f.Attach("up1"))
	check(t, f.Attached())
	if err := f.Attach("up1"); err == nil {
		t.Error("attached twice")
	}
	if err := f.Attach("nope"); err == nil || !strings.Contains(err.Error(), "nope") {
		t.Errorf("missing interface: %v", err)
	}
	check(t, f.Attached())
	check(t, f.Detach("up1"))
	if xdpOf(t, "up1").Attached {
		t.Error("attached after Detach")
	}
	for _, name := range []string{"up1", "up0"} {
		if err := f.Detach(name); err == nil {
			t.Errorf("%s detached though it was not attached by Attach", name)
		}
	}
	check(t, f.Attach("up1"))
	check(t, f.Close())
	if xdpOf(t, "up1").Attached {
		t.Error("extra interface stays attached after Close")
	}
}

func TestBadOptions(t *testing.T) {
	dir := quietPair(t)
	for want, o := range map[string]Options{
		"no interface":        {Dir: dir, Flows: 1},
		"named twice":         {Dir: dir, Flows: 1, Interfaces: []string{"up0", "up0"}},
		`mode "fast"`:         {Dir: dir, Flows: 1, Interfaces: []string{"up0"}, Mode: "fast"},
		"0 flows":             {Dir: dir, Interfaces: []string{"up0"}},
		"not on a bpffs":      {Dir: t.TempDir() + "/a/b", Flows: 1, Interfaces: []string{"up0"}},
		"find interface up.7": {Dir: dir, Flows: 1, Interfaces: []string{"up.7"}},
	} {
		if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

func TestLock(t *testing.T) {
	o := Options{Dir: quietPair(t), Interfaces: []string{"up0"}, Flows: 10}
	f := openForwarder(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := Open(ctx, o); err == nil || !strings.Contains(err.Error(), "another process has it open") {
		t.Errorf("opened twice: %v", err)
	}
	if err := Remove(o.Dir); err == nil {
		t.Error("removed under an open forwarder")
	}
	check(t, f.Attached())
	check(t, f.Close())
	check(t, f.Close())
	check(t, Remove(o.Dir))
}

func TestLinkPinNames(t *testing.T) {
	for name, want := range map[string]string{"eth0": "link_eth0", "eth0.7": "link_eth0_2e7", "a_2e7": "link_a_5f2e7"} {
		if got := linkPin(name); got != want {
			t.Errorf("pin of %s is %s, want %s", name, got, want)
		}
	}
}

// Whoever removes a pin by hand is told while nothing has happened yet.
func TestRemovedPin(t *testing.T) {
	for _, name := range []string{linkPin("up0"), edgeMapFlow} {
		o := Options{Dir: quietPair(t), Interfaces: []string{"up0"}, Flows: 100}
		f := openForwarder(t, o)
		check(t, f.Pinned())
		check(t, os.Remove(filepath.Join(pinDir(o.Dir), name)))
		check(t, f.Attached())
		if err := f.Pinned(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without the pin %s: %v", name, err)
		}
	}
}
