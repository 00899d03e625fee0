package relay

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

var (
	net4 = netip.MustParsePrefix("192.0.2.0/24")
	net6 = netip.MustParsePrefix("2001:db8:1::/48")
)

const ourAS = 4200000001

// rig is a hub that runs in a namespace of its own.
type rig struct {
	t    testing.TB
	ns   *space
	hub  *Hub
	end  context.CancelFunc
	done chan error
	log  *safeBuffer

	mu      sync.Mutex
	words   map[netip.Addr][]string // what OnChange has led to
	updates int                     // calls of OnReceive
	seen    map[revision]State
}

type revision struct {
	peer netip.Addr
	n    uint64
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func newRig(t testing.TB, listen int) *rig {
	t.Helper()
	return newRigIn(t, newSpace(t), listen)
}

func newRigIn(t testing.TB, ns *space, listen int) *rig {
	t.Helper()
	r := &rig{t: t, ns: ns, log: &safeBuffer{}, words: map[netip.Addr][]string{}, seen: map[revision]State{}, done: make(chan error, 1)}
	r.hub = New(Options{
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Listen: listen,
		OnReceive: func(edge.PeerID, wire.Update) { r.mu.Lock(); r.updates++; r.mu.Unlock() },
		OnChange: func(a netip.Addr) {
			st, _ := r.hub.State(a)
			r.mu.Lock()
			r.words[a] = append(r.words[a], st.Session)
			r.mu.Unlock()
		},
	})
	r.hub.inside = inside(r.ns)
	var ctx context.Context
	ctx, r.end = context.WithCancel(context.Background())
	go func() { r.done <- r.hub.Run(ctx) }()
	<-r.hub.Ready()
	t.Cleanup(func() {
		r.end()
		if err := <-r.done; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("relay:\n%s", r.log.b.String())
		}
	})
	return r
}

// peerN is the router at the far end of link n.
func peerN(n int) edge.Peer {
	return edge.Peer{
		ID: edge.PeerID(fmt.Sprintf("r%d", n)), Addr: netip.MustParseAddr(fmt.Sprintf("10.0.%d.2", n)), ASN: 65100 + uint32(n),
		Families: []edge.Family{edge.IPv4, edge.IPv6}, Hold: 9 * time.Second, Keepalive: 3 * time.Second, ConnectRetry: time.Second,
	}
}

// configOf is the peer with a GoBGP of its own.
func (r *rig) configOf(p edge.Peer) (Config, *gobgp) {
	r.t.Helper()
	c := Config{
		Peer: p, ASN: ourAS, RouterID: netip.MustParseAddr("10.0.1.1"), ServerKey: "between us",
		Allowed: func(netip.Prefix) bool { return true },
	}
	g := newGoBGP(r.t, c)
	c.Server = g.addr
	return c, g
}

// add adds the peer with a GoBGP of its own.
func (r *rig) add(p edge.Peer) *gobgp {
	r.t.Helper()
	c, g := r.configOf(p)
	must(r.t, r.hub.Add(c))
	return g
}

func (r *rig) state(p edge.Peer) State {
	r.t.Helper()
	before := r.hub.Revision(p.Addr)
	st, ok := r.hub.State(p.Addr)
	if !ok {
		r.t.Fatalf("no peer %s", p.Addr)
	}
	// No two states have one revision.
	if key := (revision{p.Addr, before}); before == r.hub.Revision(p.Addr) {
		r.mu.Lock()
		was, known := r.seen[key]
		r.seen[key] = st
		r.mu.Unlock()
		if known && !reflect.DeepEqual(was, st) {
			r.t.Errorf("revision %d of %s is\n%+v\nand\n%+v", before, p.ID, was, st)
		}
	}
	return st
}

// until waits for a state in which the session is word, and the last error
// contains all of why.
func (r *rig) until(p edge.Peer, word string, why ...string) State {
	r.t.Helper()
	var st State
	eventually(r.t, func() string {
		st = r.state(p)
		for _, w := range why {
			if !strings.Contains(st.LastErr, w) {
				return fmt.Sprintf("%q in the last error %q (%s)", w, st.LastErr, st.Session)
			}
		}
		if word != "" && st.Session != word {
			return fmt.Sprintf("%s is %s (%s), want %s", p.ID, st.Session, st.LastErr, word)
		}
		return ""
	})
	return st
}

func (r *rig) established(p edge.Peer) State {
	r.t.Helper()
	return r.until(p, "established")
}

// never says that the peer does not come up for a while, in which there were
// several attempts.
func (r *rig) never(p edge.Peer, d time.Duration) {
	r.t.Helper()
	until := time.Now().Add(d)
	eventually(r.t, func() string {
		if st := r.state(p); st.Session == "established" {
			r.t.Fatalf("%s is up", p.ID)
		}
		if time.Now().After(until) {
			return ""
		}
		return "time"
	})
}

// holds waits until the router is believed to hold exactly the prefixes.
func (r *rig) holds(p edge.Peer, want ...netip.Prefix) State {
	r.t.Helper()
	var st State
	eventually(r.t, func() string {
		st = r.state(p)
		var got []netip.Prefix
		for _, h := range st.Held {
			got = append(got, h.Net)
		}
		if !slices.Equal(got, want) {
			return fmt.Sprintf("holds %v, want %v", got, want)
		}
		return ""
	})
	return st
}

// quick says that a call has not waited for the router, whose hold time is at least
// 6 s. It has its own limits, of less than 1 s, and the rest is for a busy box.
func (r *rig) quick(call string, began time.Time) {
	r.t.Helper()
	if took := time.Since(began); took > 4*time.Second {
		r.t.Errorf("%s has taken %s", call, took)
	}
}

func (r *rig) remove(p edge.Peer) {
	r.t.Helper()
	began := time.Now()
	r.hub.Remove(p.Addr, "for the test")
	r.quick("Remove", began)
	if _, ok := r.hub.State(p.Addr); ok {
		r.t.Error("still there after Remove")
	}
}
