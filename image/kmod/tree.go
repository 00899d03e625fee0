package kmod

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Tree is the modules of one kernel: a folder like lib/modules/6.12.1.
type Tree struct {
	files   map[string]string // name: file
	builtin map[string]bool
	read    map[string]Info
}

// Info is what a module says of itself, and the module.
type Info struct {
	Needs   []string // other modules; softly needed ones are not in it
	Softly  []string // modules or aliases that should be there first
	Aliases []string
	Binary  []byte // not compressed, with its signature
}

// OpenTree looks which modules there are in the folder, without reading them.
func OpenTree(dir string) (*Tree, error) {
	t := &Tree{files: map[string]string{}, builtin: map[string]bool{}, read: map[string]Info{}}
	err := filepath.WalkDir(filepath.Join(dir, "kernel"), func(file string, d fs.DirEntry, err error) error {
		if base, _, ok := strings.Cut(filepath.Base(file), ".ko"); err == nil && ok && d.Type().IsRegular() {
			t.files[normal(base)] = file
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read modules: %w", err)
	}
	list, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("read what is built into the kernel: %w", err)
	}
	for line := range strings.Lines(string(list)) {
		t.builtin[normal(strings.TrimSuffix(filepath.Base(strings.TrimSpace(line)), ".ko"))] = true
	}
	return t, nil
}

// normal is the name of a module as the kernel spells it.
func normal(name string) string { return strings.ReplaceAll(name, "-", "_") }

// Info reads a module, once.
func (t *Tree) Info(name string) (Info, error) {
	if i, ok := t.read[name]; ok {
		return i, nil
	}
	file, ok := t.files[name]
	if !ok {
		return Info{}, fmt.Errorf("module %s is not in this kernel", name)
	}
	b, err := unpack(file)
	if err != nil {
		return Info{}, fmt.Errorf("unpack %s: %w", file, err)
	}
	i, err := ParseInfo(b)
	if err != nil {
		return Info{}, fmt.Errorf("read %s: %w", file, err)
	}
	t.read[name] = i
	return i, nil
}

// unpack reads a file and undoes its compression: process 1 has no decoder, and
// the initrd is compressed as a whole, which is smaller. The decoders are those
// that Debian has in any case.
func unpack(file string) ([]byte, error) {
	switch filepath.Ext(file) {
	case ".ko":
		return os.ReadFile(file)
	case ".xz":
		return exec.Command("xz", "-dc", file).Output()
	case ".zst":
		return exec.Command("zstd", "-qdc", file).Output()
	case ".gz":
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(z)
	}
	return nil, fmt.Errorf("the ending %s is not known", filepath.Ext(file))
}

// ParseInfo reads the .modinfo section of a module.
func ParseInfo(b []byte) (Info, error) {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return Info{}, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return Info{}, fmt.Errorf("no .modinfo: this is no module")
	}
	data, err := section.Data()
	if err != nil {
		return Info{}, err
	}
	info := Info{Binary: b}
	for _, field := range bytes.Split(data, []byte{0}) {
		key, value, _ := strings.Cut(string(field), "=")
		switch key {
		case "depends":
			for n := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' }) {
				info.Needs = append(info.Needs, normal(n))
			}
		case "alias":
			info.Aliases = append(info.Aliases, value)
		case "softdep":
			info.Softly = append(info.Softly, softlyBefore(value)...)
		}
	}
	return info, nil
}

// softlyBefore is the part of a softdep that has to be there first: in "pre: a b
// post: c" it is a and b.
func softlyBefore(softdep string) (names []string) {
	pre := false
	for word := range strings.FieldsSeq(softdep) {
		switch word {
		case "pre:", "post:":
			pre = word == "pre:"
		default:
			if pre {
				names = append(names, word)
			}
		}
	}
	return names
}

// provide gives the modules that answer to a name of a soft need, which may be
// an alias of the crypto API ("crc32c"). The initrd has no modprobe that the
// kernel could ask, so these have to be there before it does. None is fine:
// then it is built in.
func (t *Tree) provide(name string) ([]string, error) {
	if n := normal(name); t.files[n] != "" || t.builtin[n] {
		return []string{n}, nil
	}
	var found []string
	for n, file := range t.files {
		if filepath.Base(filepath.Dir(file)) != "crypto" {
			continue
		}
		i, err := t.Info(n)
		if err != nil {
			return nil, err
		}
		if slices.Contains(i.Aliases, name) {
			found = append(found, n)
		}
	}
	slices.Sort(found)
	return found, nil
}
