package setup

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/catchment-dev/edge"
)

// Check judges a whole configuration, by the code of `edgectl check` and more:
// every problem at once. c is nil if there is no edge.yaml that can be used.
func Check(t Tree) (c *edge.Config, problems Problems) {
	c, problems = checkConfig(t)
	problems = append(problems, checkNetwork(t)...)
	problems = append(problems, checkUnits(t)...)
	if c != nil {
		problems = append(problems, checkFiles(c, t)...)
	}
	if b, ok := t[keysFile]; ok {
		_, bad := checkKeys(b)
		problems = append(problems, bad...)
	}
	if b, ok := t[passwordFile]; ok {
		_, bad := checkPassword(b)
		problems = append(problems, bad...)
	}
	if b, ok := t[hostnameFile]; ok {
		_, bad := checkHostname(b)
		problems = append(problems, bad...)
	}
	for _, name := range t.names() {
		for _, dir := range parents(name) {
			if _, ok := t[dir]; ok { // a bundle can have both, a disk cannot
				problems.at(name, "rename one", "%s is a file, and has files in it", dir)
			}
		}
	}
	for _, name := range t.under("health.d") {
		first, _, _ := bytes.Cut(t[name], []byte("\n"))
		switch script := bytes.HasPrefix(first, []byte("#!")); {
		case script && bytes.HasSuffix(first, []byte("\r")):
			problems.at(name, "save it with the line ends of Unix", "it cannot be executed: its first line ends with a carriage return")
		case !script && !bytes.HasPrefix(first, []byte("\x7fELF")):
			problems.at(name, "begin it with #!/bin/sh", "it cannot be executed")
		}
	}
	return c, problems
}

// Warnings are what is not wrong with a good configuration, and seldom meant.
func Warnings(t Tree) (out []string) {
	_, keys := t[keysFile]
	_, password := t[passwordFile]
	if !keys && !password {
		out = append(out, "nobody can log in: there are no authorized_keys, and no password for the consoles")
	}
	return append(out, wallNotes(t)...)
}

// CheckConfig judges edge.yaml alone, for a box whose other files are not ours.
func CheckConfig(t Tree) (*edge.Config, Problems) { return checkConfig(t) }

func checkConfig(t Tree) (c *edge.Config, problems Problems) {
	src, ok := t[configFile]
	if !ok {
		problems.at(configFile, "add it; reference.yaml has every key", "there is none")
		return nil, problems
	}
	c, err := edge.Parse(configFile, src)
	var errs edge.Errors
	switch {
	case errors.As(err, &errs):
		for _, e := range errs {
			msg := e.Msg
			if e.Path != "" {
				msg = e.Path + ": " + msg
			}
			problems = append(problems, Problem{File: e.File, Line: e.Line, Column: e.Column, Message: msg})
		}
	case err != nil:
		problems.at(configFile, "", "%v", err)
	}
	return c, problems
}

// sortedKeys are the keys of m in order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
