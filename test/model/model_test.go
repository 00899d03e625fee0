package model

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/catchment-dev/edge/test/figure"
)

var (
	long    = flag.Bool("long", false, "check also the forms that take minutes and gigabytes")
	figures = flag.String("figures", "", "file for the numbers of states")
)

// form is a shape of the model that is checked whole.
type form struct {
	name    string
	defs    string
	slow    bool // only with -long
	compare bool // that reducing it leaves out nothing
	run     search
}

// Hash is about as many bits as the form has states, Memory leaves half again as much
// as it takes: a model that has grown fails, and does not take the machine.
func forms() []form {
	return []form{
		{name: "(3,1)", defs: "N=3 K=1", compare: true, run: search{hash: 22, memory: 1 << 9}},
		{name: "(3,2)", defs: "N=3 K=2", compare: true, run: search{hash: 21, memory: 1 << 9}},
		{name: "(4,2) reduced", defs: "N=4 K=2 REDUCED", run: search{hash: 20, memory: 1 << 9}},
		{name: "(3,1) reduced, speaker", defs: "N=3 K=1 REDUCED SPEAKER", run: search{hash: 20, memory: 1 << 9}},
		{name: "(3,2) reduced, speaker", defs: "N=3 K=2 REDUCED SPEAKER", run: search{hash: 20, memory: 1 << 9}},
		{name: "(4,2) one round", defs: "N=4 K=2 R=1", slow: true, run: search{hash: 24, memory: 4 << 10}},
		{name: "(3,1) speaker", defs: "N=3 K=1 SPEAKER", slow: true, compare: true, run: search{hash: 25, memory: 4 << 10}},
		{name: "(3,2) speaker", defs: "N=3 K=2 SPEAKER", slow: true, compare: true, run: search{hash: 22, memory: 1 << 10}},
		{name: "(4,2) reduced, speaker", defs: "N=4 K=2 REDUCED SPEAKER", slow: true, run: search{hash: 23, memory: 2 << 10}},
	}
}

// rules are the assertions of the model.
func rules() []string {
	return []string{"floorHolds", "promisesLive", "neverBound", "notOwing", "allReturn", "allFree"}
}

// TestEveryOrderOfEvents: no rule is broken in any form, everything was tried, and
// there is no step of the model that is never taken.
func TestEveryOrderOfEvents(t *testing.T) {
	var mu sync.Mutex
	found := map[string]verdict{}
	t.Run("forms", func(t *testing.T) {
		for _, f := range forms() {
			if f.slow && !*long {
				continue
			}
			t.Run(f.name, func(t *testing.T) {
				t.Parallel()
				v := f.hold(t)
				mu.Lock()
				defer mu.Unlock()
				found[f.name] = v
			})
		}
	})
	if *figures != "" && !t.Failed() {
		write(t, *figures, found)
	}
}

// hold checks that all rules hold in the form.
func (f form) hold(t *testing.T) verdict {
	f.run.defs = append(strings.Fields(f.defs), "SORTED")
	if f.compare {
		f.run.defs = append(f.run.defs, "KEEP")
	}
	v := f.run.check(t)
	t.Logf("%d states in %.1f s, %d MiB", v.states, v.took.Seconds(), v.memory)
	switch {
	case v.errors != 0:
		t.Errorf("%s is broken:\n%s", v.broken, v.story)
	case v.partial != "":
		t.Errorf("not everything was tried: %s", v.partial)
	case len(v.unreached) > 0:
		t.Errorf("steps that are never taken: %s", strings.Join(v.unreached, ", "))
	}
	if !f.compare || t.Failed() {
		return v
	}
	f.run.defs = append(f.run.defs, "REDUCED")
	reduced := f.run.check(t)
	lost, more := 0, 0
	for s := range v.kept {
		if !reduced.kept[s] {
			lost++
		}
	}
	for s := range reduced.kept {
		if !v.kept[s] {
			more++
		}
	}
	t.Logf("reduced: %d states; %d are lost, %d are new", len(reduced.kept), lost, more)
	if lost+more > 0 || reduced.errors > 0 || reduced.partial != "" {
		t.Errorf("without dead questions the whole form has %d states that the reduced one has not, and lacks %d of %d", lost, more, len(reduced.kept))
	}
	return v
}

func write(t *testing.T, file string, found map[string]verdict) {
	var all []figure.Figure
	for _, f := range forms() {
		if v, ok := found[f.name]; ok {
			all = append(all, figure.Figure{Name: f.name + ": states", Value: float64(v.states), Unit: "1"},
				figure.Figure{Name: f.name + ": time", Value: v.took.Seconds(), Unit: "s"},
				figure.Figure{Name: f.name + ": memory", Value: float64(v.memory), Unit: "MiB"},
				figure.Figure{Name: f.name + ": violations", Value: float64(v.errors), Unit: "1"})
		}
	}
	if err := figure.Write(file, all); err != nil {
		t.Fatal(err)
	}
}

// TestFormsGetFar: in every form a site that has crashed leaves later, in its last
// round, and as many others are gone then as may be; and one that has left by its
// first round and come back leaves again by its second. A model in which nobody
// leaves would break no rule.
func TestFormsGetFar(t *testing.T) {
	for _, f := range forms() {
		if f.slow && !*long {
			continue
		}
		for witness, broken := range map[string]string{"WITNESS": "nobodyLeaves", "WITNESS_AGAIN": "nobodyLeavesAgain"} {
			if broken == "nobodyLeavesAgain" && strings.Contains(f.defs, "R=1") {
				continue
			}
			t.Run(f.name+" "+broken, func(t *testing.T) {
				t.Parallel()
				v := soon(f.defs, witness).check(t)
				if v.broken != broken {
					t.Errorf("got %d errors, of %q: want one of %s\n%s", v.errors, v.broken, broken, v.story)
				}
			})
		}
	}
}

// TestNeverTaken: a step that cannot be taken is noticed. If all others must stay,
// nobody leaves.
func TestNeverTaken(t *testing.T) {
	v := soon("N=3 K=3 R=1", "SORTED").check(t)
	if v.errors != 0 || !slices.Contains(v.unreached, "has leave") || slices.Contains(v.unreached, "asks") {
		t.Errorf("with a floor of three of three sites: %d errors, never taken: %q", v.errors, v.unreached)
	}
}

// mutant is a rule to break.
type mutant struct {
	name  string // of the define
	says  string
	forms []string // that show it; all but the first only with -long, unless it is one of the six
}

// six is how many mutants come first that must be caught by all means.
const six = 6

func mutants() []mutant {
	plain := []string{"N=3 K=1", "N=4 K=2 REDUCED"}
	speaker := []string{"N=3 K=1 SPEAKER", "N=4 K=2 REDUCED SPEAKER"}
	return []mutant{
		{"NO_ROUND", "no round number", plain},
		{"WITHDRAWN_PROMISES", "withdrawn sites promise", plain},
		{"FROM_ANSWER", "lease counted from the answer", plain},
		{"IGNORES_BINDING", "own binding not checked", plain},
		{"FORGETS", "forgets on restart", plain},
		{"COUNTS_ITSELF", "counts itself", plain},
		{"RELEASE_ANY_ROUND", "a release frees from any round", plain},
		{"OLD_QUESTION", "an old question is answered", plain[:1]},        // reduced, nobody hears one
		{"COUNTS_COPIES", "a copy counts", []string{"N=3 K=2", plain[1]}}, // of one promise two copies are no less
		{"NO_DEADLINE", "a withdrawal has no deadline", plain},
		{"EARLY_RELEASE", "release before the withdrawal is confirmed", plain},
		{"FAILED_RELEASES", "release when a withdrawal seems to fail", speaker},
		{"LEAVING_PROMISES", "promises while it leaves", plain},
		{"FAILED_PROMISES", "failed withdrawal taken for none", speaker},
		{"BELIEVES_HELD", "withdrawn sites promise by what they read back", speaker},
		{"BELIEVES_STALE", "old read-back believed", speaker},
		{"PROMISES_OFF_AIR", "promises what it does not announce", plain},
		{"STARTED_PROMISES", "promises at once after a restart", plain},
		{"RETURN_ASKS", "asks before it returns", plain},
		{"CLOCKS_DIFFER", "clocks differ by more than the margin", plain},
	}
}

// simulated are the mutants that need what the model has not, by the names that
// guard/promise has for them.
func simulated() []string {
	return []string{
		"two nodes of a site count twice", "ignores terms", "floor lowered in an open round",
		"forgets the longer lease on restart", "orders do not wait for sickness",
	}
}

func TestMutantsAreCaught(t *testing.T) {
	for i, m := range mutants() {
		for j, form := range m.forms {
			if i >= six && j > 0 && !*long {
				continue
			}
			t.Run(m.says+" "+form, func(t *testing.T) {
				t.Parallel()
				v := soon(form, "MUTANT", m.name).check(t)
				if v.errors == 0 || !slices.Contains(rules(), v.broken) {
					t.Errorf("%s lives: %d states, %d errors, of %q", m.name, v.states, v.errors, v.broken)
				}
				t.Logf("%s breaks %s, found after %d states", m.name, v.broken, v.states)
			})
		}
	}
}

// soon is a search for what is found after few states.
func soon(form string, more ...string) search {
	return search{defs: append(strings.Fields(form), more...), hash: 20, memory: 1 << 10, quick: true}
}

// TestSearchCutShort: one that has no room for all states is no proof.
func TestSearchCutShort(t *testing.T) {
	v := search{defs: []string{"N=3", "K=1"}, hash: 18, memory: 20, quick: true}.check(t)
	if v.errors != 0 || v.partial == "" {
		t.Errorf("in 20 MiB: %d states, %d errors, cut short: %q", v.states, v.errors, v.partial)
	}
}

// TestNoMutantIsForgotten: those of the model are in the list, those that are left to
// the simulator are in it, and doc.go names all.
func TestNoMutantIsForgotten(t *testing.T) {
	doc, model := read(t, "doc.go"), ""
	for _, name := range sources() {
		model += read(t, name)
	}
	listed := []string{"N", "R", "SPEAKER", "REDUCED", "SORTED", "KEEP", "MUTANT", "WITNESS", "WITNESS_AGAIN"}
	for _, m := range mutants() {
		listed = append(listed, m.name)
		if !strings.Contains(doc, "\t"+m.name+" ") {
			t.Errorf("doc.go does not say what %s is", m.name)
		}
		if !strings.Contains(model, m.name) {
			t.Errorf("%s has no mutant %s: what is caught there is something else", source, m.name)
		}
	}
	for _, line := range regexp.MustCompile(`(?m)^#\s*(?:el)?if.*$`).FindAllString(model, -1) {
		for _, word := range regexp.MustCompile(`[A-Z][A-Z_]*`).FindAllString(line, -1) {
			if !slices.Contains(listed, word) {
				t.Errorf("%s: %s is not in the list of mutants", source, word)
			}
		}
	}
	tests, err := filepath.Glob("../../guard/promise/*_test.go")
	if err != nil || len(tests) == 0 {
		t.Fatalf("the simulator is not in guard/promise any more: %v", err)
	}
	var simulator strings.Builder
	for _, name := range tests {
		simulator.WriteString(read(t, name))
	}
	for _, name := range simulated() {
		if !strings.Contains(simulator.String(), fmt.Sprintf("%q", name)) {
			t.Errorf("neither the model nor the simulator has the mutant %q", name)
		}
		if !strings.Contains(doc, "\t"+name+"\n") {
			t.Errorf("doc.go does not name %q", name)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
