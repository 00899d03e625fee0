package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/server"

	"github.com/catchment-dev/edge"
)

// callLimit bounds each call of GoBGP. They all pass through one channel of
// its main loop and take milliseconds.
const callLimit = 5 * time.Second

// serverKey is what cannot be changed in a server that runs.
type serverKey struct {
	asn      uint32
	routerID netip.Addr
	listen   int
}

func keyOf(s edge.Speaker) serverKey { return serverKey{s.ASN, s.RouterID, s.Listen} }

// engine is one running GoBGP server and what it has been given. One goroutine
// uses it.
type engine struct {
	key       serverKey
	log       *slog.Logger
	journal   *journal
	srv       *server.BgpServer
	paths     pathTable  // srv
	peerings  peerTable  // srv
	read      readTables // srv
	stopWatch context.CancelFunc
	routes    map[netip.Prefix]route     // what stands in its table
	peers     map[netip.Addr]edge.Peer   // what it has been given
	refusals  map[netip.Addr]edge.Reason // peers that it must not be given
}

type engineOptions struct {
	key     serverKey
	log     *slog.Logger
	journal *journal
}

// startEngine starts a server without peers and paths, which imports nothing.
func startEngine(ctx context.Context, o engineOptions) (*engine, error) {
	watch, stopWatch := context.WithCancel(context.WithoutCancel(ctx))
	e := &engine{
		key: o.key, log: o.log, journal: o.journal, stopWatch: stopWatch,
		srv:      server.NewBgpServer(server.LoggerOption(serverLog{log: o.log, journal: o.journal})),
		routes:   map[netip.Prefix]route{},
		peers:    map[netip.Addr]edge.Peer{},
		refusals: map[netip.Addr]edge.Reason{},
	}
	e.paths, e.peerings, e.read = e.srv, e.srv, e.srv
	go e.srv.Serve() // GoBGP v3 has no way to end it: see Run
	if err := e.configure(ctx, watch); err != nil {
		e.stop("") // a listener may be open already
		return nil, fmt.Errorf("start BGP server: %w", err)
	}
	return e, nil
}

func (e *engine) configure(ctx, watch context.Context) error {
	global := &api.Global{
		Asn: e.key.asn, RouterId: e.key.routerID.String(),
		ListenPort: int32(e.key.listen), ListenAddresses: listenAddresses(),
	}
	if e.key.listen == 0 {
		global.ListenPort = -1 // 0 would be port 179
	}
	err := do(ctx, "start", func(ctx context.Context) error {
		return e.srv.StartBgp(ctx, &api.StartBgpRequest{Global: global})
	})
	if err != nil {
		return err
	}
	if err := e.onlyOwn(ctx); err != nil {
		return err
	}
	return do(ctx, "watch peers", func(context.Context) error {
		return e.srv.WatchEvent(watch, &api.WatchEventRequest{Peer: &api.WatchEventRequest_Peer{}}, e.journal.observe)
	})
}

// onlyOwn lets nothing but our own paths into the table, nor out of it. GoBGP
// judges also what is added locally by the import policy, so a plain "reject
// all" would reject our own; that is what the one statement is for.
func (e *engine) onlyOwn(ctx context.Context) error {
	policy := &api.Policy{Name: "own-only", Statements: []*api.Statement{{
		Name:       "own",
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ACCEPT},
	}}}
	err := do(ctx, "add policy", func(ctx context.Context) error {
		return e.srv.AddPolicy(ctx, &api.AddPolicyRequest{Policy: policy})
	})
	if err != nil {
		return err
	}
	for _, dir := range []api.PolicyDirection{api.PolicyDirection_IMPORT, api.PolicyDirection_EXPORT} {
		err := do(ctx, "assign policy", func(ctx context.Context) error {
			return e.srv.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
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

// stop closes every session and the listeners. It is not bound to Run's
// context, which has ended by then.
func (e *engine) stop(why string) error {
	for addr := range e.peers {
		e.journal.lost(addr, why)
	}
	e.stopWatch()
	return do(context.Background(), "stop", func(ctx context.Context) error {
		return e.srv.StopBgp(ctx, &api.StopBgpRequest{})
	})
}

// do is call without a result.
func do(ctx context.Context, what string, f func(context.Context) error) error {
	_, err := call(ctx, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

// call runs f, a call of GoBGP, in a goroutine of its own: GoBGP ignores the
// context while its main loop is busy, so the wait is bounded here. The result
// travels by channel, because a late f may still be writing it.
func call[T any](ctx context.Context, what string, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	type result struct {
		v   T
		err error
	}
	ch := make(chan result, 1)
	go func() {
		v, err := f(ctx)
		if err == nil {
			err = ctx.Err() // the lists end early and without an error then
		}
		ch <- result{v, err}
	}()
	var zero T
	select {
	case r := <-ch:
		if r.err != nil {
			return zero, fmt.Errorf("%s: %w", what, r.err)
		}
		return r.v, nil
	case <-ctx.Done():
		return zero, fmt.Errorf("%s: no answer from the BGP server: %w", what, ctx.Err())
	}
}

// listenAddresses are the wildcards that this kernel can listen on: with IPv6
// compiled out or switched off at boot, GoBGP's default would fail to start.
func listenAddresses() []string {
	all := []string{"0.0.0.0"}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return all
	}
	unix.Close(fd)
	return append(all, "::")
}

// canListen says whether a server with key could have its port, given the one
// that runs now (nil: none), which gives its own port back first.
func canListen(key serverKey, running *engine) error {
	if key.listen == 0 || running != nil && running.key.listen == key.listen {
		return nil
	}
	for _, a := range listenAddresses() {
		network := "tcp4"
		if a == "::" {
			network = "tcp6"
		}
		l, err := net.Listen(network, net.JoinHostPort(a, strconv.Itoa(key.listen)))
		if err != nil {
			return fmt.Errorf("take BGP port: %w", err)
		}
		l.Close()
	}
	return nil
}
