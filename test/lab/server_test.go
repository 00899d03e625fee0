package lab

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestDownloads routes the VIPs to a server by hand, without a box between.
func TestDownloads(t *testing.T) {
	top := small()
	top.Sites, top.Regions, top.Shared = nil, nil, ""
	top.Servers = []ServerSpec{{"s1", "r-a"}}
	l := build(t, top)
	server, client := l.Servers["s1"], l.Clients["client-a"]
	routeVIPs(t, l, server)
	var all []*Download
	for _, ipv6 := range []bool{false, true} {
		d, err := client.Download(t.Context(), ipv6)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		if d.Server != "s1" || d.Target.Addr().Is6() != ipv6 || d.Source.Addr().Is6() != ipv6 {
			t.Errorf("got %+v", d)
		}
		all = append(all, d)
	}
	reads(t, all, 10*chunkSize)
	for _, d := range all {
		if s := d.Stall(); s < chunkPause/2 || s > patience {
			t.Errorf("the longest pause was %s, with chunks every %s", s, chunkPause)
		}
	}
	// What the client sends is lost, what the server sends is not.
	const lost = time.Second
	routeVIPs(t, l, nil)
	pauseUntil(t.Context(), time.Now().Add(lost))
	for _, d := range all {
		if s := d.Stall(); s < lost/2 {
			t.Errorf("the longest pause is %s while the way to the server is lost for %s", s, lost)
		}
	}
	routeVIPs(t, l, server)
	reads(t, all, 20*chunkSize)
	server.Finish()
	for _, d := range all {
		<-d.Done()
		if d.Err() != nil || d.Read()%chunkSize != 0 {
			t.Errorf("%d bytes, %v", d.Read(), d.Err())
		}
	}
	broken, err := client.Download(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.close(); err != nil {
		t.Error(err)
	}
	if <-broken.Done(); broken.Err() == nil {
		t.Error("a download that was cut off is whole")
	}
}

// routeVIPs has the router send the VIPs to a server, or with none lose what is
// for them.
func routeVIPs(t *testing.T, l *Lab, to *Server) {
	t.Helper()
	for _, vip := range []netip.Addr{VIP4, VIP6} {
		route := &netlink.Route{Dst: ipNet(netip.PrefixFrom(vip, vip.BitLen())), Type: unix.RTN_BLACKHOLE}
		switch {
		case to == nil:
		case vip.Is4():
			route.Type, route.Gw = unix.RTN_UNICAST, to.Addr4.AsSlice()
		default:
			route.Type, route.Gw = unix.RTN_UNICAST, to.Addr6.AsSlice()
		}
		if err := l.Routers["r-a"].nl.RouteReplace(route); err != nil {
			t.Fatal(err)
		}
	}
}

// reads waits until each download has read so many bytes.
func reads(t *testing.T, all []*Download, bytes int64) {
	t.Helper()
	err := Until(limit(t, patience), "all downloads go on", func() error {
		for _, d := range all {
			if d.Read() < bytes {
				return errors.New("one has too little")
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFillDoesNotRepeat(t *testing.T) {
	const window = 64
	all := make([]byte, 1<<20)
	fill(all, 0)
	seen := map[[window]byte]int{}
	for at := 0; at+window <= len(all); at += window {
		key := [window]byte(all[at:])
		if first, twice := seen[key]; twice {
			t.Fatalf("what is at %d is at %d too", first, at)
		}
		seen[key] = at
	}
	part := make([]byte, 1000)
	fill(part, 777)
	if string(part) != string(all[777:1777]) {
		t.Error("a part differs from the whole")
	}
}
