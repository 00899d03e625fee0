// Package rpki says whether our own announcements are RPKI valid (RFC 6811),
// by the VRPs of an RTR cache (RFC 8210) or of a JSON file.
//
// It owns the sessions to the caches, the file that is read, and the set of
// VRPs with its expiry. It never takes an announcement away, never decides
// anything, and never judges what others announce: it is asked about a prefix
// and an origin AS, and the caller may refuse a new announcement. It knows no
// BGP. The process edgebgp runs it.
//
// The RTR client is ours: the libraries that can be had bring an SSH stack for
// a transport that we do not speak, or know only version 0, and none of them
// has the timers and the state of RFC 8210.
package rpki

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/catchment-dev/edge/bgp/internal/follow"
)

// Bounds of what is taken from outside.
const (
	maxVRPs    = 4_000_000 // some six times what the internet has: 96 MB
	maxServers = 16
)

// Config says where the VRPs come from. The zero value is nowhere: every
// verdict is unknown.
type Config struct {
	// Servers are RTR caches, host:port with an address as host, at most 16. The
	// first that answers is used, an earlier one again when it is back. RTR runs
	// over plain TCP: use a cache on this host or over a network you trust.
	Servers []string
	// File is a VRP JSON file as rpki-client, Routinator and StayRTR write it. It
	// is looked at every second, and less often where it is large and changes all
	// the time: a tenth of a core is spent on it. Not together with Servers.
	File string
	// Refresh is the longest time between two questions to a cache, 1 s to 24 h;
	// zero leaves it to the cache. Caches that send notifications need none. A
	// file is not concerned.
	Refresh time.Duration
}

// Status is what is known of the source of the VRPs.
type Status struct {
	Source  string    // "rtr 192.0.2.1:323 version 1", "file /path"; empty: none has given data
	Serial  uint32    // of the cache's data; 0 for a file
	VRPs    int       // in use
	Updated time.Time // when the source last confirmed the data (a file: when it was made)
	Expires time.Time // when the data are dropped unless they are confirmed again
	LastErr string    // why the source, or a better one of the list, cannot be used now; empty: all is well
}

// Options are what a Client needs. The zero value is usable.
type Options struct {
	// Log gets what changes; nil drops it.
	Log *slog.Logger
	// OnChange is called after each change of the VRPs or of Status's Source or
	// LastErr. It must not block.
	OnChange func()
}

// Client keeps a Set up to date. Set and Current may be called by several
// goroutines at once.
type Client struct {
	log      *slog.Logger
	onChange func()
	dial     func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	most     int // VRPs that are taken; a test takes fewer

	published chan struct{} // the expiry is another; size 1

	mu     sync.Mutex
	loop   *follow.Loop[Config]
	set    *Set
	status Status
}

// New returns a Client that knows nothing until it has a Config and Run runs.
func New(o Options) *Client {
	c := &Client{log: o.Log, onChange: o.OnChange, set: &Set{}, dial: dialTCP, most: maxVRPs, published: make(chan struct{}, 1)}
	c.loop = follow.New[Config](&c.mu)
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.onChange == nil {
		c.onChange = func() {}
	}
	return c
}

func dialTCP(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return (&net.Dialer{Timeout: dialLimit}).DialContext(ctx, "tcp", to.String())
}

// Set makes cfg the configuration. An equal one changes nothing: no session
// ends. With a source taken away its VRPs are gone when Set returns. An error
// names the setting; the old configuration stays then.
func (c *Client) Set(cfg Config) error {
	servers, err := cfg.check()
	if err != nil {
		return err
	}
	cfg.Servers = servers
	c.mu.Lock()
	if old := c.loop.Config(); slices.Equal(cfg.Servers, old.Servers) && cfg.File == old.File && cfg.Refresh == old.Refresh {
		c.mu.Unlock()
		return nil
	}
	// A cache that stays keeps its data: losing them for a change of another
	// one would be a gap.
	keep := c.set.known && cfg.has(c.status.Source)
	c.loop.Replace(cfg)
	c.status.LastErr = ""
	if !keep {
		c.set, c.status = &Set{}, Status{}
	}
	c.mu.Unlock()
	c.signal()
	c.onChange()
	return nil
}

// check returns the servers, each in the one way to write it.
func (cfg Config) check() (servers []string, err error) {
	switch {
	case len(cfg.Servers) > 0 && cfg.File != "":
		return nil, errors.New("rpki: servers and file are both set: choose one source of VRPs")
	case len(cfg.Servers) > maxServers:
		return nil, fmt.Errorf("rpki: %d servers, at most %d", len(cfg.Servers), maxServers)
	case cfg.Refresh != 0 && (cfg.Refresh < minInterval || cfg.Refresh > maxRefresh):
		return nil, fmt.Errorf("rpki: refresh %s is not between %s and %s", cfg.Refresh, minInterval, maxRefresh)
	}
	for _, s := range cfg.Servers {
		at, err := netip.ParseAddrPort(s)
		if err != nil || at.Port() == 0 {
			return nil, fmt.Errorf("rpki: server %q is not an address and a port, as in 192.0.2.1:323 or [2001:db8::1]:323", s)
		}
		if slices.Contains(servers, at.String()) {
			return nil, fmt.Errorf("rpki: server %s is listed twice", s)
		}
		servers = append(servers, at.String())
	}
	return servers, nil
}

// has says whether a Status's Source is one of the configuration.
func (cfg Config) has(source string) bool {
	return cfg.File != "" && source == fileSource(cfg.File) || slices.ContainsFunc(cfg.Servers, func(s string) bool {
		return source == rtrSource(s, 0) || source == rtrSource(s, 1)
	})
}

// Current returns the VRPs in use, never nil, and the state of their source.
// Data that have expired are not returned, however late Run notices.
func (c *Client) Current() (*Set, Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire()
	return c.set, c.status
}

// expire drops data that are past their time. The lock is held.
func (c *Client) expire() {
	if !c.set.known || c.status.Expires.IsZero() || time.Now().Before(c.status.Expires) {
		return
	}
	c.set = &Set{why: "the VRPs expired at " + c.status.Expires.UTC().Format(time.RFC3339)}
	c.status.VRPs = 0
	c.status.LastErr = cmp.Or(c.status.LastErr, c.set.why)
	c.signal() // Run tells, if it was Current who noticed
}

// Run follows the source until ctx ends, and returns nil then.
func (c *Client) Run(ctx context.Context) error {
	var aside sync.WaitGroup
	defer aside.Wait()
	aside.Go(func() { c.tellExpiry(ctx) })
	var table rtrTable // survives a change of the configuration
	c.loop.Run(ctx, func(ctx context.Context, cfg Config, term follow.Term) {
		if table.set != nil && !slices.Contains(cfg.Servers, table.of.String()) {
			table = rtrTable{}
		}
		f := &feed{c: c, term: term, table: &table}
		switch {
		case cfg.File != "":
			f.followFile(ctx, cfg.File)
		case len(cfg.Servers) > 0:
			f.followServers(ctx, cfg)
		}
	})
	return nil
}

// tellExpiry tells that VRPs in use were dropped, whoever has noticed it, and
// notices it at their time if nobody has.
func (c *Client) tellExpiry(ctx context.Context) {
	expiry := time.NewTimer(0)
	defer expiry.Stop()
	told := &Set{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.published:
		case <-expiry.C:
		}
		set, status := c.Current()
		if told.known && !set.known && set.why != "" { // with another source it is no news
			c.log.Warn("VRPs dropped", "source", status.Source, "reason", set.why)
			c.onChange()
		}
		told = set
		if set.known && !status.Expires.IsZero() {
			expiry.Reset(time.Until(status.Expires))
		}
	}
}

// feed is the follower of one configuration: what it finds counts until there
// is another one.
type feed struct {
	c     *Client
	term  follow.Term
	table *rtrTable
}

// use makes set the one in use.
func (f *feed) use(set *Set, s Status) {
	c := f.c
	var back, news bool
	counts := f.term.Do(func() {
		back = !c.set.known || c.status.Source != s.Source || c.status.LastErr != "" && s.LastErr == ""
		news = back || c.set != set || c.status.LastErr != s.LastErr
		c.set, c.status = set, s
	})
	if !counts {
		return
	}
	c.signal()
	if back {
		c.log.Info("VRPs in use", "source", s.Source, "serial", s.Serial, "vrps", s.VRPs)
	}
	if news {
		c.onChange()
	}
}

// flush drops what is in use, for the reason why.
func (f *feed) flush(why string) {
	f.term.Do(func() {
		if c := f.c; c.set.known {
			c.set = &Set{why: why}
			c.status.VRPs = 0
			c.signal() // tellExpiry logs and tells
		}
	})
}

// fail notes why the source cannot be used now. The data stay until they expire.
func (f *feed) fail(why string) {
	c, news := f.c, false
	f.term.Do(func() {
		news = c.status.LastErr != why
		c.status.LastErr = why
	})
	if news {
		c.log.Warn("source of VRPs failed", "reason", why)
		c.onChange()
	}
}

// signal says that the expiry is another. It does not block.
func (c *Client) signal() {
	select {
	case c.published <- struct{}{}:
	default:
	}
}
