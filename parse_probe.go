package edge

import (
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// maxWords is the most words of a command, and the most vantage points.
const maxWords = 64

// probe reads one probe: the keys that it may have depend on its kind.
func (r *reader) probe(o *object) Probe {
	p := Probe{
		ID: need(o, "name", name[ProbeID]()),
		Kind: need(o, "kind", choice(ProbeProcess, ProbeUnit, ProbeTCP, ProbeTLS, ProbeHTTP, ProbeHTTP2, ProbeGRPC,
			ProbeDNS, ProbeICMP, ProbeCommand, ProbeRoute, ProbeFile, ProbeSocket, ProbeClock, ProbeDisk, ProbePressure,
			ProbeExternal, ProbeVIP, ProbeForwarder, ProbeRegions, ProbeBGP, ProbeBFD)),
	}
	o.what = "a probe of kind " + string(p.Kind)
	o.broken = o.broken || p.Kind == "" // reported; what else it may have is not known
	r.ofAppliance(o, &p)
	r.ofBox(o, &p)
	r.ofNetwork(o, &p)
	r.damping(o, &p)
	r.pace(o, &p)
	return p
}

// ofAppliance reads the kinds that look at the appliance itself. Kind forwarder
// has no key of its own.
func (r *reader) ofAppliance(o *object, p *Probe) {
	switch p.Kind {
	case ProbeVIP:
		p.Service = need(o, "service", name[ServiceID]())
		p.Path = want(o, "path", urlPath(), or("/"))
		p.Insecure = want(o, "insecure", boolean(), or(false))
		r.answer(o, p)
		r.full(o, p)
	case ProbeRegions, ProbeBGP, ProbeBFD:
		p.AtLeast = want(o, "at_least", number[int](1, 1000), or(1))
	}
}

// ofBox reads the kinds that look at this box and send nothing.
func (r *reader) ofBox(o *object, p *Probe) {
	switch p.Kind {
	case ProbeProcess:
		p.PIDFile = need(o, "pid_file", file())
	case ProbeUnit:
		p.Unit = need(o, "unit", unitName())
	case ProbeCommand:
		p.Command = r.command(o)
	case ProbeRoute:
		p.Net = need(o, "prefix", anyNetwork())
		p.Interface = want(o, "interface", interfaceName(), none[string]())
		p.Table = want(o, "table", number[int](0, math.MaxUint32), or(0))
	case ProbeFile:
		p.File = need(o, "file", file())
		p.MaxAge = want(o, "max_age", duration(time.Second, 8760*time.Hour, 0), none[time.Duration]())
	case ProbeSocket:
		p.File = need(o, "file", shortFile(107, "the address of a unix socket has no room for more"))
	case ProbeDisk:
		p.File = need(o, "file", file())
		p.MinFreeBytes = want(o, "min_free", size(1<<20, 1<<50), none[int64]())
		p.MinFreePercent = want(o, "min_free_percent", number[int](1, 99), none[int]())
	case ProbePressure:
		p.Resource = need(o, "resource", choice("memory", "cpu", "io"))
		p.SomeAvg10 = want(o, "some_avg10", percent(), none[float64]())
		p.FullAvg10 = want(o, "full_avg10", percent(), none[float64]())
	}
}

// ofNetwork reads the kinds that send packets.
func (r *reader) ofNetwork(o *object, p *Probe) {
	switch p.Kind {
	case ProbeTCP:
		p.Addr = need(o, "address", socket(false))
	case ProbeTLS:
		p.Addr = need(o, "address", socket(false))
		p.ExpiresIn = want(o, "expires_in", duration(0, 8760*time.Hour, 0), or(168*time.Hour))
		p.Host = want(o, "host", probeHost(), or(""))
		p.Insecure = want(o, "insecure", boolean(), or(false))
		p.CAFile = want(o, "ca_file", file(), none[string]())
	case ProbeHTTP, ProbeHTTP2:
		r.web(o, p)
	case ProbeGRPC:
		p.Addr = need(o, "address", socket(false))
		p.GRPCService = want(o, "grpc_service", word("service name", 255), or(""))
		p.TLS = want(o, "tls", boolean(), or(false))
		p.Host = want(o, "host", probeHost(), or(""))
		p.Insecure = want(o, "insecure", boolean(), or(false))
		p.CAFile = want(o, "ca_file", file(), none[string]())
	case ProbeDNS:
		p.Addr = need(o, "address", socket(false))
		p.Name = need(o, "query", queryName())
		p.RecordType = want(o, "record_type", choice("A", "AAAA", "TXT", "NS", "SOA"), or("A"))
		p.Expect = want(o, "expect", word("text", 1024), or(""))
		p.TCP = want(o, "tcp", boolean(), or(false))
	case ProbeICMP:
		p.Target = need(o, "target", address(0))
	case ProbeClock:
		p.Addr = want(o, "address", socket(false), none[netip.AddrPort]())
		p.MaxOffset = want(o, "max_offset", duration(time.Millisecond, time.Hour, 0), or(100*time.Millisecond))
	case ProbeExternal:
		p.URLs = r.vantagePoints(o)
		p.AtLeast = want(o, "at_least", number[int](1, 1000), or(1))
		p.Insecure = want(o, "insecure", boolean(), or(false))
		p.CAFile = want(o, "ca_file", file(), none[string]())
		r.expected(o, p)
	default:
		return
	}
	p.Source = want(o, "source", address(0), none[netip.Addr]())
}

// web reads the kinds that ask a URL.
func (r *reader) web(o *object, p *Probe) {
	p.URL = need(o, "url", probeURL())
	p.Insecure = want(o, "insecure", boolean(), or(false))
	r.answer(o, p)
	r.full(o, p)
	if p.Kind == ProbeHTTP {
		p.KeepAlive = want(o, "keep_alive", boolean(), or(false))
	} else {
		p.CAFile = want(o, "ca_file", file(), none[string]())
	}
}

// answer reads whose HTTP answer it must be, and what.
func (r *reader) answer(o *object, p *Probe) {
	p.Host = want(o, "host", probeHost(), or(""))
	r.expected(o, p)
}

func (r *reader) expected(o *object, p *Probe) {
	p.Status = want(o, "status", number[int](100, 599), or(200))
	p.Body = want(o, "body", word("text", 1024), or(""))
}

// full reads how an answer says that the target is alive and takes no more.
func (r *reader) full(o *object, p *Probe) {
	p.FullStatus = want(o, "full_status", number[int](100, 599), none[int]())
	if p.FullStatus != 0 && p.FullStatus == p.Status {
		r.fail(o.path+".full_status", "%d is also status, which says that there is room; expected another", p.FullStatus)
	}
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

// command reads an argument vector. There is no shell that would look for the
// program, or take a word apart.
func (r *reader) command(o *object) string {
	words := list(o, "command", argument(), 1, "required")
	at := o.path + ".command"
	if len(words) > maxWords {
		r.fail(at, "expected at most %d words, found %d", maxWords, len(words))
	}
	if first := at + "[0]"; len(words) > 0 && !filepath.IsAbs(words[0]) && !r.bad[first] {
		r.fail(first, "%s is not an absolute path: the program is started without a shell", quote(words[0]))
	}
	return strings.Join(words, "\x00")
}

func argument() rule[string] {
	return rule[string]{takes: "word", parse: func(s string) (string, error) {
		if len(s) > 4095 || strings.ContainsRune(s, 0) {
			return "", fmt.Errorf("%s is not a word of a command (at most 4095 bytes, none of them zero)", quote(s))
		}
		return s, nil
	}}
}

func (r *reader) vantagePoints(o *object) string {
	urls := list(o, "urls", hostURL(), 1, "required")
	if len(urls) > maxWords {
		r.fail(o.path+".urls", "expected at most %d vantage points, found %d", maxWords, len(urls))
	}
	return strings.Join(urls, "\x00")
}

// splitWords takes apart what a Probe holds as one text: it must be comparable.
func splitWords(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, "\x00")
}

// unitName is the name of a systemd service, the unit that has processes.
func unitName() rule[string] {
	return rule[string]{takes: "systemd service", parse: func(s string) (string, error) {
		odd := func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("@:._-", c)
		}
		switch {
		case s == "" || len(s) > 255 || s[0] == '.' || strings.ContainsFunc(s, odd):
			return "", fmt.Errorf("%s is not the name of a systemd service, like bird or bird.service", quote(s))
		case strings.Contains(s, ".") && !strings.HasSuffix(s, ".service"):
			return "", fmt.Errorf("%s is not the name of a systemd service: with a dot in it, it ends in .service", quote(s))
		}
		return s, nil
	}}
}

// anyNetwork is a prefix that a kernel route can have: also the default route.
func anyNetwork() rule[netip.Prefix] {
	return rule[netip.Prefix]{takes: "prefix ADDRESS/BITS, also /0", parse: func(s string) (netip.Prefix, error) {
		p, err := netip.ParsePrefix(s)
		switch {
		case err != nil || p.Addr().Is4In6():
			return netip.Prefix{}, fmt.Errorf("%s is not a prefix, like 0.0.0.0/0 or 2001:db8::/48", quote(s))
		case p != p.Masked():
			return netip.Prefix{}, fmt.Errorf("%s has bits behind its length: expected %s", s, p.Masked())
		}
		return p, nil
	}}
}

// queryName is a name that can be asked of a DNS server; "." is the root.
func queryName() rule[string] {
	return rule[string]{takes: "DNS name", parse: func(s string) (string, error) {
		ok := s == "." || s != "" && len(s) <= 254
		for label := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
			odd := func(c rune) bool {
				return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
			}
			ok = ok && (s == "." || label != "" && len(label) <= 63) && !strings.ContainsFunc(label, odd)
		}
		if !ok || len(strings.TrimSuffix(s, ".")) > 253 {
			return "", fmt.Errorf("%s is not a DNS name, like www.example.net", quote(s))
		}
		return s, nil
	}}
}

// percent is above 0, up to 100, in plain decimals.
func percent() rule[float64] {
	return rule[float64]{takes: "percent above 0 to 100", bare: true, parse: func(s string) (float64, error) {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || f <= 0 || f > 100 || strings.Trim(s, "0123456789.") != "" {
			return 0, fmt.Errorf("%s is not a percentage above 0, up to 100, like 20 or 0.5", asWritten(s))
		}
		return f, nil
	}}
}
