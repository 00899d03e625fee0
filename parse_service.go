package edge

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

func (r *reader) service(o *object) Service {
	s := Service{
		ID:       need(o, "name", name[ServiceID]()),
		Protocol: need(o, "protocol", protocol()),
		Encap:    want(o, "encap", choice(EncapGUE, EncapIPIP), or(EncapGUE)),
	}
	addr, p := need(o, "vip", address(0)), need(o, "port", servicePort())
	if addr.IsValid() && p != 0 {
		s.VIP = netip.AddrPortFrom(addr, portOf(p))
	}
	how := want(o, "proxy", choice("http", "https"), none[string]())
	s.Proxied = o.has("proxy")
	s.TLS = how == "https"
	s.Backends = each(o, "backends", 0, r.backend)
	s.Check = r.check(o, checkRule{backend: true, port: portOf(p), noPort: p == allPorts})
	s.Needs = r.needs(o)
	r.policy(o, &s)
	return s
}

// policy reads how the packets of a service are spread and remembered.
func (r *reader) policy(o *object, s *Service) {
	s.Affinity = want(o, "affinity", choice(AffinityNone, AffinityClientIPPortProto, AffinityClientIPProto,
		AffinityClientIP, AffinityClientIPNoDestination), or(AffinityNone))
	s.Tracking = want(o, "tracking", choice(PerConnection, PerSession), or(PerConnection))
	s.Persistence = want(o, "persistence", choice(PersistByProtocol, PersistNever, PersistAlways), or(PersistByProtocol))
	s.IdleTimeout = want(o, "idle_timeout", duration(time.Second, 16*time.Hour, 0), or(time.Minute))
	s.DrainTimeout = want(o, "drain_timeout", duration(0, time.Hour, 0), or(5*time.Minute))
	s.WeightFromCheck = want(o, "weights", choice("config", "check"), or("config")) == "check"
	s.Failover = part(o, "failover", r.failover)
	s.QUIC = part(o, "quic", r.quic)
	s.SYNLimit = section(o, "syn_limit", "optional", r.synLimit)
}

// part is section for one that means something by being there: nil without it.
func part[T any](o *object, key string, read func(*object) T) *T {
	v := section(o, key, "optional", read)
	if !o.has(key) {
		return nil
	}
	return &v
}

// allPorts is what servicePort makes of "all"; 0 is what cannot be read.
const allPorts = -1

// servicePort is a port or all of them.
func servicePort() rule[int] {
	one := port[int]()
	return rule[int]{takes: one.takes + " or all", bare: true, parse: func(s string) (int, error) {
		if s == "all" {
			return allPorts, nil
		}
		n, err := one.parse(s)
		if err != nil {
			return 0, fmt.Errorf("%w or all", err)
		}
		return n, nil
	}}
}

// portOf is 0 for all ports, and for none that could be read.
func portOf(p int) uint16 { return uint16(max(p, 0)) }

func protocol() rule[Protocol] {
	return rule[Protocol]{takes: "tcp or udp or any", parse: func(s string) (Protocol, error) {
		for _, p := range []Protocol{TCP, UDP, AnyProtocol} {
			if s == p.String() {
				return p, nil
			}
		}
		return 0, fmt.Errorf("%s is not tcp or udp or any", quote(s))
	}}
}

// backend has no port: what reaches it is the client's own packet.
func (r *reader) backend(o *object) Backend {
	o.hints = map[string]string{
		"port": ". Packets reach a backend as the client sent them, with the port of the VIP: it listens there, on the VIP. The port of the probe is check.port",
	}
	return Backend{
		ID:       need(o, "name", name[BackendID]()),
		Addr:     need(o, "address", address(0)),
		Site:     want(o, "site", name[SiteID](), none[SiteID]()),
		Weight:   want(o, "weight", number[int](0, MaxWeight), or(100)),
		Failover: want(o, "failover", boolean(), or(false)),
		ServerID: want(o, "server_id", serverID(), none[string]()),
	}
}

// serverID is the bytes of a server id, which the file writes in hex.
func serverID() rule[string] {
	takes := fmt.Sprintf("1 to %d bytes in hex", MaxServerID)
	return rule[string]{takes: takes, parse: func(s string) (string, error) {
		b, err := hex.DecodeString(s)
		if err != nil || len(b) == 0 || len(b) > MaxServerID {
			return "", fmt.Errorf("%s is not %s, two digits each, like 0a1b", quote(s), takes)
		}
		return string(b), nil
	}}
}

func (r *reader) failover(o *object) Failover {
	return Failover{
		Ratio:      want(o, "ratio", fraction(), or(0.0)),
		DropIfNone: want(o, "drop_if_none", boolean(), or(false)),
		Drain:      want(o, "drain", boolean(), or(true)),
	}
}

func (r *reader) quic(o *object) QUIC {
	return QUIC{
		Offset: need(o, "offset", number[int](0, MaxConnectionID-1)),
		Length: need(o, "length", number[int](1, MaxServerID)),
	}
}

func (r *reader) synLimit(o *object) SYNLimit {
	var l SYNLimit
	l.Rate, l.Burst = synRate(o, "rate", "burst")
	l.SourceRate, l.SourceBurst = synRate(o, "source_rate", "source_burst")
	return l
}

// synRate reads a rate and its burst, which is a second's worth by default.
func synRate(o *object, rate, burst string) (perSecond, atOnce int) {
	perSecond = want(o, rate, number[int](0, MaxSYNRate), or(0))
	atOnce = want(o, burst, number[int](1, MaxSYNRate), orElse(max(perSecond, 1), rate+", or 1 if that is 0"))
	return perSecond, atOnce
}

// fraction is from 0 to 1, in plain decimals.
func fraction() rule[float64] {
	return rule[float64]{takes: "fraction 0 to 1", bare: true, parse: func(s string) (float64, error) {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || f > 1 || strings.Trim(s, "0123456789.") != "" {
			return 0, fmt.Errorf("%s is not a fraction from 0 to 1, like 0.5", asWritten(s))
		}
		return f, nil
	}}
}
