package edge

import (
	"cmp"
	"net/netip"
	"time"
)

func (r *reader) health(o *object) HealthConfig {
	return HealthConfig{
		Hold:         want(o, "hold", duration(0, time.Hour, 0), or(10*time.Second)),
		HoldMax:      want(o, "hold_max", duration(0, 24*time.Hour, 0), or(time.Hour)),
		HoldHalfLife: want(o, "hold_half_life", duration(time.Minute, 24*time.Hour, 0), or(15*time.Minute)),
		NodeCheck:    section(o, "node_check", "default {}", r.nodeCheck),
		Needs:        r.needs(o),
		Probes:       each(o, "probes", 0, r.probe),
		Groups:       each(o, "groups", 0, r.group),
	}
}

// nodeCheck reads how the proxies of a site's nodes are asked. It is quicker than a
// probe: a node whose proxy has died takes packets until it is out of the ring.
func (r *reader) nodeCheck(o *object) Probe {
	p := Probe{Kind: ProbeHTTP, Interval: want(o, "interval", duration(minInterval, time.Minute, 0), or(500*time.Millisecond))}
	p.Timeout = want(o, "timeout", duration(10*time.Millisecond, time.Minute, 0),
		orElse(min(400*time.Millisecond, p.Interval), "400ms, or interval if that is less"))
	p.Rise = want(o, "rise", number[int](1, 100), or(2))
	p.Fall = want(o, "fall", number[int](1, 100), or(2))
	return p
}

// The damping of every probe that says nothing else: a failure is seen within
// about three seconds, one bad run changes nothing.
const (
	standardInterval = time.Second
	standardTimeout  = 500 * time.Millisecond
	standardRise     = 2
	standardFall     = 3
)

// damping reads the keys that all probes and all checks have.
func (r *reader) damping(o *object, p *Probe) {
	p.Interval = want(o, "interval", duration(minInterval, time.Hour, 0), or(standardInterval))
	p.Timeout = want(o, "timeout", duration(10*time.Millisecond, time.Minute, 0),
		orElse(min(standardTimeout, p.Interval), "500ms, or interval if that is less"))
	p.Rise = want(o, "rise", number[int](1, 100), or(standardRise))
	p.Fall = want(o, "fall", number[int](1, 100), or(standardFall))
}

// minInterval is the shortest time between two runs of a probe.
const minInterval = 50 * time.Millisecond

// pace reads the keys of whatever the monitor of edged runs: probes, and the
// checks of backends. Those of upstreams are edgeproxy's, which has its own pace.
func (r *reader) pace(o *object, p *Probe) {
	p.FastInterval = want(o, "fast_interval", duration(minInterval, time.Hour, 0),
		orElse(min(max(p.Interval/5, minInterval), p.Interval), "interval / 5, but at least 50ms"))
	p.Jitter = want(o, "jitter", duration(0, time.Hour, 0), orElse(p.Interval/10, "interval / 10"))
}

// checkRule is what a check may be: of backends, or of upstreams, which have
// their own ports.
type checkRule struct {
	// backend says which; port is the default for one, that of the service, and
	// noPort that the service has none.
	backend bool
	port    uint16
	noPort  bool
	// absent stands for a check that is not given, says documents it.
	absent Probe
	says   string
}

// check reads the key check. The result is a Probe whose Addr, where the rule
// takes a port, has the port and the unspecified address in place of that of
// the backend.
func (r *reader) check(o *object, rule checkRule) Probe {
	says := cmp.Or(rule.says, "optional")
	if !o.has("check") {
		o.get("check", "section, "+says)
		return rule.absent
	}
	return section(o, "check", says, func(o *object) Probe {
		p := Probe{Kind: need(o, "kind", choice(ProbeTCP, ProbeHTTP))}
		o.what = "a check of kind " + string(p.Kind)
		o.broken = o.broken || p.Kind == ""
		if rule.backend {
			n := want(o, "port", port[uint16](), orElse(rule.port, "the port of the service"))
			if rule.noPort && !o.has("port") && !o.broken {
				r.fail(o.path+".port", "missing; expected port 1 to 65535: the service has all ports, so none is the default")
			}
			p.Addr = netip.AddrPortFrom(netip.IPv4Unspecified(), n)
		}
		if p.Kind == ProbeHTTP {
			p.Path = want(o, "path", urlPath(), or("/"))
			r.answer(o, &p)
		}
		r.damping(o, &p)
		if rule.backend {
			r.pace(o, &p)
		}
		return p
	})
}

// standardCheck is the check of a region that has none.
func standardCheck() Probe {
	return Probe{Kind: ProbeTCP, Interval: standardInterval, Timeout: standardTimeout, Rise: standardRise, Fall: standardFall}
}

func (r *reader) group(o *object) Group {
	g := Group{
		ID:   need(o, "name", name[ProbeID]()),
		Mode: need(o, "mode", choice(All, Any, AtLeast)),
	}
	o.what = "a group of mode " + string(g.Mode)
	switch g.Mode {
	case AtLeast:
		g.K = need(o, "k", number[int](1, 1000))
	case "":
		o.broken = true
	}
	g.Of = list(o, "of", name[ProbeID](), 1, "required")
	return g
}
