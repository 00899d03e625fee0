// Package boot judges a boot of an appliance: is this version good, is it to be
// given up for the one before, or is there nothing better than to stay up and call
// for a person. It owns the rounds of checks, the decision, which is pure, and what
// is told of it: message of the day, metrics, alarms. It never reboots, drains or
// writes to the ESP itself. edgectl runs it, as edge-health.service, until a boot is good.
package boot

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/catchment-dev/edge/image/slot"
)

// Facts are all that a judgement depends on.
type Facts struct {
	// Version and Slot are those that run.
	Version string
	Slot    slot.Slot
	// Counter is the UKI that was booted, if its name has a boot counter; nil: it
	// has none, since it was blessed or came with the disk.
	Counter *slot.UKI
	// UKIs are those on the ESP that can be booted.
	UKIs []slot.UKI
	// Upgrade is the last that was begun; nil: none was.
	Upgrade *slot.Upgrade
	Refused []slot.Refused
	// Rollbacks count what the box has come back from.
	Rollbacks []slot.Rollback
	Boots     []slot.Boot
	// Failed are the checks that failed until the deadline.
	Failed []slot.Failure
}

// Verdict is what to do of a boot.
type Verdict struct {
	// Good: let systemd bless it. Else Reboot: give it up; and neither: stay up.
	Good   bool   `json:"good"`
	Reboot bool   `json:"reboot"`
	Why    string `json:"why"`
}

// Judge decides. A version is only given up while it is under trial, and if there
// is another that may be better: else a box whose last good version fails, for want
// of a peer perhaps, would reboot for ever.
//
// A version that is to stay and fails on its disk alone is good: it serves, and only in
// a boot that is good the box comes back on the air. What has filled the disk is perhaps
// the version that it has come back from.
func Judge(f Facts) Verdict {
	if len(f.Failed) == 0 {
		return Verdict{Good: true, Why: "all checks have passed"}
	}
	v := giveUp(f)
	if names := FailedNames(f.Failed); !v.Reboot && len(names) == 1 && names[0] == Disk {
		return Verdict{Good: true, Why: "all other checks have passed, and no other version would be better; " + v.Why}
	}
	return v
}

// Disk is the name of the check of /var.
const Disk = "disk"

// giveUp decides of a boot that has failed.
func giveUp(f Facts) Verdict {
	first := fmt.Sprintf("%s: %s", f.Failed[0].Check, f.Failed[0].Reason)
	if f.Counter == nil {
		return Verdict{Why: first + "; this version was good before, so it stays"}
	}
	other, ok := slot.Next(slot.Others(f.UKIs, f.Version))
	switch {
	case len(f.UKIs) == 0 && f.Upgrade.OnTrial() && f.Upgrade.Version == f.Version:
		// Not even its own: the ESP cannot be read. An upgrade leaves the one before.
		return Verdict{Reboot: true, Why: fmt.Sprintf("%s; %d tries are left, then %s is booted", first, f.Counter.Left, f.Upgrade.From)}
	case !ok:
		return Verdict{Why: first + "; there is no other version to boot, so it stays"}
	case other.Spent() && !other.SetAside():
		return Verdict{Why: fmt.Sprintf("%s; the other version, %s, has failed as well, so it stays", first, other.Version)}
	case !gives(*f.Counter, other):
		return Verdict{Why: fmt.Sprintf("%s; the other version, %s, is older and was set aside, so this one would be booted again: it stays", first, other.Version)}
	case f.Counter.Left > 0:
		return Verdict{Reboot: true, Why: fmt.Sprintf("%s; %d tries are left, then %s is booted", first, f.Counter.Left, other.Version)}
	}
	return Verdict{Reboot: true, Why: fmt.Sprintf("%s; no tries are left, so %s is booted", first, other.Version)}
}

// gives says whether the loader takes other once the tries of u are over. Of two that
// have none it takes the newer one.
func gives(u, other slot.UKI) bool {
	u.Left = 0
	return slot.CompareUKI(other, u) < 0
}

// CameBack says which version this boot has come back from: one that was on trial,
// was tried at least once, and does not run. nil: none.
func CameBack(f Facts, now time.Time) *slot.Refused {
	u := f.Upgrade
	if !u.OnTrial() || u.Version == f.Version {
		return nil
	}
	tried := 0
	for _, k := range f.UKIs {
		if k.Version == u.Version && k.Counted {
			tried = k.Done
		}
	}
	if tried == 0 { // it is still to be booted, or it is good, or its UKI was taken away
		return nil
	}
	return failure(f, u.Version, now, tried, func(b slot.Boot) bool {
		if b.Trial.IsZero() {
			return !b.Time.Before(u.Since)
		}
		return b.Trial.Equal(u.Since)
	})
}

// failure is why a version is refused, by its judgements that count.
func failure(f Facts, version string, now time.Time, tried int, counts func(slot.Boot) bool) *slot.Refused {
	r := &slot.Refused{Version: version, When: now, Check: slot.NeverUp, Times: 1, Reason: fmt.Sprintf(
		"it was booted %s and never came to be judged: it crashed, hung, or could not use its root or its disk", times(tried))}
	for _, b := range f.Boots {
		if b.Version != version || b.Good || len(b.Failed) == 0 || !counts(b) {
			continue
		}
		r.Check, r.Reason = b.Failed[0].Check, b.Failed[0].Reason
		for _, more := range b.Failed[1:] {
			r.Reason += fmt.Sprintf("; %s: %s", more.Check, more.Reason)
		}
	}
	return r
}

// Refusals are the versions that are not taken again: those on record, and those that
// the names on the EFI partition tell of. If the disk is full, or the power fails
// before it is written down, they are all that is left of it.
func Refusals(f Facts) []slot.Refused {
	out := slices.Clone(f.Refused)
	if back := CameBack(f, time.Time{}); back != nil && slot.RefusedOf(out, back.Version) == nil {
		out = append(out, *back)
	}
	for _, k := range f.UKIs {
		if k.Version == f.Version || !k.Spent() || k.SetAside() || slot.RefusedOf(out, k.Version) != nil {
			continue
		}
		out = append(out, *failure(f, k.Version, time.Time{}, k.Done, func(slot.Boot) bool { return true }))
	}
	return out
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// Untried says that a version was staged and not booted, though this boot came after.
func Untried(f Facts) bool {
	return f.Upgrade.OnTrial() && f.Upgrade.Version != f.Version
}

// oneLine keeps what a check said from being more than a line, and from being an
// order to the terminal of who logs in: a router may have said it.
func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), unicode.IsControl), " | ")
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "..."
	}
	return s
}

// maxReason bounds the text of one failed check, in bytes.
const maxReason = 500
