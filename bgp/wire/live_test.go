package wire_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/internal/bgptest"
	"github.com/catchment-dev/edge/bgp/wire"
)

var capture = flag.Bool("capture", false, "write what the routers of TestLive send to testdata/golden")

// heard is what a router has told us: all through the codec.
type heard struct {
	open         wire.Open
	twoOctet     bool // our choice
	table        wire.Table
	ended        []edge.Family
	asked        []edge.Family
	withdrawals  int
	keepalives   int
	notification string
	strange      []string
}

// message takes in one message.
func (h *heard) message(m wire.Message) error {
	var err error
	switch m.Type {
	case wire.TypeOpen:
		h.open, err = wire.ParseOpen(m.Raw)
	case wire.TypeUpdate:
		var u wire.Update
		u, err = wire.ParseUpdate(m.Raw, h.open.FourOctet && !h.twoOctet)
		h.table.Apply(u)
		h.strange = append(h.strange, u.Strange...)
		h.withdrawals += len(u.Withdrawn)
		if u.EndOfRIB != "" {
			h.ended = append(h.ended, u.EndOfRIB)
		}
	case wire.TypeNotification:
		var n wire.Notification
		n, err = wire.ParseNotification(m.Raw)
		h.notification = n.String()
	case wire.TypeKeepalive:
		h.keepalives++
	case wire.TypeRouteRefresh:
		f, ok := wire.ParseRouteRefresh(m.Raw)
		if !ok {
			return fmt.Errorf("a route refresh that is not plain: %x", m.Raw)
		}
		h.asked = append(h.asked, f)
	}
	return err
}

// session is our end of a session with a router: OPEN, KEEPALIVEs and both
// End-of-RIBs, nothing else.
type session struct {
	heard
	t    *testing.T
	conn *net.TCPConn
	r    *wire.Reader
	raw  []string
}

// connect dials a router until it answers with an OPEN: a router that was started
// just now, or has just lost a session, says no for a while.
func connect(t *testing.T, l link, to string, ours wire.Open) *session {
	t.Helper()
	s := &session{t: t, heard: heard{twoOctet: !ours.FourOctet}}
	answers := map[string]int{} // the last one does not tell what was wrong
	bgptest.Poll(100*time.Millisecond).Eventually(t, func() string {
		err := s.try(l, netip.MustParseAddr(to), ours)
		if err == nil {
			return ""
		}
		answers[err.Error()]++
		return fmt.Sprintf("an OPEN; the router answered %v", answers)
	})
	t.Cleanup(func() { s.conn.Close() })
	go beat(s.conn)
	s.write(wire.Keepalive(), wire.EndOfRIB(edge.IPv4), wire.EndOfRIB(edge.IPv6))
	return s
}

// beat keeps a session alive until it is closed. On a busy machine a command to
// a router may take longer than the hold time.
func beat(conn net.Conn) {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for range every.C {
		if _, err := conn.Write(wire.Keepalive()); err != nil {
			return
		}
	}
}

// try dials once. No session is left behind by an error.
func (s *session) try(l link, to netip.Addr, ours wire.Open) (err error) {
	if s.conn, err = l.dial(to); err != nil {
		return plain(err)
	}
	defer func() {
		if err != nil {
			s.conn.Close()
		}
	}()
	if _, err := s.conn.Write(ours.Marshal()); err != nil {
		return plain(err)
	}
	s.conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	s.r = wire.NewReader(s.conn)
	m, err := s.r.Read()
	if err != nil {
		return plain(err)
	}
	s.raw = []string{hex.EncodeToString(m.Raw)}
	must(s.t, s.message(m))
	if m.Type != wire.TypeOpen {
		return fmt.Errorf("%s %s", m.Type, s.notification)
	}
	return nil
}

// plain is an error without our port, which is another each time.
func plain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// end says goodbye and waits until the router has closed: one that has not yet
// noticed the end of a session takes the next one for a collision, and ends it
// after its OPEN.
func (s *session) end() {
	s.t.Helper()
	s.write(wire.Notify(6, 2, nil)) // Cease, Administrative Shutdown
	s.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	for {
		_, err := s.r.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.t.Fatal("the router does not close a session that was ended")
		} else if err != nil {
			return
		}
	}
}

func (s *session) write(messages ...[]byte) {
	s.t.Helper()
	if _, err := s.conn.Write(bytes.Join(messages, nil)); err != nil {
		s.t.Fatal(err)
	}
}

// until reads until cond says nothing.
func (s *session) until(cond func() string) {
	s.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; {
		missing := cond()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("missing: %s", missing)
		}
		s.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		m, err := s.r.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			s.t.Fatalf("missing: %s: %v (%s)", missing, err, s.notification)
		}
		s.raw = append(s.raw, hex.EncodeToString(m.Raw))
		if err := s.message(m); err != nil {
			s.t.Fatalf("%x: %v", m.Raw, err)
		}
	}
}

func (s *session) shows(want []string) func() string {
	return func() string { return cmp.Diff(want, show(&s.table)) }
}

// farEnd is a router, and what it must have told us.
type farEnd struct {
	name, version string
	start         func(*testing.T, link) router
	open          wire.Open
	// path is the AS path, and med the MED of what has none of its own.
	path, med string
}

func farEnds() []farEnd {
	both := []edge.Family{edge.IPv4, edge.IPv6}
	id := netip.MustParseAddr("10.0.1.2")
	return []farEnd{
		{"bird", "BIRD 2.0.12", newBird, wire.Open{ASN: 4200000101, Hold: 9 * time.Second, ID: id, Families: both, FourOctet: true, RouteRefresh: true,
			GracefulRestart: &wire.GracefulRestart{Time: 120 * time.Second, Families: map[edge.Family]bool{edge.IPv4: false, edge.IPv6: false}},
			Unknown:         []uint8{70, 71}}, "4200000101", ""},
		{"frr", "FRR 8.4.4", newFRR, wire.Open{ASN: 65102, Hold: 9 * time.Second, ID: id, Families: both, FourOctet: true, RouteRefresh: true,
			GracefulRestart: &wire.GracefulRestart{Restarting: true, Notification: true, Time: 120 * time.Second},
			Unknown:         []uint8{6, 69, 70, 71, 73, 128}}, "65102", " med 0"},
	}
}

// routes are what the router sends over a session: hop4 and hop6 are the next
// hops of the families.
func (f farEnd) routes(hop4, hop6 string) []string {
	return []string{
		fmt.Sprintf("192.0.2.0/24 via %s origin 0 path [%s]%s", hop4, f.path, f.med),
		fmt.Sprintf("198.51.100.0/24 via %s origin 0 path [%s] med 50 communities [65000:10 65535:0] large [65000:1:2]", hop4, f.path),
		fmt.Sprintf("2001:db8:1::/48 via %s origin 0 path [%s]%s", hop6, f.path, f.med),
	}
}

// TestLive: BIRD and FRR take what we write, and all that they send is read.
func TestLive(t *testing.T) {
	for _, f := range farEnds() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			l := newLink(t)
			r := f.start(t, l)
			ours := wire.Open{ASN: 65010, Hold: 9 * time.Second, ID: netip.MustParseAddr("10.0.1.1"), Families: []edge.Family{edge.IPv4, edge.IPv6},
				FourOctet: true, RouteRefresh: true, ExtendedNextHop: []edge.Family{edge.IPv4},
				GracefulRestart: &wire.GracefulRestart{Time: 5 * time.Second, Families: map[edge.Family]bool{edge.IPv4: true, edge.IPv6: true}}}
			s := connect(t, l, "10.0.1.2", ours)
			all := f.routes("10.0.1.2", "fd00:1::2")
			s.until(s.shows(all))
			r.withdraw()
			s.until(s.shows(all[1:2]))
			r.refresh()
			s.until(s.shows(all))
			s.until(func() string {
				if len(s.ended) < 2 || len(s.asked) < 2 || s.keepalives < 3 {
					return fmt.Sprintf("ended %v, asked %v, %d keepalives", s.ended, s.asked, s.keepalives)
				}
				return ""
			})
			r.shutdown()
			s.until(func() string {
				if s.notification == "" {
					return "a notification"
				}
				return ""
			})
			f.judge(t, &s.heard)
			if *capture {
				f.write(t, s.raw)
			}
			t.Run("extended next hop", func(t *testing.T) {
				s := connect(t, l, "fd00:1::2", ours)
				s.until(s.shows(f.routes("fd00:1::2", "fd00:1::2")))
				if len(s.strange) > 0 || !slices.Equal(s.open.ExtendedNextHop, []edge.Family{edge.IPv4}) {
					t.Errorf("strange %q, extended next hop %v", s.strange, s.open.ExtendedNextHop)
				}
				s.end()
			})
			t.Run("2-byte AS numbers", func(t *testing.T) {
				narrow := wire.Open{ASN: 65010, Hold: 9 * time.Second, ID: ours.ID, Families: ours.Families}
				s := connect(t, l, "fd00:1::2", narrow)
				s.until(func() string {
					if p, ok := s.table.Get(netip.MustParsePrefix("2001:db8:1::/48")); !ok || fmt.Sprint(p.ASPath) != "["+f.path+"]" {
						return fmt.Sprintf("path %v, %v", p.ASPath, ok)
					}
					return ""
				})
				if len(s.strange) > 0 {
					t.Errorf("strange: %q", s.strange)
				}
			})
		})
	}
}

// judge looks at what a whole session over IPv4 has said.
func (f farEnd) judge(t *testing.T, h *heard) {
	t.Helper()
	if diff := cmp.Diff(f.open, h.open, exported); diff != "" {
		t.Errorf("OPEN (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(f.routes("10.0.1.2", "fd00:1::2"), show(&h.table)); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
	if slices.Sort(h.ended); !slices.Contains(h.ended, edge.IPv4) || !slices.Contains(h.ended, edge.IPv6) {
		t.Errorf("end of RIB of %v", h.ended)
	}
	if !slices.Contains(h.asked, edge.IPv4) || !slices.Contains(h.asked, edge.IPv6) {
		t.Errorf("route refresh of %v", h.asked)
	}
	if want := `Cease/Administrative Shutdown: "maintenance tonight"`; h.notification != want {
		t.Errorf("notification %s, want %s", h.notification, want)
	}
	if h.withdrawals != 2 || h.keepalives == 0 || len(h.strange) > 0 {
		t.Errorf("%d withdrawals, %d keepalives, strange: %q", h.withdrawals, h.keepalives, h.strange)
	}
}

func (f farEnd) write(t *testing.T, raw []string) {
	t.Helper()
	head := fmt.Sprintf("# What %s sent over a session of TestLive, a message a line. Written by go test -run TestLive -capture.\n", f.version)
	must(t, os.MkdirAll("testdata/golden", 0o755))
	must(t, os.WriteFile("testdata/golden/"+f.name+".hex", []byte(head+strings.Join(raw, "\n")+"\n"), 0o644))
}

// TestGolden: the same of the sessions that were recorded.
func TestGolden(t *testing.T) {
	for _, f := range farEnds() {
		t.Run(f.name, func(t *testing.T) {
			b, err := os.ReadFile("testdata/golden/" + f.name + ".hex")
			must(t, err)
			head, digits, _ := strings.Cut(string(b), "\n")
			if !strings.Contains(head, f.version) {
				t.Errorf("recorded of another version: %s", head)
			}
			var h heard
			r := wire.NewReader(bytes.NewReader(unhex(t, digits)))
			for range strings.Fields(digits) {
				m, err := r.Read()
				must(t, err)
				must(t, h.message(m))
			}
			f.judge(t, &h)
		})
	}
}
