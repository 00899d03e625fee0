package bgp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/internal/bgptest"
)

// binDir is where edgebgp is built.
var binDir string

// edgebgp builds edgebgp when a test first needs it: the workers of a fuzz run
// do not.
var edgebgp = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binDir, "edgebgp")
	if out, err := exec.Command("go", "build", "-o", path, "../cmd/edgebgp").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build edgebgp: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	var err error
	if binDir, err = os.MkdirTemp("", "edgebgp"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(binDir)
	// The tests mostly wait for the timers of routers, whatever the number of
	// CPUs; each has namespaces of its own.
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	// The BGP server, one goroutine of which never ends, runs in the children
	// only: here nothing may be left.
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// What every test here calls, by a short name.
type (
	space   = bgptest.Space
	process = bgptest.Process
)

var (
	must       = bgptest.Must
	tempDir    = bgptest.TempDir
	newSpace   = bgptest.NewSpace
	eventually = bgptest.Poll(20 * time.Millisecond).Eventually
)

// link joins a and b by a veth: 10.0.n.1 and fd00:n::1 in a, .2 and ::2 in b.
// Beyond link 1, b sees the next hops of intentOf on its link as well: BIRD
// refuses a next hop that is not directly connected.
func link(t testing.TB, a, b *space, n int) {
	t.Helper()
	name := fmt.Sprintf("v%d", n)
	bgptest.Link(t, a, b, name)
	a.Up(t, name, fmt.Sprintf("10.0.%d.1/24", n), fmt.Sprintf("fd00:%d::1/64", n))
	b.Up(t, name, fmt.Sprintf("10.0.%d.2/24", n), fmt.Sprintf("fd00:%d::2/64", n))
	if n > 1 {
		b.Up(t, name, fmt.Sprintf("10.0.1.%d/24", 100+n), fmt.Sprintf("fd00:1::%d/64", 100+n))
	}
}

// speaker is a running edgebgp and a client of its socket.
type speaker struct {
	t      testing.TB
	ns     *space
	dir    string
	proc   *process
	client *http.Client
	flags  []string // further ones
	reader *reader
}

func newSpeaker(t testing.TB) *speaker {
	t.Helper()
	s := &speaker{t: t, ns: newSpace(t), dir: tempDir(t)}
	s.client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", s.dir+"/sock")
		},
	}}
	s.reader = &reader{s: s}
	s.start()
	return s
}

func (s *speaker) start() {
	s.t.Helper()
	path, err := edgebgp()
	must(s.t, err)
	args := append([]string{path, "-socket", s.dir + "/sock", "-state", s.dir + "/state", "-log-level", "debug"}, s.flags...)
	s.proc = s.ns.Start(s.t, s.dir+"/edgebgp.log", args...)
	eventually(s.t, func() string {
		if _, err := s.call("GET", "/v1/state", nil); err != nil {
			return err.Error()
		}
		return ""
	})
}

// call returns the answer, with the text of its edge.Problem as an error.
func (s *speaker) call(method, path string, body any) (st edge.SpeakerState, err error) {
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		j, err := json.Marshal(b)
		if err != nil {
			return st, err
		}
		r = bytes.NewReader(j)
	}
	req, err := http.NewRequest(method, "http://edge"+path, r)
	if err != nil {
		return st, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return st, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return st, json.NewDecoder(resp.Body).Decode(&st)
	}
	var failed struct {
		edge.SpeakerState
		edge.Problem
	}
	if err := json.NewDecoder(resp.Body).Decode(&failed); err != nil || failed.Error == "" {
		return st, fmt.Errorf("status %d without a problem: %v", resp.StatusCode, err)
	}
	return failed.SpeakerState, fmt.Errorf("%d: %s", resp.StatusCode, failed.Error)
}

func (s *speaker) set(in edge.Intent) edge.SpeakerState {
	s.t.Helper()
	st, err := s.call("PUT", "/v1/intent", in)
	must(s.t, err)
	return st
}

// state is the whole state, and the check that it is as edged sees it, who asks for
// what has changed.
func (s *speaker) state() edge.SpeakerState {
	s.t.Helper()
	before := s.reader.get()
	st, err := s.call("GET", "/v1/state", nil)
	must(s.t, err)
	s.alike(before, st)
	return st
}

func (s *speaker) peer(id edge.PeerID) edge.PeerState {
	s.t.Helper()
	for _, p := range s.state().Peers {
		if p.ID == id {
			return p
		}
	}
	s.t.Fatalf("no peer %q in the state", id)
	return edge.PeerState{}
}

// established waits until all the peers' sessions are up.
func (s *speaker) established(ids ...edge.PeerID) {
	s.t.Helper()
	eventually(s.t, func() string {
		for _, id := range ids {
			if p := s.peer(id); p.Session != "established" {
				return fmt.Sprintf("%s is %s (%s)", id, p.Session, p.LastErr)
			}
		}
		return ""
	})
}

var (
	net4 = netip.MustParsePrefix("192.0.2.0/24")
	net6 = netip.MustParsePrefix("2001:db8:1::/48")
)

const gshut = edge.GracefulShutdown

// peerN is the router at the far end of link n.
func peerN(n int) edge.Peer {
	return edge.Peer{
		ID: edge.PeerID(fmt.Sprintf("r%d", n)), Addr: netip.MustParseAddr(fmt.Sprintf("10.0.%d.2", n)), ASN: 65100 + uint32(n),
		Families: []edge.Family{edge.IPv4, edge.IPv6}, Hold: 9 * time.Second, Keepalive: 3 * time.Second, ConnectRetry: 2 * time.Second,
	}
}

// intentOf announces net4 and net6 to the peers, with the next hops of link 1.
func intentOf(peers ...edge.Peer) edge.Intent {
	announce := func(net netip.Prefix, nextHop string) edge.Announcement {
		return edge.Announcement{
			Net: net, NextHop: netip.MustParseAddr(nextHop),
			Normal:   edge.Attributes{Communities: []edge.Community{65000<<16 | 20, 65000<<16 | 10}},
			Degraded: edge.Attributes{Prepend: 3, MED: 500, Communities: []edge.Community{gshut}},
		}
	}
	return edge.Intent{
		Generation: 1,
		Speaker: edge.Speaker{
			ASN: 4200000001, RouterID: netip.MustParseAddr("10.0.1.1"), Lease: 30 * time.Second, Peers: peers,
		},
		Announcements: []edge.Announcement{announce(net4, "10.0.1.1"), announce(net6, "fd00:1::1")},
	}
}

func degraded(in edge.Intent) edge.Intent {
	in.Announcements = append([]edge.Announcement(nil), in.Announcements...)
	for i := range in.Announcements {
		in.Announcements[i].Degrade, in.Announcements[i].Reason = true, "for the test"
	}
	return in
}

// withdrawn is in with orders to withdraw nets before until.
func withdrawn(in edge.Intent, until time.Time, nets ...netip.Prefix) edge.Intent {
	in.Announcements = slices.DeleteFunc(slices.Clone(in.Announcements), func(a edge.Announcement) bool { return slices.Contains(nets, a.Net) })
	in.Withdraw = nil
	for _, p := range nets {
		in.Withdraw = append(in.Withdraw, edge.Withdrawal{Net: p, Until: until})
	}
	return in
}
