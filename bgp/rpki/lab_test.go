package rpki

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	cacheA = "192.0.2.1:323"
	cacheB = "[2001:db8::2]:323"
	// long is how much time a step of a script may take, inside of a bubble.
	long = 50 * time.Hour
)

// lab is a client whose caches are scripts: connections are pipes, time is that
// of a synctest bubble.
type lab struct {
	t      *testing.T
	client *Client
	stop   func() // ends Run
	conns  map[string]chan net.Conn

	mu      sync.Mutex
	refuse  map[string]bool
	dials   []time.Time
	changes int
}

// inLab returns a script for a bubble. The client has cfg.
func inLab(cfg Config, script func(*lab)) func(*testing.T) {
	return func(t *testing.T) {
		l := newLab(t)
		if err := l.client.Set(cfg); err != nil {
			t.Fatal(err)
		}
		l.run()
		script(l)
		l.stop()
	}
}

func newLab(t *testing.T) *lab {
	l := &lab{t: t, refuse: map[string]bool{}, conns: map[string]chan net.Conn{}}
	for _, at := range []string{cacheA, cacheB} {
		l.conns[at] = make(chan net.Conn, 100)
	}
	l.client = New(Options{OnChange: func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changes++
	}})
	l.client.dial = l.dial
	return l
}

func (l *lab) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.client.Run(ctx) }()
	l.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				l.t.Errorf("Run: %v", err)
			}
		case <-time.After(time.Second):
			l.t.Error("Run does not end")
		}
	})
	l.t.Cleanup(l.stop)
}

func (l *lab) dial(_ context.Context, to netip.AddrPort) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dials = append(l.dials, time.Now())
	if l.refuse[to.String()] {
		return nil, errors.New("connection refused")
	}
	ours, theirs := net.Pipe()
	l.conns[to.String()] <- theirs
	return ours, nil
}

func (l *lab) setRefuse(at string, yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse[at] = yes
}

// seen returns how many changes were told, and the times of the dials.
func (l *lab) seen() (changes int, dials []time.Time) {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes, slices.Clone(l.dials)
}

// cache is one connection as the cache has it.
type cache struct {
	l    *lab
	conn net.Conn
}

// accept returns the next connection to at.
func (l *lab) accept(at string) *cache {
	l.t.Helper()
	select {
	case conn := <-l.conns[at]:
		l.t.Cleanup(func() { conn.Close() })
		return &cache{l, conn}
	case <-time.After(long):
		l.t.Fatalf("nobody connects to %s", at)
		return nil
	}
}

// nobody says that no connection to at waits.
func (l *lab) nobody(at string) {
	l.t.Helper()
	synctest.Wait()
	if len(l.conns[at]) > 0 {
		l.t.Fatalf("there is a connection to %s", at)
	}
}

// expect reads what the client sends, in at most long.
func (c *cache) expect(want []byte) {
	c.l.t.Helper()
	got := make([]byte, len(want))
	c.conn.SetReadDeadline(time.Now().Add(long))
	if n, err := io.ReadFull(c.conn, got); err != nil || !bytes.Equal(got, want) {
		c.l.t.Fatalf("got %x, %v\nwant %x", got[:n], err, want)
	}
}

// silent says that the client neither sends nor closes for d.
func (c *cache) silent(d time.Duration) {
	c.l.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(d))
	var b [64]byte
	if n, err := c.conn.Read(b[:]); !timedOut(err) {
		c.l.t.Fatalf("got %x, %v; want nothing for %s", b[:n], err, d)
	}
}

// closed says that the client closes without another word.
func (c *cache) closed() {
	c.l.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(long))
	if rest, err := io.ReadAll(c.conn); err != nil || len(rest) > 0 {
		c.l.t.Fatalf("got %x, %v; want the end", rest, err)
	}
}

// refused says that the client sends an error report with the code that quotes
// the PDU, and closes.
func (c *cache) refused(code uint16, quoted []byte) {
	c.l.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(long))
	b, err := io.ReadAll(c.conn)
	if err != nil {
		c.l.t.Fatal(err)
	}
	p, err := parse(b)
	if err != nil || p.kind != kindError || p.session != code {
		c.l.t.Fatalf("got %s, %v; want an error report with code %d", hex.EncodeToString(b), err, code)
	}
	if p.text == "" || !bytes.HasPrefix(b[8:], append(u32(uint32(len(quoted))), quoted...)) {
		c.l.t.Fatalf("the report %x (%q) does not quote %x", b, p.text, quoted)
	}
}

func (c *cache) send(pdus ...[]byte) {
	c.l.t.Helper()
	c.conn.SetWriteDeadline(time.Now().Add(long))
	if _, err := c.conn.Write(bytes.Join(pdus, nil)); err != nil {
		c.l.t.Fatalf("send: %v", err)
	}
}

// serve answers a Reset Query of version 1 in session 7 with serial 5 and two
// VRPs, and the intervals 3600, 600, 7200.
func (c *cache) serve() {
	c.l.t.Helper()
	c.expect(resetQuery(1))
	c.send(response(1, 7), prefix4(1, true, 2, 64500), prefix4(1, true, 3, 64501), endOfData(7, 5, 3600, 600, 7200))
}

// want compares what is in use.
func (l *lab) want(vrps ...VRP) Status {
	l.t.Helper()
	synctest.Wait()
	set, status := l.client.Current()
	var got []VRP
	for _, r := range set.records {
		got = append(got, r.vrp())
	}
	if !set.known || !slices.Equal(got, vrps) || status.VRPs != len(vrps) {
		l.t.Fatalf("got %v (known: %v, %s), %+v; want %v", got, set.known, set.why, status, vrps)
	}
	return status
}

// wantUnknown says that nothing is in use.
func (l *lab) wantUnknown() (Verdict, Status) {
	l.t.Helper()
	synctest.Wait()
	set, status := l.client.Current()
	v := set.Validate(netip.MustParsePrefix("192.0.2.0/24"), 64500)
	if v.Validity != Unknown || v.Evidence == "" || set.Len() != 0 || status.VRPs != 0 {
		l.t.Fatalf("%v, %+v; want unknown", v, status)
	}
	return v, status
}

// two are the VRPs of serve.
func two() []VRP { return []VRP{vrp("192.0.2.0/24", 24, 64500), vrp("192.0.3.0/24", 24, 64501)} }
