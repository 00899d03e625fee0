package edge

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func TestHolders(t *testing.T) {
	net := netip.MustParsePrefix
	table := []HeldPrefix{{Net: net("192.0.2.0/24")}, {Net: net("198.51.100.0/24")}, {Net: net("198.51.100.0/25")}, {Net: net("2001:db8::/32")}}
	s := SpeakerState{Peers: []PeerState{{Session: "established", Held: table}, {Session: "idle", Held: table}, {Session: "established", Held: table[1:2]}, {Session: "established"}}}
	for p, want := range map[string]int{"192.0.2.0/24": 1, "198.51.100.0/24": 2, "198.51.100.0/25": 1, "2001:db8::/32": 1, "2001:db8::/33": 0, "0.0.0.0/0": 0} {
		if got := s.Holders(net(p)); got != want {
			t.Errorf("%s has %d holders, want %d", p, got, want)
		}
	}
}

// An edgebgp that knows no versions answers with the whole state.
func TestStateIsAChange(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	p, q := netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24")
	want := SpeakerState{
		Generation: 7, Speaker: &Speaker{ASN: 64500}, Announcements: []Announcement{{Net: p, NextHop: a}},
		Peers: []PeerState{
			{ID: "b", Addr: b, Session: "established", Held: []HeldPrefix{{Net: q, NextHop: a}, {Net: p, NextHop: a}}, NotSent: []NotSent{{p, "x"}}},
			{ID: "a", Addr: a, Session: "idle"},
		},
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var c SpeakerChange
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	got, err := SpeakerState{Version: "old-1", Generation: 3, Peers: want.Peers}.With(c)
	if err != nil || got.Generation != 7 || got.Version != "" || len(got.Peers) != 2 || got.Peers[0].ID != "b" || got.Peers[0].NotSent[0].Reason != "x" {
		t.Errorf("%+v, %v", got, err)
	}
	if got.Holders(p) != 1 || got.Holders(q) != 1 {
		t.Errorf("what is not in order is not found: %+v", got.Peers[0].Held)
	}
}

// What cannot be added is refused: half of it would be a lie.
func TestChangeIsRefused(t *testing.T) {
	a := netip.MustParseAddr("10.0.0.1")
	s := SpeakerState{Version: "v-1", Peers: []PeerState{{Addr: a}}}
	for name, c := range map[string]struct {
		change SpeakerChange
		want   string
	}{
		"another version": {SpeakerChange{Since: "v-2"}, `since "v-2", which is not the one held, "v-1"`},
		"unknown peer":    {SpeakerChange{Since: "v-1", Order: []netip.Addr{a, a.Next()}}, "nothing is known of its peer 10.0.0.2"},
		"whole, but not":  {SpeakerChange{Order: []netip.Addr{a}}, "nothing is known of its peer 10.0.0.1"},
		"no such table":   {SpeakerChange{Since: "v-1", Peers: []PeerChange{{PeerState: PeerState{Addr: a}, Table: 1}}}, "has table 1 of 0"},
		"negative table":  {SpeakerChange{Since: "v-1", Peers: []PeerChange{{PeerState: PeerState{Addr: a}, Table: -2}}}, "has table -2 of 0"},
	} {
		if st, err := s.With(c.change); err == nil || !strings.Contains(err.Error(), c.want) || !reflect.DeepEqual(st, SpeakerState{}) {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
	}
}

// FuzzSpeakerChange: no answer makes a reader panic, or its tables be out of order.
func FuzzSpeakerChange(f *testing.F) {
	f.Add(`{"since":"v","version":"w","same":{"order":true},"peers":[{"address":"10.0.0.1","table":1}],"tables":[{"added":true,"set":[{"prefix":"192.0.2.0/24","next_hop":"10.0.0.1"}],"gone":["198.51.100.0/24"]}]}`)
	f.Add(`{"order":["10.0.0.1"],"peers":[{"address":"10.0.0.1","table":-1,"same_not_sent":true}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		var c SpeakerChange
		if json.Unmarshal([]byte(text), &c) != nil {
			return
		}
		held := []HeldPrefix{{Net: netip.MustParsePrefix("198.51.100.0/24")}, {Net: netip.MustParsePrefix("203.0.113.0/24")}}
		s := SpeakerState{Version: "v", Peers: []PeerState{{Addr: netip.MustParseAddr("10.0.0.1"), Session: "established", Held: held}}}
		st, err := s.With(c)
		if err != nil {
			return
		}
		for _, p := range st.Peers {
			for _, h := range p.Held {
				if p.Session == "established" && st.Holders(h.Net) == 0 {
					t.Errorf("%s is held and not found", h.Net)
				}
			}
		}
	})
}
