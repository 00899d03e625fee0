package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	Janitor()
	abandonIfAsked()
	goleak.VerifyTestMain(m)
}

// limit is the context of a test's waits.
// patience is how long a test waits for what is to come, on a busy box too.
const patience = 2 * time.Minute

func limit(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// build makes a lab that ends with the test.
func build(t *testing.T, top Topology) *Lab {
	t.Helper()
	start := time.Now()
	l, err := New(t.Context(), top)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(l.Logs(20))
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(l.Dir()); err == nil {
			t.Errorf("%s is left", l.Dir())
		}
	})
	took := time.Since(start)
	t.Logf("the lab was up after %s", took.Round(time.Millisecond))
	return l
}

func TestDefaultLab(t *testing.T) {
	l := build(t, Default())
	t.Run("all reach all", func(t *testing.T) { testReach(t, l) })
	t.Run("delays", func(t *testing.T) { testDelays(t, l) })
	t.Run("cut and heal a core link", func(t *testing.T) { testCutCore(t, l) })
	t.Run("cut and heal a client", func(t *testing.T) { testCutClient(t, l) })
	t.Run("origins", func(t *testing.T) { testOrigins(t, l) })
	t.Run("load", func(t *testing.T) { testLoad(t, l) })
	t.Run("throughput", func(t *testing.T) { testThroughput(t, l) })
	t.Run("anycast", func(t *testing.T) { testAnycast(t, l) })
	t.Run("router restart", func(t *testing.T) { testRouterRestart(t, l) })
}

// testReach opens a connection from every box and client, by both families, to
// every origin.
func testReach(t *testing.T, l *Lab) {
	ctx := limit(t, patience)
	var from []*Host
	for _, b := range l.Boxes {
		from = append(from, b.Host)
	}
	for _, c := range l.Clients {
		from = append(from, c.Host)
	}
	for _, h := range from {
		for _, r := range l.Regions {
			for _, o := range r.Origins {
				for _, to := range []netip.AddrPort{o.Addr4, o.Addr6} {
					c, err := h.Dial(ctx, "tcp", to.String())
					if err != nil {
						t.Errorf("%s to %s: %v", h.Name(), o.Name, err)
						continue
					}
					c.Close()
				}
			}
		}
	}
}

// testDelays measures round trips: the direct link, or the shorter way that BGP
// does not know of (it counts ASes): the direct one all the same.
func testDelays(t *testing.T, l *Lab) {
	ctx := limit(t, patience)
	for _, c := range []struct {
		client, region string
		oneWay         time.Duration
	}{
		{"client-a", "east", 0},
		{"client-a", "west", 5 * time.Millisecond},
		{"client-b", "south", 10 * time.Millisecond},
		{"client-a", "south", 15 * time.Millisecond},
	} {
		var all []time.Duration
		want := 2 * c.oneWay
		for len(all) < 21 || len(all) < 300 && slices.Min(all) > want+5*time.Millisecond { // on a busy box most are late
			rtt, err := l.Clients[c.client].RTT(ctx, l.Regions[c.region].Origins[0].Addr4)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, rtt)
		}
		slices.Sort(all)
		t.Logf("%s to %s: median RTT %s, smallest %s, largest %s", c.client, c.region, all[len(all)/2], all[0], all[len(all)-1])
		if all[0] < want || all[0] > want+5*time.Millisecond {
			t.Errorf("%s to %s: smallest RTT %s, want %s to 5 ms more", c.client, c.region, all[0], want)
		}
	}
}

// testCutCore cuts r-a--r-b: traffic goes by r-c, and comes back.
func testCutCore(t *testing.T, l *Lab) {
	ctx := limit(t, patience)
	west := netip.MustParsePrefix("10.11.0.0/24")
	r, link := l.Routers["r-a"], l.Cores["r-a--r-b"]
	if err := r.Await(ctx, west, "r-b"); err != nil {
		t.Fatal(err)
	}
	w, err := r.Watch(west)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	start := time.Now()
	if err := link.Cut(); err != nil {
		t.Fatal(err)
	}
	if err := r.Await(ctx, west, "r-c"); err != nil {
		t.Fatal(err)
	}
	t.Logf("moved after %s", time.Since(start))
	// The way back is another router's decision.
	back := netip.MustParsePrefix("10.101.0.0/24")
	if err := l.Routers["r-b"].Await(ctx, back, "r-c"); err != nil {
		t.Fatal(err)
	}
	t.Logf("moved on r-b after %s", time.Since(start))
	rtt, err := l.Clients["client-a"].RTT(ctx, l.Regions["west"].Origins[0].Addr4)
	if err != nil || rtt < 50*time.Millisecond {
		t.Errorf("RTT over r-c is %s, %v; want 50 ms or more", rtt, err)
	}
	start = time.Now()
	if err := link.Heal(); err != nil {
		t.Fatal(err)
	}
	if err := r.Await(ctx, west, "r-b"); err != nil {
		t.Fatal(err)
	}
	t.Logf("back after %s", time.Since(start))
	sees(t, "changes", w.Events)
}

// testCutClient cuts a client off: its network leaves every router.
func testCutClient(t *testing.T, l *Lab) {
	ctx := limit(t, patience)
	network := netip.MustParsePrefix("10.101.0.0/24")
	r := l.Routers["r-b"]
	w, err := r.Watch(network)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := l.Links["client-a"].Cut(); err != nil {
		t.Fatal(err)
	}
	if err := r.Await(ctx, network); err != nil {
		t.Fatal(err)
	}
	if err := l.Links["client-a"].Heal(); err != nil {
		t.Fatal(err)
	}
	if err := r.Await(ctx, network, "r-a"); err != nil {
		t.Fatal(err)
	}
	err = Until(ctx, "the client reaches a region by IPv6 again", func() error {
		_, err := l.Clients["client-a"].RTT(limit(t, time.Second), l.Regions["west"].Origins[0].Addr6)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	sees(t, "a loss", w.Lost)
}

// sees waits until a watch has something: it comes behind the kernel.
func sees[E any](t *testing.T, what string, look func() ([]E, error)) {
	t.Helper()
	err := Until(limit(t, patience), "the watch saw "+what, func() error {
		got, err := look()
		if err == nil && len(got) == 0 {
			err = errors.New("nothing")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func testOrigins(t *testing.T, l *Lab) {
	ctx := limit(t, patience)
	c, east := l.Clients["client-b"], l.Regions["east"]
	url := func(path string) string { return fmt.Sprintf("http://%s%s", east.Origins[1].Addr4, path) }
	before := east.Requests()
	a, err := c.Get(ctx, url("/x"), Way{})
	if err != nil || a.Region != "east" || a.Upstream != "east-2" || a.Path != "/x" || a.Box != "" {
		t.Errorf("got %+v, %v", a, err)
	}
	if n := east.Requests() - before; n != 1 {
		t.Errorf("counted %d requests, want 1", n)
	}
	if _, err := l.Boxes["a2"].Run(ctx, "curl", "-sf", url("/healthz")); err != nil {
		t.Error(err)
	}
	east.SetHealthy(false)
	if _, err := l.Boxes["a2"].Run(ctx, "curl", "-sf", url("/healthz")); err == nil {
		t.Error("a sick origin answers /healthz with 200")
	}
	east.SetHealthy(true)
	out, err := l.Boxes["a2"].Run(ctx, "curl", "-s", url("/who"))
	if want := `"box":"a2","site":"a"`; err != nil || !strings.Contains(string(out), want) {
		t.Errorf("an origin asked from a2 says %s, %v; want %s", out, err, want)
	}
	if n := east.Requests() - before; n != 2 {
		t.Errorf("counted %d requests, want 2: /healthz does not count", n)
	}
	east.SetDelay(60 * time.Millisecond)
	start := time.Now()
	if _, err := c.Get(ctx, url("/"), Way{}); err != nil || time.Since(start) < 60*time.Millisecond {
		t.Errorf("took %s, %v; want 60 ms or more", time.Since(start), err)
	}
	east.SetDelay(0)
	east.Origins[1].Stop()
	if _, err := c.Get(ctx, url("/"), Way{}); err == nil {
		t.Error("a stopped origin answers")
	}
	if err := east.Origins[1].Start(); err != nil {
		t.Error(err)
	}
	if _, err := c.Get(ctx, url("/"), Way{}); err != nil {
		t.Error(err)
	}
}

func testLoad(t *testing.T, l *Lab) {
	ctx := limit(t, patience)
	url := fmt.Sprintf("http://%s/", l.Regions["south"].Origins[0].Addr4)
	for _, w := range []Way{{}, {KeepAlive: true}} {
		got, err := l.Clients["client-c"].Send(ctx, Load{URL: url, Way: w, Rate: 100, For: time.Second, Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 100 || len(got.Failed()) > 0 || got.Regions()["south"] != 100 {
			t.Errorf("%+v: %s", w, got)
		}
	}
	got, err := l.Clients["client-c"].Send(ctx, Load{URL: "http://10.12.0.2:9/", Rate: 50, For: 200 * time.Millisecond})
	if err != nil || len(got.Failed()) != 10 {
		t.Errorf("to a closed port: %s, %v; want 10 of 10 failed", got, err)
	}
}

// testRouterRestart kills routers. Their kernels keep the routes; whether the
// new daemons do their work shows in the next cut.
func testRouterRestart(t *testing.T, l *Lab) {
	ctx := limit(t, patience)
	for _, name := range []string{"r-b", "r-c"} {
		l.Routers[name].Kill()
		if err := l.Routers[name].Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for router, command := range map[string]string{"r-b": "show bgp neighbors", "r-c": "show protocols all"} {
		err := Until(ctx, router+" has its sessions again", func() error {
			out, err := l.Routers[router].Ask(ctx, command)
			if n := strings.Count(out, "Established"); err == nil && n < 2 {
				err = fmt.Errorf("%d established", n)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	west := netip.MustParsePrefix("10.11.0.0/24")
	for _, step := range []struct {
		change func() error
		via    string
	}{{l.Cores["r-b--r-c"].Cut, "r-a"}, {l.Cores["r-b--r-c"].Heal, "r-b"}} {
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		if err := l.Routers["r-c"].Await(ctx, west, step.via); err != nil {
			t.Fatal(err)
		}
	}
}

// testThroughput moves 32 MB over the link r-a--r-b.
func testThroughput(t *testing.T, l *Lab) {
	ctx := limit(t, patience)
	const size = 32 << 20
	tr := l.Clients["client-a"].Transport(Way{})
	url := fmt.Sprintf("http://%s/bytes/%d", l.Regions["west"].Origins[0].Addr4, size)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	rate := 0.
	for range 5 { // a busy box may be slow for a while
		if rate = max(rate, rateOf(t, tr, req, size)); rate >= 30 {
			break
		}
	}
	t.Logf("%.0f Mbit/s, %d packets dropped", rate, l.Cores["r-a--r-b"].Dropped())
	if rate < 30 {
		t.Errorf("%.0f Mbit/s over a core link", rate)
	}
}

// rateOf asks for size bytes, and returns the Mbit/s that they came with.
func rateOf(t *testing.T, tr http.RoundTripper, req *http.Request, size int64) float64 {
	t.Helper()
	start := time.Now()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil || n != size {
		t.Fatalf("got %d bytes, %v", n, err)
	}
	return float64(size*8) / time.Since(start).Seconds() / 1e6
}
