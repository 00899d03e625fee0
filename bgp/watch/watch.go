// Package watch judges what the world sees of our own prefixes: another origin,
// a more specific, a leak, or nothing at all.
//
// It owns the feed of a route collector (an HTTP stream or a file that grows),
// the routes to our prefixes that the feed and the watched BGP peers show, and
// the alarms that follow from them. It never announces, withdraws or filters
// anything: an alarm is for people. It holds no BGP session: what watched peers
// send is handed in. The process edgebgp runs it.
package watch

import (
	"net/netip"
	"time"
)

// The kinds of an Alarm.
const (
	// UnexpectedOrigin is a route to a prefix of ours that begins in an AS which
	// is not among its origins: a hijack.
	UnexpectedOrigin = "unexpected-origin"
	// MoreSpecific is a route to a part of a prefix of ours that is not known to
	// be ours: it draws the traffic away whatever we announce.
	MoreSpecific = "more-specific"
	// Missing is a prefix that we announce and nobody sees.
	Missing = "missing"
	// Leak is a route to a prefix of ours, with its origin, in which our AS has a
	// neighbour that it does not have, or stands in the middle.
	Leak = "leak"
)

// Own is a prefix of ours.
type Own struct {
	Prefix netip.Prefix
	// Origins are the ASes that may originate it, at least one; the first is
	// our own, whose neighbours are looked at.
	Origins []uint32
}

// Route is what one vantage point has, or has no longer.
type Route struct {
	Prefix netip.Prefix
	// ASPath begins at the vantage point and ends at the origin. Empty: the route
	// is of our own AS, as over iBGP, and is taken for good.
	ASPath []uint32
	// Peer is where it was seen: collector and peer. With Source it names a
	// vantage point, which has one route to a prefix.
	Peer   string
	Source string    // "peer NAME" for a watched peer
	At     time.Time // zero or in the future: now
	// Withdrawn says that the vantage point has no route to Prefix any more.
	Withdrawn bool
}

// Alarm is something wrong that is seen now. Kind, Prefix and Seen name it.
type Alarm struct {
	Kind     string
	Prefix   netip.Prefix // ours
	Seen     netip.Prefix // what is seen; not valid for Missing
	Evidence string       // for people: ASes, vantage points, a path
	Since    time.Time    // of the first evidence
	Last     time.Time    // of the last evidence
	Count    int          // vantage points that show it; for Missing: sources that do not show the prefix
}

// Bounds of what is taken from outside.
const (
	maxVantages = 64       // with a route to one of our prefixes, and as many with a bad one
	maxOthers   = 1024     // vantage points beyond, of which only the name is kept
	maxCovers   = 8        // less specifics of a prefix, which serve as evidence only
	maxPath     = 64       // ASes that are kept of a path
	maxPeer     = 128      // bytes of a vantage point's name
	maxSources  = 512      // feeds and watched peers
	maxOwn      = 4096     // prefixes of ours
	maxLine     = 1 << 20  // bytes of a line of the feed
	maxBacklog  = 64 << 20 // bytes that are read of a file that is there already
	maxForget   = 24 * time.Hour
	// sourceGrace is how long a feed may be away and still be counted as alive:
	// it is reconnected all the time.
	sourceGrace = time.Minute
	// defaultForget is how long evidence counts that is not confirmed.
	defaultForget = time.Hour
)

// Config is what is watched, and by what. The zero value watches nothing.
type Config struct {
	// Own are our prefixes that are on the air, announced from here, at most 4096.
	Own []Own
	// Elsewhere are prefixes of ours that are not, but may be announced by other
	// sites: they are no more specifics of Own then. None of them is missing.
	// A prefix that moves between Own and Elsewhere keeps who has seen it.
	Elsewhere []Own
	// URL (http or https) or File (a file that grows, or a FIFO) is a feed of
	// lines of JSON as RIPE RIS Live streams them; at most one of them.
	URL, File string
	// Neighbours may stand next to our own AS in a path. Empty: any.
	Neighbours []uint32
	// MissingAfter is how long a prefix may be announced and seen nowhere, by a
	// source that has shown something. Zero: for ever.
	//
	// A feed shows changes only. Where our announcement changes nothing at its
	// vantage points, as another site is nearer to all of them, the prefix is
	// missing until something changes.
	MissingAfter time.Duration
	// Forget is how long evidence of anything but Missing counts without being
	// confirmed, up to 24 h. Zero: one hour.
	Forget time.Duration
}
