// Package bfd is Bidirectional Forwarding Detection (RFC 5880, 5881, 5883): it
// says within a second, or less, that the way to a BGP peer is dead.
//
// It owns the UDP sockets of its sessions, their state machines and one thread
// that drives them. It speaks the asynchronous mode to single-hop and multihop
// peers, over IPv4 and IPv6. It has no authentication, no echo function and no
// demand mode of its own (the peer's is honoured). It never touches a BGP
// session, a route or an interface: it reports, and its caller acts. The
// process edgebgp runs it.
package bfd

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"
)

// State is the state of a session (RFC 5880 section 4.1). The zero value is
// AdminDown, as on the wire.
type State uint8

// The states of a session. AdminDown says nothing of the path (RFC 5882
// section 3.2): somebody has switched BFD off.
const (
	AdminDown State = iota
	Down
	Init
	Up
)

// String returns admin-down, down, init or up.
func (s State) String() string {
	switch s {
	case AdminDown:
		return "admin-down"
	case Down:
		return "down"
	case Init:
		return "init"
	case Up:
		return "up"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// MarshalText writes what String returns.
func (s State) MarshalText() ([]byte, error) {
	if s > Up {
		return nil, fmt.Errorf("write bfd state: %d is none", uint8(s))
	}
	return []byte(s.String()), nil
}

// UnmarshalText takes what MarshalText writes, and nothing else.
func (s *State) UnmarshalText(text []byte) error {
	for is := AdminDown; is <= Up; is++ {
		if is.String() == string(text) {
			*s = is
			return nil
		}
	}
	return fmt.Errorf("read bfd state: %q is none of admin-down, down, init, up", text)
}

// Diag says why a session last changed its state (RFC 5880 section 4.1). The
// zero value says nothing.
type Diag uint8

// The diagnostics that this package sends; a peer may send others, see String.
const (
	DiagNone      Diag = 0
	DiagExpired   Diag = 1 // the detection time has passed without a packet
	DiagNeighbour Diag = 3 // the neighbour has signalled its session down
	DiagAdmin     Diag = 7 // administratively down
)

// String returns the meaning in words.
func (d Diag) String() string {
	switch d {
	case DiagNone:
		return "no diagnostic"
	case DiagExpired:
		return "detection time expired"
	case 2:
		return "echo function failed"
	case DiagNeighbour:
		return "neighbour signalled session down"
	case 4:
		return "forwarding plane reset"
	case 5:
		return "path down"
	case 6:
		return "concatenated path down"
	case DiagAdmin:
		return "administratively down"
	case 8:
		return "reverse concatenated path down"
	}
	return fmt.Sprintf("diagnostic %d", uint8(d))
}

// Config is what one session is to be. Peer is its key, together with the link if
// it is link-local. Of the other fields the timers, the multiplier, MinTTL and
// AdminDown change without a flap; a new Local, Interface or Multihop makes a new
// session.
type Config struct {
	// Peer is the address of the far end. If it is link-local, Interface or its
	// zone names the link; with its zone, two peers may have one address.
	Peer netip.Addr
	// Local is the source address, and the only one at which packets are taken.
	// The zero value leaves the choice to the kernel; multihop requires it, and
	// so does another BFD daemon on this box.
	Local netip.Addr
	// Interface binds the session to an interface (or VRF) if not empty.
	Interface string
	// Multihop is RFC 5883: port 4784, and the TTL is checked against MinTTL
	// only. Otherwise it is RFC 5881: port 3784, and only a TTL of 255 is taken.
	Multihop bool
	// MinTTL is the lowest TTL that a multihop session takes; 0 is 1.
	MinTTL uint8
	// MinTx and MinRx are the shortest intervals at which this end sends and is
	// willing to receive: 50 ms to 10 s, 0 is 300 ms.
	MinTx, MinRx time.Duration
	// Multiplier is how many packets in a row may be lost: 2 to 50, 0 is 3.
	Multiplier int
	// AdminDown tells the far end that BFD is switched off here.
	AdminDown bool
}

// Status is what is known of a session.
type Status struct {
	Peer               netip.Addr // as configured
	State, RemoteState State
	Since              time.Time // of State
	Diag, RemoteDiag   Diag
	// Lost is set while a session that was Up is no longer because of the path
	// or the far end, and not because somebody switched BFD off. See Failed.
	Lost bool
	// LastErr is what keeps the sockets from being opened or a packet from
	// being sent; empty while all goes well.
	LastErr string
	// Detect is the time of silence after which this end declares the session
	// down; Tx and Rx are the intervals at which this end and the far end send,
	// before jitter. All are as negotiated; Detect and Rx are 0 while nothing
	// has been heard.
	Detect, Tx, Rx time.Duration
	// Local and Remote are the discriminators; Remote is 0 while unknown.
	Local, Remote uint32
	// Flaps counts how often the session has left Up, other than by our own
	// AdminDown.
	Flaps int
	// Sent and Received count the control packets of the session; the dropped
	// ones are not among those received.
	Sent, Received uint64
	// Dropped counts packets from the peer's address that were not taken, by
	// reason (see Reasons); nil if there was none.
	Dropped map[string]uint64
}

// Failed says whether the far end or the path to it has failed: the session
// was Up, and then the detection time passed or the far end signalled Down. It
// is false if either end is administratively down, which says nothing of the
// path (RFC 5882 section 3.2), and again once the session is Up.
func (s Status) Failed() bool { return s.Lost && s.State != Up && s.State != AdminDown }

// Options are what an Engine needs. The zero value is usable.
type Options struct {
	// Log gets the changes of sessions; nil drops them.
	Log *slog.Logger
	// OnChange is called with each change of a session's State; nil is not
	// called. It runs on the thread that sends and receives for all sessions:
	// it must not block, nor call the Engine. It is not called for sessions
	// that Set has removed, nor when Run ends.
	OnChange func(Status)
}
