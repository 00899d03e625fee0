package bgp_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// differ says where a state and what the routers really have are not the same;
// empty: nowhere.
func (c *crowd) differ(st edge.SpeakerState) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range st.Peers {
		r := c.routers[p.Addr]
		if up := r != nil && r.conn != nil; up != (p.Session == "established") {
			return fmt.Sprintf("%s is %s, its router has a session: %v", p.ID, p.Session, up)
		} else if !up {
			continue
		}
		if n := r.table.Len(edge.IPv4); n != len(p.Held) {
			return fmt.Sprintf("%s holds %d, its router %d", p.ID, len(p.Held), n)
		}
		for _, h := range p.Held {
			path, ok := r.table.Get(h.Net)
			med := uint32(0)
			if path.MED != nil {
				med = *path.MED
			}
			if !ok || med != h.MED {
				return fmt.Sprintf("%s holds %s with MED %d, its router %v with %d", p.ID, h.Net, h.MED, ok, med)
			}
		}
	}
	return ""
}

// TestVersionsUnderFire: while sessions fall and prefixes come, change and go, no
// version is that of two states, and what is read back by version is in the end what
// the routers have on their wires.
func TestVersionsUnderFire(t *testing.T) {
	t.Parallel()
	const routers, prefixes = 16, 40
	s := newSpeaker(t)
	s.quiet()
	c := newCrowd(t, s)
	in := manyOf(intentOf(), prefixes)
	for i := range routers {
		p := crowdPeer(i)
		p.Announce.MED = uint32(i % 3) // some are sent the same
		in.Speaker.Peers = append(in.Speaker.Peers, p)
	}
	fleet := in.Announcements
	edged := &reader{s: s}
	set := func(in edge.Intent) edge.SpeakerState {
		t.Helper()
		st, err := edged.call("PUT", "/v1/intent", in)
		must(t, err)
		return st
	}
	set(in)
	c.all(routers, prefixes)

	stop := make(chan struct{})
	var pollers sync.WaitGroup
	var same atomic.Int64 // polls that could be compared
	pollers.Go(func() {
		r := &reader{s: s}
		for {
			select {
			case <-stop:
				return
			default:
			}
			st, err := r.call("GET", "/v1/state", nil)
			if err != nil {
				t.Error(err)
				return
			}
			whole, err := s.call("GET", "/v1/state", nil)
			if err != nil {
				t.Error(err)
				return
			}
			s.alike(st, whole)
			if st.Version == whole.Version {
				same.Add(1)
			}
		}
	})
	random := rand.New(rand.NewPCG(1, 2))
	begun := time.Now()
	for time.Since(begun) < 3*time.Second || same.Load() < 5 && time.Since(begun) < 2*time.Minute {
		before := edged.get()
		peer := in.Speaker.Peers[random.IntN(routers)]
		switch random.IntN(4) {
		case 0: // a session falls, and the answer says so
			was := before.Peers[slices.IndexFunc(before.Peers, func(p edge.PeerState) bool { return p.ID == peer.ID })]
			c.hang(peer.Addr)
			eventually(t, func() string {
				now := edged.get().Peers
				if i := slices.IndexFunc(now, func(p edge.PeerState) bool { return p.ID == peer.ID }); was.Session == "established" && now[i].Flaps == was.Flaps {
					return fmt.Sprintf("%s still has its session: %+v", peer.ID, now[i])
				}
				return ""
			})
		case 1: // an UPDATE, or several
			in.Announcements = slices.Clone(in.Announcements)
			for i := range in.Announcements {
				if random.IntN(4) == 0 {
					in.Announcements[i].Degrade = !in.Announcements[i].Degrade
				}
			}
			set(in)
		case 2: // one leaves: whoever holds it is shown
			if len(in.Announcements) < 2 {
				continue
			}
			net := in.Announcements[random.IntN(len(in.Announcements))].Net
			in = withdrawn(in, time.Now().Add(time.Minute), net)
			set(in)
			in.Withdraw = nil
			eventually(t, func() string {
				if n := edged.get().Holders(net); n > 0 {
					return fmt.Sprintf("%s has %d holders", net, n)
				}
				return ""
			})
		case 3: // all are back
			in.Announcements = fleet
			set(in)
		}
	}
	close(stop)
	pollers.Wait()
	if n := same.Load(); n < 5 {
		t.Errorf("%d polls could be compared", n)
	}
	in.Announcements = fleet
	set(in)
	c.all(routers, prefixes)
	eventually(t, func() string { return c.differ(edged.get()) })
	last := edged.get()
	if again := edged.get(); again.Version != last.Version || edged.bytes > 1000 {
		t.Errorf("nothing new has %d bytes, %s and %s", edged.bytes, last.Version, again.Version)
	}

	// A renewal by name is as good, and forgotten by the next process.
	st, err := edged.call("PUT", "/v1/intent", in)
	must(t, err)
	if st, err = edged.call("POST", "/v1/renew?intent="+st.Renewal, nil); err != nil || st.LeaseLeft < in.Speaker.Lease-10*time.Second || edged.bytes > 1000 {
		t.Errorf("renewed: %s left, %d bytes, %v", st.LeaseLeft, edged.bytes, err)
	}
	s.proc.Stop(syscall.SIGKILL)
	s.start()
	if _, err := edged.call("POST", "/v1/renew?intent="+st.Renewal, nil); err == nil || !strings.HasPrefix(err.Error(), "412: ") {
		t.Errorf("renewed by the next process: %v", err)
	}
	c.all(routers, prefixes)
	eventually(t, func() string { return c.differ(edged.get()) })
	if now := edged.get(); now.Version == last.Version || now.Holders(netip.MustParsePrefix("20.0.0.0/24")) != routers {
		t.Errorf("the next process: version %s, before %s", now.Version, last.Version)
	}
}
