package slot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

const (
	simRoot   = 3 * block
	simVerity = 16 << 10
)

// twoSlots is a disk with one system in each slot: the first of them runs, from a.
func twoSlots(seed uint64, running, other system) *simDisk {
	d := newSimDisk(seed)
	for s, sys := range map[Slot]system{A: running, B: other} {
		d.put(s.VerityName(), padded(sys.verity, simVerity))
		d.put(s.RootName(), padded(sys.root, simRoot))
		d.put("esp/"+UKI{Version: sys.version}.Name(), sys.uki)
	}
	d.put("esp/other.efi", []byte("MZ of somebody else"))
	return d
}

// boots says what is wrong with what could be booted from a disk: every UKI must be
// whole and have a slot that is, and the version that runs must be there.
func boots(d *simDisk, running system, all ...system) error {
	if got := d.disk["esp/"+UKI{Version: running.version}.Name()]; !bytes.Equal(got, running.uki) {
		return errors.New("the UKI of the version that runs was touched")
	}
	if !bytes.HasPrefix(d.disk[A.RootName()], running.root) || !bytes.HasPrefix(d.disk[A.VerityName()], running.verity) {
		return errors.New("the slot that runs was touched")
	}
	if string(d.disk["esp/other.efi"]) != "MZ of somebody else" {
		return errors.New("a file of somebody else was touched")
	}
	files, err := simESP{&simDisk{cache: d.disk}}.List()
	if err != nil {
		return err
	}
	for _, f := range files {
		u, ok := ParseUKI(f.Name)
		if !ok || !f.Bootable || u.Version == running.version {
			continue
		}
		i := slices.IndexFunc(all, func(s system) bool { return s.version == u.Version })
		switch {
		case i < 0:
			return fmt.Errorf("%s is of no version", f.Name)
		case !bytes.Equal(d.disk["esp/"+f.Name], all[i].uki):
			return fmt.Errorf("%s is not whole", f.Name)
		case !bytes.HasPrefix(d.disk[B.RootName()], all[i].root), !bytes.HasPrefix(d.disk[B.VerityName()], all[i].verity):
			return fmt.Errorf("%s is there, and its root is not whole", f.Name)
		}
	}
	return nil
}

// cut runs f until the power fails, and says whether it did.
func cut(d *simDisk, at int, f func() error) (failed bool, err error) {
	d.cutAt = at
	defer func() {
		if r := recover(); r == (powerCut{}) {
			failed, err = true, nil
		} else if r != nil {
			panic(r)
		}
	}()
	return false, f()
}

func TestPowerCutAnywhere(t *testing.T) {
	now, old, next := newSystem("1.1.0"), newSystem("1.0.0"), newSystem("1.2.0")
	dir, m := next.pack(t, newSigner(t))
	job := Job{Manifest: m, Packed: packed(t, dir, m), Slot: B, Running: now.version, Tries: 3}
	cuts, last := 0, 0
	for seed := range uint64(3) {
		for at := 1; ; at++ {
			d := twoSlots(seed*1000+uint64(at), now, old)
			failed, err := cut(d, at, func() error { return d.writer().Write(t.Context(), job) })
			if err != nil {
				t.Fatalf("without a cut: %v", err)
			}
			if err := boots(d, now, old, next); err != nil {
				t.Fatalf("seed %d, cut at step %d: %v", seed, at, err)
			}
			if !failed {
				last = at - 1
				break
			}
			cuts++
			// A second cut somewhere, and then none.
			if failed, err := cut(d, 1+int(seed)*3, func() error { return d.writer().Write(t.Context(), job) }); err != nil {
				t.Fatalf("seed %d, run after a cut at step %d: %v", seed, at, err)
			} else if err := boots(d, now, old, next); err != nil {
				t.Fatalf("seed %d, cut at step %d, then again (%v): %v", seed, at, failed, err)
			}
			complete(t, d, job, now, next)
		}
	}
	if cuts < 40 || last < 15 {
		t.Errorf("%d cuts in %d steps: the writer does not pass by this disk any more", cuts, last)
	}
}

// complete writes without a cut, and looks at all that has to be there then.
func complete(t *testing.T, d *simDisk, job Job, now, next system) {
	t.Helper()
	d.restart()
	w := d.writer()
	if err := w.Write(t.Context(), job); err != nil {
		t.Fatalf("the last run: %v", err)
	}
	if err := w.Holds(t.Context(), job.Manifest, job.Slot); err != nil {
		t.Fatalf("after the last run: %v", err)
	}
	d.lose() // what was not synced is gone
	if err := boots(d, now, next); err != nil {
		t.Fatal(err)
	}
	files := slices.DeleteFunc(slices.Sorted(maps.Keys(d.disk)), func(n string) bool { return !strings.HasPrefix(n, "esp/") })
	if want := []string{"esp/edge_1.1.0.efi", "esp/edge_1.2.0+3.efi", "esp/other.efi"}; !slices.Equal(files, want) {
		t.Errorf("the ESP has %v, want %v", files, want)
	}
}

func TestPowerCutInRecount(t *testing.T) {
	now, old := newSystem("1.1.0"), newSystem("1.0.0")
	for _, c := range [][2]UKI{
		{{Version: now.version}, {Version: now.version, Counted: true}},
		{{Version: now.version, Counted: true}, {Version: now.version, Counted: true, Left: 3}},
		{{Version: now.version, Counted: true, Left: 2, Done: 1}, {Version: now.version, Counted: true}},
	} {
		recountCuts(t, now, old, c[0], c[1])
	}
}

func recountCuts(t *testing.T, now, old system, from, to UKI) {
	t.Helper()
	for seed := range uint64(2) {
		for at := 1; ; at++ {
			d := twoSlots(seed*1000+uint64(at), now, old)
			delete(d.disk, "esp/edge_1.1.0.efi")
			delete(d.cache, "esp/edge_1.1.0.efi")
			d.put("esp/"+from.Name(), now.uki)
			failed, err := cut(d, at, func() error { return d.writer().Recount(t.Context(), from, to) })
			if err != nil {
				t.Fatal(err)
			}
			all, err := d.writer().UKIs()
			if err != nil {
				t.Fatal(err)
			}
			u, ok, err := Of(all, now.version)
			if err != nil || !ok || !bytes.Equal(d.disk["esp/"+u.Name()], now.uki) {
				t.Fatalf("seed %d, cut at step %d: %v of %v, %v: the version that runs cannot be booted", seed, at, u, all, err)
			}
			for _, k := range all { // two of them are both whole
				if k.Version == now.version && !bytes.Equal(d.disk["esp/"+k.Name()], now.uki) {
					t.Fatalf("seed %d, cut at step %d: %s is not whole", seed, at, k.Name())
				}
			}
			if err := d.writer().Recount(t.Context(), u, to); err != nil {
				t.Fatal(err)
			}
			if all, _ = d.writer().UKIs(); len(all) != 2 || !slices.Contains(all, UKI{Version: old.version}) || !slices.Contains(all, to) {
				t.Fatalf("in the end there are %v", all)
			}
			if !failed {
				break
			}
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	now, old, next := newSystem("1.1.0"), newSystem("1.0.0"), newSystem("1.2.0")
	by := newSigner(t)
	wrongSeal := newSystem("1.2.0")
	wrongSeal.uki = program("roothash="+strings.Repeat("0", 64)+" edge.version=1.2.0", make([]byte, 5000))
	dir, m := next.pack(t, by)
	badDir, badM := wrongSeal.pack(t, by)
	good := Job{Manifest: m, Packed: packed(t, dir, m), Slot: B, Running: now.version, Tries: 3}
	change := func(f func(*Job)) Job {
		j, copied := good, *m
		copied.Files = slices.Clone(m.Files)
		j.Manifest = &copied
		f(&j)
		return j
	}
	part := func(j *Job, p Part) *File {
		return &j.Manifest.Files[slices.IndexFunc(j.Manifest.Files, func(f File) bool { return f.Part == p })]
	}
	for _, c := range []struct {
		name    string
		job     Job
		want    string
		prepare func(*simDisk)
		kept    bool // the other version can still be booted
	}{
		{name: "the version that runs", job: change(func(j *Job) { j.Running = "1.2.0" }), want: "it is the version that runs", kept: true},
		{name: "a file that is gone", job: change(func(j *Job) {
			j.Packed = maps.Clone(j.Packed)
			j.Packed[Kernel] += ".gone"
		}), want: "not there any more", kept: true},
		{name: "no tries", job: change(func(j *Job) { j.Tries = 0 }), want: "0 tries, want 1 to 9", kept: true},
		{name: "the running UKI is not there", job: good, want: "has no UKI of version 1.1.0", prepare: func(d *simDisk) { delete(d.cache, "esp/edge_1.1.0.efi") }, kept: true},
		{name: "two UKIs of the running version", job: good, want: "both edge_1.1.0+2-1.efi and edge_1.1.0.efi", prepare: func(d *simDisk) { d.put("esp/edge_1.1.0+2-1.efi", now.uki) }, kept: true},
		{name: "a root that is not what it says", job: change(func(j *Job) { part(j, Root).SHA256 = strings.Repeat("a", 64) }), want: "its sum is not"},
		{name: "a root that is longer", job: change(func(j *Job) { part(j, Root).Size-- }), want: "not the 524987 bytes"},
		{name: "a root that is shorter", job: change(func(j *Job) { part(j, Root).Size++ }), want: "not the 524989 bytes"},
		{name: "a UKI that is not what it says", job: change(func(j *Job) { part(j, Kernel).SHA256 = strings.Repeat("a", 64) }), want: "its sum is not"},
		{name: "a root hash of another", job: change(func(j *Job) { j.Manifest.RootHash = strings.Repeat("a", 64) }), want: "the payload is wrong"},
		{name: "a UKI sealed for another root", job: Job{Manifest: badM, Packed: packed(t, badDir, badM), Slot: B, Running: now.version, Tries: 3}, want: "the UKI is sealed with"},
		{name: "a partition that is too small", job: good, want: "short write", prepare: func(d *simDisk) { d.put("edge-root-b", make([]byte, block)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := twoSlots(1, now, old)
			if c.prepare != nil {
				c.prepare(d)
			}
			before := espBytes(d)
			err := d.writer().Write(t.Context(), c.job)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if espBytes(d) > before {
				t.Errorf("the ESP has %d bytes, and had %d", espBytes(d), before)
			}
			_, there := d.cache["esp/edge_1.0.0.efi"]
			if there != c.kept {
				t.Errorf("the other version is there: %v", there)
			}
			for name := range d.cache {
				if strings.HasPrefix(name, "esp/edge_1.2.0") {
					t.Errorf("%s is left", name)
				}
			}
		})
	}
}

func espBytes(d *simDisk) (n int) {
	for name, b := range d.cache {
		if strings.HasPrefix(name, "esp/") {
			n += len(b)
		}
	}
	return n
}

// TestWriteIsInterrupted: an operator presses ^C, at any step, and nothing of the new
// UKI stays.
func TestWriteIsInterrupted(t *testing.T) {
	now, old, next := newSystem("1.1.0"), newSystem("1.0.0"), newSystem("1.2.0")
	dir, m := next.pack(t, newSigner(t))
	job := Job{Manifest: m, Packed: packed(t, dir, m), Slot: B, Running: now.version, Tries: 3}
	interrupted := 0
	for at := range 30 {
		d := twoSlots(1, now, old)
		ctx, cancel := context.WithCancel(t.Context())
		w := d.writer()
		partition := w.Partition
		calls := 0
		count := func() {
			if calls++; calls == at {
				cancel()
			}
		}
		w.Partition = func(name string) (Volume, error) { count(); return partition(name) }
		w.ESP = countedESP{w.ESP, count}
		err := w.Write(ctx, job)
		cancel()
		if err != nil {
			interrupted++
			if !errors.Is(err, context.Canceled) {
				t.Errorf("call %d: %v", at, err)
			}
			for name := range d.cache {
				if strings.HasPrefix(name, "esp/edge_1.2.0") {
					t.Errorf("call %d: %s is left", at, name)
				}
			}
		}
		if err := boots(d, now, old, next); err != nil {
			t.Errorf("call %d: %v", at, err)
		}
	}
	if interrupted < 8 {
		t.Errorf("only %d were interrupted", interrupted)
	}
}

type countedESP struct {
	ESP
	count func()
}

func (c countedESP) Open(name string) (Volume, error) { c.count(); return c.ESP.Open(name) }

func TestHolds(t *testing.T) {
	now, next := newSystem("1.1.0"), newSystem("1.2.0")
	dir, m := next.pack(t, newSigner(t))
	job := Job{Manifest: m, Packed: packed(t, dir, m), Slot: B, Running: now.version, Tries: 2}
	for name, c := range map[string]struct {
		spoil func(*simDisk)
		want  string
	}{
		"whole":        {func(*simDisk) {}, ""},
		"root":         {func(d *simDisk) { d.cache[B.RootName()][5] ^= 1 }, "root of slot b"},
		"verity":       {func(d *simDisk) { d.cache[B.VerityName()][5] ^= 1 }, "verity of slot b"},
		"uki":          {func(d *simDisk) { d.cache["esp/edge_1.2.0+2.efi"][5000] ^= 1 }, "what is read back"},
		"no uki":       {func(d *simDisk) { delete(d.cache, "esp/edge_1.2.0+2.efi") }, "no UKI of version 1.2.0"},
		"headless uki": {func(d *simDisk) { d.cache["esp/edge_1.2.0+2.efi"][0] = 0 }, "no UKI of version 1.2.0"},
		"spent": {func(d *simDisk) {
			d.cache["esp/edge_1.2.0+0-2.efi"] = d.cache["esp/edge_1.2.0+2.efi"]
			delete(d.cache, "esp/edge_1.2.0+2.efi")
		}, "no tries left"},
	} {
		d := twoSlots(1, now, newSystem("1.0.0"))
		if err := d.writer().Write(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		c.spoil(d)
		err := d.writer().Holds(t.Context(), m, B)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
