package relay

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// The codes of the NOTIFICATIONs that are ours (RFC 4271 section 4.5, RFC 4486,
// RFC 6608, RFC 9384, RFC 9687).
const (
	codeOpen  = 2
	codeHold  = 4
	codeFSM   = 5
	codeCease = 6
	codeSend  = 8

	openPeerAS     = 2
	openID         = 3
	openHold       = 6
	openCapability = 7

	ceaseShutdown     = 2
	ceaseDeconfigured = 3
	ceaseRejected     = 5
	ceaseCollision    = 7
	ceaseBFDDown      = 10
)

// extended says whether the peer is sent IPv4 prefixes with an IPv6 next hop.
func extended(p edge.Peer) bool { return p.NextHop4.Is6() && !p.NextHop4.Is4In6() }

// open is the OPEN that the router gets.
func (p *peer) open() wire.Open {
	p.mu.Lock()
	c, restarting := p.c, p.c.Restarting && !p.greeted
	p.mu.Unlock()
	o := wire.Open{
		ASN: c.ASN, Hold: c.Peer.Hold, ID: c.RouterID, Families: slices.Sorted(slices.Values(c.Peer.Families)),
		FourOctet: true, RouteRefresh: true,
	}
	if extended(c.Peer) {
		o.ExtendedNextHop = []edge.Family{edge.IPv4}
	}
	if c.Peer.RestartTime > 0 {
		keeps := c.KeepsForwarding != nil && c.KeepsForwarding()
		o.GracefulRestart = &wire.GracefulRestart{Restarting: restarting, Time: c.Peer.RestartTime, Families: map[edge.Family]bool{}}
		for _, f := range o.Families {
			o.GracefulRestart.Families[f] = keeps
		}
	}
	return o
}

// judge reads the router's OPEN under the settings of the peer. Its error is a
// *wire.Error.
func judge(raw []byte, c Config) (wire.Open, error) {
	o, err := wire.ParseOpen(raw)
	if err != nil {
		return o, err
	}
	bad := func(subcode uint8, data []byte, format string, args ...any) (wire.Open, error) {
		return o, &wire.Error{Code: codeOpen, Subcode: subcode, Data: data, Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case o.ASN != c.Peer.ASN:
		return bad(openPeerAS, nil, "AS %d, configured is AS %d", o.ASN, c.Peer.ASN)
	case o.ASN == c.ASN && o.ID == c.RouterID: // RFC 6286 section 2.2
		return bad(openID, nil, "identifier %s, which is our own", o.ID)
	case o.Hold == 0:
		// Allowed (RFC 4271 section 6.2): without keepalives nobody notices
		// that the other end is dead.
		return bad(openHold, nil, "a hold time of 0, without any keepalives")
	case len(common(c.Peer.Families, o.Families)) == 0:
		return bad(openCapability, capabilities(c.Peer.Families), "offers %v, configured is %v", o.Families, c.Peer.Families)
	}
	return o, nil
}

// capabilities are the multiprotocol capabilities of families (RFC 5492 section
// 5 wants to be told those that are missed).
func capabilities(families []edge.Family) []byte {
	var b []byte
	for _, f := range families {
		afi := uint16(1)
		if f == edge.IPv6 {
			afi = 2
		}
		b = append(b, 1, 4)
		b = binary.BigEndian.AppendUint16(b, afi)
		b = append(b, 0, 1)
	}
	return b
}

// common are the families that are in both, sorted.
func common(a, b []edge.Family) []edge.Family {
	var both []edge.Family
	for _, f := range a {
		if slices.Contains(b, f) {
			both = append(both, f)
		}
	}
	slices.Sort(both)
	return both
}

// forServer is the router's OPEN as GoBGP gets it: what both ends have offered,
// and nothing that is not known here.
func forServer(ours, remote wire.Open) wire.Open {
	o := wire.Open{
		ASN: remote.ASN, Hold: remote.Hold, ID: remote.ID, Families: common(ours.Families, remote.Families),
		FourOctet: remote.FourOctet, RouteRefresh: remote.RouteRefresh,
		ExtendedNextHop: common(ours.ExtendedNextHop, remote.ExtendedNextHop),
	}
	if g := remote.GracefulRestart; g != nil && ours.GracefulRestart != nil {
		o.GracefulRestart = &wire.GracefulRestart{Restarting: g.Restarting, Time: g.Time, Families: map[edge.Family]bool{}}
		for f, forwarding := range g.Families {
			if slices.Contains(o.Families, f) {
				o.GracefulRestart.Families[f] = forwarding
			}
		}
	}
	return o
}

// keepsOurs says which of two connections stays: the one that the end with the
// higher identifier has made, among equal ones the higher AS (RFC 4271 section
// 6.8, RFC 6286 section 2.3).
func keepsOurs(ours, remote wire.Open) bool {
	if c := ours.ID.Compare(remote.ID); c != 0 {
		return c > 0
	}
	return ours.ASN > remote.ASN
}

// collide takes the router's OPEN over into s, unless another connection with it
// is to stay; then s is ended. The loser is told so.
func (p *peer) collide(s *session, remote wire.Open) bool {
	loses := farewell{why: "", code: codeCease, subcode: ceaseCollision}
	p.mu.Lock()
	if s.state != opensent {
		p.mu.Unlock()
		return false
	}
	stays := true
	var losers []*session
	for _, o := range p.sessions {
		switch {
		case o == s || o.state < openconfirm:
			// Nobody knows yet whether the other one comes from the same router.
		case o.state == established || s.dialled != keepsOurs(s.ours, remote):
			stays = false
		default:
			losers = append(losers, o)
		}
	}
	if !stays {
		p.mu.Unlock()
		s.finish(loses)
		return false
	}
	s.remote, s.state = remote, openconfirm
	s.hold = min(s.ours.Hold, remote.Hold)
	p.note()
	for _, o := range losers {
		o.finish(loses)
	}
	return true
}

// communication is the data of an Administrative Shutdown (RFC 9003 section 2):
// a length and as many bytes of UTF-8.
func communication(text string) []byte {
	if len(text) > 255 {
		text = text[:255]
		for !utf8.ValidString(text) && len(text) > 255-utf8.UTFMax {
			text = text[:len(text)-1]
		}
	}
	return append([]byte{byte(len(text))}, text...)
}
