package rpki

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge/bgp/internal/follow"
)

// The intervals of RFC 8210 section 6: their bounds, and what holds until a
// cache has told its own. The two recommended ones are for data that a cache
// may confirm; retry is short before the first data, since nothing is known.
const (
	minInterval    = time.Second
	maxRefresh     = 86400 * time.Second
	maxRetry       = 7200 * time.Second
	minExpire      = 600 * time.Second
	maxExpire      = 172800 * time.Second
	defaultRefresh = 3600 * time.Second
	defaultExpire  = 7200 * time.Second
	defaultRetry   = 600 * time.Second
	firstRetry     = 5 * time.Second
)

// The limits that the RFC leaves to us.
const (
	dialLimit  = 5 * time.Second
	writeLimit = 10 * time.Second
	// answerLimit is for the whole answer to a query: all the VRPs of the
	// internet are 15 MB. A cache that trickles cannot hold a session for ever.
	answerLimit = 5 * time.Minute
	// silenceLimit is for the next PDU of an answer that has begun or is due.
	silenceLimit = 30 * time.Second
	// queryPause keeps a cache that notifies without end from being asked
	// without end.
	queryPause = time.Second
	// pduShare is how long a cache is not asked again, for each PDU of its last
	// answer: one that sends everything again and again costs a tenth of a core.
	pduShare = 10 * time.Microsecond
	// maxNotes is how many notifications may come between two queries. A cache
	// should send one a minute; to read them costs time, whatever is in them.
	maxNotes = 10_000
	// preferPause is how long a cache is used before an earlier one of the list
	// is tried again.
	preferPause = 10 * time.Minute
)

// intervals are what a cache wants to be asked by.
type intervals struct {
	refresh, retry, expire time.Duration
}

// intervalsOf takes those of an End of Data into their bounds. RFC 8210 wants
// expire to be the longest: we ask sooner rather than use data for longer than
// the cache has said. Version 0 has none.
func intervalsOf(p pdu, longest time.Duration) intervals {
	i := intervals{defaultRefresh, defaultRetry, defaultExpire}
	if p.version > 0 {
		i.refresh = min(max(time.Duration(p.refresh)*time.Second, minInterval), maxRefresh)
		i.retry = min(max(time.Duration(p.retry)*time.Second, minInterval), maxRetry)
		i.expire = min(max(time.Duration(p.expire)*time.Second, minExpire), maxExpire)
		i.refresh, i.retry = min(i.refresh, i.expire/2), min(i.retry, i.expire/2)
	}
	if longest > 0 {
		i.refresh = min(i.refresh, longest)
	}
	return i
}

// rtrTable is what one cache has told: the state that a Serial Query refers to.
type rtrTable struct {
	of      netip.AddrPort // the zero value: nothing is known
	version uint8
	session uint16
	serial  uint32
	set     *Set
	expires time.Time // what is older is asked for anew, RFC 8210 section 6
}

// server is one cache of the list.
type server struct {
	at      netip.AddrPort
	version uint8 // to begin with
	told    intervals
	fails   int       // in a row
	next    time.Time // not tried before
	rest    time.Time // not asked before, for what its last answer has cost
	trouble string    // why it could not be used when it was tried last
}

// serverList are the caches in the order in which they are preferred.
type serverList []*server

// trouble is why caches cannot be used; empty: all that were needed can.
func (l serverList) trouble() string {
	var all []string
	for _, s := range l {
		if s.trouble != "" {
			all = append(all, s.trouble)
		}
	}
	return strings.Join(all, "; ")
}

// good notes that s gives data: those behind it are not needed, whatever was
// wrong with them.
func (l serverList) good(s *server) {
	for _, s := range l[slices.Index(l, s):] {
		s.trouble = ""
	}
}

// errTooMany is more than we hold of a cache, or read.
var errTooMany = errors.New("too much data")

// errVersion is a cache that does not speak the version that we asked in.
var errVersion = errors.New("the cache does not speak version 1")

// errPrefer ends a session to look for an earlier cache of the list.
var errPrefer = errors.New("an earlier cache is tried again")

// reportError is an error report from the cache.
type reportError struct {
	code  uint16
	text  string
	reset bool // it answers a Reset Query
}

func (e *reportError) Error() string {
	names := []string{"corrupt data", "internal error", "no data available", "invalid request", "unsupported version",
		"unsupported PDU type", "withdrawal of an unknown record", "duplicate announcement", "unexpected version"}
	name := fmt.Sprintf("code %d", e.code)
	if int(e.code) < len(names) {
		name = names[e.code]
	}
	if e.text == "" {
		return "the cache reports: " + name
	}
	return fmt.Sprintf("the cache reports: %s (%s)", name, e.text)
}

// followServers holds a session to the first cache that can be used, until ctx
// ends.
func (f *feed) followServers(ctx context.Context, cfg Config) {
	var servers serverList
	for _, s := range cfg.Servers {
		at, _ := netip.ParseAddrPort(s) // Set has checked it
		servers = append(servers, &server{at: at, version: version, told: intervals{retry: firstRetry}})
	}
	for ctx.Err() == nil {
		s, wait := servers.next(time.Now())
		if wait > 0 {
			follow.Pause(ctx, wait)
			continue
		}
		err := f.session(ctx, servers, s, cfg.Refresh)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errPrefer):
			for _, earlier := range servers {
				earlier.next = time.Now() // what it is left for
			}
		case errors.Is(err, errVersion):
		default:
			s.trouble = fmt.Sprintf("rtr cache %s: %v", s.at, err)
			f.fail(servers.trouble())
		}
		s.hold(err, time.Now())
	}
}

// next returns the first server whose time has come, or how long to wait for one.
func (l serverList) next(now time.Time) (*server, time.Duration) {
	first := l[0]
	for _, s := range l {
		if !s.next.After(now) {
			return s, 0
		}
		if s.next.Before(first.next) {
			first = s
		}
	}
	return nil, first.next.Sub(now)
}

// took notes what an answer of so many PDUs has cost.
func (s *server) took(pdus int) { s.rest = time.Now().Add(time.Duration(pdus) * pduShare) }

// hold decides when a server is tried again after its session has ended with
// err. A cache that answered a Reset Query with an error has heard us: it is
// asked again after its retry interval. One that was lost is looked for sooner,
// from one second up to that interval. One that sends what cannot be used makes
// us fetch all of it each time: that grows rarer for longer.
func (s *server) hold(err error, now time.Time) {
	defer func() { s.next = later(s.next, s.rest) }()
	most := s.told.retry
	if unusable(err) {
		most = max(most, defaultRetry)
	}
	var report *reportError
	switch {
	case errors.Is(err, errPrefer):
		s.next = now
		return
	case errors.Is(err, errVersion):
		s.version, s.next = 0, now
		return
	case errors.As(err, &report) && report.reset:
		s.next = now.Add(s.told.retry)
	default:
		wait := min(time.Second<<min(s.fails, 20), most)
		s.next = now.Add(wait - rand.N(wait/4)) // the boxes of a fleet do not come all at once
	}
	s.version = version // it may have been upgraded
	s.fails++
}

// unusable says whether err is about the data, not about the way to them.
func unusable(err error) bool {
	var bad *pduError
	var change *changeError
	return errors.As(err, &bad) || errors.As(err, &change) || errors.Is(err, errTooMany)
}

// bare takes out of an error what the caller names (the path, the address), and
// what differs each time (the local port): the same trouble is told once.
func bare(err error) error {
	var pe *fs.PathError
	var oe *net.OpError
	switch {
	case errors.As(err, &pe):
		return fmt.Errorf("%s: %w", pe.Op, pe.Err)
	case errors.As(err, &oe):
		return fmt.Errorf("%s: %w", oe.Op, oe.Err)
	}
	return err
}

// rtrSource is the Source of a Status.
func rtrSource(at string, version uint8) string {
	return fmt.Sprintf("rtr %s version %d", at, version)
}

// timedOut says whether err is a deadline that has passed.
func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
