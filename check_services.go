package edge

import (
	"encoding/hex"
	"fmt"
	"net/netip"
)

// The checks of services.

func (k *checker) services() {
	f := &k.c.Fleet
	k.most("fleet.services", len(f.Services), MaxServices)
	k.backendCount()
	unique(k, "fleet.services", ".name", f.Services, func(s Service) ServiceID { return s.ID })
	type vip struct {
		addr  netip.AddrPort
		proto Protocol
	}
	seen := map[vip]int{}
	for i, s := range f.Services {
		path := fmt.Sprintf("fleet.services[%d]", i)
		k.vip(path+".vip", s.VIP.Addr())
		if s.VIP.IsValid() && !k.bad[path+".protocol"] {
			// One of all ports or protocols is beside the others: the exact one wins.
			key := vip{s.VIP, s.Protocol}
			if first, twice := seen[key]; twice {
				k.fail(path+".vip", "%s is already that of fleet.services[%d]", VIPText(s.VIP, s.Protocol), first)
			} else {
				seen[key] = i
			}
		}
		k.needs(path, s.Needs)
		k.policy(path, s)
		if s.Proxied {
			k.proxiedService(path, s)
		} else {
			k.backends(path, s)
		}
	}
}

// vip must be inside a prefix, or no client ever reaches it.
func (k *checker) vip(path string, a netip.Addr) {
	if !a.IsValid() {
		return
	}
	in, ok := k.c.Fleet.PrefixOf(a)
	switch {
	case !k.prefixesWhole:
	case !ok:
		k.fail(path, "%s is not inside any of fleet.prefixes", a)
	case len(in.Unconditional) > 0:
		k.fail(path, "%s is in %s, which is unconditional, so that it would be announced where it cannot be served; expected a longer prefix around it in fleet.prefixes", a, in.Net)
	}
	for _, n := range k.c.Fleet.Nodes {
		if n.Addr4 == a || n.Addr6 == a {
			k.fail(path, "%s is also the address of node %s", a, n.ID)
		}
	}
}

// policy checks what every service has.
func (k *checker) policy(path string, s Service) {
	if s.VIP.Port() != 0 && s.Protocol == AnyProtocol && !k.bad[path+".protocol"] {
		k.fail(path+".protocol", "any needs port: all; expected tcp or udp, since port is %d", s.VIP.Port())
	}
	if s.Persistence == PersistAlways && s.Tracking == PerSession {
		k.fail(path+".persistence", "always needs tracking: per-connection, not per-session")
	}
	if s.Protocol == UDP && (s.SYNLimit.Rate > 0 || s.SYNLimit.SourceRate > 0) {
		k.fail(path+".syn_limit", "a udp service has no SYNs; expected protocol tcp or any")
	}
}

func (k *checker) proxiedService(path string, s Service) {
	if s.VIP.IsValid() && s.VIP.Port() == 0 {
		k.fail(path+".port", "a proxied service needs one port, not all")
	}
	if s.Protocol != TCP && !k.bad[path+".protocol"] {
		k.fail(path+".proxy", "a proxied service needs protocol tcp, not %s", s.Protocol)
	}
	if len(s.Backends) > 0 {
		k.fail(path+".backends", "a proxied service has none: its backends are the nodes of the site")
	}
	if s.Check.Kind != "" || k.bad[path+".check"] {
		k.fail(path+".check", "a proxied service has none: its nodes answer on their health_port")
	}
	if s.WeightFromCheck {
		k.fail(path+".weights", "a proxied service takes config only: its nodes share alike")
	}
	if s.Failover != nil {
		k.fail(path+".failover", "a proxied service has none: its backends are the nodes of the site, one pool")
	}
	if s.QUIC != nil {
		k.fail(path+".quic", "a proxied service has none: it is tcp")
	}
}

func (k *checker) backends(path string, s Service) {
	if len(s.Backends) == 0 {
		if !k.bad[path+".backends"] && !k.bad[path+".proxy"] {
			k.fail(path, "needs backends: it is not proxied")
		}
		return
	}
	unique(k, path+".backends", ".name", s.Backends, func(b Backend) BackendID { return b.ID })
	unique(k, path+".backends", ".address", s.Backends, func(b Backend) netip.Addr { return b.Addr })
	k.damping(path+".check", s.Check)
	for i, b := range s.Backends {
		at := fmt.Sprintf("%s.backends[%d]", path, i)
		k.site(at+".site", b.Site)
		k.sender(at+".address", b)
		if b.Addr == s.VIP.Addr() && b.Addr.IsValid() {
			k.fail(at+".address", "%s is the VIP itself", b.Addr)
		}
		if b.Failover && s.Failover == nil {
			k.fail(at+".failover", "true needs the section failover in the service")
		}
	}
	k.fromCheck(path, s)
	k.pools(path, s)
	k.serverIDs(path, s)
}

// fromCheck checks what needs a check to mean anything.
func (k *checker) fromCheck(path string, s Service) {
	if k.bad[path+".check"] || k.bad[path+".check.kind"] {
		return
	}
	if s.WeightFromCheck && s.Check.Kind != ProbeHTTP {
		k.fail(path+".weights", "check needs a check of kind http: the weight is a header of its answer")
	}
	if s.Failover != nil && s.Check.Kind == "" && !k.bad[path+".failover"] {
		k.fail(path+".failover", "needs a check: without one every backend counts as up, and the failover pool would never be used")
	}
}

// pools: a site that announces the VIP without a backend would draw traffic in
// to drop it; one without a second pool would do so when the first one fails.
func (k *checker) pools(path string, s Service) {
	if s.Failover == nil {
		k.pool(path, s, func(int) bool { return true },
			"backends with a weight above 0: it announces the VIP, and nobody there is meant to take new flows")
		return
	}
	// A value that could not be read may be either.
	in := func(failover bool) func(int) bool {
		return func(i int) bool {
			return s.Backends[i].Failover == failover || k.bad[fmt.Sprintf("%s.backends[%d].failover", path, i)]
		}
	}
	k.pool(path, s, in(false), "primary backends with a weight above 0: those with failover: true are for when they fail")
	k.pool(path, s, in(true), "backends with failover: true and a weight above 0, for when its primary ones fail")
}

// pool checks that every site has a backend of a pool.
func (k *checker) pool(path string, s Service, in func(i int) bool, needs string) {
	everywhere, served := false, map[SiteID]bool{}
	for i, b := range s.Backends {
		at := fmt.Sprintf("%s.backends[%d]", path, i)
		// A value that could not be read may be anything.
		if in(i) && (b.Weight > 0 || k.bad[at+".weight"]) {
			everywhere = everywhere || b.Site == "" || k.bad[at+".site"]
			served[b.Site] = true
		}
	}
	for _, site := range k.sites {
		if !everywhere && !served[site] {
			k.fail(path+".backends", "site %s needs %s", site, needs)
		}
	}
}

// hexID is a server id as the file writes it.
type hexID string

func (id hexID) String() string { return hex.EncodeToString([]byte(id)) }

func (k *checker) serverIDs(path string, s Service) {
	ids := 0
	for i, b := range s.Backends {
		at := fmt.Sprintf("%s.backends[%d].server_id", path, i)
		if b.ServerID != "" || k.bad[at] {
			ids++
		}
		switch {
		case b.ServerID == "":
		case s.QUIC == nil:
			k.fail(at, "needs the section quic in the service, which says where it is in the connection ids")
		case len(b.ServerID) != s.QUIC.Length && s.QUIC.Length > 0:
			k.fail(at, "%s has %d bytes; expected %d, which is quic.length", hexID(b.ServerID), len(b.ServerID), s.QUIC.Length)
		}
	}
	unique(k, path+".backends", ".server_id", s.Backends, func(b Backend) hexID { return hexID(b.ServerID) })
	if s.QUIC == nil || k.bad[path+".quic"] {
		return
	}
	if s.Protocol != UDP && !k.bad[path+".protocol"] {
		k.fail(path+".quic", "needs protocol udp, not %s", s.Protocol)
	}
	if end := s.QUIC.Offset + s.QUIC.Length; end > MaxConnectionID {
		k.fail(path+".quic.length", "offset %d and length %d are more than the %d bytes that a connection id has at most (RFC 9000)",
			s.QUIC.Offset, s.QUIC.Length, MaxConnectionID)
	}
	if ids == 0 {
		k.fail(path+".quic", "needs backends with a server_id")
	}
}

// sender: a node sends to a backend from its own address of that family.
func (k *checker) sender(path string, b Backend) {
	lacks := k.without4
	if b.Addr.Is6() {
		lacks = k.without6
	}
	if node := lacks[b.Site]; b.Addr.IsValid() && node != "" {
		k.fail(path, "node %s uses this backend and has no address of the family of %s to send from", node, b.Addr)
	}
}

// backendCount: the forwarder of each node holds the backends that its site
// uses, of all services.
func (k *checker) backendCount() {
	nodes := map[SiteID]int{}
	for _, n := range k.c.Fleet.Nodes {
		nodes[n.Site]++
	}
	shared, proxied, own := 0, 0, map[SiteID]int{}
	for _, s := range k.c.Fleet.Services {
		if s.Proxied {
			proxied++
		}
		for _, b := range s.Backends {
			if b.Site == "" {
				shared++
			}
			own[b.Site]++
		}
	}
	for _, site := range k.sites {
		if n := shared + own[site] + proxied*nodes[site]; n > MaxBackends {
			k.fail("fleet.services", "site %s uses %d backends, a node counting once for each proxied service; expected at most %d", site, n, MaxBackends)
			return
		}
	}
}

// proxied checks what edgeproxy needs once there is a service for it.
func (k *checker) proxied() {
	f := &k.c.Fleet
	for i, s := range f.Services {
		path := fmt.Sprintf("fleet.services[%d].proxy", i)
		if !s.Proxied || k.bad[path] {
			continue
		}
		if s.TLS && len(f.Proxy.Certificates) == 0 && !k.bad["fleet.proxy.certificates"] {
			k.fail(path, "https needs a certificate in fleet.proxy.certificates")
		}
		if len(f.Proxy.Routes) == 0 && !k.bad["fleet.proxy.routes"] {
			k.fail(path, "a proxied service needs a route in fleet.proxy.routes")
		}
		if len(f.Regions) == 0 && !k.bad["fleet.regions"] {
			k.fail(path, "a proxied service needs a region in fleet.regions")
		}
	}
}
