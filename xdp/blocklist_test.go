package xdp

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"golang.org/x/sync/errgroup"
)

// blockBox is a box with a service of each family.
func blockBox(t testing.TB) device {
	t.Helper()
	d := policyBox(t, 1<<12)
	var all []edge.TableService
	for _, vip := range bothVIPs(0) {
		all = append(all, ofAll(vip, pool(t, 1)...))
	}
	apply(t, d.Forwarder, tableOf(all...))
	return d
}

// blocks says whether the program blocks a source.
func (d device) blocks(t testing.TB, source string) bool {
	t.Helper()
	a := addr(source)
	vip := bothVIPs(53)[0]
	if a.Is6() {
		vip = bothVIPs(53)[1]
	}
	switch got := d.outcome(t, packet{src: netip.AddrPortFrom(a, 1), dst: addrPort(vip), proto: 17, ttl: 64}.frame()); got {
	case "b0":
		return false
	case "drop blocked":
		return true
	default:
		t.Fatalf("source %s: %s", source, got)
		return false
	}
}

func prefixes(all ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range all {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// Who is blocked by which list: any prefix is enough, of one family alone.
func TestBlocklist(t *testing.T) {
	d := blockBox(t)
	for _, c := range []struct {
		list         []netip.Prefix
		blocked, not []string
	}{
		{nil, nil, []string{"203.0.113.7", "2001:db8::7"}},
		{prefixes("203.0.113.7/32"), []string{"203.0.113.7"}, []string{"203.0.113.6", "203.0.113.8", "2001:db8::7"}},
		// The long one inside the short one changes nothing, nor do duplicates, nor
		// the bits behind the prefix.
		{prefixes("203.0.113.7/32", "203.0.112.9/20", "203.0.112.0/20", "203.0.113.0/24", "203.0.113.7/32"),
			[]string{"203.0.113.7", "203.0.113.8", "203.0.112.0", "203.0.127.255"}, []string{"203.0.111.255", "203.0.128.0"}},
		{prefixes("2001:db8:bad::/48", "2001:db8:bad:1::5/128"),
			[]string{"2001:db8:bad::1", "2001:db8:bad:ffff::1", "2001:db8:bad:1::5"}, []string{"2001:db8:bae::1", "203.0.113.7"}},
		{prefixes("0.0.0.0/0"), []string{"1.2.3.4", "203.0.113.7"}, []string{"2001:db8::7"}},
		{prefixes("2000::/3"), []string{"2001:db8::7", "3fff::1"}, []string{"203.0.113.7", "fd00::9"}},
		{prefixes("8000::/1"), []string{"fd00::9"}, []string{"2001:db8::7", "203.0.113.7"}},
		{nil, nil, []string{"203.0.113.7", "2001:db8::7"}},
	} {
		check(t, d.Block(t.Context(), c.list))
		for _, a := range c.blocked {
			if !d.blocks(t, a) {
				t.Errorf("%v: %s is not blocked", c.list, a)
			}
		}
		for _, a := range c.not {
			if d.blocks(t, a) {
				t.Errorf("%v: %s is blocked", c.list, a)
			}
		}
	}
	balanced(t, d.Forwarder)
}

// A list that cannot be taken leaves the old one as it is.
func TestBadBlocklistChangesNothing(t *testing.T) {
	d := blockBox(t)
	check(t, d.Block(t.Context(), prefixes("203.0.113.0/24")))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	d.blockSpec.MaxEntries = 3
	for want, c := range map[string]struct {
		ctx  context.Context
		list []netip.Prefix
	}{
		"prefix is not valid":        {t.Context(), []netip.Prefix{{}}},
		"covers the IPv4 addresses":  {t.Context(), prefixes("::/0")},
		"4 prefixes are more than 3": {t.Context(), prefixes("10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32", "10.0.0.4/32")},
		"context canceled":           {ended, prefixes("10.0.0.1/32")},
	} {
		if err := d.Block(c.ctx, c.list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
		if got := stats(t, d.Forwarder).Blocked; got != 1 || !d.blocks(t, "203.0.113.7") || d.blocks(t, "10.0.0.1") {
			t.Errorf("after %q: %d are blocked", want, got)
		}
	}
	d = d.another(t)
	if got := stats(t, d.Forwarder).Blocked; got != 1 || !d.blocks(t, "203.0.113.7") {
		t.Errorf("another process finds %d blocked", got)
	}
}

// manyPrefixes are n prefixes of all usual lengths, of both families, and the
// set of them.
func manyPrefixes(rnd *rand.Rand, n int) ([]netip.Prefix, map[netip.Prefix]bool) {
	all, set := make([]netip.Prefix, 0, n), make(map[netip.Prefix]bool, n)
	for len(all) < n {
		p := netip.PrefixFrom(randomSource(rnd, len(all)%3 == 0), 0)
		bits := 20 + rnd.IntN(13)
		if p.Addr().Is6() {
			bits = 36 + rnd.IntN(29)
		}
		p = netip.PrefixFrom(p.Addr(), bits).Masked()
		all, set[p] = append(all, p), true
	}
	return all, set
}

func randomSource(rnd *rand.Rand, v6 bool) netip.Addr {
	if !v6 {
		return netip.AddrFrom4([4]byte{byte(20 + rnd.IntN(60)), byte(rnd.Uint32()), byte(rnd.Uint32()), byte(rnd.Uint32())})
	}
	a := [16]byte{0x20, byte(rnd.IntN(2)), byte(rnd.IntN(8))}
	be.PutUint64(a[3:], rnd.Uint64())
	return netip.AddrFrom16(a)
}

// contains looks for each length by itself.
func contains(set map[netip.Prefix]bool, a netip.Addr) bool {
	for bits := range a.BitLen() + 1 {
		if set[netip.PrefixFrom(a, bits).Masked()] {
			return true
		}
	}
	return false
}

// A million prefixes: loaded in one go, and each source judged as a search for
// every length of prefix judges it.
func TestMillionBlocked(t *testing.T) {
	const n, sources = 1_000_000, 20_000
	d := blockBox(t)
	rnd := rand.New(rand.NewPCG(11, 12))
	list, set := manyPrefixes(rnd, n)
	start := time.Now()
	check(t, d.Block(t.Context(), list))
	took := time.Since(start)
	feed, hits := d.feeder(), [2]int{}
	udp := [][]byte{udpTo(bothVIPs(53)[0]), udpTo(bothVIPs(53)[1])}
	for i := range sources {
		a := randomSource(rnd, i%2 == 1)
		if i%4 < 2 {
			a = list[rnd.IntN(n)].Addr()
		}
		at, f := src4At, udp[0]
		if a.Is6() {
			at, f = src6At, udp[1]
		}
		copy(f[at:], a.AsSlice())
		want := contains(set, a)
		if got := feed.to(t, f) == nowhere; got != want {
			t.Fatalf("source %s is blocked: %v, want %v", a, got, want)
		}
		if want {
			hits[a.BitLen()/128]++
		}
	}
	t.Logf("%d prefixes, %d of them different, loaded in %s; of %d sources %v were blocked", n, len(set), took.Round(time.Millisecond), sources, hits)
	if stats(t, d.Forwarder).Blocked != len(set) || hits[0] < sources/8 || hits[1] < sources/16 {
		t.Errorf("%d are blocked, of the sources %v", stats(t, d.Forwarder).Blocked, hits)
	}
	start = time.Now()
	check(t, d.Block(t.Context(), nil))
	t.Logf("emptied in %s", time.Since(start).Round(time.Millisecond))
	balanced(t, d.Forwarder)
}

// While lists are swapped, a source that is in both is never let through, and one
// that is in neither always is; and all else may go on at the same time.
func TestBlocklistSwapsUnderTraffic(t *testing.T) {
	d := blockBox(t)
	filler, _ := manyPrefixes(rand.New(rand.NewPCG(1, 1)), 2000)
	lists := [][]netip.Prefix{
		append(prefixes("203.0.113.0/24", "2001:db8:bad::/48"), filler...),
		prefixes("203.0.113.7/32", "2001:db8:bad::7/128"),
	}
	check(t, d.Block(t.Context(), lists[0]))
	done := make(chan struct{})
	var g, swaps errgroup.Group
	for range 2 {
		swaps.Go(func() error {
			for i := range 50 {
				if err := d.Block(t.Context(), lists[i%2]); err != nil {
					return err
				}
				if _, err := d.Stats(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(done)
		return swaps.Wait()
	})
	feed, fed := d.feeder(), 0
	bad := [][]byte{
		udpPacket("203.0.113.7:1", bothVIPs(53)[0]).frame(), udpPacket("[2001:db8:bad::7]:1", bothVIPs(53)[1]).frame(),
	}
	good := [][]byte{udpTo(bothVIPs(53)[0]), udpTo(bothVIPs(53)[1])}
	for running := true; running; fed++ {
		select {
		case <-done:
			running = false
		default:
		}
		if feed.to(t, bad[fed%2]) != nowhere {
			t.Errorf("packet %d of a source in both lists is let through", fed)
			break
		}
		if feed.to(t, good[fed%2]) == nowhere {
			t.Errorf("packet %d of a source in no list is blocked", fed)
			break
		}
	}
	check(t, g.Wait())
	t.Logf("%d packets of each source during 100 swaps", fed)
}

// Building a list takes long: nobody waits for that but who builds another.
func TestBlockHoldsUpNobody(t *testing.T) {
	d := blockBox(t)
	list, _ := manyPrefixes(rand.New(rand.NewPCG(3, 4)), 300_000)
	done, answers, alone := make(chan error, 1), 0, 0
	go func() { done <- d.Block(t.Context(), list) }()
	for {
		select {
		case err := <-done:
			check(t, err)
			if answers < 10 || alone < 10 {
				t.Errorf("stats answered %d times while a list was built, in %d of them nobody could build another", answers, alone)
			}
			return
		default:
			if d.blocking.TryLock() {
				d.blocking.Unlock()
			} else {
				alone++
			}
			stats(t, d.Forwarder)
			answers++
		}
	}
}

// What a list may take is asked again when it is built: services may have come.
func TestBlocklistMeetsNewServices(t *testing.T) {
	d := blockBox(t)
	keys, err := blockKeys(prefixes("203.0.113.7/32", "203.0.113.8/32"))
	check(t, err)
	d.o.Memory = d.plan(len(d.state.tables), len(keys)).Total
	check(t, d.mayBlock(len(keys)))
	list, err := d.newBlocklist(t.Context(), keys)
	check(t, err)
	defer list.Close()
	filter, err := newBlockFilter(d.filterSpec, keys)
	check(t, err)
	defer filter.Close()
	d.state.tables[serviceIDs-1] = fingerprint{} // of a service that has come
	if err := d.takeBlocklist(list, filter, len(keys)); err == nil || d.blocks(t, "203.0.113.7") {
		t.Errorf("a list that does not fit any more is taken: %v", err)
	}
	delete(d.state.tables, serviceIDs-1)
	check(t, d.takeBlocklist(list, filter, len(keys)))
	if !d.blocks(t, "203.0.113.7") {
		t.Error("a list that fits is not taken")
	}
}
