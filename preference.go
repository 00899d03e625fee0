package edge

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Bounds of a Preference.
const (
	// MaxPreference is how long an order to move traffic holds at most.
	MaxPreference = 7 * 24 * time.Hour
	// MaxPreferSites is how many sites it may name.
	MaxPreferSites = 64
	// MaxPreferReason is how long its reason may be, in bytes.
	MaxPreferReason = 500
)

// Equal says whether two orders are the same.
func (o Preference) Equal(b Preference) bool {
	return slices.Equal(o.Sites, b.Sites) && o.Prefix == b.Prefix && o.Prepend == b.Prepend && o.MED == b.MED &&
		o.Reason == b.Reason && o.By == b.By && o.Since.Equal(b.Since) && o.Until.Equal(b.Until)
}

// Check says what is wrong with an order by itself; whether its sites and its
// prefix exist is for the caller to say. An order without sites takes an earlier
// one back.
func (o Preference) Check() error {
	switch {
	case o.By != "" && !isName(string(o.By)):
		return errors.New("who gave the order is not the name of a node")
	case len(o.Reason) > MaxPreferReason:
		return fmt.Errorf("the reason has %d bytes, at most %d are taken", len(o.Reason), MaxPreferReason)
	case len(o.Sites) > MaxPreferSites:
		return fmt.Errorf("%d sites are named, at most %d may be", len(o.Sites), MaxPreferSites)
	case o.Prefix != (netip.Prefix{}) && (!o.Prefix.IsValid() || o.Prefix != o.Prefix.Masked()):
		return fmt.Errorf("prefix %s is not one without host bits", o.Prefix)
	case o.Prepend < 0 || o.Prepend > MaxPrepend:
		return fmt.Errorf("prepend %d is not 0 to %d", o.Prepend, MaxPrepend)
	case len(o.Sites) > 0 && o.Prepend == 0 && o.MED == 0:
		return errors.New("neither prepends nor a MED are given: the order would change nothing")
	case o.Until.Before(o.Since) || o.Until.Sub(o.Since) > MaxPreference:
		return fmt.Errorf("it must end within %s", MaxPreference)
	}
	for _, s := range o.Sites {
		if !isName(string(s)) {
			return fmt.Errorf("%q is not the name of a site", s)
		}
	}
	return nil
}

// compare puts the later order last. Of two of one instant anything that is the
// same at every node does.
func (o Preference) compare(b Preference) int {
	return cmp.Or(o.Since.Compare(b.Since), cmp.Compare(o.By, b.By), o.Until.Compare(b.Until), slices.Compare(o.Sites, b.Sites),
		cmp.Compare(o.Prepend, b.Prepend), cmp.Compare(o.MED, b.MED), cmp.Compare(o.Reason, b.Reason))
}

// MaxPreferences is how many orders a node knows of at most: one for each prefix,
// and one for all.
const MaxPreferences = 256

// MergePreferences returns, of all orders, the last one for each prefix, by
// prefix. One that has ended stays among them as long as an older one could still
// hold, so that it does not come back from a node that was away. What is wrong by
// itself, claims to be of the future or names a prefix that known does not know is
// left out. Of two of the same instant the one of the node with the higher name
// counts, so that every node settles on the same.
func MergePreferences(now time.Time, known func(netip.Prefix) bool, lists ...[]Preference) []Preference {
	last := map[netip.Prefix]Preference{}
	for _, o := range slices.Concat(lists...) {
		was, ok := last[o.Prefix]
		newer := !ok || o.compare(was) > 0
		over := !o.Since.Add(MaxPreference + maxSkew).After(now)
		if newer && !over && !o.Since.After(now.Add(maxSkew)) && o.Check() == nil && (o.Prefix == netip.Prefix{} || known(o.Prefix)) {
			last[o.Prefix] = o
		}
	}
	out := make([]Preference, 0, len(last))
	for _, o := range last {
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b Preference) int { return a.Prefix.Compare(b.Prefix) })
	return out[:min(len(out), MaxPreferences)]
}

// maxSkew is how far the clocks of two nodes may be apart.
const maxSkew = time.Minute

// Holds says whether the order moves traffic at now.
func (o Preference) Holds(now time.Time) bool { return len(o.Sites) > 0 && o.Until.After(now) }

// Preferred returns what site adds to the announcement of p by the orders given,
// and why. An order for p itself counts before that for all prefixes, unless it
// has ended or was taken back, and that for all is newer.
func Preferred(now time.Time, orders []Preference, site SiteID, p netip.Prefix) (Attributes, Reason) {
	var own, all *Preference
	for i := range orders {
		switch o := &orders[i]; o.Prefix {
		case p:
			own = o
		case netip.Prefix{}:
			all = o
		}
	}
	found := all
	if own != nil && (own.Holds(now) || all == nil || !all.Since.After(own.Since)) {
		found = own
	}
	if found == nil || !found.Holds(now) || slices.Contains(found.Sites, site) {
		return Attributes{}, ""
	}
	return Attributes{Prepend: found.Prepend, MED: found.MED}, Reason(fmt.Sprintf("traffic is moved to %s until %s: %s",
		joinSites(found.Sites), found.Until.UTC().Format(time.DateTime), found.Reason))
}

func joinSites(ids []SiteID) string {
	s := ""
	for i, id := range ids {
		if i > 0 {
			s += ", "
		}
		s += string(id)
	}
	return s
}
