// Package boot judges a boot of an appliance: is this version good, is it to be
// given up for the one before, or is there nothing better than to stay up and call
// for a person. It owns the rounds of checks, the decision, which is pure, and what
// is told of it: message of the day, metrics, alarms. It never reboots, drains or
// writes to the ESP itself. edgectl runs it once a boot, as edge-health.service.
package boot

import (
	"fmt"
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
	Boots   []slot.Boot
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
func Judge(f Facts) Verdict {
	if len(f.Failed) == 0 {
		return Verdict{Good: true, Why: "all checks have passed"}
	}
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
	r := &slot.Refused{Version: u.Version, When: now, Check: slot.NeverUp, Reason: fmt.Sprintf(
		"it was booted %s and never came to be judged: it crashed, hung, or could not use its root or its disk", times(tried))}
	if b := last(f.Boots, u.Version); b != nil {
		r.Check, r.Reason = b.Failed[0].Check, b.Failed[0].Reason
		for _, more := range b.Failed[1:] {
			r.Reason += fmt.Sprintf("; %s: %s", more.Check, more.Reason)
		}
	}
	return r
}

// last is the last boot of a version that failed, of those since another one ran: the
// order counts, as the clock of a box may be set between two boots. nil: there is none.
func last(boots []slot.Boot, version string) *slot.Boot {
	for i := len(boots) - 1; i >= 0 && boots[i].Version == version; i-- {
		if b := &boots[i]; !b.Good && len(b.Failed) > 0 {
			return b
		}
	}
	return nil
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
