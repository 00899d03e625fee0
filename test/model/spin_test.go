package model

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const source = "promise.pml"

// sources are the files of the model: source includes the other.
func sources() []string { return []string{source, "alike.pml"} }

// search is one run of spin.
type search struct {
	defs   []string // NAME or NAME=VALUE, for the model
	hash   int      // bits of the hash table
	memory int      // MiB that it may take
	quick  bool     // for what is found soon: compiling takes longer than running
}

// verdict is what spin says.
type verdict struct {
	states, errors, memory int
	broken                 string   // the first rule that is
	partial                string   // why not everything was tried; empty: it was
	unreached              []string // steps that are never taken
	kept                   map[string]bool
	story                  string // what leads to the error
	took                   time.Duration
}

// check turns the model into a C program that tries everything, and runs it, in a
// folder of its own.
func (s search) check(t *testing.T) verdict {
	t.Helper()
	dir := t.TempDir()
	for _, name := range sources() {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(read(t, name)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	defs := []string{}
	for _, d := range s.defs {
		defs = append(defs, "-D"+d)
	}
	tool(t, dir, "spin", append(defs, "-a", source)...)
	// Every step touches what all sites see: to look for steps whose order does not
	// matter (partial order reduction) leaves nothing out, so it is off.
	cc := []string{"-DSAFETY", "-DNOREDUCE", fmt.Sprintf("-DMEMLIM=%d", s.memory), "-o", "pan", "pan.c"}
	if s.quick {
		cc = append(cc, "-O0")
	} else {
		cc = append(cc, "-O2", "-DNOBOUNDCHECK")
	}
	tool(t, dir, "gcc", cc...)
	start := time.Now()
	out := tool(t, dir, "./pan", "-m10000", fmt.Sprintf("-w%d", s.hash))
	v := judge(t, out)
	v.took = time.Since(start)
	switch sorted := slices.Index(s.defs, "SORTED"); {
	case v.errors > 0 && sorted >= 0: // sites change their numbers on the way
		s.defs = slices.Delete(slices.Clone(s.defs), sorted, sorted+1)
		v.story = s.check(t).story
	case v.errors > 0:
		v.story = tool(t, dir, "spin", append(defs, "-k", source+".trail", source)...)
		v.story, _, _ = strings.Cut(v.story, "spin: trail ends")
	case sorted >= 0:
		v.unreached = append(v.unreached, never(t, dir, out)...)
	}
	if slices.Contains(s.defs, "KEEP") {
		v.kept = kept(t, filepath.Join(dir, "kept"), s.defs)
	}
	return v
}

// never are the steps that are in the program of dir, and of which out does not say
// that they were reached.
func never(t *testing.T, dir, out string) (names []string) {
	t.Helper()
	program, err := filepath.Glob(filepath.Join(dir, "pan.*"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, file := range program {
		if ext := filepath.Ext(file); ext == ".c" || len(ext) != 2 {
			continue
		}
		for _, m := range regexp.MustCompile(`"reached: %s\\n", "([a-z ]+)"`).FindAllStringSubmatch(read(t, file), -1) {
			all[m[1]] = true
		}
	}
	if len(all) < 10 {
		t.Fatalf("the program has only the steps %v: they are not told apart any more", all)
	}
	for name := range all {
		if !strings.Contains(out, "reached: "+name+"\n") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// kept are the records of a file that a form with KEEP has written.
func kept(t *testing.T, file string, defs []string) map[string]bool {
	t.Helper()
	sites := 3
	if slices.Contains(defs, "N=4") {
		sites = 4
	}
	size := 1 + 2*sites + sites*sites // see keep in the model
	all, text := map[string]bool{}, read(t, file)
	if len(text) == 0 || len(text)%size != 0 {
		t.Fatalf("%s has %d bytes, which are no records of %d", file, len(text), size)
	}
	for record := range slices.Chunk([]byte(text), size) {
		all[string(record)] = true
	}
	return all
}

// judge reads the output of the search.
func judge(t *testing.T, out string) (v verdict) {
	t.Helper()
	number := func(pattern string) int {
		m := regexp.MustCompile(pattern).FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("spin has not come to an end: there is no %q in:\n%s", pattern, out)
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	v.states = number(`(?m)^ *(\d+) states, stored`)
	v.errors = number(`errors: (\d+)\n`)
	v.memory = number(`(?m)^ *(\d+)\.\d+\ttotal actual memory usage`)
	if m := regexp.MustCompile(`(?m)^pan:\d+: (?:assertion violated )?(.*) \(at depth`).FindStringSubmatch(out); m != nil {
		v.broken = m[1]
	}
	if !strings.Contains(out, "Full statespace search for:") {
		v.partial = "this was no full search"
	}
	for _, sign := range []string{"Search not completed", "max search depth too small", "reached -DMEMLIM", "out of memory"} {
		if strings.Contains(out, sign) {
			v.partial = sign
		}
	}
	_, rest, _ := strings.Cut(out, "unreached in proctype site\n")
	for line := range strings.Lines(rest) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, source) && !strings.HasSuffix(line, `"-end-"`) {
			v.unreached = append(v.unreached, line)
		}
	}
	if v.errors == 0 && v.partial == "" && rest == "" {
		v.partial = "spin does not say which steps were taken"
	}
	return v
}

// tool runs a program in dir and returns what it prints.
func tool(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	ctx := t.Context()
	if end, ok := t.Deadline(); ok { // so that nothing outlives a test that is given up
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-5*time.Second))
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v (Debian's packages spin and gcc are needed: sh test/install.sh test)\n%s", cmd, err, out)
	}
	return string(out)
}
