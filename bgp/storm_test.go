package bgp_test

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// manyOf is in with n prefixes.
func manyOf(in edge.Intent, n int) edge.Intent {
	base := in.Announcements[0]
	in.Announcements = nil
	for i := range n {
		a := base
		a.Net = netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0}), 24)
		in.Announcements = append(in.Announcements, a)
	}
	return in
}

func netsOf(in edge.Intent) (list []netip.Prefix) {
	for _, a := range in.Announcements {
		list = append(list, a.Net)
	}
	return list
}

// routes waits until the router has n routes of the speaker.
func (b *bird) routes(n int) {
	b.t.Helper()
	want := fmt.Sprintf("%d of %d routes for", n, n)
	eventually(b.t, func() string {
		if out := b.birdc("show route count protocol edge"); !strings.Contains(out, want) {
			return out
		}
		return ""
	})
}

// TestStorm: a thousand prefixes come, change and go again, and the sessions do
// not notice.
func TestStorm(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	b := newBird(t, s, 1, birdOptions{families: []string{"ipv4"}})
	f := newFRR(t, s, 2, frrOptions{})
	in := manyOf(intentOf(peerN(1), peerN(2)), 1000)
	none := in
	none.Announcements = nil
	s.set(none)
	s.established("r1", "r2")
	for range 2 {
		s.set(in)
		b.routes(1000)
		s.set(degraded(in))
		last := in.Announcements[999].Net
		b.has(last, degraded4)
		st := s.set(withdrawn(in, time.Now().Add(time.Minute), netsOf(in)...))
		if len(st.Announcements) != 0 {
			t.Errorf("%d stay", len(st.Announcements))
		}
		b.routes(0)
		eventually(t, func() string {
			if f.route(last) != nil {
				return "FRR still has " + last.String()
			}
			return ""
		})
	}
	for _, id := range []edge.PeerID{"r1", "r2"} {
		s.shows(id, func(p edge.PeerState) string {
			if p.Flaps != 0 || p.Messages.WithdrawsSent != 2000 || p.Held != nil {
				return "not 2000 withdrawals, nothing held and no flaps"
			}
			return ""
		})
	}
}

// TestFlappingSessions: a session that is lost time and again comes back with
// all of its routes, and no other one is touched.
func TestFlappingSessions(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{})
	steady := newBird(t, s, 2, birdOptions{})
	in := intentOf(peerN(1), peerN(2))
	s.set(in)
	steady.has(net4, normal4)
	steady.has(net6, normal6)
	before := s.shows("r2", numbers(2, 0))
	for i := range 4 {
		r.has(net4, normal4)
		r.has(net6, normal6)
		r.birdc("restart edge")
		s.shows("r1", func(p edge.PeerState) string {
			if p.Flaps < i+1 || p.LastErr == "" || p.LastErrAt.IsZero() {
				return "has not flapped"
			}
			return ""
		})
	}
	r.has(net4, normal4)
	r.has(net6, normal6)
	s.holds("r1", in)
	if after := s.peer("r2"); !after.Since.Equal(before.Since) || after.Messages.UpdatesSent != before.Messages.UpdatesSent {
		t.Errorf("the other session: %+v, before %+v", after, before)
	}
	if _, withdraws := steady.counts(); withdraws != 0 {
		t.Errorf("%d withdrawals at the other router", withdraws)
	}
}

// TestUnreachable: a peer that is not there says so and costs the others
// nothing.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	r := newBird(t, s, 1, birdOptions{})
	gone, silent := peerN(1), peerN(1)
	gone.ID, gone.Addr = "gone", netip.MustParseAddr("10.9.9.9") // no route
	silent.ID, silent.Addr = "silent", netip.MustParseAddr("10.0.1.77")
	s.set(intentOf(gone, silent, peerN(1)))
	r.has(net4, normal4)
	s.refuses("gone", "connect 10.9.9.9:179: network is unreachable")
	s.refuses("silent", "connect 10.0.1.77:179: no ")
}

// rogue is a router of the test's own.
type rogue struct {
	conn net.Conn
	r    *wire.Reader
}

// meet opens a session with the speaker.
func meet(ns *space, asn uint32) (*rogue, error) {
	var conn net.Conn
	err := ns.Run(func() (err error) { conn, err = net.DialTimeout("tcp", "10.0.1.1:179", 20*time.Second); return err })
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	g := &rogue{conn, wire.NewReader(conn)}
	open := wire.Open{
		ASN: asn, Hold: 9 * time.Second, ID: netip.MustParseAddr("10.0.1.2"), Families: []edge.Family{edge.IPv4, edge.IPv6},
		FourOctet: true, RouteRefresh: true,
	}
	if _, err := conn.Write(append(open.Marshal(), wire.Keepalive()...)); err != nil {
		return nil, err
	}
	for {
		m, err := g.r.Read()
		if err != nil {
			return nil, err
		}
		if m.Type == wire.TypeUpdate {
			conn.SetDeadline(time.Time{})
			return g, nil // we are established, and have been sent something
		}
	}
}

// malformed are the messages that the codec was tested with, and noise.
func malformed(t *testing.T) (messages [][]byte) {
	t.Helper()
	files, err := filepath.Glob("wire/testdata/malformed/*.hex")
	must(t, err)
	if len(files) < 10 {
		t.Fatalf("%d malformed messages", len(files))
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		must(t, err)
		var digits strings.Builder
		for line := range strings.Lines(string(b)) {
			if !strings.HasPrefix(line, "#") {
				digits.WriteString(strings.TrimSpace(line))
			}
		}
		raw, err := hex.DecodeString(strings.ReplaceAll(digits.String(), " ", ""))
		must(t, err)
		messages = append(messages, raw)
	}
	noise := make([]byte, 8192)
	for i := range noise {
		noise[i] = byte(i * 7)
	}
	return append(messages, noise, slices.Repeat([]byte{0xff}, 100))
}

// TestGarbage: whatever a router sends, the speaker goes on, tells it apart, and
// the other peers see nothing of it.
func TestGarbage(t *testing.T) {
	t.Parallel()
	s := newSpeaker(t)
	steady := newBird(t, s, 2, birdOptions{})
	bad := newSpace(t)
	link(t, s.ns, bad, 1)
	p := peerN(1)
	p.Passive = true
	in := intentOf(p, peerN(2))
	in.Speaker.Listen, in.Speaker.Lease = 179, time.Hour // a busy machine takes its time
	s.set(in)
	s.established("r2")
	steady.has(net4, normal4)
	steady.has(net6, normal6)
	updates, _ := steady.counts()
	g, err := meet(bad, p.ASN)
	must(t, err)
	lives, dies := 0, 0
	for i, m := range malformed(t) {
		// It lives, if the message is one that a session survives; otherwise it is
		// told why, and may come back.
		if g.survives(s, m) {
			lives++
			continue
		}
		dies++
		g.conn.Close()
		eventually(t, func() string {
			if g, err = meet(bad, p.ASN); err != nil {
				return fmt.Sprintf("after message %d: %v", i, err)
			}
			return ""
		})
	}
	g.conn.Close()
	if st := s.peer("r1"); st.Messages.Malformed < uint64(dies) || st.Flaps < dies || lives == 0 || dies == 0 {
		t.Errorf("%d lived, %d died: %+v", lives, dies, st)
	}
	if now, withdraws := steady.counts(); now != updates || withdraws != 0 {
		t.Errorf("the other router got %d updates and %d withdrawals", now-updates, withdraws)
	}
	if st := s.peer("r2"); st.Flaps != 0 || st.Session != "established" {
		t.Errorf("the other session: %+v", st)
	}
	select {
	case <-s.proc.Done:
		t.Error("the speaker has ended")
	default:
	}
}

// survives says whether the session is still up after m: two messages that say
// nothing follow, and at least one is counted, or the connection ends.
func (g *rogue) survives(s *speaker, m []byte) bool {
	before := s.peer("r1").Messages.UpdatesReceived
	marker := wire.EndOfRIB(edge.IPv4)
	g.conn.Write(slices.Concat(m, marker, marker))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if m, err := g.r.Read(); err != nil || m.Type == wire.TypeNotification {
				return
			}
		}
	}()
	lives := false
	eventually(s.t, func() string {
		select {
		case <-ended:
			return ""
		default:
		}
		lives = s.peer("r1").Messages.UpdatesReceived >= before+2
		if !lives {
			return "neither counted nor ended"
		}
		return ""
	})
	if lives { // the reader is to stop, the connection to stay
		g.conn.SetReadDeadline(time.Now())
		<-ended
		g.conn.SetReadDeadline(time.Time{})
	}
	return lives
}
