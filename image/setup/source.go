package setup

import (
	"fmt"
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

// source is what one source of a box holds.
type source struct {
	// name is what people call it; ok says that it holds anything.
	name     string
	ok       bool
	tree     Tree
	problems Problems
	notes    []string
}

// The labels of volumes. EDGECFG has the files of a configuration, cidata those
// of NoCloud.
const (
	configLabel  = "EDGECFG"
	noCloudLabel = "CIDATA"
)

// gather returns the first source that holds anything. Sources are not mixed:
// half of one box's configuration and half of another's would be nobody's.
func gather(dirs []string, volumes Volumes) source {
	found := ofCredentials(dirs, volumes)
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
func ofCredentials(dirs []string, volumes Volumes) source {
	s := source{name: "credentials"}
	esp := ""
	if device, ok := volumes.ESP(); ok {
		dir, done, err := volumes.Open(device)
		if err != nil {
			s.notes = []string{fmt.Sprintf("credentials of the EFI partition: %v", err)}
		} else {
			defer done()
			esp = filepath.Join(dir, "loader/credentials")
		}
	}
	var err error
	s.tree, s.problems, s.ok, err = credentials(dirs, esp)
	if err != nil {
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

// Gather reads the sources of a running box, for `edgectl config apply` without a
// folder. ok is false if none holds anything.
func Gather(dirs []string, volumes Volumes) (t Tree, name string, problems Problems, ok bool) {
	s := gather(dirs, volumes)
	return s.tree, s.name, s.problems, s.ok
}
