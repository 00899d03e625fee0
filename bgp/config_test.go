package bgp

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/catchment-dev/edge"
)

// values are what the lines of a configuration are changed to: what is good,
// what is just too much, and what only one of the two validations might refuse.
func values() map[string][]string {
	addrs := []string{
		"10.1.0.1", "10.1.0.2", "10.2.0.2", "198.51.100.10", "127.0.0.1", "169.254.1.1", "224.0.0.1", "0.0.0.0", "0.0.0.1", "240.0.0.1", "255.255.255.255",
		`"fd00:1::2"`, `"::1"`, `"fe80::1"`, `"fe80::1%eth0"`, `"ff02::1"`, `"::"`, `"::ffff:10.1.0.1"`, `"2001:db8::1"`, "#",
	}
	asns := []string{"0", "1", "23455", "23456", "64512", "65001", "65534", "65535", "65536", "4294967294", "4294967295", "4294967296", "-1"}
	var some, many []string
	for i := range 65 {
		many = append(many, fmt.Sprintf(`"64512:%d"`, i))
	}
	some = append(many[1:len(many):len(many)], many[1])
	list := func(in []string) string { return "[" + strings.Join(in, ", ") + "]" }
	communities := []string{"[]", list(some), list(many), `["65535:65535"]`, `["0:0", "0:0"]`}
	seconds := []string{"0s", "500ms", "1s", "1500ms", "2s", "3s", "4s", "30s", "1m", "2m", "1h", "21845s", "65535s", "65536s", "-1s"}
	return map[string][]string{
		"asn": asns, "router_id": addrs, "listen": {"0", "1", "179", "65535", "65536", "-1"}, "lease": seconds,
		"address": addrs, "local_address": addrs, "address4": addrs, "address6": addrs,
		"families": {"[ipv4]", "[ipv6]", "[ipv6, ipv4]", "[]", "[ipv4, ipv4]", "#"},
		"hold":     seconds, "keepalive": append(seconds, "#"), "connect_retry": seconds,
		"password_file": {"/k", `""`, "#", `"/a\0b"`, `"/a\nb"`}, "multihop": {"0", "1", "255", "256"}, "passive": {"true", "false"},
		"prefix": {
			"198.51.100.0/24", "198.51.100.0/25", "198.51.100.10/32", "198.51.100.1/24", "0.0.0.0/0", "0.0.0.0/8", "0.0.0.0/1", "127.0.0.0/8", "169.254.0.0/16",
			"192.0.0.0/2", "224.0.0.0/4", "255.255.255.255/32", `"2001:db8::/32"`, `"::/0"`, `"::/8"`, `"fe80::/64"`, `"::ffff:1.2.3.0/120"`, `"ff00::/8"`, `"2000::/3"`,
		},
		"prepend": {"0", "1", "10", "11", "-1"}, "med": {"0", "4294967295", "4294967296"}, "communities": communities,
	}
}

// extra are lines that are put in: more peers, prefixes and nodes.
func extra() map[string][]string {
	return map[string][]string{
		"    peers:": {
			"      - {name: x, address: 10.1.0.1, asn: 65001}", "      - {name: r-a, address: 10.1.0.9, asn: 65001}", "      - {name: y, address: 10.1.0.8, asn: 64512}",
			`      - {name: z, address: "fd00:1::9", asn: 4294967294, hold: 3s, families: [ipv6]}`, "      - {name: w, address: 10.1.0.7, asn: 65001, passive: true}",
		},
		"  prefixes:": {"    - {prefix: 203.0.113.0/24}", "    - {prefix: 198.51.100.0/24}", `    - {prefix: "2001:db8::/32", degraded: {prepend: 10}}`},
	}
}

// mutant changes some values of a configuration, wherever their keys stand, so
// that some changes make no sense.
func mutant(r *rand.Rand, lines []string) string {
	all, more := values(), extra()
	pair := regexp.MustCompile(`([a-z_0-9]+): ("[^"]*"|\[[^]]*\]|[^ ,}]+)`)
	out := append([]string(nil), lines...)
	for left := 1 + r.IntN(4); left > 0; {
		i := r.IntN(len(out))
		if in := more[out[i]]; in != nil {
			out[i] += "\n" + in[r.IntN(len(in))]
			left--
			continue
		}
		pairs := pair.FindAllStringSubmatchIndex(out[i], -1)
		if pairs == nil {
			continue
		}
		m := pairs[r.IntN(len(pairs))]
		in := all[out[i][m[2]:m[3]]]
		if in == nil {
			continue
		}
		if v := in[r.IntN(len(in))]; v == "#" {
			out[i] = "#"
		} else {
			out[i] = out[i][:m[4]] + v + out[i][m[5]:]
		}
		left--
	}
	return strings.Join(out, "\n")
}

// intentOfConfig announces all the prefixes of c, as edged does.
func intentOfConfig(c *edge.Config) edge.Intent {
	in := edge.Intent{Speaker: c.Local.Speaker}
	for _, p := range c.Fleet.Prefixes {
		in.Announcements = append(in.Announcements, edge.Announcement{Net: p.Net, NextHop: c.Self().Addr(p.Net.Addr()), Normal: p.Announce, Degraded: p.Degraded})
	}
	return in
}

// TestConfigIsValid: an intent made of a configuration that was taken is valid,
// so what edgebgp would refuse is said by "edgectl check", with its place.
func TestConfigIsValid(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for name, tries := range map[string]int{"../reference.yaml": 500, "../testdata/example.yaml": 500, "../testdata/smallest.yaml": 400} {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines, taken := strings.Split(string(src), "\n"), 0
		for i := range tries {
			text := string(src)
			if i > 0 {
				text = mutant(r, lines)
			}
			c, err := edge.Parse(name, []byte(text))
			if err != nil {
				continue
			}
			taken++
			if err := validate(intentOfConfig(c)); err != nil {
				t.Errorf("%s, change %d is taken: %v\n%s", name, i, err, changed(lines, text))
			}
		}
		if taken < tries/20 || taken > tries*9/10 {
			t.Errorf("%s: %d of %d changes were taken", name, taken, tries)
		}
	}
}

// changed are the lines of text that are not in the original.
func changed(lines []string, text string) string {
	known := map[string]bool{}
	for _, l := range lines {
		known[l] = true
	}
	var out []string
	for l := range strings.SplitSeq(text, "\n") {
		if !known[l] {
			out = append(out, l)
		}
	}
	return strings.Join(out, "\n")
}
