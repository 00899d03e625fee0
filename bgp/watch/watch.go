// Package watch judges what the world sees of our own prefixes: another origin,
// a more specific, a leak, or nothing at all.
//
// It owns the feed of a route collector (an HTTP stream or a file that grows),
// the routes to our prefixes that the feed and the watched BGP peers show, and
// the alarms that follow from them. It never announces, withdraws or filters
// anything: an alarm is for people. It holds no BGP session: what watched peers
// send is handed in. The process edgebgp runs it.
//
// # When a prefix is missing
//
// That nothing is seen of a prefix is no evidence: a feed tells what changes, and
// a route that is stable may be told of once in weeks. A prefix is missing if it
// has been on the air for Config.MissingAfter, no vantage point shows it with an
// origin of ours, and somebody has borne witness to that for as long:
//
//   - a vantage point that had it, and has then withdrawn it or replaced it by a
//     route of another origin; or
//   - a watched peer whose first table of that family has come entirely
//     ([Watcher.EndOfRIB]) and that has no such route, where the prefix was ours
//     before the session began. What came before was not kept.
//
// A word counts until the vantage point takes it back, and only while nothing that
// it says can have escaped us: no longer than its session with the collector, the
// session with the watched peer, or the connection to the feed. That such a
// session ends is no word. What was seen stays seen over a break of the feed: to
// forget it would make the next withdrawal of a single vantage point an alarm.
//
// Otherwise the prefix is not seen yet ([Findings].Unseen), which is no alarm. Nor
// does that end one that is there: it goes on until a vantage point shows the
// prefix, until it is off the air, or until all who bore witness are gone, a feed
// for more than a minute.
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
	// Missing is a prefix that we announce, that nobody sees, and of which somebody
	// has borne witness that it is not there.
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
	Count    int          // vantage points that show it; for Missing: sources that bear witness
}

// Bounds of what is taken from outside.
const (
	maxOwn     = 16384    // prefixes of ours
	maxSources = 512      // feeds and watched peers
	maxSpots   = 4096     // vantage points of one source that see our prefixes
	maxHeld    = 4 << 20  // routes of all of them to our prefixes, some 16 bytes each
	maxPaths   = 1 << 16  // different AS paths of these
	maxPath    = 64       // ASes that are kept of a path
	maxCovers  = 1024     // less specifics of our prefixes, which serve as evidence only
	maxBad     = 16384    // wrong routes of all prefixes, but see minShare
	maxShare   = 64       // wrong routes of one prefix,
	minShare   = 4        // and as many of each however many prefixes there are
	maxAlarms  = 4096     // that are put into words
	maxPeer    = 128      // bytes of a vantage point's name
	maxLine    = 1 << 20  // bytes of a line of the feed
	maxBacklog = 64 << 20 // bytes that are read of a file that is there already
	maxForget  = 24 * time.Hour
	// sourceGrace is how long a feed may be away and still bear witness to an
	// alarm that is there: it is reconnected all the time.
	sourceGrace = time.Minute
	// defaultForget is how long evidence counts that is not confirmed.
	defaultForget = time.Hour
)

// Config is what is watched, and by what. The zero value watches nothing.
type Config struct {
	// Own are our prefixes that are on the air, announced from here, at most 16384
	// together with Elsewhere.
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
	// MissingAfter is how long a prefix may be announced and seen nowhere, with
	// evidence that it is nowhere. Zero: for ever. See the doc of the package.
	MissingAfter time.Duration
	// Forget is how long evidence of anything but Missing counts without being
	// confirmed, up to 24 h. Zero: one hour.
	Forget time.Duration
}
