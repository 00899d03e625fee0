package edge_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The rules of the house that a machine can check. DESIGN section 2 has the
// floors: edge is floor 0, the packages below are floor 1, cmd is floor 2.

const module = "github.com/catchment-dev/edge"

// floor1 are the top folders of floor 1. A new noun of the field is added here.
func floor1() []string {
	return []string{"backbone", "bgp", "guard", "health", "image", "proxy", "xdp"}
}

// owners are the giants that have one importer each. The lab may load programs
// of its own.
func owners() map[string][]string {
	return map[string][]string{
		"github.com/osrg/gobgp":           {"bgp"},
		"github.com/cilium/ebpf":          {"xdp", "test"},
		"github.com/hashicorp/memberlist": {"guard"},
	}
}

// pkg is what go list says of a package.
type pkg struct {
	ImportPath, Name, Dir                                                            string
	GoFiles, CgoFiles, TestGoFiles, XTestGoFiles, Imports, TestImports, XTestImports []string
}

// top is the first folder of the package: "" for edge itself.
func (p pkg) top() string {
	top, _, _ := strings.Cut(p.rel(), "/")
	return top
}

// rel is the folder of the package in the module.
func (p pkg) rel() string { return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/") }

func (p pkg) allImports() []string { return slices.Concat(p.Imports, p.TestImports, p.XTestImports) }

// ours returns the folder of an import of this module.
func ours(path string) (folder string, ok bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		all = append(all, p)
	}
}

func TestImportFloors(t *testing.T) {
	for _, p := range packages(t) {
		top := p.top()
		switch {
		case top == "" || top == "cmd" || top == "test" || slices.Contains(floor1(), top):
		default:
			t.Errorf("%s: the folder %s is on no floor: add it to floor1 if it is a noun of the field", p.ImportPath, top)
		}
		for _, path := range p.allImports() {
			if folder, ok := ours(path); ok {
				if why := mayNotImport(p.rel(), top, folder); why != "" {
					t.Errorf("%s imports %s: %s", p.ImportPath, path, why)
				}
			}
		}
		for giant, tops := range owners() {
			for _, path := range p.allImports() {
				if (path == giant || strings.HasPrefix(path, giant+"/")) && !slices.Contains(tops, top) {
					t.Errorf("%s imports %s, which only %v may", p.ImportPath, path, tops)
				}
			}
		}
	}
}

// mayNotImport says why the package in folder rel may not import another one
// of this module; empty if it may. Its own tests may import the package itself.
func mayNotImport(rel, top, folder string) string {
	other, _, _ := strings.Cut(folder, "/")
	switch {
	case folder == rel:
		return ""
	case other == "test" && top != "test":
		return "nobody imports test"
	case other == "cmd" && top != "cmd" && top != "test":
		return "nobody imports commands"
	case top == "":
		return "edge imports no package of this module"
	case slices.Contains(floor1(), top) && folder != "" && other != top:
		return "floor 1 imports edge and its own folders; packages meet in cmd"
	case strings.HasPrefix(rel, "cmd/internal/") && slices.Contains(floor1(), other):
		return "what all commands share knows nothing of floor 1"
	}
	return ""
}

func TestPackageNamesAndDocs(t *testing.T) {
	for _, p := range packages(t) {
		if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "types", "core", "misc", "base", "shared"}, p.Name) {
			t.Errorf("%s: %q is no noun of the field", p.ImportPath, p.Name)
		}
		var docs []string
		for _, f := range slices.Concat(p.GoFiles, p.CgoFiles) {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, f), nil, parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				t.Error(err)
			} else if file.Doc.Text() != "" {
				docs = append(docs, file.Doc.Text())
			}
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command " + path.Base(p.ImportPath) + " "
		}
		if len(p.GoFiles) > 0 && (len(docs) != 1 || !strings.HasPrefix(docs[0], want)) {
			t.Errorf("%s: has %d package docs, want one that begins %q: %.60q", p.ImportPath, len(docs), want, docs)
		}
	}
}

func TestLicences(t *testing.T) {
	if b, err := os.ReadFile("LICENSE"); err != nil || !bytes.Contains(b, []byte("Apache License")) {
		t.Errorf("LICENSE is not the Apache License: %v", err)
	}
	seen := 0
	for name, text := range sources(t, ".c", ".h") {
		seen++
		first, _, _ := strings.Cut(text, "\n")
		if !strings.Contains(first, "SPDX-License-Identifier: ") || !strings.Contains(first, "GPL-2.0") || !strings.Contains(first, " OR ") {
			t.Errorf("%s: its first line is not the SPDX line of the dual licence: %q", name, first)
		}
	}
	if seen == 0 {
		t.Error("no C source was found: has the BPF program moved?")
	}
}

func TestFileSizes(t *testing.T) {
	const most = 500
	for name, text := range sources(t, ".go", ".c", ".h", ".py", ".sh") {
		if n := strings.Count(text, "\n"); n > most && !generated(text) {
			t.Errorf("%s has %d lines, at most %d: split it", name, n, most)
		}
	}
}

// TestNoPrograms: what is built is not kept here, but for the BPF program. What go build
// leaves at the top is not taken by git.
func TestNoPrograms(t *testing.T) {
	ignored, err := os.ReadFile(".gitignore")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range sources(t, "") {
		if strings.HasPrefix(text, "\x7fELF") && path.Ext(name) != ".o" && !strings.Contains(string(ignored), "\n/"+name+"\n") {
			t.Errorf("%s is a program", name)
		}
	}
}

func generated(text string) bool {
	head, _, _ := strings.Cut(text, "\npackage ")
	return strings.Contains(head, "// Code generated ") && strings.Contains(head, " DO NOT EDIT.")
}

// TestNoSleepNoSkip: tests wait for a condition with a deadline, and a test
// that cannot run fails. Time inside of a synctest bubble is not the real one,
// and a loop that polls a condition until a deadline may pause between polls.
func TestNoSleepNoSkip(t *testing.T) {
	for name, text := range sources(t, "_test.go") {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if loop, ok := n.(*ast.ForStmt); ok && hasDeadline(loop) {
				return false
			}
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, _ := sel.X.(*ast.Ident)
			switch {
			case x == nil:
			case x.Name == "synctest":
				return false
			case x.Name == "time" && sel.Sel.Name == "Sleep":
				t.Errorf("%s: a test sleeps; wait for a condition with a deadline", fset.Position(n.Pos()))
			case slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) && slices.Contains([]string{"t", "b", "f", "tb"}, x.Name):
				t.Errorf("%s: a test skips; one that cannot run fails", fset.Position(n.Pos()))
			}
			return true
		})
	}
}

// hasDeadline says whether a loop compares a time with another, as in
// time.Now().After(deadline).
func hasDeadline(loop *ast.ForStmt) (yes bool) {
	ast.Inspect(loop, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "After" {
			x, _ := sel.X.(*ast.Ident)
			yes = yes || x == nil || x.Name != "time"
		}
		return !yes
	})
	return yes
}

// sources returns the text of every file of the module with one of the endings.
func sources(t *testing.T, endings ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || name == "out") {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() || !slices.ContainsFunc(endings, func(e string) bool { return strings.HasSuffix(name, e) }) {
			return nil
		}
		b, err := os.ReadFile(name)
		out[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestExportedSignatures: the types of the giants stay behind the package that
// owns them.
func TestExportedSignatures(t *testing.T) {
	for _, p := range packages(t) {
		if p.top() != "" && !slices.Contains(floor1(), p.top()) {
			continue
		}
		for _, f := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, f), nil, parser.ParseComments)
			if err != nil {
				t.Error(err)
				continue
			}
			if ast.IsGenerated(file) {
				continue // bpf2go's types are of no use without the package
			}
			names := giantNames(file)
			for what, node := range exported(file) {
				ast.Inspect(node, func(n ast.Node) bool {
					if sel, ok := n.(*ast.SelectorExpr); ok {
						if x, ok := sel.X.(*ast.Ident); ok && names[x.Name] != "" {
							t.Errorf("%s: the exported %s shows %s.%s of %s", fset.Position(n.Pos()), what, x.Name, sel.Sel.Name, names[x.Name])
						}
					}
					return true
				})
			}
		}
	}
}

// giantNames are the names by which a file calls packages of the giants.
func giantNames(file *ast.File) map[string]string {
	names := map[string]string{}
	for _, imp := range file.Imports {
		where := strings.Trim(imp.Path.Value, `"`)
		for giant := range owners() {
			if where != giant && !strings.HasPrefix(where, giant+"/") {
				continue
			}
			if imp.Name != nil {
				names[imp.Name.Name] = where
				continue
			}
			names[path.Base(where)] = where
			names[path.Base(where)+"pb"] = where // gobgp/v3/api is package apipb
		}
	}
	return names
}

// exported returns the parts of a file that others see: the types of exported
// functions and methods, and exported types without their unexported fields.
func exported(file *ast.File) map[string]ast.Node {
	out := map[string]ast.Node{}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || receiverExported(d.Recv)) {
				out[fmt.Sprintf("func %s", d.Name.Name)] = d.Type
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				exportedSpec(out, spec)
			}
		}
	}
	return out
}

func receiverExported(recv *ast.FieldList) bool {
	typ := recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if index, ok := typ.(*ast.IndexExpr); ok {
		typ = index.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}

func exportedSpec(out map[string]ast.Node, spec ast.Spec) {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, n := range s.Names {
			if n.IsExported() && s.Type != nil {
				out["value "+n.Name] = s.Type
			}
		}
	case *ast.TypeSpec:
		if !s.Name.IsExported() {
			return
		}
		st, isStruct := s.Type.(*ast.StructType)
		if !isStruct {
			out["type "+s.Name.Name] = s.Type
			return
		}
		for i, f := range st.Fields.List {
			if len(f.Names) == 0 || slices.ContainsFunc(f.Names, (*ast.Ident).IsExported) {
				out[fmt.Sprintf("type %s, field %d", s.Name.Name, i)] = f.Type
			}
		}
	}
}
