package edge

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// asn is an AS number (RFC 6793).
func asn() rule[uint32] {
	const takes = "AS number 1 to 4294967294, not 23456 or 65535"
	digits := number[uint32](0, math.MaxUint32)
	return rule[uint32]{takes: takes, bare: true, parse: func(s string) (uint32, error) {
		n, err := digits.parse(s)
		if err != nil || !IsASN(n) {
			return 0, fmt.Errorf("%s is not an AS number from 1 to 4294967294; 23456 and 65535 are reserved", asWritten(s))
		}
		return n, nil
	}}
}

// owned are the prefixes that may be announced at all, in ascending order.
func owned(all []Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		if p.Net.IsValid() {
			out = append(out, p.Net)
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

func (r *reader) speaker(o *object, self Node) Speaker {
	s := Speaker{
		ASN:      need(o, "asn", asn()),
		RouterID: want(o, "router_id", address(4), orElse(self.Addr4, "address4 of this node in fleet.nodes")),
		Listen:   want(o, "listen", number[int](0, 65535), or(0)),
		Lease:    want(o, "lease", duration(2*time.Second, time.Minute, 0), or(5*time.Second)),
		RPKI:     section(o, "rpki", "optional", r.rpki),
		Watch:    section(o, "watch", "optional", r.watch),
		Peers:    each(o, "peers", 0, r.peer),
	}
	if o.has("watch") && !r.sees(o.path, s) {
		r.fail(o.path+".watch", "needs url or file, or a peer with watch: true; without one nothing is seen")
	}
	return s
}

// sees says whether there is a feed or a peer that is watched, or may be: what
// could not be read may be either.
func (r *reader) sees(path string, s Speaker) bool {
	for _, key := range []string{".watch", ".watch.url", ".watch.file", ".peers"} {
		if r.bad[path+key] {
			return true
		}
	}
	for i, p := range s.Peers {
		if at := fmt.Sprintf("%s.peers[%d]", path, i); p.Watch || r.bad[at] || r.bad[at+".watch"] {
			return true
		}
	}
	return s.Watch.URL != "" || s.Watch.File != ""
}

// rpki reads the section rpki: written at all, it has a source.
func (r *reader) rpki(o *object) RPKI {
	out := RPKI{
		Servers:       list(o, "servers", socket(false), 0, "default []"),
		File:          want(o, "file", fileOrNone(), or("")),
		RefuseInvalid: want(o, "refuse_invalid", boolean(), or(false)),
	}
	switch {
	case o.broken || r.bad[o.path+".servers"] || r.bad[o.path+".file"]:
	case len(out.Servers) == 0 && out.File == "":
		r.fail(o.path, "needs servers or file: where to read which origins are valid")
	case len(out.Servers) > 0 && out.File != "":
		r.fail(o.path+".file", "servers are given too; expected one of the two")
	}
	return out
}

func (r *reader) watch(o *object) Watch {
	out := Watch{
		URL:          want(o, "url", hostURL(), none[string]()),
		File:         want(o, "file", fileOrNone(), or("")),
		Origins:      list(o, "origins", asn(), 0, "default []"),
		Neighbours:   list(o, "neighbours", asn(), 0, "default []"),
		MissingAfter: want(o, "missing_after", duration(time.Second, 24*time.Hour, 0), or(10*time.Minute)),
	}
	if out.URL != "" && out.File != "" {
		r.fail(o.path+".file", "url is given too; expected one of the two")
	}
	return out
}

// hostURL is a URL whose host may be a name: for what says nothing, and breaks
// nothing, while the DNS does not answer.
func hostURL() rule[string] {
	return rule[string]{takes: "http or https URL", parse: func(s string) (string, error) {
		u, err := url.Parse(s)
		if err == nil {
			err = plainURL(u)
		}
		if err == nil && (u.Hostname() == "" || len(s) > 2048) {
			err = errors.New("no host, or too long")
		}
		if err != nil {
			return "", fmt.Errorf("%s is not an http or https URL", quote(s))
		}
		return s, nil
	}}
}

// peer reads one neighbour. Its timers are whole seconds because the hold time
// is, on the wire (RFC 4271 section 4.2).
func (r *reader) peer(o *object) Peer {
	p := Peer{
		ID:        need(o, "name", name[PeerID]()),
		Addr:      need(o, "address", neighbour()),
		ASN:       need(o, "asn", asn()),
		LocalAddr: want(o, "local_address", address(0), none[netip.Addr]()),
		Interface: want(o, "interface", interfaceName(), none[string]()),
		Hold:      want(o, "hold", duration(3*time.Second, 65535*time.Second, time.Second), or(9*time.Second)),
	}
	r.onLink(o, &p)
	p.Families = list(o, "families", choice(IPv4, IPv6), 1, "default [ipv4, ipv6]")
	if !o.has("families") {
		p.Families = []Family{IPv4, IPv6}
	}
	third := max((p.Hold / 3).Truncate(time.Second), time.Second)
	p.Keepalive = want(o, "keepalive", duration(time.Second, 21845*time.Second, time.Second), orElse(third, "hold / 3"))
	p.ConnectRetry = want(o, "connect_retry", duration(time.Second, 2*time.Minute, time.Second), or(2*time.Second))
	p.PasswordFile = want(o, "password_file", file(), none[string]())
	p.Multihop = want(o, "multihop", number[int](0, 255), or(0))
	p.TTLSecurity = want(o, "ttl_security", number[int](0, 254), or(0))
	p.Passive = want(o, "passive", boolean(), or(false))
	p.BFD = part(o, "bfd", r.bfd)
	r.sent(o, &p)
	r.received(o, &p)
	r.refuse(o, "role", "not supported: GoBGP v3 has no roles (RFC 9234); remove the key. It is not needed: whatever a peer sends, nothing but fleet.prefixes is announced")
	r.refuse(o, "tcp_ao", "not supported: GoBGP v3 has no TCP-AO (RFC 5925); remove the key, and use password_file (TCP MD5) or ttl_security")
	return p
}

// neighbour is the address of a peer, which may be written with its zone if it is
// link-local.
func neighbour() rule[netip.Addr] {
	host := address(0)
	return rule[netip.Addr]{takes: host.takes, parse: func(s string) (netip.Addr, error) {
		bare, zone, zoned := strings.Cut(s, "%")
		a, err := host.parse(bare)
		if err != nil || !zoned {
			return a, err
		}
		if !isScoped(a) {
			return netip.Addr{}, fmt.Errorf("%s has a zone, which only a link-local IPv6 address can have; expected %s, and interface for the zone", quote(s), a)
		}
		link, err := interfaceName().parse(zone)
		if err != nil {
			return netip.Addr{}, err
		}
		return a.WithZone(link), nil
	}}
}

// onLink joins a link-local address and its interface: the address is the peer's
// name to all that follows, and many routers have fe80::1 on every link.
func (r *reader) onLink(o *object, p *Peer) {
	zone := p.Addr.Zone()
	switch {
	case !isScoped(p.Addr) || r.bad[o.path+".interface"]:
	case zone == "" && p.Interface != "":
		p.Addr = p.Addr.WithZone(p.Interface)
	case zone != "" && p.Interface == "":
		p.Interface = zone
	case zone != p.Interface:
		r.fail(o.path+".interface", "%s is not the zone of the address %s; expected one of the two, or the same in both", p.Interface, p.Addr)
	}
}

// refuse reports a key that a router would know and this speaker does not.
func (r *reader) refuse(o *object, key, why string) {
	if o.has(key) {
		o.asked[key] = true
		r.fail(o.path+"."+key, "%s", why)
	}
}

// sent reads what a peer is sent and how. One that is watched is sent nothing.
func (r *reader) sent(o *object, p *Peer) {
	p.Watch = want(o, "watch", boolean(), or(false))
	p.Prefixes = list(o, "prefixes", network(), 0, "default []")
	p.Announce = section(o, "announce", "optional", r.attributes)
	p.Degraded = part(o, "degraded", r.attributes)
	p.NextHop4 = want(o, "next_hop4", nodeAddress(0), none[netip.Addr]())
	p.NextHop6 = want(o, "next_hop6", nodeAddress(6), none[netip.Addr]())
	p.AllowLonger = want(o, "allow_longer", boolean(), or(false))
	p.RestartTime = want(o, "restart_time", restartTime(), or(time.Duration(0)))
	for _, key := range []string{"prefixes", "announce", "degraded", "next_hop4", "next_hop6", "allow_longer", "restart_time"} {
		if p.Watch && o.has(key) && !r.bad[o.path+"."+key] {
			r.fail(o.path+"."+key, "watch: true excludes it: a peer that is watched is sent nothing")
		}
	}
}

// received reads what is made of what a peer sends. None of it is ever used.
func (r *reader) received(o *object, p *Peer) {
	p.ImportLimit = want(o, "import_limit", number[int](1, 1000000), or(1000))
	p.DefaultRoute = want(o, "default_route", boolean(), or(false))
}

// restartTime is off, or long enough for a restart: a shorter one than the
// restart takes is a gap with extra steps.
func restartTime() rule[time.Duration] {
	long := duration(10*time.Second, 4095*time.Second, time.Second)
	takes := "0s or " + long.takes
	return rule[time.Duration]{takes: takes, parse: func(s string) (time.Duration, error) {
		if d, err := time.ParseDuration(s); err != nil || d != 0 || s == "0" {
			return long.parse(s)
		}
		return 0, nil
	}}
}

func (r *reader) bfd(o *object) BFD {
	interval := want(o, "interval", duration(50*time.Millisecond, 10*time.Second, 0), or(300*time.Millisecond))
	return BFD{MinTx: interval, MinRx: interval, Multiplier: want(o, "multiplier", number[int](2, 50), or(3))}
}

// attributes sorts the communities: their order means nothing.
func (r *reader) attributes(o *object) Attributes {
	a := Attributes{
		Prepend:     want(o, "prepend", number[int](0, MaxPrepend), or(0)),
		MED:         want(o, "med", number[uint32](0, math.MaxUint32), or(uint32(0))),
		LocalPref:   want(o, "local_pref", number[uint32](0, math.MaxUint32), or(uint32(0))),
		Communities: list(o, "communities", community(), 0, "default []"),
		Large:       list(o, "large_communities", largeCommunity(), 0, "default []"),
	}
	slices.Sort(a.Communities)
	a.Communities = slices.Compact(a.Communities)
	slices.SortFunc(a.Large, LargeCommunity.Compare)
	a.Large = slices.Compact(a.Large)
	for key, n := range map[string]int{"communities": len(a.Communities), "large_communities": len(a.Large)} {
		if n > MaxCommunities {
			r.fail(o.path+"."+key, "expected at most %d different communities, found %d", MaxCommunities, n)
		}
	}
	return a
}

func community() rule[Community] {
	return rule[Community]{takes: "community AS:VALUE or well-known name", parse: func(s string) (Community, error) {
		c, err := ParseCommunity(s)
		if err != nil { // its text has all of s
			return 0, fmt.Errorf("community %s is not AS:VALUE, each 0 to 65535, or one of graceful-shutdown, no-export, no-advertise, no-export-subconfed and no-peer", quote(s))
		}
		return c, nil
	}}
}

func largeCommunity() rule[LargeCommunity] {
	const takes = "large community GLOBAL:LOCAL1:LOCAL2"
	return rule[LargeCommunity]{takes: takes, parse: func(s string) (LargeCommunity, error) {
		c, err := ParseLargeCommunity(s)
		if err != nil || strings.Trim(s, "0123456789:") != "" {
			return LargeCommunity{}, fmt.Errorf("%s is not a %s, each 0 to 4294967295", quote(s), takes)
		}
		return c, nil
	}}
}
