package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	gobgp "github.com/osrg/gobgp/v3/pkg/server"

	"github.com/catchment-dev/edge"
)

// loopback is where the servers listen, and where their relays come from.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// serverKey is what cannot be changed in a server that runs.
type serverKey struct {
	asn      uint32
	routerID netip.Addr
}

func keyOf(s edge.Speaker) serverKey { return serverKey{s.ASN, s.RouterID} }

// pathTable is the part of GoBGP's server that changes its table.
type pathTable interface {
	AddPath(context.Context, *api.AddPathRequest) (*api.AddPathResponse, error)
	DeletePath(context.Context, *api.DeletePathRequest) error
}

// peerTable is the part of GoBGP's server that has to do with its neighbour.
type peerTable interface {
	AddPeer(context.Context, *api.AddPeerRequest) error
	DeletePeer(context.Context, *api.DeletePeerRequest) error
	ListPeer(context.Context, *api.ListPeerRequest, func(*api.Peer)) error
}

// policyTable is the part of GoBGP's server that has to do with policies.
type policyTable interface {
	AddPolicy(context.Context, *api.AddPolicyRequest) error
	SetPolicyAssignment(context.Context, *api.SetPolicyAssignmentRequest) error
}

// lifeline starts and stops what a server does. Its main loop cannot be ended.
type lifeline interface {
	StartBgp(context.Context, *api.StartBgpRequest) error
	StopBgp(context.Context, *api.StopBgpRequest) error
}

// server is one GoBGP server. It listens on a port of its own on loopback and
// has one neighbour at the most: the relay of one peer.
type server struct {
	paths    pathTable
	peers    peerTable
	policies policyTable
	life     lifeline

	key       serverKey // the zero one: does not listen
	addr      netip.AddrPort
	neighbour *api.Peer // nil: none
	// tired says that the neighbour has become idle since the last revive.
	tired atomic.Bool
	// added is when the neighbour was, kick asks for a revive.
	added time.Time
	kick  func()
}

// settling is how long a neighbour may be idle because it is new: to take it for
// one that has lost its session would end the session that it is about to have.
const settling = time.Second

// newServer starts the main loop of a server. kick is called, and must not block,
// when the server has to be revived.
func newServer(ctx context.Context, log *slog.Logger, kick func()) (*server, error) {
	srv := gobgp.NewBgpServer(gobgp.LoggerOption(serverLog{log}))
	go srv.Serve() // GoBGP v3 has no way to end it: see pool
	s := &server{paths: srv, peers: srv, policies: srv, life: srv, kick: kick}
	err := do(ctx, "watch neighbour", func(context.Context) error {
		// Not the context of this call: it is watched for as long as the
		// server can be used again, that is, until the process ends.
		return srv.WatchEvent(context.WithoutCancel(ctx), &api.WatchEventRequest{Peer: &api.WatchEventRequest_Peer{}}, func(ev *api.WatchEventResponse) {
			if ev.GetPeer().GetPeer().GetState().GetSessionState() == api.PeerState_IDLE {
				s.tired.Store(true)
				kick()
			}
		})
	})
	return s, err
}

// listen makes the server speak for key, on a free port of loopback.
func (s *server) listen(ctx context.Context, key serverKey) error {
	if s.key == key {
		return nil
	}
	if err := s.close(ctx); err != nil {
		return err
	}
	var err error
	// Between the choice of a port and its use somebody may take it.
	for range 10 {
		var port int
		if port, err = freePort(); err != nil {
			return err
		}
		// It also writes two variables that all servers read (GoBGP's
		// table.SelectionOptions and UseMultiplePaths), always with their zero
		// values: the race detector objects, but nobody can see a difference.
		err = do(ctx, "start BGP server", func(ctx context.Context) error {
			return s.life.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
				Asn: key.asn, RouterId: key.routerID.String(),
				ListenPort: int32(port), ListenAddresses: []string{loopback.String()},
				Families: []uint32{0, 1}, // GoBGP's numbers of IPv4 and IPv6 unicast
			}})
		})
		if err == nil {
			s.key, s.addr = key, netip.AddrPortFrom(loopback, uint16(port))
			if err := s.onlyOwn(ctx); err != nil {
				return errors.Join(err, s.close(ctx))
			}
			return nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return err
}

func freePort() (int, error) {
	l, err := net.Listen("tcp4", netip.AddrPortFrom(loopback, 0).String())
	if err != nil {
		return 0, fmt.Errorf("find a port for a BGP server: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// onlyOwn lets nothing but our own paths into the table, nor out of it: the
// relay passes no path on, and if it did, nothing would come of it. GoBGP judges
// also what is added locally by the import policy, so a plain "reject all" would
// reject our own; that is what the one statement is for.
func (s *server) onlyOwn(ctx context.Context) error {
	policy := &api.Policy{Name: "own-only", Statements: []*api.Statement{{
		Name:       "own",
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ACCEPT},
	}}}
	err := do(ctx, "add policy", func(ctx context.Context) error {
		return s.policies.AddPolicy(ctx, &api.AddPolicyRequest{Policy: policy})
	})
	if err != nil {
		return err
	}
	for _, dir := range []api.PolicyDirection{api.PolicyDirection_IMPORT, api.PolicyDirection_EXPORT} {
		err := do(ctx, "assign policy", func(ctx context.Context) error {
			return s.policies.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
				Name: "global", Direction: dir, DefaultAction: api.RouteAction_REJECT,
				Policies: []*api.Policy{{Name: policy.Name}},
			}})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// meet makes the relay of p the neighbour.
func (s *server) meet(ctx context.Context, p edge.Peer, key string) error {
	return s.welcome(ctx, neighbour(p, key))
}

// welcome makes n the neighbour, anew if it is already.
func (s *server) welcome(ctx context.Context, n *api.Peer) error {
	if err := s.leave(ctx); err != nil {
		return err
	}
	// Noted before it is done: a call that was given up may do it after all.
	s.neighbour, s.added = n, time.Now()
	return do(ctx, "add neighbour", func(ctx context.Context) error { return s.peers.AddPeer(ctx, &api.AddPeerRequest{Peer: n}) })
}

// leave ends the session with the neighbour, if there is one.
func (s *server) leave(ctx context.Context) error {
	if s.neighbour == nil {
		return nil
	}
	err := do(ctx, "delete neighbour", func(ctx context.Context) error {
		return s.peers.DeletePeer(ctx, &api.DeletePeerRequest{Address: loopback.String()})
	})
	if err != nil {
		// Gone already, by a call that was given up: that is what was wanted.
		if live, listErr := s.session(ctx); listErr != nil || live != api.PeerState_UNKNOWN {
			return err
		}
	}
	s.neighbour = nil
	return nil
}

// tell adds or replaces a path, or deletes it. It is not bounded: see call.
func (s *server) tell(ctx context.Context, gone bool, p *api.Path) error {
	if gone {
		return s.paths.DeletePath(ctx, &api.DeletePathRequest{TableType: api.TableType_GLOBAL, Path: p})
	}
	_, err := s.paths.AddPath(ctx, &api.AddPathRequest{TableType: api.TableType_GLOBAL, Path: p})
	return err
}

// session returns the state of the session with the neighbour, PeerState_UNKNOWN
// if the server has none.
func (s *server) session(ctx context.Context) (api.PeerState_SessionState, error) {
	return call(ctx, "list neighbour", func(ctx context.Context) (st api.PeerState_SessionState, err error) {
		err = s.peers.ListPeer(ctx, &api.ListPeerRequest{}, func(p *api.Peer) { st = p.GetState().GetSessionState() })
		return st, err
	})
}

// revive makes an idle neighbour anew. GoBGP stays idle for 5 s after each
// session, which cannot be set, and closes every connection until then: the
// router would wait for all that time. One that was just added is left alone.
func (s *server) revive(ctx context.Context) error {
	if !s.tired.Swap(false) || s.neighbour == nil {
		return nil
	}
	if st, err := s.session(ctx); err != nil || st != api.PeerState_IDLE {
		return err
	}
	if wait := settling - time.Since(s.added); wait > 0 {
		s.tired.Store(true)
		time.AfterFunc(wait, s.kick)
		return nil
	}
	return s.welcome(ctx, s.neighbour)
}

// clear makes the server as good as new, still listening.
func (s *server) clear(ctx context.Context) error {
	if err := s.leave(ctx); err != nil {
		return err
	}
	return do(ctx, "delete all paths", func(ctx context.Context) error {
		return s.paths.DeletePath(ctx, &api.DeletePathRequest{TableType: api.TableType_GLOBAL})
	})
}

// close ends the session and the listener.
func (s *server) close(ctx context.Context) error {
	if err := s.leave(ctx); err != nil {
		return err
	}
	if s.key == (serverKey{}) {
		return nil
	}
	err := do(ctx, "stop BGP server", func(ctx context.Context) error { return s.life.StopBgp(ctx, &api.StopBgpRequest{}) })
	if err == nil {
		s.key, s.addr = serverKey{}, netip.AddrPort{}
	}
	return err
}

// neighbour is p as its own server sees it: behind the relay on loopback, which
// has all to do with the router's address, its key, TTL and interface.
func neighbour(p edge.Peer, key string) *api.Peer {
	out := &api.Peer{
		Conf: &api.PeerConf{NeighborAddress: loopback.String(), PeerAsn: p.ASN, AuthPassword: key},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime:               uint64(p.Hold / time.Second),
			KeepaliveInterval:      uint64(p.Keepalive / time.Second),
			ConnectRetry:           1, // passive: not used, but 0 would be 120
			IdleHoldTimeAfterReset: 1,
		}},
		Transport: &api.Transport{PassiveMode: true},
		// Not what the router is offered, which is the relay's to say: it makes
		// the server say where its first table ends (End-of-RIB, RFC 4724).
		GracefulRestart: &api.GracefulRestart{Enabled: true, RestartTime: 1},
	}
	for _, f := range p.Families {
		out.AfiSafis = append(out.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: apiFamily(f), Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
		})
	}
	return out
}

func apiFamily(f edge.Family) *api.Family {
	afi := api.Family_AFI_IP
	if f == edge.IPv6 {
		afi = api.Family_AFI_IP6
	}
	return &api.Family{Afi: afi, Safi: api.Family_SAFI_UNICAST}
}
