package bgp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// world is a state that changes at random.
type world struct {
	*rand.Rand
	st   edge.SpeakerState
	next int
}

func (w *world) addr() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(w.IntN(6))}) }

func (w *world) table() (list []edge.HeldPrefix) {
	for i := range 12 {
		if w.IntN(3) > 0 {
			list = append(list, w.held(i))
		}
	}
	return list
}

func (w *world) held(i int) edge.HeldPrefix {
	h := edge.HeldPrefix{Net: netip.PrefixFrom(netip.AddrFrom4([4]byte{20, 0, byte(i), 0}), 24), NextHop: netip.AddrFrom4([4]byte{10, 1, 0, byte(w.IntN(2))})}
	if w.IntN(2) > 0 {
		h.Communities = []edge.Community{edge.Community(w.IntN(2))}
	}
	return h
}

// change changes one thing, in new memory, and says what.
func (w *world) change() string {
	w.next++
	w.st.Peers = slices.Clone(w.st.Peers)
	if n := len(w.st.Peers); n > 0 && w.IntN(5) > 0 {
		p := &w.st.Peers[w.IntN(n)]
		switch w.IntN(6) {
		case 0: // the session falls
			p.Session, p.Held, p.Flaps = "idle", nil, p.Flaps+1
		case 1:
			p.Session, p.Held = "established", w.table()
		case 2: // one UPDATE
			i := w.IntN(12)
			h := w.held(i)
			p.Held = slices.DeleteFunc(slices.Clone(p.Held), func(o edge.HeldPrefix) bool { return o.Net == h.Net })
			if w.IntN(2) > 0 {
				p.Held = inOrder(append(p.Held, h))
			}
		case 3: // as another peer, in memory of its own
			p.Held = slices.Clone(w.st.Peers[w.IntN(n)].Held)
		case 4:
			p.NotSent = []edge.NotSent{{Net: w.held(1).Net, Reason: edge.Reason(fmt.Sprint(w.next))}}
		case 5:
			p.BFD = &edge.BFDState{State: fmt.Sprint(w.next)}
		}
		return "a peer"
	}
	switch w.IntN(7) {
	case 0:
		w.st.Speaker = &edge.Speaker{ASN: uint32(w.next)}
	case 1:
		w.st.Announcements = []edge.Announcement{{Net: w.held(1).Net, Reason: edge.Reason(fmt.Sprint(w.next))}}
	case 2:
		w.st.Origins = []edge.Origin{{Net: w.held(1).Net, Evidence: fmt.Sprint(w.next)}}
	case 3:
		w.st.Sightings = []edge.Sighting{{Net: w.held(1).Net, Evidence: fmt.Sprint(w.next)}}
	case 4:
		w.Shuffle(len(w.st.Peers), func(i, j int) { w.st.Peers[i], w.st.Peers[j] = w.st.Peers[j], w.st.Peers[i] })
	case 5:
		addr := w.addr()
		if !slices.ContainsFunc(w.st.Peers, func(p edge.PeerState) bool { return p.Addr == addr }) {
			w.st.Peers = append(w.st.Peers, edge.PeerState{ID: edge.PeerID(fmt.Sprint(w.next)), Addr: addr, Session: "established", Held: w.table()})
		}
	case 6:
		addr := w.addr()
		w.st.Peers = slices.DeleteFunc(w.st.Peers, func(p edge.PeerState) bool { return p.Addr == addr })
	}
	return "all"
}

// text is what a state says, but for its version.
func text(t *testing.T, st edge.SpeakerState) []byte {
	t.Helper()
	st.Version = ""
	if len(st.Peers) == 0 {
		st.Peers = nil
	}
	b, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestChangesLeadToTheState: whatever changes, and whichever answers are lost, a
// reader who adds the changes has the state, and no two states have one version.
func TestChangesLeadToTheState(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		w := &world{Rand: rand.New(rand.NewPCG(seed, 1))}
		w.st.Started = time.Unix(1, 0)
		v := &view{name: "boot"}
		readers := make([]edge.SpeakerState, 3)
		versions := map[string][]byte{}
		for range 250 {
			for range w.IntN(3) {
				w.change()
			}
			w.st.LeaseLeft = time.Duration(w.IntN(1000)) // makes no new version
			v.show(w.st)
			want := text(t, w.st)
			i := w.IntN(len(readers))
			b, err := json.Marshal(v.changes(readers[i].Version))
			if err != nil {
				t.Fatal(err)
			}
			var c edge.SpeakerChange
			if err := json.Unmarshal(b, &c); err != nil {
				t.Fatal(err)
			}
			before := text(t, readers[i])
			got, err := readers[i].With(c)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if text := text(t, got); !bytes.Equal(text, want) {
				t.Fatalf("seed %d: the change\n%s\nmakes\n%s\nnot\n%s", seed, b, text, want)
			}
			if !bytes.Equal(before, text(t, readers[i])) {
				t.Fatalf("seed %d: the state before has been changed", seed)
			}
			still := w.st
			still.LeaseLeft = 0
			if was := versions[got.Version]; was != nil && !bytes.Equal(was, text(t, still)) {
				t.Fatalf("seed %d: version %s is that of two states", seed, got.Version)
			}
			versions[got.Version] = text(t, still)
			switch w.IntN(10) {
			case 0: // the answer is lost
			case 1: // the reader begins anew
				readers[i] = edge.SpeakerState{}
			default:
				readers[i] = got
			}
		}
		if len(versions) < 60 {
			t.Fatalf("seed %d: only %d versions", seed, len(versions))
		}
	}
}

// TestUnchangedIsSmall: nothing new is said in a few words, however much is held,
// one prefix of a thousand by all peers is said once, and so is what all hold.
func TestUnchangedIsSmall(t *testing.T) {
	t.Parallel()
	var st edge.SpeakerState
	hold := func(degraded int) {
		st.Peers = nil
		for i := range edge.MaxPeers {
			p := edge.PeerState{ID: edge.PeerID(fmt.Sprint(i)), Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Session: established}
			for n := range 1000 {
				h := edge.HeldPrefix{Net: netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(n >> 8), byte(n), 0}), 24), NextHop: loopback}
				if n == degraded {
					h.MED = 1
				}
				p.Held = append(p.Held, h)
			}
			st.Peers = append(st.Peers, p)
		}
	}
	size := func(c edge.SpeakerChange) int {
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return len(b)
	}
	hold(-1)
	v := &view{name: "boot"}
	v.show(st)
	whole := v.changes("")
	if n := size(whole); n > 200_000 || len(whole.Tables) != 1 {
		t.Errorf("the whole state has %d bytes, %d tables", n, len(whole.Tables))
	}
	hold(-1) // in other memory
	v.show(st)
	if c := v.changes(whole.Version); size(c) > 400 || c.Version != whole.Version || len(c.Peers) > 0 {
		t.Errorf("nothing new has %d bytes: %+v", size(c), c)
	}
	hold(500)
	v.show(st)
	c := v.changes(whole.Version)
	if n := size(c); n > 60_000 || c.Version == whole.Version || len(c.Tables) != 1 || len(c.Tables[0].Set) != 1 {
		t.Errorf("one prefix has %d bytes, %d tables", n, len(c.Tables))
	}
	for _, have := range []string{"", "boot-0", "boot-3", "boot-01", "boot--1", "boot-", "boot-1x", "other-1", "boot"} {
		if c := v.changes(have); c.Since != "" || len(c.Peers) != edge.MaxPeers {
			t.Errorf("since %q: %q, %d peers", have, c.Since, len(c.Peers))
		}
	}
	base, err := edge.SpeakerState{}.With(whole)
	if err != nil {
		t.Fatal(err)
	}
	now, err := base.With(c)
	if err != nil || now.Holders(st.Peers[0].Held[500].Net) != edge.MaxPeers || &now.Peers[0].Held[0] != &now.Peers[255].Held[0] {
		t.Errorf("the change makes %d holders, %v", now.Holders(st.Peers[0].Held[500].Net), err)
	}
}
