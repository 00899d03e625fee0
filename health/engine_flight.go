package health

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// phase is how far a run has come.
type phase uint8

const (
	idle phase = iota // not in the air; a connection may be kept
	connecting
	sending
	reading
)

// flight is what the engine knows of one entry: what it needs for each run, made
// once, and the run that is in the air, if there is one.
type flight struct {
	e       *entry
	address string // for texts
	to      rawAddr
	key     poolKey
	request []byte // nil: connect only
	keep    bool
	mirror  bool // its port is one that the kernel may connect from

	phase  phase
	sock   *sock // while in the air; between runs only if it is kept
	start  time.Time
	kept   bool   // this run goes over a connection of an earlier one
	sent   int    // bytes of request
	answer []byte // what has come so far, if the first part did not decide it
	looks  int    // how often answer has been judged
	looked int    // its length the last time
	headed bool   // the end of the head has come
}

// newFlight prepares the runs of e by the engine. It is nil if e is none for it:
// not a plain connection to a plain address. Whatever is wrong with p is for the
// other prober to say.
func newFlight(e *entry) *flight {
	p := e.probe
	f := &flight{e: e, address: p.Addr.String()}
	to := p.Addr
	if p.Kind == edge.ProbeHTTP {
		u, address, err := target(p)
		if err != nil || u.Scheme != "http" {
			return nil
		}
		if to, err = netip.ParseAddrPort(address); err != nil {
			return nil
		}
		connection := "close"
		if f.keep = p.KeepAlive; f.keep {
			connection = "keep-alive"
		}
		f.address, f.request = address, request(p, u, connection)
	}
	f.mirror = to.Port() >= 1024 // the least that ip_local_port_range may begin with, in practice
	addr := to.Addr().Unmap()
	if !addr.IsValid() || addr.Zone() != "" || p.Source.Zone() != "" {
		return nil
	}
	if p.Source.IsValid() {
		if sameFamily(p.Source, addr) != nil {
			return nil
		}
		f.key.source = p.Source.Unmap()
	}
	f.to, f.key.family = newRawAddr(to), unix.AF_INET6
	if addr.Is4() {
		f.key.family = unix.AF_INET
	}
	return f
}

// explain says what has gone wrong, and where.
func (f *flight) explain(err error) error {
	where := "read answer"
	switch {
	case f.phase == connecting, f.phase == sending && f.sent == 0 && !f.kept: // nothing is taken before it stands
		where = "connect " + f.address
	case f.phase == sending:
		where = "send request"
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%s: no answer within %s", where, f.e.probe.Timeout)
	}
	return fmt.Errorf("%s: %w", where, cause(err))
}

// echoes says whether the first part of an answer begins like the request.
func (f *flight) echoes(part []byte) bool {
	n := min(len(part), len(f.request), len("HTTP/1.1"))
	return string(part[:n]) == string(f.request[:n])
}
