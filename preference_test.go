package edge

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func order(by NodeID, since time.Duration, sites ...SiteID) Preference {
	at := testNow.Add(since)
	return Preference{Sites: sites, Prepend: 2, Reason: "load", By: by, Since: at, Until: at.Add(time.Hour)}
}

func TestPreferenceCheck(t *testing.T) {
	for _, tt := range []struct {
		name string
		mend func(*Preference)
		want string // "": it is good
	}{
		{"good", func(*Preference) {}, ""},
		{"takes back", func(o *Preference) { o.Sites, o.Prepend = nil, 0 }, ""},
		{"MED alone", func(o *Preference) { o.Prepend, o.MED = 0, 7 }, ""},
		{"changes nothing", func(o *Preference) { o.Prepend = 0 }, "would change nothing"},
		{"prepends too often", func(o *Preference) { o.Prepend = MaxPrepend + 1 }, "prepend 11 is not 0 to 10"},
		{"negative", func(o *Preference) { o.Prepend = -1 }, "prepend -1"},
		{"for ever", func(o *Preference) { o.Until = o.Since.Add(MaxPreference + 1) }, "must end within"},
		{"over before it began", func(o *Preference) { o.Until = o.Since.Add(-1) }, "must end within"},
		{"host bits", func(o *Preference) { o.Prefix = netip.MustParsePrefix("198.51.100.1/24") }, "host bits"},
		{"strange node", func(o *Preference) { o.By = "A\x1b" }, "not the name of a node"},
		{"a long reason", func(o *Preference) { o.Reason = strings.Repeat("x", MaxPreferReason+1) }, "at most 500"},
		{"strange site", func(o *Preference) { o.Sites = []SiteID{"A B"} }, "not the name of a site"},
		{"too many sites", func(o *Preference) { o.Sites = slices.Repeat([]SiteID{"a"}, MaxPreferSites+1) }, "65 sites"},
	} {
		o := order("a1", 0, "a")
		tt.mend(&o)
		err := o.Check()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestPreferred(t *testing.T) {
	other := netip.MustParsePrefix("203.0.113.0/24")
	all := order("a1", 0, "a")
	own := order("a1", 0, "b")
	own.Prefix, own.Prepend = testPrefix, 5
	back := order("a1", time.Second)
	back.Prefix = testPrefix
	over := own
	over.Until = testNow
	later := order("a1", time.Minute, "a")
	for _, tt := range []struct {
		name    string
		orders  []Preference
		site    SiteID
		p       netip.Prefix
		prepend int
	}{
		{"no order", nil, "a", testPrefix, 0},
		{"the preferred site", []Preference{all}, "a", testPrefix, 0},
		{"another site", []Preference{all}, "b", testPrefix, 2},
		{"its own order counts before that for all", []Preference{all, own}, "a", testPrefix, 5},
		{"in whatever order they stand", []Preference{own, all}, "b", testPrefix, 0},
		{"another prefix", []Preference{own}, "a", other, 0},
		{"its own order taken back does not bring on an older one for all", []Preference{all, back}, "b", testPrefix, 0},
		{"but a newer one", []Preference{later, back}, "b", testPrefix, 2},
		{"its own order has ended, that for all is newer", []Preference{over, later}, "b", testPrefix, 2},
		{"its own order has ended, and that for all is older", []Preference{over, all}, "c", testPrefix, 0},
	} {
		got, why := Preferred(testNow, tt.orders, tt.site, tt.p)
		if got.Prepend != tt.prepend || (why == "") != (tt.prepend == 0) {
			t.Errorf("%s: prepend %d (%q), want %d", tt.name, got.Prepend, why, tt.prepend)
		}
	}
}

// TestMergePreferences: whatever comes in which order, every node settles on the
// same orders.
func TestMergePreferences(t *testing.T) {
	var all []Preference
	for i := range 20 {
		o := order(NodeID(string(rune('a'+i%5))), time.Duration(i/2)*time.Second, SiteID("s"))
		if i%3 == 0 {
			o.Prefix = testPrefix
		}
		all = append(all, o)
	}
	future := order("z", time.Hour, "s")
	ended := order("y", -2*time.Hour, "s")
	wrong := order("z", 25*time.Second, "s")
	wrong.Prepend = MaxPrepend + 1
	foreign := order("z", 25*time.Second, "s")
	foreign.Prefix = netip.MustParsePrefix("203.0.113.0/24")
	every := func(p netip.Prefix) bool { return p == testPrefix }
	want := MergePreferences(testNow.Add(30*time.Second), every, all)
	if len(want) != 2 {
		t.Fatalf("%d orders are left of two prefixes", len(want))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		list := append(slices.Clone(all), future, ended, wrong, foreign)
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		n := rng.IntN(len(list))
		got := MergePreferences(testNow.Add(30*time.Second), every, MergePreferences(testNow.Add(30*time.Second), every, list[:n]), list[n:])
		if !slices.EqualFunc(got, want, Preference.Equal) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	// One that has ended keeps an older, longer one from coming back.
	long := order("a", 0, "s")
	long.Until = long.Since.Add(MaxPreference)
	if left := MergePreferences(testNow.Add(3*time.Hour), every, want, []Preference{long}); !slices.EqualFunc(left, want, Preference.Equal) {
		t.Errorf("%v came back over %v", left, want)
	}
	if left := MergePreferences(testNow.Add(MaxPreference+2*time.Minute), every, want); len(left) != 0 {
		t.Errorf("%v are remembered for ever", left)
	}
}
