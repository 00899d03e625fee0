package boot

import (
	"fmt"
	"slices"
	"strings"

	"github.com/catchment-dev/edge/image/slot"
)

// Report is what people and machines are told of the versions on a box.
type Report struct {
	Facts
	// Judged says that Verdict is one; else the checks still run.
	Judged  bool
	Verdict Verdict
	// Notes are further conditions that need a person, such as a state file that
	// could not be read.
	Notes []string
}

// Alarms are the conditions that need a person, one a line. A version that was
// rolled back by hand is none, nor one that a newer one has replaced.
func (r Report) Alarms() []string {
	var out []string
	if r.Judged && !r.Verdict.Good {
		out = append(out, fmt.Sprintf("version %s of slot %s is not good: %s", r.Version, r.Slot, r.Verdict.Why))
	}
	if r.Judged && r.Verdict.Good {
		for _, f := range r.Failed { // it is good all the same: see Judge
			out = append(out, fmt.Sprintf("%s: %s", f.Check, f.Reason))
		}
	}
	for _, f := range r.Refused {
		if f.Check != slot.ByOperator && slot.Compare(f.Version, r.Version) > 0 {
			out = append(out, fmt.Sprintf("version %s has failed, and the box went back to %s: %s", f.Version, r.Version, Cause(f)))
		}
	}
	if Untried(r.Facts) {
		out = append(out, fmt.Sprintf("version %s was staged and has not been booted", r.Upgrade.Version))
	}
	for _, n := range r.Notes {
		out = append(out, oneLine(n))
	}
	return out
}

// Cause is on which check a version has failed, when, and why.
func Cause(f slot.Refused) string {
	when := " at " + f.When.UTC().Format("2006-01-02 15:04:05 UTC")
	if f.When.IsZero() { // it is not on record: see Refusals
		when = ""
	}
	if f.Check == slot.ByOperator {
		return fmt.Sprintf("rolled back by hand%s: %s", when, oneLine(f.Reason))
	}
	again := ""
	if f.Times > 1 {
		again = fmt.Sprintf(", %d times by now", f.Times)
	}
	return fmt.Sprintf("check %s%s%s: %s", f.Check, when, again, oneLine(f.Reason))
}

// Motd is the message of the day. It says nothing of passwords or addresses.
func (r Report) Motd() string {
	var b strings.Builder
	state := "the checks of this boot still run"
	switch {
	case r.Judged && r.Verdict.Good:
		state = "good"
	case r.Judged && r.Verdict.Reboot:
		state = "given up, rebooting"
	case r.Judged:
		state = "NOT GOOD"
	}
	fmt.Fprintf(&b, "Catchment %s, slot %s: %s\n", r.Version, r.Slot, state)
	for _, a := range r.Alarms() {
		fmt.Fprintf(&b, "ALARM  %s\n", a)
	}
	for _, f := range r.Refused {
		fmt.Fprintf(&b, "refused: version %s, %s\n", f.Version, Cause(f))
	}
	if len(r.Refused) > 0 {
		b.WriteString("A refused version is taken again with edgectl upgrade --force. journalctl -u edge-health has more.\n")
	}
	return b.String()
}

// Metrics is the same in the text format of Prometheus. The labels are bounded:
// versions that are kept, and the names of checks.
func (r Report) Metrics() string {
	var b strings.Builder
	family := func(name, kind, help string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	family("edge_boot_version", "gauge", "1 for the version and the slot that run.")
	fmt.Fprintf(&b, "edge_boot_version{version=%s,slot=%s} 1\n", label(r.Version), label(string(r.Slot)))
	if r.Judged {
		family("edge_boot_good", "gauge", "1 if this boot has passed its checks, 0 if not; absent while they run.")
		fmt.Fprintf(&b, "edge_boot_good %d\n", truth(r.Verdict.Good))
	}
	if len(r.Failed) > 0 {
		family("edge_boot_check_failed", "gauge", "1 for each check that this boot has not passed.")
		for _, f := range r.Failed {
			fmt.Fprintf(&b, "edge_boot_check_failed{check=%s} 1\n", label(f.Check))
		}
	}
	if len(r.Refused) > 0 {
		family("edge_boot_refused", "gauge", "1 for each version that is not taken again unless forced, by the check that failed.")
		for _, f := range r.Refused {
			fmt.Fprintf(&b, "edge_boot_refused{version=%s,reason=%s} 1\n", label(f.Version), label(f.Check))
		}
	}
	if len(r.Rollbacks) > 0 {
		family("edge_boot_rollback_total", "counter", "How often the box has come back from a version by itself, by the check that failed.")
		for _, f := range r.Rollbacks {
			fmt.Fprintf(&b, "edge_boot_rollback_total{from=%s,reason=%s} %d\n", label(f.From), label(f.Check), f.Times)
		}
	}
	return b.String()
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// label quotes the value of a label.
func label(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// FailedNames are the names of failed checks.
func FailedNames(list []slot.Failure) []string {
	var out []string
	for _, f := range list {
		if !slices.Contains(out, f.Check) {
			out = append(out, f.Check)
		}
	}
	return out
}
