package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables/expr"

	"github.com/catchment-dev/edge"
)

// operators is what a box has besides: a firewall that tracks, and a table of
// our name in another family.
const operators = `
table inet operator {
	set admins { type ipv4_addr; elements = { 10.9.9.9 } }
	chain input {
		type filter hook input priority filter; policy accept;
		ct state invalid counter
		ip saddr @admins accept
	}
}
table ip catchment {
	chain forward { type filter hook forward priority filter; policy accept; }
}
`

// some has every kind of rule: ports and whole addresses, two MSS, both
// families, and a service without MSS.
func some() Rules {
	r := append(vips(443, edge.TCP, 1412), vips(0, edge.AnyProtocol, 1300)...)
	return append(r, vips(53, edge.UDP, 0)...)
}

func TestApplyAndRemove(t *testing.T) {
	p := newPair(t)
	nftTool(t, operators)
	before := handles(t)
	check(t, Remove()) // of nothing

	check(t, Apply(some()))
	applied := handles(t)
	if !strings.Contains(applied, "table inet catchment") || !strings.HasPrefix(applied, before) {
		t.Errorf("tables of others have changed, or ours is missing:\n%s", applied)
	}
	check(t, Apply(some()))
	if got := handles(t); got != applied {
		t.Errorf("the same rules again:\n%s\nbefore:\n%s", got, applied)
	}
	shuffled := some()
	shuffled[0], shuffled[3] = shuffled[3], shuffled[0]
	check(t, Apply(shuffled))
	if got := handles(t); got != applied {
		t.Errorf("the same rules in another order:\n%s\nbefore:\n%s", got, applied)
	}

	check(t, Apply(vips(443, edge.TCP, 1400)))
	if got := listing(t); !strings.Contains(got, "maxseg size set 1400") || strings.Contains(got, "1412") || strings.Contains(got, "1300") {
		t.Errorf("other rules:\n%s", got)
	}
	in(t, p.client, func() {
		if got := listing(t); got != "" {
			t.Errorf("another namespace has got rules:\n%s", got)
		}
	})
	check(t, Remove())
	if got := handles(t); got != before {
		t.Errorf("after Remove:\n%s\nbefore:\n%s", got, before)
	}
	check(t, Remove())
	check(t, Apply(some()))
	check(t, Apply(nil))
	if got := handles(t); got != before {
		t.Errorf("after no rules:\n%s\nbefore:\n%s", got, before)
	}
}

// TestListing: an operator may keep the output of nft as the configuration of
// the firewall (Debian's nftables.conf). It must load, or the next boot has no
// firewall.
func TestListing(t *testing.T) {
	newPair(t)
	check(t, Apply(some()))
	want := listing(t)
	nftTool(t, "flush ruleset\n"+want)
	if got := listing(t); got != want {
		t.Errorf("loaded from its own listing:\n%s\nwas:\n%s", got, want)
	}
	check(t, Apply(some()))
	if got := listing(t); got != want {
		t.Errorf("applied upon its own listing:\n%s\nwas:\n%s", got, want)
	}
}

func TestRepair(t *testing.T) {
	newPair(t)
	check(t, Apply(some()))
	want := listing(t)
	for name, harm := range map[string]string{
		"table deleted":         "delete table inet catchment",
		"everything flushed":    "flush ruleset",
		"table flushed":         "flush table inet catchment",
		"chain flushed":         "flush chain inet catchment output",
		"set flushed":           "flush set inet catchment vip4",
		"element deleted":       "delete element inet catchment vip6_port_mss_1412 { 2001:db8::1 . 443 }",
		"element added":         "add element inet catchment vip4 { 203.0.113.1 }",
		"port added":            "add element inet catchment vip4_port_mss_1412 { 192.0.2.1 . 444 }",
		"rule added":            "add rule inet catchment prerouting ip saddr 203.0.113.1 drop",
		"rule inserted":         "insert rule inet catchment output accept",
		"chain added":           "add chain inet catchment input { type filter hook input priority 0; policy drop; }",
		"chain without a hook":  "add chain inet catchment more",
		"set added":             "add set inet catchment more { type ipv4_addr; }",
		"policy changed":        "add chain inet catchment prerouting { policy drop; }",
		"table asleep":          "add table inet catchment { flags dormant; }",
		"priority changed":      strings.ReplaceAll("delete table inet catchment\n"+want, "priority raw", "priority filter"),
		"MSS changed":           strings.ReplaceAll("delete table inet catchment\n"+want, "size set 1412", "size set 9000"),
		"ports swapped":         strings.ReplaceAll("delete table inet catchment\n"+want, "dport", "sport"),
		"hook changed":          strings.ReplaceAll("delete table inet catchment\n"+want, "hook output", "hook postrouting"),
		"counted":               strings.ReplaceAll("delete table inet catchment\n"+want, "notrack", "counter notrack"),
		"set of another key":    strings.ReplaceAll("delete table inet catchment\n"+want, "ipv4_addr . inet_service", "ipv4_addr . inet_service; counter"),
		"elements that go":      strings.ReplaceAll("delete table inet catchment\n"+want, "type ipv6_addr\n", "type ipv6_addr\ntimeout 1h\n"),
		"a rule unknown to us":  "add rule inet catchment prerouting rt classid 7 drop",
		"a comment of theirs":   strings.ReplaceAll("delete table inet catchment\n"+want, "edged: VIP", "hands off"),
		"an object of no use":   "add counter inet catchment more\nadd rule inet catchment output counter name more",
		"a set with a size":     "add set inet catchment more { type ipv4_addr; size 5; flags dynamic,timeout; timeout 5s; }",
		"a map instead of sets": "delete table inet catchment\nadd table inet catchment\nadd map inet catchment vip4 { type ipv4_addr : verdict; }",
	} {
		nftTool(t, harm)
		if harmed := listing(t); harmed == want {
			t.Errorf("%s: no harm was done", name)
		}
		check(t, Apply(some()))
		if got := listing(t); got != want {
			t.Errorf("%s: not put right:\n%s", name, got)
		}
	}
}

// TestWithoutNotrack: what the kernel does not have is stood for by an object
// that is not there: the answer is the same.
func TestWithoutNotrack(t *testing.T) {
	newPair(t)
	missing := &expr.Objref{Type: 1, Name: "missing"}
	if err := apply(some(), nil, missing); !errors.Is(err, errNoNotrack) || !strings.Contains(err.Error(), "CONFIG_NFT_CT") {
		t.Errorf("err = %v, want %v", err, errNoNotrack)
	}
	applied := handles(t)
	if !strings.Contains(applied, "size set 1412") || strings.Contains(applied, "notrack") {
		t.Errorf("want the MSS and no more:\n%s", applied)
	}
	if err := apply(some(), nil, missing); !errors.Is(err, errNoNotrack) {
		t.Errorf("err = %v, want %v", err, errNoNotrack)
	}
	if got := handles(t); got != applied {
		t.Errorf("the same again:\n%s\nbefore:\n%s", got, applied)
	}
	check(t, Apply(some()))
	if got := listing(t); !strings.Contains(got, "notrack") {
		t.Errorf("once the kernel has it:\n%s", got)
	}
}

func TestLacksTables(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{os.NewSyscallError("socket", syscall.EPROTONOSUPPORT), true}, // no nfnetlink
		{os.NewSyscallError("socket", syscall.EAFNOSUPPORT), true},    // no netlink
		{fmt.Errorf("netlink receive: %w", syscall.EINVAL), true},     // no nf_tables
		{fmt.Errorf("netlink receive: %w", syscall.EPERM), false},
		{os.ErrDeadlineExceeded, false},
	} {
		if got := lacksTables(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

// TestManyServices: the sets are written whole, and read back whole.
func TestManyServices(t *testing.T) {
	newPair(t)
	for _, n := range []int{512, 20000} {
		var r Rules
		for i := range n {
			a := netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})
			if i%2 == 1 {
				a = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 14: byte(i >> 8), 15: byte(i)})
			}
			r = append(r, Service{VIP: netip.AddrPortFrom(a, uint16(i%3)), Protocol: edge.TCP, MSS: 1400 + i%2})
		}
		start := time.Now()
		check(t, Apply(r))
		applied := time.Since(start)
		before := handles(t)
		start = time.Now()
		check(t, Apply(r))
		t.Logf("%d services: applied in %v, compared in %v", n, applied, time.Since(start))
		if after := handles(t); after != before {
			t.Errorf("%d services: the same rules again were written", n)
		}
		if got := strings.Count(listing(t), ":db8::"); got < n/2 {
			t.Errorf("%d services: %d IPv6 addresses in the listing", n, got)
		}
	}
}
