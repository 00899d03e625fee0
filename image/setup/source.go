package setup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Volumes are the block devices of a box.
type Volumes interface {
	// Find returns the devices that hold a FAT or ISO file system with this
	// label, in any case, in the order of their names.
	Find(label string) ([]string, error)
	// Open makes the files of a device readable, and nothing else of it, in a
	// folder that nobody else sees and that is gone after done.
	Open(device string) (dir string, done func(), err error)
	// ESP returns the device of the box's own EFI partition, if it has one.
	ESP() (device string, ok bool)
}

// closed are the volumes of a box whose configuration says that none is looked at:
// their labels are read, for a note, and nothing of them is mounted.
type closed struct{ Volumes }

func (closed) Find(string) ([]string, error) { return nil, nil }

// source is what one source of a box holds.
type source struct {
	// name is what people call it; ok says that it holds anything.
	name     string
	ok       bool
	tree     Tree
	problems Problems
	notes    []string
	// onESP are the names of the credentials on the EFI partition.
	onESP []string
}

// The labels of volumes. EDGECFG has the files of a configuration, cidata those
// of NoCloud.
const (
	configLabel  = "EDGECFG"
	noCloudLabel = "CIDATA"
)

// gather returns the first source that holds anything. Sources are not mixed:
// half of one box's configuration and half of another's would be nobody's.
func gather(g given, volumes Volumes) source {
	found := ofCredentials(g, volumes)
	if found.ok {
		return found
	}
	before := found.notes
	found = ofVolumes(volumes, configLabel, func(s *source, dir string) (err error) {
		s.tree, s.problems, err = ReadTree(dir)
		s.ok = true
		return err
	})
	before = append(before, found.notes...)
	if found.ok {
		found.notes = before
		return found
	}
	found = ofVolumes(volumes, noCloudLabel, func(s *source, dir string) (err error) {
		s.tree, s.problems, s.notes, s.ok, err = readNoCloud(dir)
		return err
	})
	found.notes = append(before, found.notes...)
	return found
}

// ofCredentials reads all credentials. An EFI partition that cannot be read, on a
// box that was booted from it, is no reason to do without the others.
func ofCredentials(g given, volumes Volumes) source {
	s := source{name: "credentials"}
	if device, ok := volumes.ESP(); ok {
		dir, done, err := volumes.Open(device)
		if err != nil {
			s.notes = []string{fmt.Sprintf("credentials of the EFI partition: %v", err)}
		} else {
			defer done()
			g.esp = filepath.Join(dir, "loader/credentials")
		}
	}
	all, onESP, err := g.read()
	s.onESP = onESP
	if s.tree, s.problems, s.ok = credentials(all); err != nil {
		s.ok = true
		s.problems.at("", "", "%v", err)
	}
	return s
}

// ofVolumes reads the volumes of a label. Two that differ are a problem: which
// of them is found first is chance.
func ofVolumes(volumes Volumes, label string, read func(*source, string) error) source {
	devices, err := volumes.Find(label)
	if err != nil {
		return source{notes: []string{fmt.Sprintf("volumes labelled %s: %v", label, err)}}
	}
	var all []source
	for _, device := range devices {
		s := source{name: fmt.Sprintf("volume %s on %s", label, device)}
		if err := readVolume(volumes, device, &s, read); err != nil {
			s.ok = true
			s.problems.at("", "make it anew, as FAT or ISO 9660 with Rock Ridge or Joliet", "it cannot be read: %v", err)
		}
		if s.ok || len(s.notes) > 0 {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return source{}
	}
	first := all[0]
	differs := slices.ContainsFunc(all, func(s source) bool { return s.tree.Digest() != first.tree.Digest() })
	if differs {
		var names []string
		for _, s := range all {
			names = append(names, strings.TrimPrefix(s.name, "volume "))
		}
		first.problems.at("", "take away all but one", "there are several volumes, and they differ: %s", strings.Join(names, ", "))
	}
	return first
}

func readVolume(volumes Volumes, device string, s *source, read func(*source, string) error) error {
	dir, done, err := volumes.Open(device)
	if err != nil {
		return err
	}
	defer done()
	return read(s, dir)
}

// Found is what the sources of a box hold.
type Found struct {
	// OK is false if none of them holds anything; Notes may say why.
	OK bool
	// Name is what people call the source.
	Name     string
	Tree     Tree
	Problems Problems
	Notes    []string
}

// Gather reads the sources of a running box, for `edgectl config apply` without a
// folder.
func (p Place) Gather(dirs []string, volumes Volumes) Found {
	s := gather(p.given(dirs), volumes)
	return Found{s.ok, s.name, s.tree, s.problems, s.notes}
}

// given is where credentials are at this moment of the boot.
func (p Place) given(dirs []string) given {
	g := given{dirs: dirs}
	b, err := os.ReadFile(filepath.Join(p.Run, bootedFile))
	g.later, g.booted = err == nil, strings.Fields(string(b))
	return g
}

// remember keeps, at the first look of a boot, the names of the credentials that
// the system has been given of the EFI partition.
func (p Place) remember(s source) error {
	if _, err := os.Stat(filepath.Join(p.Run, bootedFile)); err == nil {
		return nil
	}
	return p.file(bootedFile, []byte(strings.Join(s.onESP, "\n")), access{mode: 0o644})
}
