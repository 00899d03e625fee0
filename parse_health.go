package edge

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"
)

func (r *reader) health(o *object) HealthConfig {
	return HealthConfig{
		Hold:   want(o, "hold", duration(0, time.Hour, 0), or(10*time.Second)),
		Needs:  r.needs(o),
		Probes: each(o, "probes", 0, r.probe),
		Groups: each(o, "groups", 0, r.group),
	}
}

// The damping of every probe that says nothing else: a failure is seen within
// about three seconds, one bad run changes nothing.
const (
	standardInterval = time.Second
	standardTimeout  = 500 * time.Millisecond
	standardRise     = 2
	standardFall     = 3
)

// damping reads the keys that all probes and checks have.
func (r *reader) damping(o *object, p *Probe) {
	p.Interval = want(o, "interval", duration(50*time.Millisecond, time.Hour, 0), or(standardInterval))
	p.Timeout = want(o, "timeout", duration(10*time.Millisecond, time.Minute, 0),
		orElse(min(standardTimeout, p.Interval), "500ms, or interval if that is less"))
	p.Rise = want(o, "rise", number[int](1, 100), or(standardRise))
	p.Fall = want(o, "fall", number[int](1, 100), or(standardFall))
}

// probe reads one probe: the keys that it may have depend on its kind.
func (r *reader) probe(o *object) Probe {
	p := Probe{
		ID:   need(o, "name", name[ProbeID]()),
		Kind: need(o, "kind", choice(ProbeProcess, ProbeTCP, ProbeHTTP, ProbeVIP, ProbeForwarder, ProbeRegions)),
	}
	o.what = "a probe of kind " + string(p.Kind)
	switch p.Kind {
	case ProbeProcess:
		p.PIDFile = need(o, "pid_file", file())
	case ProbeTCP:
		p.Addr = need(o, "address", socket(false))
	case ProbeHTTP:
		p.URL = need(o, "url", probeURL())
		p.Insecure = want(o, "insecure", boolean(), or(false))
		r.answer(o, &p)
	case ProbeVIP:
		p.Service = need(o, "service", name[ServiceID]())
		p.Path = want(o, "path", urlPath(), or("/"))
		p.Insecure = want(o, "insecure", boolean(), or(false))
		r.answer(o, &p)
	case ProbeForwarder:
	case ProbeRegions:
		p.AtLeast = want(o, "at_least", number[int](1, 1000), or(1))
	default: // reported; what else it may have is not known
		o.broken = true
	}
	r.damping(o, &p)
	return p
}

// answer reads what an HTTP answer must be.
func (r *reader) answer(o *object, p *Probe) {
	p.Host = want(o, "host", probeHost(), or(""))
	p.Status = want(o, "status", number[int](100, 599), or(200))
	p.Body = want(o, "body", word("text", 1024), or(""))
}

// probeHost is what the Host header and the TLS server name can be.
func probeHost() rule[string] {
	return rule[string]{takes: "host name", parse: func(s string) (string, error) {
		if s == "" {
			return "", nil
		}
		if s[0] == '*' {
			return "", fmt.Errorf("%s is not a host name in lower case, without a port", quote(s))
		}
		return hostPattern().parse(s)
	}}
}

// checkRule is what a check may be: of backends, or of upstreams, which have
// their own ports.
type checkRule struct {
	// port is the default, that of the service; noPort says that it has none.
	port      uint16
	takesPort bool
	noPort    bool
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
		if rule.takesPort {
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
