package edge

import (
	"testing"
)

func TestCommunities(t *testing.T) {
	for s, want := range map[string]Community{
		"65535:0": GracefulShutdown, "graceful-shutdown": GracefulShutdown, "no-export": 0xffffff01, "no-peer": 0xffffff04, "1:2": 0x10002,
	} {
		got, err := ParseCommunity(s)
		if err != nil || got != want {
			t.Errorf("ParseCommunity(%q) = %v, %v, want %v", s, got, err, want)
		}
		if again, err := ParseCommunity(got.String()); err != nil || again != got {
			t.Errorf("%s does not survive its text: %v, %v", got, again, err)
		}
	}
	for _, s := range []string{"", "1", "1:", ":1", "65536:0", "0:65536", "1:2:3", "blackhole", "-1:2", "1: 2"} {
		if _, err := ParseCommunity(s); err == nil {
			t.Errorf("ParseCommunity(%q) is taken", s)
		}
	}
	for _, s := range []string{"1:2:3", "4294967295:0:4294967295"} {
		got, err := ParseLargeCommunity(s)
		if err != nil || got.String() != s {
			t.Errorf("ParseLargeCommunity(%q) = %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "1:2", "1:2:3:4", "4294967296:0:0", "a:1:2", "1::2"} {
		if _, err := ParseLargeCommunity(s); err == nil {
			t.Errorf("ParseLargeCommunity(%q) is taken", s)
		}
	}
}

// TestSent: a peer's own way to degrade replaces that of the prefix, its other
// attributes come on top of either, and a planned withdrawal is always told.
func TestSent(t *testing.T) {
	a := Announcement{
		Net:      testPrefix,
		Normal:   Attributes{Communities: []Community{5, 1}},
		Degraded: Attributes{Prepend: 3, MED: 1000, Communities: []Community{GracefulShutdown}},
	}
	own := Peer{Announce: Attributes{Prepend: 1, LocalPref: 200, Communities: []Community{3, 1}, Large: []LargeCommunity{{1, 2, 3}}}, Degraded: &Attributes{LocalPref: 50, MED: 7}}
	degraded, planned := a, a
	degraded.Degrade = true
	planned.Degrade, planned.Shutdown = true, true
	moved := degraded
	moved.More = Attributes{Prepend: 2, MED: 50}
	for _, tt := range []struct {
		name string
		peer Peer
		a    Announcement
		want Attributes
	}{
		{"normal", Peer{}, a, Attributes{Communities: []Community{1, 5}}},
		{"degraded", Peer{}, degraded, a.Degraded},
		{"normal, of the peer", own, a, Attributes{Prepend: 1, LocalPref: 200, Communities: []Community{1, 3, 5}, Large: []LargeCommunity{{1, 2, 3}}}},
		{"degraded, of the peer", own, degraded, Attributes{Prepend: 1, LocalPref: 50, MED: 7, Communities: []Community{1, 3}, Large: []LargeCommunity{{1, 2, 3}}}},
		{"traffic is moved, of the peer", own, moved, Attributes{Prepend: 3, LocalPref: 50, MED: 50, Communities: []Community{1, 3}, Large: []LargeCommunity{{1, 2, 3}}}},
		{"traffic is moved, and degraded is worse", Peer{}, moved, Attributes{Prepend: 5, MED: 1000, Communities: a.Degraded.Communities}},
		{"planned, of the peer", own, planned, Attributes{Prepend: 1, LocalPref: 50, MED: 7, Communities: []Community{1, 3, GracefulShutdown}, Large: []LargeCommunity{{1, 2, 3}}}},
	} {
		if got := tt.peer.Sent(tt.a); !got.Equal(tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
	if len(a.Normal.Communities) != 2 || a.Normal.Communities[0] != 5 {
		t.Error("Sent has changed the announcement")
	}
}
