package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const drainHelp = `Order this node to stop. It says so:
and waits.

Usage:
  edgectl drain [PREFIX] --reason TEXT [flags]
  edgectl drain [command]

Examples:
  edgectl drain --reason "new disk"

Available Commands:
  all         Everything
  help        Help about any command

Flags:
      --for long        how long; 0: until undrain
  -h, --help            help for drain
      --only ways       only in one of these ways:
                        pass,tx
  -q, --quiet           say nothing

Global Flags:
  -o, --output form   form of the output (default "text")

Use "edgectl drain [command] --help" for more information about a command.
`

func TestParseHelp(t *testing.T) {
	got, err := parseHelp(drainHelp)
	if err != nil {
		t.Fatal(err)
	}
	want := command{
		about:    "Order this node to stop. It says so:\nand waits.",
		usage:    "edgectl drain [PREFIX] --reason TEXT [flags]",
		examples: []string{`edgectl drain --reason "new disk"`},
		below:    []string{"all"}, shorts: []string{"Everything"},
		own: []option{
			{[]string{"--for"}, "long", "how long; 0: until undrain"},
			{[]string{"--only"}, "ways", "only in one of these ways: pass,tx"},
			{[]string{"-q", "--quiet"}, "", "say nothing"},
		},
		all: []option{{[]string{"-o", "--output"}, "form", `form of the output (default "text")`}},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(command{}, option{})); d != "" {
		t.Error(d)
	}
}

// What is not understood would be missing from the page.
func TestParseHelpRefuses(t *testing.T) {
	for what, text := range map[string]string{
		"no usage":        "Show it.\n",
		"no description":  "Usage:\n  edgectl x\n",
		"another heading": "Show it.\n\nUsage:\n  edgectl x\n\nOdd Commands:\n  y   z\n",
		"a flag":          "Show it.\n\nUsage:\n  edgectl x\n\nFlags:\n  --odd\n",
	} {
		if got, err := parseHelp(text); err == nil {
			t.Errorf("%s: taken as %+v", what, got)
		}
	}
}

func TestParseGoFlags(t *testing.T) {
	got, err := parseGoFlags("Usage of edged:\n  -config file\n    \tconfiguration `file` (default \"/e\")\n  -v\tshort\n  -version\n    \tprint\n    \tand exit\nedged: flag: help requested\n")
	want := []option{
		{[]string{"-config"}, "file", "configuration `file` (default \"/e\")"},
		{[]string{"-v"}, "", "short"},
		{[]string{"-version"}, "", "print and exit"},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(option{})); d != "" || err != nil {
		t.Error(d, err)
	}
	for _, text := range []string{"", "edged: open /etc/edge/edge.yaml: no such file\n", "Usage of edged:\n"} {
		if got, err := parseGoFlags(text); err == nil {
			t.Errorf("%q is taken as %v", text, got)
		}
	}
}

const smallReference = `# Every key. In brackets: what it takes.
#
# A second paragraph.

# This box. [section, required]
node:
  # Its name. [name, required]
  name: a1
  # The neighbours. [list, default []]
  peers:
    # 0.0.0.0 and [::] are taken.
    # [list of name,
    # default [a, b]]
    - name: r
      # [number, optional]
      asn: 1
    # An example without brackets.
    - name: s
      asn: 2
# The rest. [section]
fleet:
  # [x]
  sites: []
`

func TestParseReference(t *testing.T) {
	head, keys, err := parseReference(smallReference)
	if err != nil || head != "Every key. In brackets: what it takes.\n\nA second paragraph." {
		t.Errorf("head %q, %v", head, err)
	}
	want := []key{
		{"node", "This box.", "section, required"},
		{"node.name", "Its name.", "name, required"},
		{"node.peers", "The neighbours.", "list, default []"},
		{"node.peers[].name", "0.0.0.0 and [::] are taken.", "list of name, default [a, b]"},
		{"node.peers[].asn", "", "number, optional"},
		{"fleet", "The rest.", "section"},
		{"fleet.sites", "", "x"},
	}
	if d := cmp.Diff(want, keys, cmp.AllowUnexported(key{})); d != "" {
		t.Error(d)
	}
}

// Each comment of the real file that ends in brackets is a key of the page, and
// none is there twice.
func TestReferenceIsWhole(t *testing.T) {
	page, err := referencePage(source{repository: "../../..", version: "1", date: "2026-01-01"})
	if err != nil {
		t.Fatal(err)
	}
	var terms []string
	lines := strings.Split(page, "\n")
	for i, line := range lines {
		if line == ".TP" {
			terms = append(terms, lines[i+1])
		}
	}
	for _, want := range []string{`\fBnode.key_file\fR`, `\fBfleet.services[].check.fast_interval\fR`, `\fBnode.bgp.peers[].bfd.interval\fR`, `\fBfleet.health.groups[].k\fR`} {
		if !slices.Contains(terms, want) {
			t.Errorf("%s is missing", want)
		}
	}
	sorted := slices.Sorted(slices.Values(terms))
	for i := range sorted[1:] {
		if sorted[i] == sorted[i+1] {
			t.Errorf("%s is there twice", sorted[i])
		}
	}
}

func TestMark(t *testing.T) {
	for in, want := range map[string]string{
		"take --one-in: each, not one-in":   `take \fB\-\-one\-in\fR: each, not one-in`,
		"run `edgectl check FILE` -- or so": `run \fBedgectl check FILE\fR -- or so`,
		`a \d and 'x'`:                      `a \ed and \(aqx\(aq`,
		"(-bpf-dir)":                        `(\fB\-bpf\-dir\fR)`,
	} {
		if got := mark(in); got != want {
			t.Errorf("mark(%q) = %q, want %q", in, got, want)
		}
	}
	if got := guard(mark(".hidden")); got != `\&.hidden` {
		t.Errorf("a dot at the start of a line: %q", got)
	}
}

func TestWrap(t *testing.T) {
	text := wrap("**Changed**: `x` " + strings.Repeat("word ", 40))
	for line := range strings.Lines(text) {
		if len(strings.TrimRight(line, "\n")) > 80 {
			t.Errorf("a line is too long: %q", line)
		}
	}
	if !strings.HasPrefix(text, "  * Changed: x word") {
		t.Errorf("it begins %.30q", text)
	}
}
