package lab

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestApart: two sites whose routers tell each other nothing of the service prefixes.
func TestApart(t *testing.T) {
	l := build(t, Topology{
		Routers: []RouterSpec{{"r-a", BIRD}, {"r-b", FRR}},
		Cores:   []CoreSpec{{"r-a", "r-b", time.Millisecond}},
		Sites:   []SiteSpec{{"a", "r-a", []BoxSpec{{"a1", false}}}, {"b", "r-b", []BoxSpec{{"b1", false}}}},
		Shared:  "r-a", Apart: true, MinSites: 1,
	})
	t.Run("each has its own", func(t *testing.T) { testOwnRoutes(t, l) })
	t.Run("ignore", func(t *testing.T) { testIgnore(t, l) })
	t.Run("sick for one box", func(t *testing.T) { testSickForOne(t, l) })
}

// notes keeps what Follow tells.
type notes struct {
	mu  sync.Mutex
	all []RouteChange
}

func (n *notes) add(c RouteChange) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, c)
}

// of is a router's story of a prefix: + for there, - for gone.
func (n *notes) of(router string, p netip.Prefix) (story string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.all {
		if c.Router == router && c.Prefix == p {
			story += map[bool]string{true: "+", false: "-"}[c.There]
		}
	}
	return story
}

func testOwnRoutes(t *testing.T, l *Lab) {
	ctx := limit(t, patience)
	var seen notes
	following, stop := context.WithCancel(ctx)
	defer stop()
	wait, err := l.Follow(following, []netip.Prefix{Prefix4, Prefix6}, seen.add)
	if err != nil {
		t.Fatal(err)
	}
	speakers := map[string]*speaker{}
	for _, b := range l.Boxes {
		speakers[b.name] = &speaker{box: b}
	}
	for _, s := range speakers {
		if err := s.speak(ctx, l, ""); err != nil {
			t.Fatal(err)
		}
		defer s.process.Kill()
	}
	await := func(box string, there bool) {
		t.Helper()
		var via []string
		if there {
			via = []string{box}
		}
		for _, p := range []netip.Prefix{Prefix4, Prefix6} {
			if err := l.Routers[l.Boxes[box].Router].Await(ctx, p, via...); err != nil {
				t.Fatal(err)
			}
		}
	}
	await("a1", true)
	await("b1", true)
	// The other site has the better path now, and still each router has its own.
	if err := speakers["a1"].speak(ctx, l, degraded); err != nil {
		t.Fatal(err)
	}
	session := func(box string) Session {
		t.Helper()
		s, err := l.Routers[l.Boxes[box].Router].Session(ctx, netip.MustParseAddr(l.Boxes[box].Addr4))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if err := Until(ctx, "r-a has the degraded path", func() error {
		if session("a1").Updates < 4 {
			return errors.New("it has not")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	await("a1", true)
	speakers["b1"].process.Kill()
	await("b1", false)
	await("a1", true)
	stop()
	if err := wait(); err != nil {
		t.Error(err)
	}
	for _, p := range []netip.Prefix{Prefix4, Prefix6} {
		if got := seen.of("r-b", p); got != "+-" {
			t.Errorf("r-b, %s: %s, want +-", p, got)
		}
	}
	if got := seen.of("r-a", Prefix4); got != "+" && got != "++" {
		t.Errorf("r-a, %s: %s, want + and a replacement", Prefix4, got)
	}
	// BIRD replaces an IPv6 route by a deletion and an addition, if it does at all.
	if got := seen.of("r-a", Prefix6); !slices.Contains([]string{"+", "++", "+-+"}, got) {
		t.Errorf("r-a, %s: %s, want + and a replacement", Prefix6, got)
	}
}

// TestComersFirst: of what is read at once, nobody has gone before another has come.
func TestComersFirst(t *testing.T) {
	at := func(router string, p netip.Prefix, there bool) RouteChange {
		return RouteChange{Router: router, Prefix: p, There: there}
	}
	got := comersFirst([]RouteChange{
		at("a", Prefix4, false), at("b", Prefix4, true), at("b", Prefix4, false), at("c", Prefix4, false), at("c", Prefix4, true), at("a", Prefix6, true),
	})
	want := []RouteChange{
		at("c", Prefix4, false), at("c", Prefix4, true), at("a", Prefix6, true), at("a", Prefix4, false), at("b", Prefix4, true), at("b", Prefix4, false),
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// testIgnore: one way by datagrams, and so no connection at all; all others go on.
func testIgnore(t *testing.T, l *Lab) {
	ctx := limit(t, patience)
	a, b := l.Boxes["a1"], l.Boxes["b1"]
	hears := func(to, from *Box, family4, want bool) bool {
		t.Helper()
		at, src := to.Addr6, from.Addr6
		if family4 {
			at, src = to.Addr4, from.Addr4
		}
		pc, err := to.ListenPacket("udp", net.JoinHostPort(at, "9"))
		if err != nil {
			t.Fatal(err)
		}
		defer pc.Close()
		out, err := from.ListenPacket("udp", net.JoinHostPort(src, "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if _, err := out.WriteTo([]byte("x"), pc.LocalAddr()); err != nil {
			t.Fatalf("the sender was told: %v", err)
		}
		wait := 500 * time.Millisecond
		if want {
			wait = patience
		}
		pc.SetReadDeadline(time.Now().Add(wait))
		_, _, err = pc.ReadFrom(make([]byte, 9))
		return err == nil
	}
	check := func(what string, ab, ba bool) {
		t.Helper()
		for _, v4 := range []bool{true, false} {
			if got := hears(b, a, v4, ab); got != ab {
				t.Errorf("%s: b1 hears a1: %t, want %t (IPv4 %t)", what, got, ab, v4)
			}
			if got := hears(a, b, v4, ba); got != ba {
				t.Errorf("%s: a1 hears b1: %t, want %t (IPv4 %t)", what, got, ba, v4)
			}
		}
	}
	dials := func(limit time.Duration) error {
		ln, err := b.Listen("tcp", b.Addr4+":9")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		dial, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		c, err := a.Dial(dial, "tcp", ln.Addr().String())
		if err == nil {
			c.Close()
		}
		return err
	}
	check("nothing is cut", true, true)
	if err := a.Ignore(b); err != nil {
		t.Fatal(err)
	}
	check("one way", true, false)
	if err := dials(300 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one way: connecting: %v; want silence", err)
	}
	if n, err := a.Ignored(); err != nil || n < 3 {
		t.Errorf("a1 has ignored %d packets, %v; want 3 at least", n, err)
	}
	if c, err := a.Dial(ctx, "tcp", l.Shared.Addr4.String()); err != nil {
		t.Errorf("others are cut off too: %v", err)
	} else {
		c.Close()
	}
	if err := errors.Join(b.Ignore(a), a.Ignore()); err != nil {
		t.Fatal(err)
	}
	check("the other way", false, true)
	for range 2 { // the second finds nothing to do
		if err := b.Ignore(); err != nil {
			t.Fatal(err)
		}
	}
	check("healed", true, true)
	if err := dials(patience); err != nil {
		t.Errorf("healed: %v", err)
	}
}

func testSickForOne(t *testing.T, l *Lab) {
	ctx := limit(t, patience)
	ask := func(box, path string) int {
		t.Helper()
		tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return l.Boxes[box].Dial(ctx, "tcp", address)
		}}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.Shared.Addr4.String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	l.Shared.SetHealthyFor("a1", "/healthz/x", false)
	for _, c := range []struct {
		box, path string
		want      int
	}{{"a1", "/healthz/x", 503}, {"b1", "/healthz/x", 200}, {"a1", "/healthz", 200}} {
		if got := ask(c.box, c.path); got != c.want {
			t.Errorf("%s of %s: %d, want %d", c.path, c.box, got, c.want)
		}
	}
	l.Shared.SetHealthyFor("a1", "/healthz/x", true)
	if got := ask("a1", "/healthz/x"); got != 200 {
		t.Errorf("mended: %d", got)
	}
}
