package bgp

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/catchment-dev/edge"
)

// class is what peers of one policy are to be sent of one version of the
// announcements: worked out once, by the first worker who needs it, since there
// are a thousand announcements and hundreds of peers, and mostly one policy.
type class struct {
	// peer stands for all of them.
	peer edge.Peer
	w    *wish
	// before is that of the version before, if it is ready: what has not changed is
	// taken from it.
	before *class

	once sync.Once
	// want are the routes, not says why the other announcements are none. They are
	// not changed once ready.
	want  map[netip.Prefix]*route
	not   map[netip.Prefix]edge.Reason
	ready atomic.Bool
}

// offers works out the routes of the class.
func (c *class) offers() (want map[netip.Prefix]*route, not map[netip.Prefix]edge.Reason) {
	c.once.Do(func() {
		c.want, c.not = make(map[netip.Prefix]*route, len(c.w.announcements)), map[netip.Prefix]edge.Reason{}
		for _, a := range c.w.announcements {
			r, why := offer(c.w.speaker, c.peer, a)
			if refused := c.w.refused[a.Net]; refused != "" {
				why = refused
			}
			if why != "" {
				c.not[a.Net] = why
				continue
			}
			if c.before != nil {
				if old := c.before.want[a.Net]; old != nil && old.equal(r) {
					r = old
				}
			}
			c.want[a.Net] = r
		}
		c.before = nil // else all versions that there have ever been would be kept
		c.ready.Store(true)
	})
	return c.want, c.not
}

// classes are those of one version of the announcements, by policy.
type classes struct {
	version uint64
	asn     uint32
	list    map[string]*class
}

// of returns the class of p.
func (c *classes) of(p edge.Peer, w *wish, before *classes) (*class, error) {
	policy, err := policyOf(p, w)
	if err != nil {
		return nil, err
	}
	k := c.list[policy]
	if k == nil {
		k = &class{peer: p, w: w}
		if before != nil && before.asn == c.asn {
			if old := before.list[policy]; old != nil && old.ready.Load() {
				k.before = old
			}
		}
		c.list[policy] = k
	}
	return k, nil
}

// policyOf is all that offer looks at in a peer: two peers of one policy are sent
// the same.
func policyOf(p edge.Peer, w *wish) (string, error) {
	q := edge.Peer{
		Watch: p.Watch, Families: p.Families, Prefixes: p.Prefixes, AllowLonger: p.AllowLonger,
		NextHop4: p.NextHop4, NextHop6: p.NextHop6, Announce: p.Announce, Degraded: p.Degraded,
	}
	if w.speaker.Internal(p) {
		q.ASN = p.ASN
	}
	if w.hops[p.Addr] || p.NextHop4 == p.Addr || p.NextHop6 == p.Addr {
		q.Addr = p.Addr // it may be its own next hop
	}
	b, err := json.Marshal(q)
	if err != nil {
		return "", fmt.Errorf("compare policy of peer %s: %w", p.ID, err)
	}
	return string(b), nil
}
