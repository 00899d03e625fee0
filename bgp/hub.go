package bgp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/relay"
	"github.com/catchment-dev/edge/bgp/wire"
)

// hub is a relay hub that runs. nil is one that does not.
type hub struct {
	*relay.Hub
	listen int
	stop   context.CancelFunc
	done   chan struct{}
	err    error // why it has ended; after done
}

// openHub runs a hub on the port of the intent. Another port is another hub: the
// sessions end.
func (s *Speaker) openHub(ctx context.Context) error {
	listen := s.intent.Speaker.Listen
	if s.hub != nil && s.hub.listen == listen {
		return nil
	}
	if s.hub != nil {
		s.log.Warn("listening on another port: every session is reset", "from", s.hub.listen, "to", listen)
		s.closeHub()
	}
	run, stop := context.WithCancel(ctx)
	h := &hub{listen: listen, stop: stop, done: make(chan struct{})}
	h.Hub = relay.New(relay.Options{
		Log: s.log, Now: s.now, Listen: listen,
		OnReceive: func(id edge.PeerID, u wire.Update) { s.aides.receive(id, u) },
		OnChange:  s.aides.sessionChanged,
	})
	go func() {
		defer close(h.done)
		h.err = h.Run(run)
	}()
	select {
	case <-h.Ready():
	case <-h.done:
		stop()
		return fmt.Errorf("run relay: %w", errors.Join(h.err, ctx.Err()))
	}
	s.hub = h
	s.engine.link = &link{h.Hub, h.Hub}
	s.aides.links.Store(h.Hub)
	return nil
}

// closeHub ends the sessions, in the way that suits each peer.
func (s *Speaker) closeHub() {
	if s.hub == nil {
		return
	}
	s.aides.links.Store(nil)
	s.engine.link = nil
	s.hub.stop()
	<-s.hub.done
	s.hub = nil
}

// ended is closed when the hub has ended; nil, for ever, if there is none.
func (h *hub) ended() <-chan struct{} {
	if h == nil {
		return nil
	}
	return h.done
}

// lostHub makes the next attempt start another hub.
func (s *Speaker) lostHub() {
	s.log.Error("the relay has ended: every session is reset", "err", s.hub.err)
	s.closeHub()
	s.failed = true
}

// canListen says whether a hub could have the port, given the one that runs,
// which gives its own back first.
func (h *hub) canListen(port int) error {
	if port == 0 || h != nil && h.listen == port {
		return nil
	}
	for _, a := range wildcards() {
		network := "tcp4"
		if a == "::" {
			network = "tcp6"
		}
		l, err := net.Listen(network, net.JoinHostPort(a, strconv.Itoa(port)))
		if err != nil {
			return fmt.Errorf("take BGP port: %w", err)
		}
		l.Close()
	}
	return nil
}

// wildcards are those that this kernel can listen on: IPv6 may be compiled out
// or switched off at boot.
func wildcards() []string {
	all := []string{"0.0.0.0"}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return all
	}
	unix.Close(fd)
	return append(all, "::")
}

// goodbye ends all that Run has started. BFD comes behind the sessions: BIRD and
// FRR take its admin-down for a failure of the path (measured, although RFC 5882
// section 3.2 says otherwise), and one with graceful restart would drop the
// routes.
func (s *Speaker) goodbye(ctx context.Context, endWorkers func()) {
	endWorkers()
	s.closeHub()
	s.aides.close()
	s.engine.close(ctx)
}
