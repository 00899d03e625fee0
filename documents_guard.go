package edge

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Failure is a check that fails at a node and could take a prefix away there.
type Failure struct {
	// Cause names what it is a failure of: see Cause.
	Cause Cause `json:"cause"`
	// Age is for how long, by the clock of that node.
	Age time.Duration `json:"age_ns"`
}

// Cause is what two sites have in common that fail the same: the name of the
// check, a hash of its definition without what is a node's own, and the need that
// it failed: "web-vip#5f3a09c1@serving". Sites that run another definition of the
// check have another cause.
type Cause string

// MakeCause puts a Cause together.
func MakeCause(check ProbeID, hash string, need ProbeID) Cause {
	return Cause(fmt.Sprintf("%s#%s@%s", check, hash, need))
}

// Check is the name of the check, as an operator knows it.
func (c Cause) Check() ProbeID {
	for i := range c {
		if c[i] == '#' {
			return ProbeID(c[:i])
		}
	}
	return ProbeID(c)
}

// maxCause bounds a Cause, in bytes: two names of two parts each, and the hash.
const maxCause = 160

// Valid says whether c can be one: it comes from other nodes.
func (c Cause) Valid() bool {
	if c == "" || len(c) > maxCause {
		return false
	}
	for _, b := range []byte(c) {
		if (b < 'a' || b > 'z') && (b < '0' || b > '9') && b != '-' && b != '/' && b != '#' && b != '@' {
			return false
		}
	}
	return true
}

// Suspect is a check that fails at so many sites at once that it, or what they all
// depend on, is more likely broken than they are.
type Suspect struct {
	Cause Cause `json:"cause"`
	// Sites are those where it fails, since times that lie within a minute; Silent
	// those that were not heard of within the lease of a promise, which count as
	// failing; of all Of sites.
	Sites  []SiteID `json:"sites"`
	Silent []SiteID `json:"silent,omitempty"`
	Of     int      `json:"of"`
	// Here says that it fails at this node, and so takes no prefix away.
	Here bool `json:"here,omitempty"`
	// Trusted says that an operator's order has it believed all the same.
	Trusted bool `json:"trusted,omitempty"`
}

// Holds says whether the check is not to be held against a site: it fails at more
// than two sites, and more than 30 % of all.
func (s Suspect) Holds() bool { return !s.Trusted && many(len(s.Sites)+len(s.Silent), s.Of) }

// Known says whether that is so without the sites of which nothing is heard.
func (s Suspect) Known() bool { return !s.Trusted && many(len(s.Sites), s.Of) }

func many(n, of int) bool { return n > 2 && 10*n > 3*of }

// String is the reason that a prefix is degraded with.
func (s Suspect) String() string {
	text := fmt.Sprintf("common cause: %s at %d of %d sites", s.Cause.Check(), len(s.Sites)+len(s.Silent), s.Of)
	if n := len(s.Silent); n > 0 {
		text += fmt.Sprintf(", %d of them not heard of", n)
	}
	return text
}

// Trust is an operator's order to believe a check though it fails at many sites at
// once. It spreads through the fleet. One whose Until is its Since takes the order
// before back.
type Trust struct {
	Check  ProbeID   `json:"check"`
	Reason string    `json:"reason"`
	By     NodeID    `json:"by"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
}

const (
	// MaxTrust is how long a check is trusted at most by one order.
	MaxTrust = 24 * time.Hour
	// MaxTrusts is how many orders a node knows of at most.
	MaxTrusts = 64
)

// Equal says whether two orders are the same.
func (t Trust) Equal(o Trust) bool {
	return t.Check == o.Check && t.Reason == o.Reason && t.By == o.By && t.Since.Equal(o.Since) && t.Until.Equal(o.Until)
}

// Holds says whether the check is to be believed at now.
func (t Trust) Holds(now time.Time) bool { return t.Until.After(now) && t.Until.After(t.Since) }

// Validate says what is wrong with an order by itself.
func (t Trust) Validate() error {
	switch {
	case !(Cause(t.Check).Valid() && Cause(t.Check).Check() == t.Check):
		return fmt.Errorf("%q is not the name of a check", t.Check)
	case t.By != "" && !isName(string(t.By)):
		return errors.New("who gave the order is not the name of a node")
	case len(t.Reason) > MaxPreferReason:
		return fmt.Errorf("the reason has %d bytes, at most %d are taken", len(t.Reason), MaxPreferReason)
	case t.Until.Before(t.Since) || t.Until.Sub(t.Since) > MaxTrust:
		return fmt.Errorf("it must end within %s", MaxTrust)
	}
	return nil
}

// MergeTrusts returns the last order for each check, by check, of all lists. It
// leaves out what MergePreferences leaves out.
func MergeTrusts(now time.Time, lists ...[]Trust) []Trust {
	last := map[ProbeID]Trust{}
	for _, t := range slices.Concat(lists...) {
		was, ok := last[t.Check]
		newer := !ok || cmp.Or(t.Since.Compare(was.Since), cmp.Compare(t.By, was.By), t.Until.Compare(was.Until), cmp.Compare(t.Reason, was.Reason)) > 0
		over := !t.Since.Add(MaxTrust + maxSkew).After(now)
		if newer && !over && !t.Since.After(now.Add(maxSkew)) && t.Validate() == nil {
			last[t.Check] = t
		}
	}
	out := make([]Trust, 0, len(last))
	for _, t := range last {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b Trust) int { return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.Check, b.Check)) })
	out = out[:min(len(out), MaxTrusts)] // the newest
	slices.SortFunc(out, func(a, b Trust) int { return cmp.Compare(a.Check, b.Check) })
	return out
}

// Forced is a prefix that was withdrawn by an operator's order, without a permit.
type Forced struct {
	Prefix netip.Prefix `json:"prefix"`
	At     time.Time    `json:"at"`
	Reason string       `json:"reason"`
	// Broken are the nodes that this one had promised to stay.
	Broken []NodeID `json:"broken,omitempty"`
}

const (
	// ForceWindow is the time in which a node may force FreeLeaves prefixes out.
	ForceWindow = 10 * time.Minute
	// ForcedFor is how long a forced withdrawal is told, and alarms.
	ForcedFor = time.Hour
)

// Equal says whether two are the same.
func (f Forced) Equal(o Forced) bool {
	return f.Prefix == o.Prefix && f.At.Equal(o.At) && f.Reason == o.Reason && slices.Equal(f.Broken, o.Broken)
}

// GuardedPrefix is how the fleet stands with a prefix, as far as a node knows, and
// what its policy asks of those that stay.
type GuardedPrefix struct {
	Prefix netip.Prefix `json:"prefix"`
	// Floor is min_sites; Needed, Healthy and Capacity are how many sites, and of
	// what, must stay if one leaves; 0: any. Regions are the floors of regions.
	Floor    int              `json:"floor"`
	Needed   int              `json:"needed"`
	Healthy  int              `json:"healthy,omitempty"`
	Capacity float64          `json:"capacity_rps,omitempty"`
	Regions  map[RegionID]int `json:"regions,omitempty"`
	// Sites announce it, as heard of within the lease of a promise; Silent have not
	// been heard of since, and count as gone.
	Sites  []SiteID `json:"sites"`
	Silent []SiteID `json:"silent,omitempty"`
	// MayLeave is how many of Sites may leave at the most; Lacks says what is missing
	// for one more.
	MayLeave int    `json:"may_leave"`
	Lacks    Reason `json:"lacks,omitempty"`
	// Round is the one that this node has open; nil: none.
	Round *OpenRound `json:"round,omitempty"`
}

// OpenRound is a question of this node that is not answered yet, or was and holds.
type OpenRound struct {
	N      uint64    `json:"n"`
	Opened time.Time `json:"opened"`
	// Held are the promises that it has got, Nacked the refusals, Waiting those that
	// have not answered.
	Held    []Promised        `json:"held,omitempty"`
	Nacked  map[NodeID]Reason `json:"nacked,omitempty"`
	Waiting []NodeID          `json:"waiting,omitempty"`
}

// Promised is a promise to stay that this node has got.
type Promised struct {
	Node NodeID `json:"node"`
	// Until is when it stops to count here.
	Until time.Time `json:"until"`
}

// GuardWhatIf answers GET /v1/guard/what-if?withdraw=SITE...: what the guard would
// allow now.
type GuardWhatIf struct {
	Withdraw []SiteID       `json:"withdraw"`
	Prefixes []GuardOutcome `json:"prefixes"`
	Notes    []string       `json:"notes,omitempty"`
}

// GuardOutcome is whether one site could leave one prefix, after those before it
// have left that may.
type GuardOutcome struct {
	Prefix netip.Prefix `json:"prefix"`
	Site   SiteID       `json:"site"`
	OK     bool         `json:"ok"`
	Reason Reason       `json:"reason"`
}
