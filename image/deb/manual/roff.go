package main

import (
	"fmt"
	"regexp"
	"strings"
)

// roff is a page in the making, in the macros of man(7).
type roff struct{ strings.Builder }

// start writes the head of a page: its name, and in a few words what it is.
func (r *roff) start(s source, name string, section int, what string) {
	fmt.Fprintf(r, ".\\\" Made by image/deb/manual: change what the command says of itself.\n")
	fmt.Fprintf(r, ".TH %s %d %s %s %s\n", strings.ToUpper(name), section, s.date, quote("Catchment "+s.version), quote("Catchment"))
	r.section("NAME")
	fmt.Fprintf(r, "%s \\- %s\n", escape(name), escape(what))
}

func (r *roff) section(title string) { fmt.Fprintf(r, ".SH %s\n", quote(title)) }

func (r *roff) subsection(title string) { fmt.Fprintf(r, ".SS %s\n", quote(title)) }

// text writes paragraphs, which empty lines part; a line that begins with a
// blank stays as it is. Lines that end in a colon, or are short, keep their end.
func (r *roff) text(body string) {
	for i, par := range strings.Split(strings.TrimSpace(body), "\n\n") {
		if i > 0 {
			r.WriteString(".PP\n")
		}
		r.lines(par)
	}
}

func (r *roff) lines(par string) {
	for line := range strings.SplitSeq(strings.TrimSpace(par), "\n") {
		if strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t") {
			r.WriteString(".br\n")
		}
		r.WriteString(guard(mark(strings.TrimSpace(line))) + "\n")
	}
}

// usage writes how a command is called: the first word is bold.
func (r *roff) usage(line string) {
	name, rest, _ := strings.Cut(line, " ")
	fmt.Fprintf(r, "\\fB%s\\fR %s\n", escape(name), escape(rest))
}

// item writes a term and what it means.
func (r *roff) item(term, about string) {
	fmt.Fprintf(r, ".TP\n%s\n", term)
	if strings.TrimSpace(about) == "" {
		about = "Not described." // TP without a text is an error of the page
	}
	r.lines(about)
}

func (r *roff) options(all []option) {
	for _, o := range all {
		var names []string
		for _, n := range o.names {
			names = append(names, `\fB`+escape(n)+`\fR`)
		}
		term := strings.Join(names, ", ")
		if o.value != "" {
			term += ` \fI` + escape(o.value) + `\fR`
		}
		r.item(term, o.about)
	}
}

// example writes lines as they are typed.
func (r *roff) example(lines []string) {
	if len(lines) == 0 {
		return
	}
	r.WriteString(".PP\n.RS\n.EX\n")
	for _, line := range lines {
		r.WriteString(guard(escape(line)) + "\n")
	}
	r.WriteString(".EE\n.RE\n")
}

// see writes which other pages belong to this one.
func (r *roff) see(self string) {
	r.section("SEE ALSO")
	var others []string
	for _, p := range []string{"edge.yaml(5)", "edgebgp(8)", "edgectl(8)", "edged(8)", "edgeproxy(8)"} {
		if p != self {
			name, section, _ := strings.Cut(p, "(")
			others = append(others, fmt.Sprintf(".BR %s (%s", name, section))
		}
	}
	r.WriteString(strings.Join(others, " ,\n") + "\n")
}

var special = strings.NewReplacer(`\`, `\e`, `-`, `\-`, `'`, `\(aq`, "`", `\(ga`, `^`, `\(ha`, `~`, `\(ti`)

// plain is special for words: their hyphens are hyphens.
var plain = strings.NewReplacer(`\`, `\e`, `'`, `\(aq`, "`", `\(ga`, `^`, `\(ha`, `~`, `\(ti`)

// escape makes text of anything: no character of it means something to roff,
// but a dot at the start of a line, for which there is guard.
func escape(text string) string { return special.Replace(text) }

// guard keeps the first character of a line from being a command.
func guard(line string) string {
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, `\(aq`) {
		return `\&` + line
	}
	return line
}

func quote(text string) string {
	return `"` + strings.ReplaceAll(escape(text), `"`, `\(dq`) + `"`
}

var (
	code = regexp.MustCompile("`[^`]+`")
	dash = regexp.MustCompile(`(^|[\s(;,])(--?[a-z][\w-]*)`)
)

// mark writes a line of prose: flags and what stands between backquotes are
// bold, and only these have real minus signs.
func mark(line string) string {
	var b strings.Builder
	last := 0
	prose := func(s string) string {
		return dash.ReplaceAllStringFunc(plain.Replace(s), func(m string) string {
			at := strings.Index(m, "-")
			return m[:at] + `\fB` + strings.ReplaceAll(m[at:], "-", `\-`) + `\fR`
		})
	}
	for _, at := range code.FindAllStringIndex(line, -1) {
		b.WriteString(prose(line[last:at[0]]))
		b.WriteString(`\fB` + escape(line[at[0]+1:at[1]-1]) + `\fR`)
		last = at[1]
	}
	b.WriteString(prose(line[last:]))
	return b.String()
}
