package edge

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
)

// damping: a run must end before the next one starts.
func (k *checker) damping(path string, p Probe) {
	if p.Interval == 0 {
		return
	}
	if p.Timeout > p.Interval {
		k.fail(path+".timeout", "%s is more than the interval %s", short(p.Timeout), short(p.Interval))
	}
	if p.FastInterval > p.Interval {
		k.fail(path+".fast_interval", "%s is more than the interval %s", short(p.FastInterval), short(p.Interval))
	}
	if p.Jitter > p.Interval {
		k.fail(path+".jitter", "%s is more than the interval %s", short(p.Jitter), short(p.Interval))
	}
}

func (k *checker) probes() {
	h := k.c.Fleet.Health
	k.damping("fleet.health.node_check", h.NodeCheck)
	if h.HoldMax < h.Hold && !k.bad["fleet.health.hold_max"] {
		k.fail("fleet.health.hold_max", "%s is less than hold %s", short(h.HoldMax), short(h.Hold))
	}
	for i, p := range h.Probes {
		path := fmt.Sprintf("fleet.health.probes[%d]", i)
		k.damping(path, p)
		k.source(path, p)
		switch p.Kind {
		case ProbeVIP:
			k.vipProbe(path, p)
		case ProbeTLS, ProbeHTTP, ProbeHTTP2, ProbeGRPC, ProbeExternal:
			k.trust(path, p)
		case ProbeRoute:
			k.route(path, p)
		case ProbeDisk:
			if p.MinFreeBytes == 0 && p.MinFreePercent == 0 && !k.bad[path+".min_free"] && !k.bad[path+".min_free_percent"] {
				k.fail(path, "needs min_free, min_free_percent or both")
			}
		case ProbePressure:
			k.pressure(path, p)
		case ProbeRegions, ProbeBGP, ProbeBFD:
			k.enough(path, p)
		}
	}
}

// source must be of the family of what it sends to, or nothing is ever sent.
func (k *checker) source(path string, p Probe) {
	targets := []netip.Addr{p.Addr.Addr(), p.Target}
	for _, text := range append(splitWords(p.URLs), p.URL) {
		if u, err := url.Parse(text); err == nil {
			a, _ := netip.ParseAddr(u.Hostname())
			targets = append(targets, a)
		}
	}
	for _, a := range targets {
		if p.Source.IsValid() && a.IsValid() && a.Is4() != p.Source.Is4() {
			k.fail(path+".source", "%s is not of the family of %s", p.Source, a)
			return
		}
	}
}

// trust checks that what is said of TLS means something.
func (k *checker) trust(path string, p Probe) {
	tls, needs := p.TLS || p.Kind == ProbeTLS || k.bad[path+".tls"], "tls: true"
	switch p.Kind {
	case ProbeHTTP, ProbeHTTP2:
		tls, needs = !isPlain(p.URL), "https"
	case ProbeExternal:
		k.external(path, p)
		urls := splitWords(p.URLs)
		// One that could not be read may be anything.
		tls, needs = len(urls) == 0 || slices.ContainsFunc(urls, func(s string) bool { return !isPlain(s) }), "https"
	}
	switch {
	case p.Insecure && !tls:
		k.fail(path+".insecure", "true means nothing without %s", needs)
	case p.CAFile != "" && !tls:
		k.fail(path+".ca_file", "means nothing without %s", needs)
	case p.CAFile != "" && p.Insecure:
		k.fail(path+".ca_file", "means nothing with insecure: true, which trusts everybody")
	}
}

// isPlain says whether a URL is one of http.
func isPlain(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Scheme == "http"
}

func (k *checker) route(path string, p Probe) {
	if p.Net.IsValid() && p.Net.Addr().IsMulticast() {
		k.fail(path+".prefix", "%s is multicast; expected a unicast prefix", p.Net)
	}
}

// pressure: the kernel has a line "full" for the CPU, and for the whole system it
// is always zero (Documentation/accounting/psi.rst).
func (k *checker) pressure(path string, p Probe) {
	if p.SomeAvg10 == 0 && p.FullAvg10 == 0 && !k.bad[path+".some_avg10"] && !k.bad[path+".full_avg10"] {
		k.fail(path, "needs some_avg10, full_avg10 or both")
	}
	if p.Resource == "cpu" && p.FullAvg10 > 0 {
		k.fail(path+".full_avg10", "is always 0 for the cpu of a whole box; expected some_avg10")
	}
}

func (k *checker) external(path string, p Probe) {
	urls := splitWords(p.URLs)
	if k.anyBad(path+".urls", len(urls)) {
		return
	}
	unique(k, path+".urls", "", urls, func(s string) quoted { return quoted(s) })
	if p.AtLeast > len(urls) && !k.bad[path+".urls"] {
		k.fail(path+".at_least", "%d is more than the %d of urls", p.AtLeast, len(urls))
	}
}

// quoted is a text that is shown in quotes, since it may hold anything.
type quoted string

func (q quoted) String() string { return quote(string(q)) }

// enough: a probe that asks for more than there is would be down for ever.
func (k *checker) enough(path string, p Probe) {
	n, list, of := len(k.c.Fleet.Regions), "fleet.regions", ""
	if p.Kind != ProbeRegions {
		n, list = 0, "node.bgp.peers"
		for _, peer := range k.c.Local.Speaker.Peers {
			if p.Kind == ProbeBFD && peer.BFD != nil || p.Kind == ProbeBGP && !peer.Watch {
				n++
			}
		}
		of = map[ProbeKind]string{ProbeBFD: " that have bfd", ProbeBGP: " that are not watched"}[p.Kind]
	}
	if p.AtLeast > n && !k.bad[list] {
		k.fail(path+".at_least", "%d is more than the %d of %s%s", p.AtLeast, n, list, of)
	}
}

func (k *checker) vipProbe(path string, p Probe) {
	if p.Service == "" {
		return
	}
	all := k.c.Fleet.Services
	i := slices.IndexFunc(all, func(s Service) bool { return s.ID == p.Service })
	if i < 0 {
		if !k.bad["fleet.services"] && !slices.ContainsFunc(all, func(s Service) bool { return s.ID == "" }) {
			k.fail(path+".service", "%s is not in fleet.services", quote(string(p.Service)))
		}
		return
	}
	if all[i].Protocol == UDP {
		k.fail(path+".service", "service %s is udp; a vip probe speaks HTTP over tcp", p.Service)
	} else if all[i].VIP.IsValid() && all[i].VIP.Port() == 0 {
		k.fail(path+".service", "service %s has all ports; a vip probe needs a service with one port", p.Service)
	}
	vip, l := all[i].VIP.Addr(), k.c.Local
	if vip.Is4() && !l.ProbeSource4.IsValid() && !k.bad["node.probe_source4"] {
		k.fail(path+".service", "the VIP %s needs node.probe_source4", vip)
	}
	if vip.Is6() && !l.ProbeSource6.IsValid() && !k.bad["node.probe_source6"] {
		k.fail(path+".service", "the VIP %s needs node.probe_source6", vip)
	}
}
