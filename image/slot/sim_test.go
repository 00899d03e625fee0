package slot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// simDisk is a disk whose power can be cut. What is written is in a cache until the
// volume is closed; a cut leaves of the cache any sectors, and of the directory of the
// FAT any entries. A file that has grown has, where its sectors did not reach the disk,
// what a removed file had there.
type simDisk struct {
	rng   *rand.Rand
	disk  map[string][]byte // what is on the disk: partitions, and files as "esp/NAME"
	cache map[string][]byte // how it looks to programs
	dirty []simWrite
	stale []byte // of the last file that was removed
	steps int
	cutAt int // the step that is not made; 0: none
	noted []string
}

type simWrite struct {
	name   string
	at     int
	data   []byte
	remove bool
}

type powerCut struct{}

const simSector = 512

func newSimDisk(seed uint64) *simDisk {
	return &simDisk{rng: rand.New(rand.NewPCG(seed, 7)), disk: map[string][]byte{}, cache: map[string][]byte{}}
}

// put has something on the disk from the beginning.
func (d *simDisk) put(name string, b []byte) {
	d.disk[name], d.cache[name] = slices.Clone(b), slices.Clone(b)
}

// step counts, and cuts the power.
func (d *simDisk) step(format string, args ...any) {
	d.steps++
	d.noted = append(d.noted, fmt.Sprintf(format, args...))
	if d.steps == d.cutAt {
		d.lose()
		panic(powerCut{})
	}
}

// lose leaves on the disk what a cut leaves.
func (d *simDisk) lose() {
	for _, w := range d.dirty {
		if w.remove {
			if d.rng.IntN(2) == 0 {
				delete(d.disk, w.name)
			}
			continue
		}
		isFile := strings.HasPrefix(w.name, "esp/")
		old, there := d.disk[w.name]
		if isFile && !there && d.rng.IntN(3) == 0 {
			continue // its entry did not get there
		}
		end := w.at + len(w.data)
		if len(old) < end {
			if d.rng.IntN(3) == 0 {
				end = len(old) + d.rng.IntN(end-len(old)+1)
			}
			for len(old) < end {
				old = append(old, d.staleAt(len(old)))
			}
		}
		for at := 0; at < len(w.data); at += simSector {
			if d.rng.IntN(2) == 0 && w.at+at < len(old) {
				copy(old[w.at+at:], w.data[at:min(at+simSector, len(w.data))])
			}
		}
		d.disk[w.name] = old
	}
	d.restart()
}

func (d *simDisk) staleAt(i int) byte {
	if i < len(d.stale) {
		return d.stale[i]
	}
	return 0xA5
}

// restart forgets the cache.
func (d *simDisk) restart() {
	d.dirty, d.cutAt, d.steps, d.noted = nil, 0, 0, nil
	d.cache = map[string][]byte{}
	for name, b := range d.disk {
		d.cache[name] = slices.Clone(b)
	}
}

// flush brings to the disk what is in the cache of one volume, or of the whole FAT.
func (d *simDisk) flush(name string) {
	isFile := strings.HasPrefix(name, "esp/")
	var rest []simWrite
	for _, w := range d.dirty {
		if w.name != name && !(isFile && strings.HasPrefix(w.name, "esp/")) {
			rest = append(rest, w)
			continue
		}
		if b, ok := d.cache[w.name]; ok {
			d.disk[w.name] = slices.Clone(b)
		} else {
			delete(d.disk, w.name)
		}
	}
	d.dirty = rest
}

func (d *simDisk) writer() *Writer {
	return &Writer{
		Partition: func(name string) (Volume, error) {
			if _, ok := d.cache[name]; !ok {
				return nil, fmt.Errorf("no partition %s", name)
			}
			return &simVolume{d, name, len(d.cache[name])}, nil
		},
		ESP:      simESP{d},
		RootHash: fakeRootHash,
	}
}

type simVolume struct {
	d    *simDisk
	name string
	most int // 0: it grows
}

func (v *simVolume) ReadAt(p []byte, at int64) (int, error) {
	return bytes.NewReader(v.d.cache[v.name]).ReadAt(p, at)
}

func (v *simVolume) WriteAt(p []byte, at int64) (int, error) {
	v.d.step("write %s at %d, %d bytes", v.name, at, len(p))
	b, end := v.d.cache[v.name], int(at)+len(p)
	if v.most > 0 && end > v.most {
		return 0, io.ErrShortWrite
	}
	for len(b) < end {
		b = append(b, make([]byte, end-len(b))...)
	}
	copy(b[at:], p)
	v.d.cache[v.name] = b
	v.d.dirty = append(v.d.dirty, simWrite{name: v.name, at: int(at), data: slices.Clone(p)})
	return len(p), nil
}

func (v *simVolume) Close() error {
	v.d.step("sync %s", v.name)
	v.d.flush(v.name)
	return nil
}

type simESP struct{ d *simDisk }

func (e simESP) List() ([]ESPFile, error) {
	var out []ESPFile
	for _, name := range slices.Sorted(maps.Keys(e.d.cache)) {
		if file, ok := strings.CutPrefix(name, "esp/"); ok {
			b := e.d.cache[name]
			out = append(out, ESPFile{file, int64(len(b)), bytes.HasPrefix(b, []byte("MZ")) && len(b) >= leastUKI})
		}
	}
	return out, nil
}

func (e simESP) Open(name string) (Volume, error) {
	if _, ok := e.d.cache["esp/"+name]; !ok {
		e.d.step("make %s", name)
		e.d.cache["esp/"+name] = nil
		e.d.dirty = append(e.d.dirty, simWrite{name: "esp/" + name})
	}
	return &simVolume{e.d, "esp/" + name, 0}, nil
}

func (e simESP) Remove(name string) error {
	b, ok := e.d.cache["esp/"+name]
	if !ok {
		return errors.New("not there")
	}
	delete(e.d.cache, "esp/"+name)
	e.d.dirty = append(e.d.dirty, simWrite{name: "esp/" + name, remove: true})
	e.d.step("remove %s", name)
	e.d.flush("esp/" + name)
	e.d.stale = b
	return nil
}
