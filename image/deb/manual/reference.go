package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// key is one key of the configuration, as reference.yaml describes it.
type key struct {
	path  string // fleet.services[].port
	about string // what it is; may be empty
	takes string // what stands in brackets: type, range and default
}

// referencePage is the page of edge.yaml.
func referencePage(s source) (string, error) {
	b, err := os.ReadFile(filepath.Join(s.repository, "reference.yaml"))
	if err != nil {
		return "", err
	}
	head, keys, err := parseReference(string(b))
	if err != nil {
		return "", err
	}
	var r roff
	r.start(s, "edge.yaml", 5, "configuration of a Catchment node")
	r.section("DESCRIPTION")
	r.text(head)
	r.WriteString(".PP\nThe file with an example of every key is\n.IR /usr/share/doc/catchment-edge/reference.yaml .\n")
	top := ""
	for _, k := range keys {
		if name, _, _ := strings.Cut(k.path, "."); name != top {
			top = name
			r.section(strings.ToUpper(top))
		}
		about := k.about
		if k.takes != "" {
			about = strings.TrimSpace(about + "\n[" + k.takes + "]")
		}
		r.item(`\fB`+escape(k.path)+`\fR`, about)
	}
	r.see("edge.yaml(5)")
	return r.String(), nil
}

var keyLine = regexp.MustCompile(`^( *)(- )?([a-z][a-z0-9_]*):`)

// level is one step of a path: the column at which its keys stand.
type level struct {
	column int
	name   string
}

// parseReference returns the head of the file and its keys. A key is described
// by the comment above it that ends in brackets; a comment without brackets is of
// an example, and keys without a comment have been described before.
func parseReference(text string) (head string, keys []key, err error) {
	head, body, _ := strings.Cut(text, "\n\n")
	var path []level
	var comment []string
	for line := range strings.Lines(body) {
		line = strings.TrimRight(line, "\n")
		if c, ok := strings.CutPrefix(strings.TrimSpace(line), "#"); ok {
			comment = append(comment, strings.TrimSpace(c))
			continue
		}
		if m := keyLine.FindStringSubmatch(line); m != nil {
			path = step(path, len(m[1]), m[2] != "", m[3])
			if k, ok := describe(path, comment); ok {
				keys = add(keys, k)
			}
		}
		comment = nil
	}
	if head = uncomment(head); len(keys) == 0 || head == "" {
		return "", nil, errors.New("no key of reference.yaml has a description")
	}
	return head, keys, nil
}

// add adds a key, or what else is said of one that is there: that of a probe
// means one thing for one kind, and another for another.
func add(keys []key, k key) []key {
	for i, old := range keys {
		if old.path == k.path {
			keys[i].about = strings.TrimSpace(old.about+"\n["+old.takes+"]") + "\n" + k.about
			keys[i].takes = k.takes
			return keys
		}
	}
	return append(keys, k)
}

// step moves a path to the key that stands at a column; item says that it is
// the first one of an item of a list, "- name:".
func step(path []level, column int, item bool, name string) []level {
	if item {
		column += 2
	}
	for len(path) > 0 && path[len(path)-1].column >= column {
		path = path[:len(path)-1]
	}
	if n := len(path); item && n > 0 && !strings.HasSuffix(path[n-1].name, "[]") {
		path[n-1].name += "[]"
	}
	return append(path, level{column, name})
}

func describe(path []level, comment []string) (key, bool) {
	about, takes, ok := brackets(strings.Join(comment, "\n"))
	if !ok {
		return key{}, false
	}
	var names []string
	for _, l := range path {
		names = append(names, l.name)
	}
	return key{path: strings.Join(names, "."), about: about, takes: strings.ReplaceAll(takes, "\n", " ")}, true
}

// brackets parts a comment from the brackets at its end, in which there may be
// others: "[list, default []]".
func brackets(comment string) (about, takes string, ok bool) {
	if !strings.HasSuffix(comment, "]") {
		return comment, "", false
	}
	depth := 0
	for i := len(comment) - 1; i >= 0; i-- {
		switch comment[i] {
		case ']':
			depth++
		case '[':
			depth--
		}
		if depth == 0 {
			return strings.TrimSpace(comment[:i]), comment[i+1 : len(comment)-1], true
		}
	}
	return comment, "", false
}

func uncomment(text string) string {
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		out = append(out, strings.TrimSpace(strings.TrimPrefix(line, "#")))
	}
	return strings.TrimSpace(strings.Join(out, "\n"))
}
