package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/catchment-dev/edge/test/lab"
)

// shape is the configuration of the storm's box, as far as it changes.
type shape struct {
	note   int // only in a comment
	probe  bool
	half   bool // the weight of one server
	third  bool // one more peer
	policy map[string]policy
	turns  map[string]int // how often each policy has changed
}

// policy is how a peer is sent the prefixes.
type policy struct {
	prepend   int
	med       uint32
	community string
}

func (p policy) yaml() string {
	list := ""
	if p.community != "" {
		list = `"` + p.community + `"`
	}
	return fmt.Sprintf("        announce: {prepend: %d, med: %d, communities: [%s]}\n", p.prepend, p.med, list)
}

// path is how the router holds a prefix by this policy.
func (p policy) path() lab.Path {
	out := lab.Path{ASPath: slices.Repeat([]uint32{64512}, 1+p.prepend), MED: p.med}
	if p.community != "" {
		out.Communities = []string{p.community}
	}
	return out
}

// nextPolicy is another one than the one of the turn before.
func nextPolicy(turn int) policy {
	switch turn % 4 {
	case 1:
		return policy{prepend: 1 + turn/4%3}
	case 2:
		return policy{med: 100 + uint32(turn)}
	case 3:
		return policy{community: fmt.Sprintf("65001:%d", turn)}
	}
	return policy{}
}

// text is the file of the shape.
func (s *storm) text() (string, error) {
	out := s.base
	var errs []error
	put := func(old, text string) {
		if strings.Count(out, old) != 1 {
			errs = append(errs, fmt.Errorf("the configuration has %q not just once", old))
		}
		out = strings.Replace(out, old, text, 1)
	}
	const last = "        connect_retry: 1s\n" // of the peer that the template has
	put(last, last+s.is.policy["r-a"].yaml())
	more := s.peer(s.peers[1])
	if s.is.third {
		more += s.peer(s.third)
	}
	put("\nfleet:\n", "\n"+more+"fleet:\n")
	if s.is.probe {
		put("    probes:\n", fmt.Sprintf("    probes:\n      - {name: more, kind: icmp, target: %s, interval: 1s, timeout: 1s}\n", s.Lab.Servers["s1"].Addr4))
	}
	if s.is.half {
		old := fmt.Sprintf("{name: s1, address: %s, weight: 100}", s.Lab.Servers["s1"].Addr4)
		put(old, strings.Replace(old, "100", "50", 1))
	}
	return out + fmt.Sprintf("# %d\n", s.is.note), errors.Join(errs...)
}

// peer is a peer that is not on the link.
func (s *storm) peer(p *far) string {
	return fmt.Sprintf("      - name: %s\n        address: %q\n        asn: 65002\n        local_address: %q\n        multihop: 2\n        hold: 9s\n        connect_retry: 1s\n", p.id, p.at, p.from) +
		s.is.policy[p.id].yaml()
}

// move is one kind of reload.
type move struct {
	name string
	// says is a part of a change that edgectl must name; empty: there is none.
	says string
	// change changes the shape, and returns whose policy that is.
	change func(context.Context, *storm) ([]*far, error)
	// broken is a file that is refused; change is nil.
	broken bool
}

// moves is a deck.
func moves() []move {
	reshape := func(f func(*shape)) func(context.Context, *storm) ([]*far, error) {
		return func(_ context.Context, s *storm) ([]*far, error) { f(&s.is); return nil, nil }
	}
	repolicy := func(which ...int) func(context.Context, *storm) ([]*far, error) {
		return func(_ context.Context, s *storm) (told []*far, _ error) {
			for _, i := range which {
				told = append(told, s.repolicy(i))
			}
			return told, nil
		}
	}
	same := move{name: "the same file", change: reshape(func(*shape) {})}
	equal := move{name: "an equal file", change: reshape(func(s *shape) { s.note++ })}
	wrong := move{name: "a wrong file", broken: true}
	return []move{
		same, equal, equal, equal, wrong, wrong,
		{name: "a probe more or less", says: "fleet.health.probes[more]", change: reshape(func(s *shape) { s.probe = !s.probe })},
		{name: "another weight", says: "weight: ", change: reshape(func(s *shape) { s.half = !s.half })},
		{name: "a peer more or less", says: "node.bgp.peers[r-b6]", change: unrelated},
		{name: "another policy", says: "node.bgp.peers[r-a].announce.", change: repolicy(0)},
		{name: "another policy", says: "node.bgp.peers[r-b].announce.", change: repolicy(1)},
		{name: "two other policies", says: "node.bgp.peers[r-b].announce.", change: repolicy(0, 1)},
	}
}

// repolicy gives a peer another policy: one update for each prefix.
func (s *storm) repolicy(i int) *far {
	p := s.peers[i]
	if s.is.policy == nil {
		s.is.policy, s.is.turns = map[string]policy{}, map[string]int{}
	}
	s.is.turns[p.id]++
	s.is.policy[p.id] = nextPolicy(s.is.turns[p.id])
	p.updates += 2
	return p
}

// unrelated adds a peer, or removes it when its session is up.
func unrelated(ctx context.Context, s *storm) ([]*far, error) {
	if s.is.third {
		if err := s.third.hasBoth(ctx); err != nil {
			return nil, err
		}
	}
	s.is.third = !s.is.third
	return nil, nil
}

// wrong is a file that edged must refuse.
type wrong struct {
	name  string
	spoil func(good string) string
	// says are the place and the remedy.
	says []string
}

func swap(old, text string) func(string) string {
	return func(good string) string { return strings.ReplaceAll(good, old, text) }
}

func wrongs() []wrong {
	const place = "/edge.yaml:"
	return []wrong{
		{"a time that is too short", swap("hold: 9s", "hold: 1s"), []string{place, "hold", "3s"}},
		{"an unknown key", swap(" lease: ", " laese: "), []string{place, "laese"}},
		{"no YAML", swap("fleet:\n", "fleet: {{\n"), []string{place}},
		{"half of a file", func(good string) string { return good[:len(good)/2] }, []string{place}},
		{"no file at all", func(string) string { return "" }, []string{place}},
		{"a need that is not there", swap("on: web-vip,", "on: web-vpi,"), []string{place, "web-vpi"}},
		{"one peer twice", swap("name: r-b\n", "name: r-a\n"), []string{place, "r-a"}},
		{"a prefix that no peer may be sent", swap("prefix: 198.51.100.0/24", "prefix: 198.51.100.0/33"), []string{place, "198.51.100.0/33"}},
		{"what needs a restart", swap("management: 127.0.0.1:9180", "management: 127.0.0.1:9190"), []string{"node.management", "restart", "nothing was applied"}},
		{"what would end both sessions", swap("hold: 9s", "hold: 12s"), []string{"edgectl drain", "nothing was applied"}},
	}
}
