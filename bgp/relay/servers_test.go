package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	gobgplog "github.com/osrg/gobgp/v3/pkg/log"
	"github.com/osrg/gobgp/v3/pkg/server"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/catchment-dev/edge"
)

// serversEnv makes the test binary the home of the GoBGP servers. They are in a
// process of their own because two of them in one race for globals of GoBGP
// (table.SelectionOptions), and because one of its goroutines never ends.
const serversEnv = "RELAY_TEST_SERVERS"

// order is one call of a server in the child.
type order struct {
	Op     string // start, stop, renew, announce, withdraw
	Port   int    // names the server
	Config serverConfig
	Paths  []route
}

// serverConfig is what of a Config the server needs.
type serverConfig struct {
	Peer      edge.Peer
	ASN       uint32
	RouterID  netip.Addr
	ServerKey string
}

// route is one path.
type route struct {
	Prefix  netip.Prefix
	NextHop string
	Prepend int
	MED     uint32
}

// child is the process with the servers.
type child struct {
	mu  sync.Mutex
	cmd *exec.Cmd
	in  *json.Encoder
	out *json.Decoder
	end io.Closer
}

var servers child

func (c *child) start() error {
	if c.cmd != nil {
		return nil
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serversEnv+"=1", "GORACE=exitcode=0 log_path=/dev/null")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	c.cmd, c.in, c.out, c.end = cmd, json.NewEncoder(in), json.NewDecoder(out), in
	return cmd.Start()
}

func stopServers() {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	if servers.cmd != nil {
		servers.end.Close()
		servers.cmd.Wait()
	}
}

func (c *child) do(o order) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.start(); err != nil {
		return err
	}
	var answer string
	if err := errors.Join(c.in.Encode(o), c.out.Decode(&answer)); err != nil {
		return err
	}
	if answer != "" {
		return errors.New(answer)
	}
	return nil
}

// gobgp is the GoBGP of one peer.
type gobgp struct {
	t    testing.TB
	addr netip.AddrPort
	c    serverConfig
}

func newGoBGP(t testing.TB, c Config) *gobgp {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	port := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	g := &gobgp{t: t, addr: port, c: serverConfig{c.Peer, c.ASN, c.RouterID, c.ServerKey}}
	g.do("start")
	t.Cleanup(func() { g.do("stop") })
	return g
}

func (g *gobgp) do(op string, routes ...route) {
	g.t.Helper()
	if err := servers.do(order{Op: op, Port: int(g.addr.Port()), Config: g.c, Paths: routes}); err != nil {
		g.t.Errorf("%s: %v", op, err)
	}
}

// renew makes the neighbour anew, as package bgp does after a lost session.
func (g *gobgp) renew()                   { g.t.Helper(); g.do("renew") }
func (g *gobgp) stop()                    { g.t.Helper(); g.do("stop") }
func (g *gobgp) announce(routes ...route) { g.t.Helper(); g.do("announce", routes...) }
func (g *gobgp) withdraw(routes ...route) { g.t.Helper(); g.do("withdraw", routes...) }
func (g *gobgp) both()                    { g.t.Helper(); g.announce(plain4, plain6) }

var (
	plain4 = route{Prefix: net4, NextHop: "10.0.1.1"}
	plain6 = route{Prefix: net6, NextHop: "fd00:1::1"}
)

// serve is the child: it obeys orders until there are no more.
func serve(in io.Reader, out io.Writer) {
	all := map[int]*server.BgpServer{}
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		if orders.Decode(&o) != nil {
			return
		}
		answer := ""
		if err := obey(all, o); err != nil {
			answer = err.Error()
		}
		answers.Encode(answer)
	}
}

func obey(all map[int]*server.BgpServer, o order) error {
	ctx := context.Background()
	srv := all[o.Port]
	switch o.Op {
	case "start":
		logger := gobgplog.NewDefaultLogger()
		logger.SetLevel(gobgplog.FatalLevel)
		srv = server.NewBgpServer(server.LoggerOption(logger))
		all[o.Port] = srv
		go srv.Serve()
		err := srv.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
			Asn: o.Config.ASN, RouterId: o.Config.RouterID.String(), ListenPort: int32(o.Port), ListenAddresses: []string{"127.0.0.1"},
		}})
		if err != nil {
			return err
		}
		return srv.AddPeer(ctx, &api.AddPeerRequest{Peer: neighbour(o.Config)})
	case "stop":
		if srv == nil {
			return nil
		}
		delete(all, o.Port)
		return srv.StopBgp(ctx, &api.StopBgpRequest{})
	case "renew":
		return errors.Join(
			srv.DeletePeer(ctx, &api.DeletePeerRequest{Address: "127.0.0.1"}),
			srv.AddPeer(ctx, &api.AddPeerRequest{Peer: neighbour(o.Config)}))
	}
	for _, r := range o.Paths {
		p, err := r.path()
		switch {
		case err != nil:
		case o.Op == "announce":
			_, err = srv.AddPath(ctx, &api.AddPathRequest{Path: p})
		case o.Op == "withdraw":
			err = srv.DeletePath(ctx, &api.DeletePathRequest{Path: p})
		default:
			err = fmt.Errorf("no such order: %s", o.Op)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func neighbour(c serverConfig) *api.Peer {
	p := &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: "127.0.0.1", PeerAsn: c.Peer.ASN, AuthPassword: c.ServerKey},
		Timers:    &api.Timers{Config: &api.TimersConfig{HoldTime: uint64(c.Peer.Hold / time.Second), KeepaliveInterval: uint64(c.Peer.Keepalive / time.Second)}},
		Transport: &api.Transport{PassiveMode: true},
	}
	if c.Peer.RestartTime > 0 {
		p.GracefulRestart = &api.GracefulRestart{Enabled: true, RestartTime: uint32(c.Peer.RestartTime / time.Second)}
	}
	for _, f := range c.Peer.Families {
		afi := api.Family_AFI_IP
		if f == edge.IPv6 {
			afi = api.Family_AFI_IP6
		}
		p.AfiSafis = append(p.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: &api.Family{Afi: afi, Safi: api.Family_SAFI_UNICAST}, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: c.Peer.RestartTime > 0}},
		})
	}
	return p
}

// path is the route with two communities, one of them large.
func (r route) path() (*api.Path, error) {
	f := &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	if r.Prefix.Addr().Is6() {
		f.Afi = api.Family_AFI_IP6
	}
	nlri, err := anypb.New(&api.IPAddressPrefix{Prefix: r.Prefix.Addr().String(), PrefixLen: uint32(r.Prefix.Bits())})
	if err != nil {
		return nil, err
	}
	attrs := []proto.Message{
		&api.OriginAttribute{},
		&api.CommunitiesAttribute{Communities: []uint32{uint32(edge.GracefulShutdown)}},
		&api.LargeCommunitiesAttribute{Communities: []*api.LargeCommunity{{GlobalAdmin: ourAS, LocalData1: 1, LocalData2: 2}}},
	}
	if strings.Contains(r.NextHop, ":") {
		attrs = append(attrs, &api.MpReachNLRIAttribute{Family: f, NextHops: []string{r.NextHop}, Nlris: []*anypb.Any{nlri}})
	} else {
		attrs = append(attrs, &api.NextHopAttribute{NextHop: r.NextHop})
	}
	if r.Prepend > 0 {
		attrs = append(attrs, &api.AsPathAttribute{Segments: []*api.AsSegment{{
			Type: api.AsSegment_AS_SEQUENCE, Numbers: slices.Repeat([]uint32{ourAS}, r.Prepend),
		}}})
	}
	if r.MED > 0 {
		attrs = append(attrs, &api.MultiExitDiscAttribute{Med: r.MED})
	}
	p := &api.Path{Family: f, Nlri: nlri}
	for _, a := range attrs {
		packed, err := anypb.New(a)
		if err != nil {
			return nil, err
		}
		p.Pattrs = append(p.Pattrs, packed)
	}
	return p, nil
}
