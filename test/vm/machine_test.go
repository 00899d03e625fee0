package vm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/catchment-dev/edge/test/lab"
)

func TestMain(m *testing.M) {
	lab.Janitor()
	os.Exit(m.Run())
}

// patience is what an emulated machine gets.
const patience = 3 * time.Minute

// newLab is one router with a box and a client.
func newLab(ctx context.Context, t *testing.T) *lab.Lab {
	t.Helper()
	l, err := lab.New(ctx, lab.Topology{
		Routers: []lab.RouterSpec{{Name: "r-a", Kind: lab.BIRD}},
		Sites:   []lab.SiteSpec{{Name: "a", Router: "r-a", Boxes: []lab.BoxSpec{{Name: "a1"}}}},
		Regions: []lab.RegionSpec{{Name: "east", Router: "r-a", Origins: 1, Capacity: 10}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// emptyMachine is a machine without a system: the firmware's shell comes up.
func emptyMachine(ctx context.Context, t *testing.T, dir string) Spec {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := Spec{Dir: dir, Disk: filepath.Join(dir, "disk.raw"), Vars: filepath.Join(dir, "vars.fd"), CPUs: 1, MemoryMiB: 256}
	if err := os.WriteFile(s.Disk, make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Copy(ctx, s.Vars, FirmwareVars); err != nil {
		t.Fatal(err)
	}
	return s
}

var shell = regexp.MustCompile(`Shell> `)

// TestMachine starts a machine, types into it, resets it, saves it, goes on from that
// state twice, and cuts its power.
func TestMachine(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l := newLab(ctx, t)
	tap, err := ReplaceLink(l.Routers["r-a"].Host, "a1")
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	spec := emptyMachine(ctx, t, filepath.Join(l.Dir(), "vm"))
	spec.TAP, spec.MAC = tap, "52:54:00:00:00:01"
	m, err := Start(ctx, l.Routers["r-a"].Host, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Kill()
	_, mark := await(ctx, t, m, 0, shell)
	say(ctx, t, m, mark, "before")

	mark = m.Console.Mark()
	if err := m.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, m, mark, shell)
	if n := m.Resets(); n != 1 {
		t.Errorf("%d resets were counted, want 1", n)
	}
	state := filepath.Join(l.Dir(), "state")
	if err := m.Save(ctx, state); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"first", "second"} {
		again := spec
		again.Dir, again.Disk, again.Vars = copies(ctx, t, spec, filepath.Join(l.Dir(), name))
		m, err := Restore(ctx, l.Routers["r-a"].Host, again, state)
		if err != nil {
			t.Fatal(err)
		}
		say(ctx, t, m, 0, name)
		m.Kill()
		select {
		case <-m.Off():
		default:
			t.Errorf("%s: a machine that was killed is not off", name)
		}
	}
}

func copies(ctx context.Context, t *testing.T, s Spec, dir string) (string, string, string) {
	t.Helper()
	disk, vars := filepath.Join(dir, "disk.raw"), filepath.Join(dir, "vars.fd")
	if err := errors.Join(os.Mkdir(dir, 0o755), Copy(ctx, disk, s.Disk), Copy(ctx, vars, s.Vars)); err != nil {
		t.Fatal(err)
	}
	return dir, disk, vars
}

// await waits for the console.
func await(ctx context.Context, t *testing.T, m *Machine, from Mark, re *regexp.Regexp) ([]string, Mark) {
	t.Helper()
	groups, mark, err := m.Console.Await(ctx, from, re)
	if err != nil {
		t.Fatal(err)
	}
	return groups, mark
}

// say has the firmware's shell write a word: on a line of its own, other than the echo
// of the command.
func say(ctx context.Context, t *testing.T, m *Machine, from Mark, word string) {
	t.Helper()
	if err := m.Type("echo " + word + "\r"); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, m, from, regexp.MustCompile(`(?m)^`+word+`$`))
}

// TestStartFails: what qemu says is in the error, and nothing is left running.
func TestStartFails(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l := newLab(ctx, t)
	spec := emptyMachine(ctx, t, filepath.Join(l.Dir(), "vm"))
	spec.Disk += ".gone"
	m, err := Start(ctx, l.Routers["r-a"].Host, spec)
	if err == nil {
		m.Kill()
		t.Fatal("a machine without its disk started")
	}
	if want := regexp.MustCompile(`(?s)(qemu has ended|it is gone).*disk\.raw\.gone`); !want.MatchString(err.Error()) {
		t.Errorf("the error is %q, want it to match %q", err, want)
	}
}

// TestReplaceLink: the TAP has what the interface had.
func TestReplaceLink(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l := newLab(ctx, t)
	r := l.Routers["r-a"]
	was := describe(t, r.Host, "a1")
	tap, err := ReplaceLink(r.Host, "a1")
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	if is := describe(t, r.Host, "a1"); is.kind != "tuntap" || was.kind != "veth" || is.mtu != was.mtu || is.addrs != was.addrs {
		t.Errorf("the interface was %+v and is %+v", was, is)
	}
}

type description struct {
	kind, addrs string
	mtu         int
}

func describe(t *testing.T, h *lab.Host, name string) (d description) {
	t.Helper()
	err := h.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		d.kind, d.mtu = link.Type(), link.Attrs().MTU
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		for _, a := range addrs {
			if !a.IP.IsLinkLocalUnicast() {
				d.addrs += a.IPNet.String() + " "
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}
