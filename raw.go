package edge

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Limits of the YAML that is taken. The YAML parser calls itself for each
// level and for each key of a block mapping, and copies the keys each time:
// without limits one small file costs minutes or the stack.
const (
	maxDepth = 16
	maxKeys  = 256
	maxItems = 4096
)

// reader takes the YAML apart. It collects errors instead of stopping at the
// first, remembers where each value stands, and notes each key it was asked
// for, so that a test can hold the reference against it.
type reader struct {
	file string
	errs Errors
	// at is where each value stands, by its path.
	at map[string]place
	// bad holds the paths that have an error already: one is enough.
	bad map[string]bool
	// known is what each key takes, by its path without indices: more than one
	// thing where that depends on the kind of what it is a key of.
	known map[string][]string
}

type place struct{ line, column int }

func newReader(file string) *reader {
	return &reader{file: file, at: map[string]place{}, bad: map[string]bool{}, known: map[string][]string{}}
}

// fail notes an error of the value at path, or of the nearest value around it
// if there is none.
func (r *reader) fail(path, format string, args ...any) {
	at, ok := r.at[path]
	for p := path; !ok && p != ""; {
		p = p[:max(strings.LastIndexAny(p, ".["), 0)]
		at, ok = r.at[p]
	}
	r.failAt(at, path, format, args...)
}

func (r *reader) failAt(at place, path, format string, args ...any) {
	r.bad[path] = true
	r.errs = append(r.errs, Error{
		File: r.file, Line: max(at.line, 1), Column: max(at.column, 1),
		Path: path, Msg: fmt.Sprintf(format, args...),
	})
}

// value is a YAML node with its path.
type value struct {
	path string
	node ast.Node
}

// document returns the root of the only document of src.
func (r *reader) document(src []byte) (value, bool) {
	if !r.readable(src) {
		return value{}, false
	}
	// The scanner counts some lines twice that end in CR LF.
	file, err := parseYAML(bytes.ReplaceAll(src, []byte("\r\n"), []byte("\n")), r.tokens)
	if err != nil {
		r.syntax(err)
	}
	if len(r.errs) > 0 {
		return value{}, false
	}
	if file == nil || len(file.Docs) == 0 || file.Docs[0].Body == nil {
		r.failAt(place{}, "", "the file is empty: expected the sections node and fleet")
		return value{}, false
	}
	if len(file.Docs) > 1 {
		r.failAt(place{}, "", "expected one YAML document, found %d", len(file.Docs))
		return value{}, false
	}
	return value{node: file.Docs[0].Body}, true
}

// readable refuses what is not text before the YAML scanner sees it.
func (r *reader) readable(src []byte) bool {
	if len(src) > MaxConfigSize {
		r.failAt(place{}, "", "the file is larger than %d bytes", MaxConfigSize)
		return false
	}
	at := place{line: 1, column: 1}
	for rest := src; len(rest) > 0; {
		c, n := utf8.DecodeRune(rest)
		rest = rest[n:]
		switch {
		case c == utf8.RuneError && n == 1:
			r.failAt(at, "", "byte 0x%02x is not UTF-8", src[len(src)-len(rest)-1])
			return false
		case c == '\r' && bytes.HasPrefix(rest, []byte("\n")):
		case c < ' ' && c != '\n' && c != '\t', c == 0x7f, c == 0x85, c == 0x2028, c == 0x2029, c == 0xfeff:
			r.failAt(at, "", "character U+%04X is not allowed", c)
			return false
		case c == '\n':
			at = place{line: at.line + 1}
		}
		at.column++
	}
	return true
}

// errYAML is a panic of the YAML parser.
var errYAML = errors.New("the YAML parser cannot read this file")

// parseYAML scans and parses src. check sees the tokens first and says whether
// to go on.
func parseYAML(src []byte, check func(token.Tokens) bool) (f *ast.File, err error) {
	// The parser is not ours and has been seen to panic on garbage. What it
	// was given is known to be bounded, so that no stack can overflow.
	defer func() {
		if recover() != nil {
			f, err = nil, errYAML
		}
	}()
	tokens := lexer.Tokenize(string(src))
	if !check(tokens) {
		return nil, nil
	}
	// Duplicates are allowed here because they are found later, all at once.
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// syntax notes an error of the YAML parser, at its place if it has one.
func (r *reader) syntax(err error) {
	var placed interface {
		GetToken() *token.Token
		GetMessage() string
	}
	if errors.As(err, &placed) {
		// Its Error method would print the source around it, in quadratic time.
		r.failAt(placeOf(placed.GetToken()), "", "not valid YAML: %s", clip(strings.ReplaceAll(placed.GetMessage(), "\n", " "), 200))
		return
	}
	r.failAt(place{}, "", "not valid YAML: %v", err)
}

// placeOf is where a token stands; nowhere, if it was made up by the parser.
func placeOf(t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{}
	}
	return place{line: t.Position.Line, column: t.Position.Column}
}

// start returns where a value begins. The YAML parser takes a block mapping to
// begin at its first colon; a person takes it to begin at its first key.
func start(n ast.Node) place {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return placeOf(n.Values[0].Key.GetToken())
		}
	case *ast.MappingValueNode:
		return placeOf(n.Key.GetToken())
	}
	return placeOf(n.GetToken())
}

// object is a mapping that is being read.
type object struct {
	r    *reader
	path string
	// what names it in errors: "fleet", "a probe of kind tcp".
	what   string
	values map[string]value
	asked  map[string]bool
	// hints say of keys that do not exist what a person who writes them wants.
	hints map[string]string
	keys  []*ast.MappingValueNode
	// broken says that the value was not a mapping, or that the keys it may
	// have are not known: what is missing or too much is not reported.
	broken bool
}

// object opens v as a mapping. A duplicate key is an error; the first counts.
func (r *reader) object(v value) *object {
	o := &object{r: r, path: v.path, what: v.path, values: map[string]value{}, asked: map[string]bool{}}
	if o.what == "" {
		o.what = "the file"
	}
	if v.node == nil {
		o.broken = true
		return o
	}
	r.at[v.path] = start(v.node)
	switch n := v.node.(type) {
	case *ast.MappingNode:
		o.keys = n.Values
	case *ast.MappingValueNode:
		o.keys = []*ast.MappingValueNode{n}
	default:
		r.fail(v.path, "expected a mapping (key: value), found %s", describe(v.node))
		o.broken = true
	}
	for _, kv := range o.keys {
		o.take(kv)
	}
	return o
}

func (o *object) take(kv *ast.MappingValueNode) {
	key, name := kv.Key.GetToken(), keyName(kv)
	path := strings.TrimPrefix(o.path+"."+name, ".")
	if _, twice := o.values[name]; twice {
		o.r.failAt(placeOf(key), path, "the key is given twice; it was given in line %d", o.r.at[path].line)
		return
	}
	o.values[name] = value{path: path, node: kv.Value}
	// An empty value has no place of its own: its key has.
	o.r.at[path] = placeOf(key)
	if kv.Value != nil && kv.Value.Type() != ast.NullType {
		o.r.at[path] = start(kv.Value)
	}
}

// keyName is a key as it is written in a path: in quotes if it would break the
// line or be taken for a path itself.
func keyName(kv *ast.MappingValueNode) string {
	name := clip(kv.Key.GetToken().Value, 64)
	odd := func(c rune) bool { return !strconv.IsPrint(c) || strings.ContainsRune(`." []`, c) }
	if name == "" || strings.ContainsFunc(name, odd) {
		return strconv.Quote(name)
	}
	return name
}

// get returns the value of key, and notes that the key exists.
func (o *object) get(key, takes string) (value, bool) {
	o.asked[key] = true
	path := strings.TrimPrefix(o.path+"."+key, ".")
	if all := o.r.known[pattern(path)]; !slices.Contains(all, takes) {
		o.r.known[pattern(path)] = append(all, takes)
	}
	v, ok := o.values[key]
	if !ok {
		v.path = path
	}
	return v, ok
}

// require is get for a key that must be there.
func (o *object) require(key, takes string) (value, bool) {
	v, ok := o.get(key, takes+", required")
	if !ok && !o.broken {
		o.r.fail(v.path, "missing; expected %s", takes)
	}
	return v, ok
}

// done reports the keys that nobody asked for.
func (o *object) done() {
	if o.broken {
		return
	}
	for _, kv := range o.keys {
		if name := keyName(kv); !o.asked[name] {
			path := strings.TrimPrefix(o.path+"."+name, ".")
			o.r.failAt(placeOf(kv.Key.GetToken()), path, "%s has no such key; it has %s%s", o.what,
				strings.Join(slices.Sorted(maps.Keys(o.asked)), ", "), o.hints[name])
		}
	}
}

// items opens v as a list of at least that many; the paths of the items end in
// their index.
func (r *reader) items(v value, least int) []value {
	seq, ok := v.node.(*ast.SequenceNode)
	if !ok {
		r.fail(v.path, "expected a list, found %s", describe(v.node))
		return nil
	}
	if len(seq.Values) < least {
		r.fail(v.path, "expected at least %d in this list, found %d", least, len(seq.Values))
	}
	if len(seq.Values) > maxItems {
		r.fail(v.path, "expected at most %d in this list, found %d", maxItems, len(seq.Values))
		return nil
	}
	out := make([]value, len(seq.Values))
	for i, n := range seq.Values {
		out[i] = value{path: fmt.Sprintf("%s[%d]", v.path, i), node: n}
		if n != nil {
			r.at[out[i].path] = start(n)
		}
	}
	return out
}

// text returns the text of a scalar, and whether it stood in quotes.
func (r *reader) text(v value) (s string, quoted, ok bool) {
	switch n := v.node.(type) {
	case *ast.StringNode:
		t := n.GetToken().Type
		return n.Value, t == token.SingleQuoteType || t == token.DoubleQuoteType, true
	case *ast.LiteralNode:
		return n.Value.Value, true, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		// As it was written: 1.10 is not 1.1 when it is a name.
		return strings.TrimSpace(n.GetToken().Value), false, true
	}
	return "", false, false
}

func describe(n ast.Node) string {
	switch n.(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	}
	return "the value " + quote(n.GetToken().Value)
}

// quote is strconv.Quote of what is short enough for a line.
func quote(s string) string { return strconv.Quote(clip(s, 64)) }

// asWritten is quote without the quotes, for a number, unless that would break
// the line: text without quotes may go on in the next one.
func asWritten(s string) string {
	if strings.ContainsFunc(s, func(c rune) bool { return !strconv.IsPrint(c) }) {
		return quote(s)
	}
	return clip(s, 64)
}

func clip(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "..."
}

// pattern is a path without indices: fleet.services[].vip.
func pattern(path string) string {
	var b strings.Builder
	in := false
	for _, c := range path {
		if c == ']' {
			in = false
		}
		if !in {
			b.WriteRune(c)
		}
		in = in || c == '['
	}
	return b.String()
}
