package bgp_test

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
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
	var took time.Duration
	var first, last float64
	for b.Loop() {
		begun := time.Now()
		s.set(in)
		took += time.Since(begun)
		last = rss(b, s.proc)
		if first == 0 {
			first = last
		}
		s.set(gone)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(took.Seconds()/float64(b.N), "set_s")
	b.ReportMetric(first, "first_MiB")
	b.ReportMetric(last, "last_MiB")
}

// quiet starts the speaker again without debugging, which would be most of the
// work.
func (s *speaker) quiet() {
	s.proc.Stop(9)
	s.flags = append(s.flags, "-log-level", "warn")
	s.client.Timeout = 2 * time.Minute
	s.start()
}
