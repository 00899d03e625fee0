package bfd

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// The limits of Config, and what its zero values mean.
const (
	defaultInterval   = 300 * time.Millisecond
	minInterval       = 50 * time.Millisecond
	maxInterval       = 10 * time.Second
	defaultMultiplier = 3
	minMultiplier     = 2 // with 1, a single lost packet is an outage
	maxMultiplier     = 50
)

// Validate says everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !unicast(c.Peer) {
		bad("peer %s is not a unicast address", c.Peer)
	}
	c.validateLocal(bad)
	c.validateInterface(bad)
	switch {
	case !c.Multihop && c.MinTTL != 0:
		bad("a lowest TTL is for multihop only: a single-hop session takes a TTL of 255 and no other (RFC 5881 section 5)")
	case c.Multihop && c.Peer.IsLinkLocalUnicast():
		bad("multihop to the link-local address %s: use single hop, or a global address", c.Peer)
	}
	for _, i := range []struct {
		name string
		d    time.Duration
	}{{"transmit", c.MinTx}, {"receive", c.MinRx}} {
		if i.d != 0 && (i.d < minInterval || i.d > maxInterval) {
			bad("%s interval %s is not within %s to %s", i.name, i.d, minInterval, maxInterval)
		}
	}
	if c.Multiplier != 0 && (c.Multiplier < minMultiplier || c.Multiplier > maxMultiplier) {
		bad("multiplier %d is not within %d to %d", c.Multiplier, minMultiplier, maxMultiplier)
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("bfd to %s: %w", c.Peer, errors.Join(errs...))
}

func (c Config) validateLocal(bad func(string, ...any)) {
	switch {
	case !c.Local.IsValid():
		if c.Multihop {
			bad("multihop needs a local address: the far end knows the session by it (RFC 5883 section 3)")
		}
	case !unicast(c.Local):
		bad("local address %s is not a unicast address", c.Local)
	case c.Peer.IsValid() && c.Local.Unmap().Is4() != c.Peer.Unmap().Is4():
		bad("local address %s is not of the peer's family", c.Local)
	case c.Local.IsLinkLocalUnicast() && c.Local.Is6() && !c.Peer.IsLinkLocalUnicast():
		bad("local address %s is link-local and the peer is not", c.Local)
	}
}

func (c Config) validateInterface(bad func(string, ...any)) {
	zones := [2]string{c.Peer.Zone(), c.Local.Zone()}
	link := c.Interface
	for _, z := range zones {
		switch {
		case z == "":
		case link == "":
			link = z
		case z != link:
			bad("zone %q and interface %q are not the same", z, link)
		}
	}
	// IFNAMSIZ is 16, with the zero byte.
	if len(link) > 15 || strings.ContainsAny(link, "/ \x00") {
		bad("interface %q is no name of an interface", link)
	}
	if c.Peer.Is6() && c.Peer.IsLinkLocalUnicast() && link == "" {
		bad("a link-local peer needs an interface")
	}
}

func unicast(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// normal is c with defaults filled in, and addresses in the one form in which
// they are compared: unmapped and without a zone, which is the Interface. The
// result is not valid as a key of Status, whose Peer is as configured.
func (c Config) normal() Config {
	for _, z := range []string{c.Peer.Zone(), c.Local.Zone()} {
		if c.Interface == "" {
			c.Interface = z
		}
	}
	c.Peer, c.Local = c.Peer.Unmap().WithZone(""), c.Local.Unmap().WithZone("")
	if c.MinTx == 0 {
		c.MinTx = defaultInterval
	}
	if c.MinRx == 0 {
		c.MinRx = defaultInterval
	}
	if c.Multiplier == 0 {
		c.Multiplier = defaultMultiplier
	}
	if c.Multihop && c.MinTTL == 0 {
		c.MinTTL = 1
	}
	return c
}

// id is what makes two configs the same session: the peer, and for a
// link-local one its link.
type id struct {
	peer netip.Addr
	link string
}

// id must be asked of a normal config.
func (c Config) id() id {
	if c.Peer.Is6() && c.Peer.IsLinkLocalUnicast() {
		return id{c.Peer, c.Interface}
	}
	return id{peer: c.Peer}
}

// sameWay says whether two normal configs have the same sockets.
func (c Config) sameWay(o Config) bool {
	return c.Peer == o.Peer && c.Local == o.Local && c.Interface == o.Interface && c.Multihop == o.Multihop
}

// timers must be asked of a normal config. The wire has whole microseconds.
func (c Config) timers() timers {
	return timers{minTx: c.MinTx.Truncate(time.Microsecond), minRx: c.MinRx.Truncate(time.Microsecond), multiplier: uint8(c.Multiplier)}
}
