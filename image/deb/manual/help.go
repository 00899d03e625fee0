package main

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// command is what a command of edgectl says of itself with --help.
type command struct {
	path     []string // edgectl, and the names below it
	about    string
	usage    string
	examples []string
	below    []string // names of its commands, and what each is for
	shorts   []string
	own, all []option // flags of this command, and those that all share
}

// option is one flag of a command.
type option struct {
	names []string // as they are typed, with dashes
	value string   // name of its value; empty: it takes none
	about string
}

// tree asks a command for its help, and all that are below it. A command that
// is hidden is in no list, and so on no page.
func tree(bin string, path ...string) ([]command, error) {
	text, err := help(bin, path...)
	if err != nil {
		return nil, err
	}
	c, err := parseHelp(text)
	if err != nil {
		return nil, fmt.Errorf("read help of %s: %w", strings.Join(path, " "), err)
	}
	c.path = path
	all := []command{c}
	for _, name := range c.below {
		more, err := tree(bin, append(path[:len(path):len(path)], name)...)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

func help(bin string, path ...string) (string, error) {
	cmd := exec.Command(filepath.Join(bin, path[0]), append(path[1:len(path):len(path)], "--help")...)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its help: %w", strings.Join(path, " "), err)
	}
	return string(out), nil
}

var errNoUsage = errors.New("there is no Usage")

// parseHelp reads the text that cobra makes. A heading that it does not know is
// an error: what stands below it would be missing from the page.
func parseHelp(text string) (command, error) {
	var c command
	var about, global []string
	part := ""
	var flags []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case heading(line, part != ""):
			part = strings.TrimSuffix(line, ":")
		case part == "":
			about = append(about, line)
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, `Use "`):
		case part == "Usage":
			if c.usage == "" { // the second one is "edgectl [command]"
				c.usage = strings.TrimSpace(line)
			}
		case part == "Examples":
			c.examples = append(c.examples, strings.TrimSpace(line))
		case part == "Available Commands":
			name, short, _ := strings.Cut(strings.TrimSpace(line), " ")
			if name != "help" {
				c.below, c.shorts = append(c.below, name), append(c.shorts, strings.TrimSpace(short))
			}
		case part == "Flags":
			flags = append(flags, line)
		case part == "Global Flags":
			global = append(global, line)
		default:
			return c, fmt.Errorf("heading %q is not known", part)
		}
	}
	c.about = strings.TrimSpace(strings.Join(about, "\n"))
	if c.usage == "" || c.about == "" {
		return c, errNoUsage
	}
	var err error
	if c.own, err = parseFlags(flags); err != nil {
		return c, err
	}
	c.all, err = parseFlags(global)
	return c, err
}

// heading says whether a line begins a part. Before the first part only Usage
// does: a description may have lines that end in a colon.
func heading(line string, begun bool) bool {
	if line == "" || line[0] == ' ' || !strings.HasSuffix(line, ":") {
		return false
	}
	return begun || line == "Usage:"
}

// pflag writes "  -o, --output form   text" with three blanks or more before
// the text.
var flagLine = regexp.MustCompile(`^ +(?:(-\w), |    )?(--[\w-]+)(?: (\S.*?))?   +(.*)$`)

func parseFlags(lines []string) ([]option, error) {
	var out []option
	for _, line := range lines {
		m := flagLine.FindStringSubmatch(line)
		switch trimmed := strings.TrimSpace(line); {
		case m == nil && len(out) > 0 && !strings.HasPrefix(trimmed, "-"):
			out[len(out)-1].about += " " + trimmed // a text of several lines
		case m == nil:
			return nil, fmt.Errorf("the line of a flag is not understood: %q", line)
		case m[2] == "--help":
		default:
			o := option{value: m[3], about: m[4]}
			if m[1] != "" {
				o.names = append(o.names, m[1])
			}
			o.names = append(o.names, m[2])
			out = append(out, o)
		}
	}
	return out, nil
}

var goFlagLine = regexp.MustCompile(`^  (-[\w-]+)(?: (\S+))?(?:\t(.*))?$`)

// daemonFlags asks a daemon for its flags. The exit code says nothing: package
// flag calls being asked for help an error.
func daemonFlags(bin, name string) ([]option, error) {
	out, err := exec.Command(filepath.Join(bin, name), "-h").CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("ask %s for its flags: %w", name, err)
	}
	return parseGoFlags(string(out))
}

// parseGoFlags reads the text that package flag makes.
func parseGoFlags(text string) ([]option, error) {
	_, body, ok := strings.Cut(text, ":\n")
	if !strings.HasPrefix(text, "Usage of ") || !ok {
		return nil, errNoUsage
	}
	var out []option
	for line := range strings.Lines(body) {
		line = strings.TrimRight(line, "\n")
		if m := goFlagLine.FindStringSubmatch(line); m != nil {
			out = append(out, option{names: []string{m[1]}, value: m[2], about: m[3]})
			continue
		}
		if about, ok := strings.CutPrefix(line, "    \t"); ok && len(out) > 0 {
			last := &out[len(out)-1]
			last.about = strings.TrimSpace(last.about + " " + about)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("there is no flag")
	}
	return out, nil
}
