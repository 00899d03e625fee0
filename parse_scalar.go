package edge

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// rule is what a scalar of a type may be: the words for it, as errors and
// reference.yaml use them, and the check. The error of parse is the whole
// sentence, without the key.
type rule[T any] struct {
	takes string
	parse func(text string) (T, error)
	// bare refuses quotes: a number in quotes is a mistake.
	bare bool
}

// scalar reads v by a rule. What cannot be read is the zero value.
func scalar[T any](r *reader, v value, rule rule[T]) T {
	var zero T
	text, quoted, ok := r.text(v)
	if !ok {
		found := describe(v.node)
		if found == "a mapping" {
			found += `; a text with ":" in it needs quotes inside brackets`
		}
		r.fail(v.path, "expected %s, found %s", rule.takes, found)
		return zero
	}
	if quoted && rule.bare {
		r.fail(v.path, "expected %s without quotes, found %s", rule.takes, quote(text))
		return zero
	}
	out, err := rule.parse(text)
	if err != nil {
		r.fail(v.path, "%s", err)
		return zero
	}
	return out
}

// need reads a key that must be there.
func need[T any](o *object, key string, rule rule[T]) T {
	v, ok := o.require(key, rule.takes)
	if !ok {
		var zero T
		return zero
	}
	return scalar(o.r, v, rule)
}

// want reads a key that has a default; says is how the reference writes it.
func want[T any](o *object, key string, rule rule[T], def standard[T]) T {
	v, ok := o.get(key, rule.takes+", "+def.says)
	if !ok {
		return def.value
	}
	return scalar(o.r, v, rule)
}

// standard is the value of a key that is not given, and the words for it.
type standard[T any] struct {
	value T
	says  string
}

// or is a plain default.
func or[T any](v T) standard[T] {
	says := "default " + fmt.Sprint(v)
	switch v := any(v).(type) {
	case string:
		if v == "" {
			says = `default ""`
		}
	case time.Duration:
		says = "default " + short(v)
	}
	return standard[T]{value: v, says: says}
}

// orElse is a default that depends on other keys; says describes it.
func orElse[T any](v T, says string) standard[T] {
	return standard[T]{value: v, says: "default " + says}
}

// none is the zero value, for a key that may be left out.
func none[T any]() standard[T] { return standard[T]{says: "optional"} }

// list reads a list of scalars; nil if the key is not there.
func list[T any](o *object, key string, rule rule[T], least int, says string) []T {
	takes := "list of " + rule.takes
	v, ok := o.get(key, takes+", "+says)
	if !ok {
		if says == "required" && !o.broken {
			o.r.fail(v.path, "missing; expected %s", takes)
		}
		return nil
	}
	var out []T
	for _, item := range o.r.items(v, least) {
		out = append(out, scalar(o.r, item, rule))
	}
	return out
}

// each reads a list of mappings, one call for each; least 0 makes it optional.
func each[T any](o *object, key string, least int, read func(*object) T) []T {
	takes := "list, default []"
	if least > 0 {
		takes = "list, required"
	}
	v, ok := o.get(key, takes)
	if !ok {
		if least > 0 && !o.broken {
			o.r.fail(v.path, "missing; expected a list")
		}
		return nil
	}
	var out []T
	for _, item := range o.r.items(v, least) {
		child := o.r.object(item)
		out = append(out, read(child))
		child.done()
	}
	return out
}

// section reads a mapping under a key; says is "required", "optional" or its
// default. Without the key, read gets an empty mapping: all defaults.
func section[T any](o *object, key, says string, read func(*object) T) T {
	v, ok := o.get(key, "section, "+says)
	child := o.r.object(v)
	if !ok {
		child.broken = true // what is missing in it does not need saying
		if says == "required" && !o.broken {
			o.r.fail(v.path, "missing; expected a section")
		}
	}
	out := read(child)
	child.done()
	return out
}

// name is an identity.
func name[T ~string]() rule[T] {
	return rule[T]{takes: "name", parse: func(s string) (T, error) {
		if !isName(s) {
			return "", fmt.Errorf("%s is not a name (1 to 32 of a-z, 0-9 and -)", quote(s))
		}
		return T(s), nil
	}}
}

func isName(s string) bool {
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= 32
}

func choice[T ~string](of ...T) rule[T] {
	words := make([]string, len(of))
	for i, w := range of {
		words[i] = string(w)
	}
	takes := strings.Join(words, " or ")
	return rule[T]{takes: takes, parse: func(s string) (T, error) {
		for _, w := range of {
			if string(w) == s {
				return w, nil
			}
		}
		return "", fmt.Errorf("%s is not %s", quote(s), takes)
	}}
}

func boolean() rule[bool] {
	return rule[bool]{takes: "true or false", bare: true, parse: func(s string) (bool, error) {
		if s != "true" && s != "false" {
			return false, fmt.Errorf("%s is not true or false", quote(s))
		}
		return s == "true", nil
	}}
}

// number is a whole number from lo to hi, in decimal.
func number[T ~int | ~uint16 | ~uint32](lo, hi uint64) rule[T] {
	takes := fmt.Sprintf("number %d to %d", lo, hi)
	return rule[T]{takes: takes, bare: true, parse: func(s string) (T, error) {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil || n < lo || n > hi || len(s) > 1 && s[0] == '0' {
			return 0, fmt.Errorf("%s is not a whole number from %d to %d in plain digits", asWritten(s), lo, hi)
		}
		return T(n), nil
	}}
}

// port is a TCP or UDP port.
func port[T ~int | ~uint16]() rule[T] {
	return rule[T]{takes: "port 1 to 65535", bare: true, parse: func(s string) (T, error) {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n == 0 || s[0] == '0' {
			return 0, fmt.Errorf("%s is not a TCP or UDP port (1 to 65535)", asWritten(s))
		}
		return T(n), nil
	}}
}

// rate is a number of requests a second.
func rate() rule[float64] {
	const most = 1e9
	return rule[float64]{takes: "requests per second above 0 to 1000000000", bare: true, parse: func(s string) (float64, error) {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || math.IsNaN(f) || f <= 0 || f > most || strings.ContainsAny(s, "xXpP_") {
			return 0, fmt.Errorf("%s is not a number of requests per second above 0, up to 1000000000", asWritten(s))
		}
		return f, nil
	}}
}

// duration is from lo to hi, in multiples of step (0: any).
func duration(lo, hi, step time.Duration) rule[time.Duration] {
	takes := fmt.Sprintf("duration %s to %s", short(lo), short(hi))
	if step == time.Second {
		takes += " in whole seconds"
	}
	return rule[time.Duration]{takes: takes, parse: func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil || s == "0" {
			return 0, fmt.Errorf("%s is not a duration, a number with a unit like 500ms, 10s or 1m", quote(s))
		}
		if d < lo || d > hi || step > 0 && d%step != 0 {
			return 0, fmt.Errorf("%s is not a %s", s, takes)
		}
		return d, nil
	}}
}

// short is a duration as a person writes it: 1h, not 1h0m0s; 65535s, not
// 18h12m15s.
func short(d time.Duration) string {
	if d > time.Minute && d%time.Second == 0 && d%time.Minute != 0 {
		return strconv.FormatInt(int64(d/time.Second), 10) + "s"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// address is an address of one host: no zone, not mapped, not multicast.
// version is 4, 6 or 0 for both.
func address(version int) rule[netip.Addr] {
	takes := "IP address"
	if version != 0 {
		takes = fmt.Sprintf("IPv%d address", version)
	}
	return rule[netip.Addr]{takes: takes, parse: func(s string) (netip.Addr, error) {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" || a.Is4In6() || version == 4 && !a.Is4() || version == 6 && !a.Is6() {
			return netip.Addr{}, fmt.Errorf("%s is not an %s", quote(s), takes)
		}
		if !IsHost(a) {
			return netip.Addr{}, fmt.Errorf("%s is not the address of one host", s)
		}
		return a, nil
	}}
}

// socket is an address and a port; any also takes 0.0.0.0 and [::].
func socket(anyHost bool) rule[netip.AddrPort] {
	const takes = "ADDRESS:PORT"
	return rule[netip.AddrPort]{takes: takes, parse: func(s string) (netip.AddrPort, error) {
		ap, err := netip.ParseAddrPort(s)
		if err != nil || ap.Port() == 0 {
			return netip.AddrPort{}, fmt.Errorf("%s is not an IP address and a port, like 192.0.2.1:80 or [2001:db8::1]:80", quote(s))
		}
		if anyHost && ap.Addr().IsUnspecified() {
			return ap, nil
		}
		if _, err := address(0).parse(ap.Addr().String()); err != nil {
			return netip.AddrPort{}, err
		}
		return ap, nil
	}}
}

// network is a prefix without host bits.
func network() rule[netip.Prefix] {
	return rule[netip.Prefix]{takes: "prefix ADDRESS/BITS", parse: func(s string) (netip.Prefix, error) {
		p, err := netip.ParsePrefix(s)
		switch {
		case err != nil || p.Addr().Is4In6():
			return netip.Prefix{}, fmt.Errorf("%s is not a prefix, like 192.0.2.0/24 or 2001:db8::/48", quote(s))
		case p != p.Masked():
			return netip.Prefix{}, fmt.Errorf("%s has bits behind its length: expected %s", s, p.Masked())
		case !IsAnnounceable(p):
			return netip.Prefix{}, fmt.Errorf("%s cannot be announced: expected a unicast prefix, not /0, loopback or link-local", s)
		}
		return p, nil
	}}
}

// file is an absolute path.
func file() rule[string] {
	return rule[string]{takes: "absolute path", parse: func(s string) (string, error) {
		if !filepath.IsAbs(s) || len(s) > 4095 || strings.ContainsRune(s, 0) {
			return "", fmt.Errorf("%s is not an absolute path", quote(s))
		}
		return s, nil
	}}
}

// fileOrNone is an absolute path or nothing.
func fileOrNone() rule[string] {
	return rule[string]{takes: `absolute path or ""`, parse: func(s string) (string, error) {
		if s == "" {
			return "", nil
		}
		return file().parse(s)
	}}
}

// word is text of one line, of at most so many bytes.
func word(takes string, most int) rule[string] {
	return rule[string]{takes: takes, parse: func(s string) (string, error) {
		if len(s) > most || strings.ContainsAny(s, "\r\n\t") {
			return "", fmt.Errorf("%s is not a valid %s (one line, at most %d bytes)", quote(s), takes, most)
		}
		return s, nil
	}}
}

// urlPath is the path of a request.
func urlPath() rule[string] {
	return rule[string]{takes: "URL path", parse: func(s string) (string, error) {
		u, err := url.ParseRequestURI(s)
		if err != nil || !strings.HasPrefix(s, "/") || u.Host != "" || strings.ContainsAny(s, " #\\") {
			return "", fmt.Errorf("%s is not a URL path that begins with /", quote(s))
		}
		return s, nil
	}}
}

// probeURL is a URL whose host is an address, so that a probe needs no DNS.
func probeURL() rule[string] {
	return rule[string]{takes: "http or https URL with an IP address as its host", parse: func(s string) (string, error) {
		u, err := url.Parse(s)
		if err == nil {
			err = checkURL(u)
		}
		if err != nil {
			return "", fmt.Errorf("%s is not an http or https URL with an IP address as its host", quote(s))
		}
		return s, nil
	}}
}

// checkURL is plainURL for a URL whose host is an address.
func checkURL(u *url.URL) error {
	if _, err := address(0).parse(u.Hostname()); err != nil {
		return err
	}
	return plainURL(u)
}

func plainURL(u *url.URL) error {
	if u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Fragment != "" || u.Opaque != "" {
		return errors.New("not a plain http URL")
	}
	if strings.HasSuffix(u.Host, ":") {
		return errors.New("empty port")
	}
	if p := u.Port(); p != "" {
		_, err := port[int]().parse(p)
		return err
	}
	return nil
}
