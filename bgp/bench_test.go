package bgp_test

import (
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/internal/bgptest"
)

// rss is the resident memory of a process in MiB.
func rss(t testing.TB, p *process) float64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Cmd.Process.Pid))
	must(t, err)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kib, err := strconv.Atoi(f[1])
			must(t, err)
			return float64(kib) / 1024
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// BenchmarkSpeaker is 1,000 prefixes to 10 routers: the time from the intent
// until the last router has the last one, and the same for the way back; and
// what edgebgp needs for it.
func BenchmarkSpeaker(b *testing.B) {
	s := newSpeaker(b)
	s.quiet()
	empty := rss(b, s.proc)
	var routers []*bird
	var peers []edge.Peer
	for n := 1; n <= 10; n++ {
		routers = append(routers, newBird(b, s, n, birdOptions{families: []string{"ipv4"}}))
		peers = append(peers, peerN(n))
	}
	in := manyOf(intentOf(peers...), 1000)
	none := in
	none.Announcements = nil
	s.set(none)
	for _, p := range peers {
		s.established(p.ID)
	}
	idle := rss(b, s.proc)
	var announce, withdraw time.Duration
	var full float64
	for b.Loop() {
		begun := time.Now()
		s.set(in)
		for _, r := range routers {
			r.routes(1000)
		}
		announce += time.Since(begun)
		full = rss(b, s.proc)
		begun = time.Now()
		s.set(withdrawn(in, time.Now().Add(time.Minute), netsOf(in)...))
		for _, r := range routers {
			r.routes(0)
		}
		withdraw += time.Since(begun)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(announce.Seconds()/float64(b.N), "announce_s")
	b.ReportMetric(withdraw.Seconds()/float64(b.N), "withdraw_s")
	b.ReportMetric(empty, "empty_MiB")
	b.ReportMetric(idle, "peers_MiB")
	b.ReportMetric(full, "full_MiB")
}

// BenchmarkPeers is what the most peers that there may be need, with 1,000
// prefixes each, none of which answers; and what is left when they have come and
// gone.
func BenchmarkPeers(b *testing.B) {
	s := newSpeaker(b)
	s.quiet()
	in := manyOf(intentOf(), 1000)
	for i := range edge.MaxPeers {
		p := peerN(1)
		p.ID, p.Addr = edge.PeerID(fmt.Sprint("p", i)), netip.AddrFrom4([4]byte{10, 77, byte(i), 1})
		in.Speaker.Peers = append(in.Speaker.Peers, p)
	}
	gone := in
	gone.Speaker.Peers = nil
	var took, all, busy time.Duration
	var first, last float64
	for b.Loop() {
		r := &reader{s: s}
		begun, before := time.Now(), cpu(b, s.proc)
		_, err := r.call("PUT", "/v1/intent", in)
		must(b, err)
		took += time.Since(begun)
		// As often as edged asks.
		bgptest.Poll(250*time.Millisecond).Eventually(b, func() string {
			for _, p := range r.get().Peers {
				if p.Pending > 0 {
					return fmt.Sprintf("%s: %d pending", p.ID, p.Pending)
				}
			}
			return ""
		})
		all += time.Since(begun)
		busy += cpu(b, s.proc) - before
		last = rss(b, s.proc)
		if first == 0 {
			first = last
		}
		s.set(gone)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(took.Seconds()/float64(b.N), "set_s")
	b.ReportMetric(all.Seconds()/float64(b.N), "all_s")
	b.ReportMetric(busy.Seconds()/float64(b.N), "cpu_s")
	b.ReportMetric(first, "first_MiB")
	b.ReportMetric(last, "last_MiB")
}

// BenchmarkCrowd is the most peers that there may be, all with a session, and 1,000
// prefixes: how long the first intent keeps its caller, and until every router has
// every prefix; then what a second of edged's life costs, which asks for the state
// four times and renews the lease once; one prefix that is degraded, and one that is
// withdrawn. Either all are sent the same, or each has a next hop of its own.
func BenchmarkCrowd(b *testing.B) {
	b.Run("alike", func(b *testing.B) { benchmarkCrowd(b, false) })
	b.Run("different", func(b *testing.B) { benchmarkCrowd(b, true) })
}

func benchmarkCrowd(b *testing.B, different bool) {
	s := newSpeaker(b)
	s.quiet()
	c := newCrowd(b, s)
	in := manyOf(intentOf(), 1000)
	for i := range edge.MaxPeers {
		p := crowdPeer(i)
		if different {
			p.NextHop4 = netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}) // our end has one of them, or would have
		}
		in.Speaker.Peers = append(in.Speaker.Peers, p)
	}
	var set, all, ask, renew, change, leave time.Duration
	var whole, steady int
	var busy float64
	for b.Loop() {
		r := &reader{s: s}
		begun := time.Now()
		st, err := r.call("PUT", "/v1/intent", in)
		must(b, err)
		set += time.Since(begun)
		c.all(edge.MaxPeers, 1000)
		all += time.Since(begun)
		eventually(b, func() string {
			r.state = edge.SpeakerState{}
			if st = r.get(); st.Holders(in.Announcements[999].Net) != edge.MaxPeers {
				return "not read back"
			}
			whole = r.bytes
			return ""
		})
		before, since := cpu(b, s.proc), time.Now()
		for i := range 40 {
			begun = time.Now()
			r.get()
			ask += time.Since(begun)
			steady = r.bytes
			if i%4 == 0 {
				begun = time.Now()
				_, err := r.call("POST", "/v1/renew?intent="+url.QueryEscape(st.Renewal), nil)
				must(b, err)
				renew += time.Since(begun)
			}
			<-time.After(time.Until(since.Add(time.Duration(i+1) * 250 * time.Millisecond)))
		}
		busy += float64(cpu(b, s.proc)-before) / float64(time.Since(since))
		one := in
		one.Announcements = slices.Clone(in.Announcements)
		one.Announcements[500].Degrade = true
		begun = time.Now()
		_, err = r.call("PUT", "/v1/intent", one)
		must(b, err)
		change += time.Since(begun)
		one = withdrawn(one, time.Now().Add(10*time.Second), one.Announcements[501].Net)
		begun = time.Now()
		st, err = r.call("PUT", "/v1/intent", one)
		must(b, err)
		for st.Holders(one.Withdraw[0].Net) > 0 && time.Since(begun) < 10*time.Second {
			st = r.get()
		}
		leave += time.Since(begun)
		full := rss(b, s.proc)
		b.ReportMetric(full, "full_MiB")
		s.proc.Stop(9)
		must(b, os.Remove(s.dir+"/state"))
		s.start()
	}
	b.ReportMetric(0, "ns/op")
	n := float64(b.N)
	b.ReportMetric(set.Seconds()/n, "set_s")
	b.ReportMetric(all.Seconds()/n, "all_s")
	b.ReportMetric(change.Seconds()/n, "change_s")
	b.ReportMetric(leave.Seconds()/n, "withdraw_s")
	b.ReportMetric(ask.Seconds()/n/40*1000, "ask_ms")
	b.ReportMetric(renew.Seconds()/n/10*1000, "renew_ms")
	b.ReportMetric(busy/n*100, "cpu_%")
	b.ReportMetric(float64(whole)/1e6, "whole_MB")
	b.ReportMetric(float64(steady), "steady_B")
}

// quiet starts the speaker again without debugging, which would be most of the
// work.
func (s *speaker) quiet() {
	s.proc.Stop(9)
	s.flags = append(s.flags, "-log-level", "warn")
	s.client.Timeout = 2 * time.Minute
	s.start()
}
