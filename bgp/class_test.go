package bgp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/catchment-dev/edge"
)

// TestPolicy: two peers of one policy are sent the same, whatever else is different,
// and every field of a peer is known to matter or not.
func TestPolicy(t *testing.T) {
	t.Parallel()
	matters := map[string]bool{
		"Watch": true, "Families": true, "Prefixes": true, "AllowLonger": true, "NextHop4": true, "NextHop6": true, "Announce": true, "Degraded": true,
		"Addr": false, "ASN": false, // only whether it is a next hop, and whether it is ours
		"ID": false, "LocalAddr": false, "Hold": false, "Keepalive": false, "ConnectRetry": false, "PasswordFile": false, "KeyStamp": false, "Multihop": false,
		"TTLSecurity": false, "Interface": false, "Passive": false, "ImportLimit": false, "DefaultRoute": false, "RestartTime": false, "BFD": false,
	}
	in := many(3)
	w := &wish{speaker: in.Speaker, announcements: in.Announcements, hops: map[netip.Addr]bool{in.Announcements[0].NextHop: true}}
	base := in.Speaker.Peers[0]
	variants := []edge.Peer{base, {
		ID: "other", Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1, LocalAddr: netip.MustParseAddr("192.0.2.8"), Families: []edge.Family{edge.IPv6},
		Hold: 1, Keepalive: 1, ConnectRetry: 1, PasswordFile: "/other", KeyStamp: "other", Multihop: 9, TTLSecurity: 9, Interface: "eth9", Passive: true, Watch: true,
		Prefixes: []netip.Prefix{in.Announcements[1].Net}, Announce: edge.Attributes{MED: 1}, Degraded: &edge.Attributes{}, NextHop4: netip.MustParseAddr("2001:db8::9"),
		NextHop6: netip.MustParseAddr("2001:db8::9"), AllowLonger: true, ImportLimit: 9, DefaultRoute: true, RestartTime: 9, BFD: &edge.BFD{},
	}, {ASN: in.Speaker.ASN, Addr: in.Announcements[0].NextHop, Families: base.Families, NextHop4: base.Addr, NextHop6: base.Addr}}
	policy := func(p edge.Peer) string {
		t.Helper()
		text, err := policyOf(p, w)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	fields := reflect.TypeFor[edge.Peer]()
	for i := range fields.NumField() {
		name, p := fields.Field(i).Name, base
		want, known := matters[name]
		reflect.ValueOf(&p).Elem().Field(i).Set(reflect.ValueOf(variants[1]).Field(i))
		if got := policy(p) != policy(base); !known || got != want {
			t.Errorf("%s is part of the policy: %v; want %v, known %v", name, got, want, known)
		}
	}
	sent := map[string]string{}
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		var p edge.Peer
		for i := range fields.NumField() {
			from := variants[r.IntN(len(variants))]
			reflect.ValueOf(&p).Elem().Field(i).Set(reflect.ValueOf(from).Field(i))
		}
		text := ""
		for _, degrade := range []bool{false, true} {
			for _, a := range w.announcements {
				a.Degrade = degrade
				if o, why := offer(w.speaker, p, a); o != nil {
					text += fmt.Sprintf("%s %+v, ", o.nextHop, o.attrs)
				} else {
					text += string(why) + ", "
				}
			}
		}
		key := policy(p)
		if was, ok := sent[key]; ok && was != text {
			t.Fatalf("%s: %s, and %s", key, was, text)
		}
		sent[key] = text
	}
	if len(sent) < 100 {
		t.Errorf("only %d policies", len(sent))
	}
}

// A class takes from the one before what is the same, and is never taken for ready
// because somebody has looked at it.
func TestClass(t *testing.T) {
	in := many(3)
	w := &wish{speaker: in.Speaker, key: keyOf(in.Speaker), announcements: in.Announcements}
	p := in.Speaker.Peers[0]
	of := func(w *wish, before *classes) *classes {
		c := &classes{version: w.version, asn: w.key.asn, list: map[string]*class{}}
		if _, err := c.of(p, w, before); err != nil {
			t.Fatal(err)
		}
		return c
	}
	only := func(c *classes) *class {
		for _, k := range c.list {
			return k
		}
		return nil
	}
	one := of(w, nil)
	next := *w
	next.announcements = many(3).Announcements
	next.announcements[1].Normal.MED = 9
	// Not ready: it is neither waited for nor spoilt.
	early := only(of(&next, one))
	if want, _ := early.offers(); len(want) != 3 {
		t.Errorf("%d routes", len(want))
	}
	before, not := only(one).offers()
	if len(before) != 3 || len(not) != 0 {
		t.Fatalf("%d routes", len(before))
	}
	two := only(of(&next, one))
	after, _ := two.offers()
	for i, a := range in.Announcements {
		if same := before[a.Net] == after[a.Net]; same != (i != 1) || two.before != nil {
			t.Errorf("%s is the same: %v", a.Net, same)
		}
	}
	// Another AS is other paths.
	other := next
	other.key.asn++
	c := &classes{asn: other.key.asn, list: map[string]*class{}}
	k, err := c.of(p, &other, one)
	if err != nil || k.before != nil {
		t.Errorf("paths of another AS are used: %v", err)
	}
}
