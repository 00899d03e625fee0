package rollout

import (
	"bufio"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// recap is the last line of a playbook about a host.
type recap struct {
	ok, changed, unreachable, failed, skipped, rescued, ignored int
}

// result is how a playbook went.
type result struct {
	hosts map[string]recap
	// changes and failures are the tasks, in their order, with the host.
	changes, failures []step
	// failed says that the command ended with an error.
	failed bool
	took   time.Duration
	text   string
}

// step is a task on a host.
type step struct{ host, task string }

var (
	recapLine = regexp.MustCompile(`^(\S+) +: ok=(\d+) +changed=(\d+) +unreachable=(\d+) +failed=(\d+) +skipped=(\d+) +rescued=(\d+) +ignored=(\d+)`)
	taskLine  = regexp.MustCompile(`^(?:TASK|RUNNING HANDLER) \[(.*)\] \*+$`)
	hostLine  = regexp.MustCompile(`^(changed|fatal|failed): \[([^\] ]+)`)
)

// parseResult reads what ansible-playbook prints by its default callback.
func parseResult(text string) (result, error) {
	r := result{hosts: map[string]recap{}, text: text}
	task, over := "", false
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		line := lines.Text()
		if m := taskLine.FindStringSubmatch(line); m != nil {
			task = m[1]
		}
		if m := hostLine.FindStringSubmatch(line); m != nil {
			if s := (step{m[2], task}); m[1] == "changed" {
				r.changes = append(r.changes, s)
			} else {
				r.failures = append(r.failures, s)
			}
		}
		over = over || strings.HasPrefix(line, "PLAY RECAP ")
		if m := recapLine.FindStringSubmatch(line); m != nil && over {
			var n [7]int
			for i := range n {
				n[i], _ = strconv.Atoi(m[i+2]) // digits only
			}
			r.hosts[m[1]] = recap{n[0], n[1], n[2], n[3], n[4], n[5], n[6]}
		}
	}
	if err := lines.Err(); err != nil {
		return r, fmt.Errorf("read what ansible-playbook says: %w", err)
	}
	if len(r.hosts) == 0 {
		return r, errors.New("ansible-playbook has not come to its recap")
	}
	return r, nil
}

// changed are the hosts on which something was changed.
func (r result) changed() []string {
	var hosts []string
	for name, h := range r.hosts {
		if h.changed > 0 {
			hosts = append(hosts, name)
		}
	}
	slices.Sort(hosts)
	return hosts
}

func (r result) String() string {
	var sum recap
	for _, h := range r.hosts {
		sum.ok += h.ok
		sum.changed += h.changed
		sum.failed += h.failed + h.unreachable
	}
	return fmt.Sprintf("%d hosts, %d tasks ok, %d changed, %d failed", len(r.hosts), sum.ok, sum.changed, sum.failed)
}

func TestParseResult(t *testing.T) {
	text := `
PLAY [Converge] ****************************************************************

TASK [catchment.edge.edge_host : Install the package] **************************
changed: [a1]
ok: [b1]
failed: [c1] (item=x) => {"changed": false}
changed: [a1 -> localhost] => (item=y)

RUNNING HANDLER [catchment.edge.edge_config : Reload] **************************
changed: [b1]
fatal: [c1]: UNREACHABLE! => {"changed": false, "msg": "PLAY RECAP"}

PLAY RECAP *********************************************************************
a1                         : ok=12   changed=2    unreachable=0    failed=0    skipped=3    rescued=0    ignored=0   
b1                         : ok=2    changed=1    unreachable=0    failed=0    skipped=0    rescued=0    ignored=0   
c1                         : ok=0    changed=0    unreachable=1    failed=1    skipped=0    rescued=1    ignored=2   
`
	got, err := parseResult(text)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]recap{
		"a1": {ok: 12, changed: 2, skipped: 3}, "b1": {ok: 2, changed: 1},
		"c1": {unreachable: 1, failed: 1, rescued: 1, ignored: 2},
	}
	if d := cmp.Diff(want, got.hosts, cmp.AllowUnexported(recap{})); d != "" {
		t.Error(d)
	}
	install, reload := "catchment.edge.edge_host : Install the package", "catchment.edge.edge_config : Reload"
	if d := cmp.Diff([]step{{"a1", install}, {"a1", install}, {"b1", reload}}, got.changes, cmp.AllowUnexported(step{})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]step{{"c1", install}, {"c1", reload}}, got.failures, cmp.AllowUnexported(step{})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"a1", "b1"}, got.changed()); d != "" {
		t.Error(d)
	}
	for _, none := range []string{"", "ERROR! the playbook could not be found", "PLAY RECAP ****"} {
		if _, err := parseResult(none); err == nil {
			t.Errorf("%q is a result", none)
		}
	}
}
