package main

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// files are those that a daemon reads and writes, and what for.
func files(daemon string) [][2]string {
	config := [2]string{"/etc/edge/edge.yaml", "The configuration. The unit starts nothing without it."}
	switch daemon {
	case "edged":
		return [][2]string{config,
			{"/var/lib/edge", "What outlives a reboot: drains, promises, the configuration that was applied last (node.state_dir)."},
			{"/run/edge", "Its unix socket, for edgectl and the group edge (node.run_dir)."},
			{"/sys/fs/bpf/edge", "The program, its tables and its links. They go on without edged (node.bpf_dir)."}}
	case "edgebgp":
		return [][2]string{
			{"/run/edge/edgebgp.sock", "Its unix socket, for edged."},
			{"/run/edge/edgebgp.state", "What it was last told, for a restart within the same boot."}}
	default:
		return [][2]string{config,
			{"/var/lib/edge/applied.yaml", "What edged applied last; used where the configuration is refused."},
			{"/run/edge", "Its unix socket and its pid file (node.run_dir)."}}
	}
}

// daemonPage is the page of a daemon: what its package says it is, and its flags.
func daemonPage(s source, name string) (string, error) {
	about, err := packageDoc(filepath.Join(s.repository, "cmd", name, "main.go"))
	if err != nil {
		return "", err
	}
	flags, err := daemonFlags(s.bin, name)
	if err != nil {
		return "", err
	}
	rest, ok := strings.CutPrefix(about, "Command "+name+" ")
	what, _, found := strings.Cut(rest, ".")
	if !ok || !found {
		return "", fmt.Errorf("the comment of its package does not begin with %q and a sentence", "Command "+name)
	}
	var r roff
	r.start(s, name, 8, strings.TrimPrefix(strings.ReplaceAll(what, "\n", " "), "is "))
	r.section("SYNOPSIS")
	r.usage(name + " [flags]")
	r.section("DESCRIPTION")
	fmt.Fprintf(&r, "\\fB%s\\fR\n", name)
	r.text(rest)
	r.section("OPTIONS")
	r.options(flags)
	r.section("FILES")
	for _, f := range files(name) {
		r.item(`\fI`+escape(f[0])+`\fR`, f[1])
	}
	r.see(name + "(8)")
	return r.String(), nil
}

// packageDoc is the comment above the package clause of a file.
func packageDoc(path string) (string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		return "", err
	}
	if file.Doc == nil {
		return "", errors.New("its package has no comment")
	}
	return file.Doc.Text(), nil
}

// edgectlPage has every command that edgectl lists, each with its flags.
func edgectlPage(s source) (string, error) {
	all, err := tree(s.bin, "edgectl")
	if err != nil {
		return "", err
	}
	root := all[0]
	what, _, _ := strings.Cut(strings.TrimPrefix(root.about, "edgectl "), ".\n")
	var r roff
	r.start(s, "edgectl", 8, what)
	r.section("SYNOPSIS")
	r.usage("edgectl COMMAND [flags]")
	r.section("DESCRIPTION")
	r.text(root.about)
	r.section("OPTIONS")
	r.WriteString("All commands take these.\n")
	r.options(root.own)
	r.section("COMMANDS")
	for _, c := range all[1:] {
		r.subsection(strings.Join(c.path[1:], " "))
		r.usage(c.usage)
		r.WriteString(".PP\n")
		about := c.about
		if i := strings.LastIndexAny(about, ".:"); i != len(about)-1 {
			about += "."
		}
		r.text(about)
		r.options(c.own)
		r.example(c.examples)
	}
	r.section("FILES")
	r.item(`\fI`+escape("/run/edge/edged.sock")+`\fR`, "The unix socket of edged. The group edge may use it.")
	r.section("EXIT STATUS")
	r.item("0", "Done.")
	r.item("1", "A problem was found, or edged refused or does not answer.")
	r.item("2", "Wrong usage.")
	r.see("edgectl(8)")
	return r.String(), nil
}
