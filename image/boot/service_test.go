package boot

import (
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/catchment-dev/edge"
)

func expect(t *testing.T, what string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: got %v, want %q", what, err, want)
	}
}

func TestEdged(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	expect(t, "fresh", Edged(edge.SystemStatus{Time: now.Add(-time.Second)}, now), "")
	expect(t, "nothing decided", Edged(edge.SystemStatus{}, now), "has decided nothing")
	expect(t, "stuck", Edged(edge.SystemStatus{Time: now.Add(-time.Minute)}, now), "1m0s old")
	expect(t, "no edgebgp", Edged(edge.SystemStatus{Time: now, SpeakerErr: "gone"}, now), "does not reach edgebgp: gone")
}

func TestBGP(t *testing.T) {
	peer := func(id, session string) edge.PeerState { return edge.PeerState{ID: edge.PeerID(id), Session: session} }
	state := func(peers ...edge.PeerState) edge.SystemStatus {
		var st edge.SystemStatus
		st.Speaker.Peers = peers
		st.Speaker.Speaker = &edge.Speaker{Peers: []edge.Peer{{ID: "watch", Watch: true}}}
		return st
	}
	expect(t, "none", BGP(state()), "")
	expect(t, "one of two", BGP(state(peer("a", "active"), peer("b", "established"))), "")
	expect(t, "no one", BGP(state(peer("a", "active"), peer("b", "idle"))), "a is active (no error yet), b is idle")
	expect(t, "one that is watched only", BGP(state(peer("a", "active"), peer("watch", "established"))), "a is active")
	c := &edge.Config{}
	expect(t, "none configured", BGPOf(c, state()), "")
	c.Local.Speaker.Peers = []edge.Peer{{ID: "a"}}
	expect(t, "not heard of yet", BGPOf(c, state()), "edgebgp has none yet")
	expect(t, "configured and there", BGPOf(c, state(peer("a", "established"))), "")
	drained := state(peer("a", "established"))
	drained.Drains = []edge.Drain{{Reason: "upgrade"}}
	expect(t, "drained", BGPOf(c, drained), "")
}

func TestConfiguration(t *testing.T) {
	expect(t, "ok", Configuration(Setup{State: SetupOK, Errors: []string{"a newer one was not taken"}}, true), "")
	expect(t, "never had one", Configuration(Setup{State: SetupUnconfigured}, false), "")
	expect(t, "lost it", Configuration(Setup{State: SetupUnconfigured}, true), "this one sees none")
	expect(t, "rescue", Configuration(Setup{State: SetupRescue, Source: "EDGECFG", Errors: []string{"edge.yaml:1:1: bad"}}, false), "EDGECFG is not valid: edge.yaml:1:1: bad")
	expect(t, "unknown", Configuration(Setup{State: "new"}, false), "unknown here")
}

// efi is a text as efivarfs shows it.
func efi(s string) []byte {
	b := []byte{6, 0, 0, 0}
	for _, u := range append(utf16.Encode([]rune(s)), 0) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return b
}

func TestReadBooted(t *testing.T) {
	for _, c := range []struct {
		path, counter, want string
	}{
		{path: ""},
		{path: `\EFI\Linux\edge_1.2.0+2-1.efi`, counter: "edge_1.2.0+2-1.efi"},
		{path: `/EFI/Linux/edge_1.2.0+0-3.efi`, counter: "edge_1.2.0+0-3.efi"},
		{path: `\EFI\Linux\edge_1.2.0.efi`},
		{path: `\EFI\Linux\other.efi`, want: "is no UKI of ours"},
	} {
		dir := t.TempDir()
		if c.path != "" {
			if err := os.WriteFile(filepath.Join(dir, bootCountPath+"-"+loaderGUID), efi(c.path), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, entrySelected+"-"+loaderGUID), efi("edge_1.2.0.efi"), 0o644); err != nil {
			t.Fatal(err)
		}
		b, err := ReadBooted(dir)
		expect(t, c.path, err, c.want)
		if b.Entry != "edge_1.2.0.efi" || (b.Counter != nil) != (c.counter != "") || b.Counter != nil && b.Counter.Name() != c.counter {
			t.Errorf("%s: %+v", c.path, b)
		}
	}
	if b, err := ReadBooted("/none"); err != nil || b.Counter != nil {
		t.Error(b, err)
	}
}

func TestParseEFIStringRefuses(t *testing.T) {
	for _, bad := range [][]byte{nil, {1, 2, 3}, {1, 2, 3, 4, 5}, append(efi("a"), 'x', 0)} {
		if s, err := ParseEFIString(bad); err == nil {
			t.Errorf("%v is %q", bad, s)
		}
	}
	if s, err := ParseEFIString(append(efi("a"), 0, 0)); s != "a" || err != nil {
		t.Error(s, err)
	}
}

func FuzzParseEFIString(f *testing.F) {
	f.Add(efi(`\EFI\Linux\edge_1.2.0+2-1.efi`))
	f.Add([]byte{6, 0, 0, 0, 0, 0xd8})
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := ParseEFIString(b); err == nil && strings.ContainsRune(s, 0) {
			t.Errorf("%q", s)
		}
	})
}

func TestListeners(t *testing.T) {
	const text = `  sl  local_address rem_address   st tx_queue rx_queue
   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000
   1: 0100007F:0016 00000000:0000 01 00000000:00000000 00:00000000
   2: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000
   3: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A
   4: 01:0016 0 0A
`
	got := Listeners(strings.NewReader(text), 22)
	if want := []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:22"), netip.MustParseAddrPort("[::1]:22")}; !slices.Equal(got, want) {
		t.Error(got)
	}
	got = Listeners(strings.NewReader(text), 8080)
	if want := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8080")}; !slices.Equal(got, want) {
		t.Error(got)
	}
}

func FuzzListeners(f *testing.F) {
	f.Add("0: 0100007F:0016 00000000:0000 0A")
	f.Fuzz(func(t *testing.T, text string) {
		for _, a := range Listeners(strings.NewReader(text), 22) {
			if !a.IsValid() || a.Port() != 22 {
				t.Error(a)
			}
		}
	})
}
