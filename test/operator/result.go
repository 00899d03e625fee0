package operator

import (
	"bufio"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Recap is the last line of a playbook about a host.
type Recap struct {
	OK, Changed, Unreachable, Failed, Skipped, Rescued, Ignored int
}

// Result is how a playbook went.
type Result struct {
	Hosts map[string]Recap
	// Changes and Failures are the tasks, in their order, with the host.
	Changes, Failures []Step
	// Failed says that the command ended with an error.
	Failed bool
	Took   time.Duration
	Text   string
}

// Step is a task on a host.
type Step struct{ Host, Task string }

var (
	recapLine = regexp.MustCompile(`^(\S+) +: ok=(\d+) +changed=(\d+) +unreachable=(\d+) +failed=(\d+) +skipped=(\d+) +rescued=(\d+) +ignored=(\d+)`)
	taskLine  = regexp.MustCompile(`^(?:TASK|RUNNING HANDLER) \[(.*)\] \*+$`)
	hostLine  = regexp.MustCompile(`^(changed|fatal|failed): \[([^\] ]+)`)
)

// parseResult reads what ansible-playbook prints by its default callback.
func parseResult(text string) (Result, error) {
	r := Result{Hosts: map[string]Recap{}, Text: text}
	task, over := "", false
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		line := lines.Text()
		if m := taskLine.FindStringSubmatch(line); m != nil {
			task = m[1]
		}
		if m := hostLine.FindStringSubmatch(line); m != nil {
			if s := (Step{m[2], task}); m[1] == "changed" {
				r.Changes = append(r.Changes, s)
			} else {
				r.Failures = append(r.Failures, s)
			}
		}
		over = over || strings.HasPrefix(line, "PLAY RECAP ")
		if m := recapLine.FindStringSubmatch(line); m != nil && over {
			var n [7]int
			for i := range n {
				n[i], _ = strconv.Atoi(m[i+2]) // digits only
			}
			r.Hosts[m[1]] = Recap{n[0], n[1], n[2], n[3], n[4], n[5], n[6]}
		}
	}
	if err := lines.Err(); err != nil {
		return r, fmt.Errorf("read what ansible-playbook says: %w", err)
	}
	if len(r.Hosts) == 0 {
		return r, errors.New("ansible-playbook has not come to its recap")
	}
	return r, nil
}

// Changed are the hosts on which something was changed.
func (r Result) Changed() []string {
	var hosts []string
	for name, h := range r.Hosts {
		if h.Changed > 0 {
			hosts = append(hosts, name)
		}
	}
	slices.Sort(hosts)
	return hosts
}

func (r Result) String() string {
	var sum Recap
	for _, h := range r.Hosts {
		sum.OK += h.OK
		sum.Changed += h.Changed
		sum.Failed += h.Failed + h.Unreachable
	}
	return fmt.Sprintf("%d hosts, %d tasks ok, %d changed, %d failed", len(r.Hosts), sum.OK, sum.Changed, sum.Failed)
}
