package nic

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestSettings: a setting does what the remedy says, and what it sets is then no
// longer found; the other way round, each remedy of that kind has one.
func TestSettings(t *testing.T) {
	seen := 0
	for _, c := range slices.Concat(kinds(), offloads(), mtus(), queues()) {
		f := good()
		c.change(&f)
		for _, found := range Judge(f) {
			command := strings.HasPrefix(found.Remedy, "ethtool -") || strings.HasPrefix(found.Remedy, "ip link set "+found.Interface+" mtu") && found.Fatal
			if s := found.Setting; s == (Setting{}) {
				if command && f.Kind != "veth" {
					t.Errorf("%s: no setting for %s", c.name, found)
				}
				continue
			}
			seen++
			set := found.Setting
			if !strings.HasPrefix(found.Remedy, set.command(flagOf(found.Remedy))) {
				t.Errorf("%s: the setting is %q: %s", c.name, set.command(""), found)
			}
			after := f
			after.apply(set)
			if slices.ContainsFunc(Judge(after), func(o Finding) bool { return o.What == found.What }) {
				t.Errorf("%s: set, and still %s", c.name, found)
			}
		}
	}
	if seen < 25 {
		t.Errorf("only %d settings were tried", seen)
	}
}

// flagOf is ethtool's name of the feature in a command; empty if it has none.
func flagOf(remedy string) string {
	words := strings.Fields(remedy)
	if len(words) > 3 && words[1] == "-K" {
		return words[3]
	}
	return ""
}

// apply makes the facts what they are once s is set.
func (f *Facts) apply(s Setting) {
	if f.Bond != nil {
		b := *f.Bond
		b.Ports = slices.Clone(b.Ports)
		for i := range b.Ports {
			if b.Ports[i].Name == s.Interface {
				b.Ports[i].apply(s)
			}
		}
		f.Bond = &b
		return
	}
	f.Features = maps.Clone(f.Features)
	delete(f.Features, s.Feature)
	if q := s.Queues; q != nil {
		for _, n := range []struct {
			to *int
			n  int
		}{{&f.Channels.RX, q.RX}, {&f.Channels.TX, q.TX}, {&f.Channels.Combined, q.Combined}} {
			if n.n != Leave {
				*n.to = n.n
			}
		}
	}
	switch {
	case s.MTU == 0:
	case s.Interface == f.Peer:
		f.PeerMTU = s.MTU
	default:
		f.MTU = s.MTU
	}
}
