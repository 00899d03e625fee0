// Package kmod says which modules of a kernel an initrd needs, in which order,
// and which of them the devices of a machine ask for.
//
// It owns the index that the build writes into the initrd and that process 1
// reads, and what a module says of itself (its .modinfo section): a tree fresh
// from a package has no modules.dep yet, and none is needed. It never loads a
// module.
//
// Process: the build of the image (Tree, Collect) and the initrd (Decode, Select).
package kmod

import (
	"bufio"
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Module is one module of an index.
type Module struct {
	Name    string   // with underscores, as in /proc/modules
	Needs   []string // modules that have to be loaded before this one
	Always  bool     // to be loaded whatever devices there are
	Aliases []string // patterns of the devices that it drives, as in modules.alias
}

// Index is the modules of an initrd; each stands behind what it needs.
type Index []Module

// Encode is the index as text, a word and a value a line.
func (x Index) Encode() []byte {
	var b bytes.Buffer
	for _, m := range x {
		fmt.Fprintf(&b, "module %s\n", m.Name)
		for _, n := range m.Needs {
			fmt.Fprintf(&b, "needs %s\n", n)
		}
		for _, a := range m.Aliases {
			fmt.Fprintf(&b, "alias %s\n", a)
		}
		if m.Always {
			b.WriteString("always\n")
		}
	}
	return b.Bytes()
}

// Decode reads what Encode wrote. A module that needs one which is not in front
// of it is an error: so there is neither a circle nor a gap.
func Decode(b []byte) (Index, error) {
	var x Index
	seen := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		word, value, _ := strings.Cut(lines.Text(), " ")
		if word == "module" && value != "" && !strings.ContainsAny(value, "/ ") && !seen[value] {
			x, seen[value] = append(x, Module{Name: value}), true
			continue
		}
		if len(x) == 0 || (value == "") != (word == "always") {
			return nil, fmt.Errorf("module index, line %d: %.80q", n, lines.Text())
		}
		m := &x[len(x)-1]
		switch {
		case word == "always":
			m.Always = true
		case word == "alias":
			m.Aliases = append(m.Aliases, value)
		case word == "needs" && seen[value] && value != m.Name:
			m.Needs = append(m.Needs, value)
		default:
			return nil, fmt.Errorf("module index, line %d: %.80q", n, lines.Text())
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("module index: %w", err)
	}
	return x, nil
}

// Select gives the names of the modules that are wanted and of all that they
// need, in the order in which they can be loaded.
func (x Index) Select(wanted func(Module) bool) []string {
	take := map[string]bool{}
	for _, m := range slices.Backward(x) {
		if take[m.Name] || wanted(m) {
			take[m.Name] = true
			for _, n := range m.Needs {
				take[n] = true
			}
		}
	}
	var names []string
	for _, m := range x {
		if take[m.Name] {
			names = append(names, m.Name)
		}
	}
	return names
}

// Drives says whether the module asks for a device with that modalias.
func (m Module) Drives(modalias string) bool {
	return slices.ContainsFunc(m.Aliases, func(pattern string) bool {
		ok, err := path.Match(pattern, modalias)
		return ok && err == nil
	})
}
