package kmod

import (
	"fmt"
	"slices"
	"strings"
)

// List is which modules are wanted of a kernel.
type List struct {
	Always []string // have to be there, as a module or built in
	Device []string // for devices that some machines have; a kernel may lack them
}

// ParseList reads a list: "always NAME" or "device NAME" a line, # begins a
// comment.
func ParseList(text string) (List, error) {
	var l List
	n := 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case len(words) == 2 && words[0] == "always":
			l.Always = append(l.Always, normal(words[1]))
		case len(words) == 2 && words[0] == "device":
			l.Device = append(l.Device, normal(words[1]))
		default:
			return List{}, fmt.Errorf("line %d: %q, want always or device and one name", n, strings.TrimSpace(line))
		}
	}
	return l, nil
}

// Collect finds the modules of a list and all that they need. lacking are those
// for devices that this kernel does not have. The order depends on the list and
// the tree alone.
func (t *Tree) Collect(l List) (x Index, lacking []string, err error) {
	c := collector{tree: t, state: map[string]state{}}
	for _, name := range l.Always {
		if err := c.add(name, name); err != nil {
			return nil, nil, err
		}
	}
	for _, name := range l.Device {
		if t.files[name] == "" && !t.builtin[name] {
			lacking = append(lacking, name)
		} else if err := c.add(name, name); err != nil {
			return nil, nil, err
		}
	}
	for i, m := range c.index {
		c.index[i].Always = slices.Contains(l.Always, m.Name)
		if !slices.Contains(l.Device, m.Name) {
			c.index[i].Aliases = nil
		}
	}
	return c.index, lacking, nil
}

type state int

const (
	fresh state = iota
	open        // what it needs is being looked at
	done
)

type collector struct {
	tree  *Tree
	index Index
	state map[string]state
}

// add adds a module behind what it needs. root is for whom.
func (c *collector) add(name, root string) error {
	switch {
	case c.state[name] == done || c.tree.builtin[name]:
		return nil
	case c.state[name] == open:
		return fmt.Errorf("module %s needs itself by way of others (for %s)", name, root)
	}
	c.state[name] = open
	info, err := c.tree.Info(name)
	if err != nil {
		return fmt.Errorf("collect %s: %w", root, err)
	}
	needs := slices.Clone(info.Needs)
	for _, soft := range info.Softly {
		found, err := c.tree.provide(soft)
		if err != nil {
			return fmt.Errorf("collect %s: %w", root, err)
		}
		// A circle of soft needs exists in real kernels; it is no need then.
		found = slices.DeleteFunc(found, func(n string) bool { return c.state[n] == open })
		needs = append(needs, found...)
	}
	m := Module{Name: name, Aliases: devices(info.Aliases)}
	for _, n := range needs {
		if err := c.add(n, root); err != nil {
			return err
		}
		if !c.tree.builtin[n] && !slices.Contains(m.Needs, n) {
			m.Needs = append(m.Needs, n)
		}
	}
	c.index, c.state[name] = append(c.index, m), done
	return nil
}

// devices are the aliases that name devices of a bus: others ("fs-ext4",
// "crypto-sha256") are what the kernel calls modprobe with.
func devices(aliases []string) []string {
	return slices.DeleteFunc(slices.Clone(aliases), func(a string) bool { return !strings.Contains(a, ":") })
}
