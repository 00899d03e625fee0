package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/vishvananda/netlink"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/edged/console"
	"github.com/catchment-dev/edge/cmd/internal/socket"
	"github.com/catchment-dev/edge/cmd/internal/task"
	"github.com/catchment-dev/edge/guard"
	"github.com/catchment-dev/edge/health"
	"github.com/catchment-dev/edge/xdp"
)

// daemon holds the parts of edged. Its fields are set once by open; what
// changes afterwards is behind an atomic or belongs to the control loop.
type daemon struct {
	path    string // of the configuration
	log     *slog.Logger
	started time.Time
	seed    [16]byte
	keys    guardKeys // of the configuration in force

	fwd     *xdp.Forwarder
	vantage *vantage
	monitor *health.Monitor
	guard   *guard.Guard
	lease   *leaseKeeper
	proxy   *proxyClient
	keeper  *keeper
	leases  *leases
	drains  *drains
	blocker *blocker
	loop    *loop
	events  *health.Ring
	// counts belongs to the probe of the forwarder.
	counts countProbe

	api        net.Listener
	management net.Listener

	cfg      atomic.Pointer[edge.Config]
	snapshot atomic.Pointer[edge.SystemStatus]
	commands chan command
	ready    chan struct{}
	// tableErr is why the forwarder's table could not be applied; nil: it was.
	tableErr atomic.Pointer[error]
	// off are the services that are not asked, since they are drained.
	off atomic.Pointer[map[edge.ServiceID]bool]
	// held is what the peers hold, for the guard's answers.
	held atomic.Pointer[readBack]

	// The rest belongs to the control loop.
	base       *edge.Config // as parsed; config adds what is leaving
	leaving    leaving
	previous   *edge.Config // in force when the process before ended; may be nil
	inherited  bool         // the forwarder has that one's tables
	draining   draining     // who has left, and which pools are in use
	rest       rest
	generation uint64
	configErr  string
	prefers    []edge.Preference
	fine       map[edge.ProbeID]time.Time // see followShared
	trusts     []edge.Trust
	forced     forcing
	swaps      map[netip.Prefix]edge.Swap // see worse
	outlook    outlook
	peersSeen  []edge.PeerState // at the last snapshot
	meter      *meter
	applied    edge.Table
	appliedAt  time.Time
	hostErr    error
	filterErr  error // of the packet filter
}

func (d *daemon) config() *edge.Config { return d.cfg.Load() }

// open builds every part, the forwarder last of those that can fail by the
// operator's mistake: a box with a bad secret is not touched.
func open(ctx context.Context, c *edge.Config, path string, log *slog.Logger) (d *daemon, err error) {
	d = &daemon{
		path: path, base: c, log: log, started: time.Now(), generation: 1,
		commands: make(chan command), ready: make(chan struct{}), blocker: newBlocker(log),
		meter: newMeter(), events: &health.Ring{}, keeper: newKeeper(c.Local.StateDir, log),
	}
	d.cfg.Store(c)
	d.held.Store(&readBack{})
	d.off.Store(&map[edge.ServiceID]bool{})
	d.snapshot.Store(&edge.SystemStatus{Node: c.Local.ID, Site: c.Self().Site})
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.seed, err = readSeed(c.Fleet.RingSeedFile); err != nil {
		return d, err
	}
	if d.drains, err = openDrains(d.keeper); err != nil {
		return d, err
	}
	if d.prefers, err = openPrefers(c.Local.StateDir); err != nil {
		log.Warn("orders to move traffic are not known until others tell of them", "err", err)
	}
	if d.trusts, err = openTrusts(c.Local.StateDir); err != nil {
		log.Warn("orders to trust a check are not known until others tell of them", "err", err)
	}
	if d.previous, err = readApplied(c.Local.StateDir); err != nil {
		log.Warn("the configuration before cannot be used", "err", err)
	}
	if d.draining, err = readDraining(c.Local.StateDir); err != nil {
		log.Warn("who was draining is not known: those flows move now", "err", err)
	}
	path = filepath.Join(c.Local.RunDir, "edged.sock")
	if d.api, err = socket.Listen(path); err != nil {
		return d, err
	}
	if err = socket.Share(path); err != nil {
		return d, err
	}
	if d.management, err = net.Listen("tcp", c.Local.Management.String()); err != nil {
		return d, fmt.Errorf("listen on node.management: %w", err)
	}
	if err = d.openGuard(c); err != nil {
		return d, err
	}
	if err = d.openForced(c.Local.StateDir); err != nil {
		log.Warn("what was forced off the air before is not known", "err", err)
	}
	if err = d.openDataPath(ctx, c); err != nil {
		return d, err
	}
	d.lease, d.proxy = &leaseKeeper{announcer: newSpeakerClient(c.Local.RunDir)}, newProxyClient(c.Local.RunDir, log)
	d.loop = newLoop(d.lease, d.guard)
	if err := d.watchLoop(); err != nil {
		log.Warn("how often prefixes were withdrawn is not known", "err", err)
	}
	d.monitor = health.New(health.Options{Probers: d.probers(), Log: log, Events: d.events})
	d.monitor.Set(allProbes(c))
	return d, nil
}

// readBack is what edgebgp said the peers hold, and when.
type readBack struct {
	state edge.SpeakerState
	at    time.Time
}

// readBackLimit is how old a readBack may be to promise anything on it. A turn
// takes a quarter of a second at the most; one that hangs must not go on
// promising.
const readBackLimit = 2 * time.Second

// holds is what the guard asks before it promises to stay: do peers hold the
// prefix from this node, by what edgebgp read back last.
func (d *daemon) holds(p netip.Prefix) bool {
	h := d.held.Load()
	return time.Since(h.at) < readBackLimit && h.state.Holders(p) > 0
}

func (d *daemon) openDataPath(ctx context.Context, c *edge.Config) (err error) {
	for _, name := range c.Local.Forwarder.Interfaces {
		if _, err := netlink.LinkByName(name); err != nil {
			return fmt.Errorf("node.forwarder.interfaces: %s: %w", name, err)
		}
	}
	if d.vantage, err = openVantage(c.Local); err != nil {
		return err
	}
	if err := prepareHost(c); err != nil {
		return fmt.Errorf("prepare host: %w", err)
	}
	blocked, blockErr := d.blocker.read(c.Local.Forwarder.Blocklist)
	d.fwd, err = xdp.Open(ctx, xdp.Options{
		Dir: c.Local.BPFDir, Interfaces: c.Local.Forwarder.Interfaces, Mode: c.Local.Forwarder.Mode,
		Flows: c.Local.Forwarder.Flows, HalfFlows: c.Local.Forwarder.HalfFlows, Memory: c.Local.Forwarder.Memory,
		Services: len(c.Fleet.Services), Blocked: len(blocked.sources), Log: d.log,
	})
	if err != nil {
		return fmt.Errorf("open forwarder: %w", err)
	}
	d.blocker.fwd = d.fwd
	if blockErr != nil {
		d.blocker.refused(blockErr)
	} else {
		d.blocker.want(blocked)
	}
	st, err := d.fwd.Stats()
	if err != nil {
		return fmt.Errorf("read forwarder: %w", err)
	}
	d.inherited = len(st.Services) > 0
	if d.vantage.ns.IsOpen() {
		if err := d.fwd.Attach(vantageNear); err != nil {
			return fmt.Errorf("attach forwarder to the probe's interface: %w", err)
		}
	}
	return nil
}

// close gives back what this process holds. The pinned data plane, the
// addresses and the announcements stay.
func (d *daemon) close() {
	for _, l := range []net.Listener{d.api, d.management} {
		if l != nil {
			l.Close()
		}
	}
	if d.fwd != nil {
		if err := d.fwd.Close(); err != nil {
			d.log.Error("close forwarder", "err", err)
		}
	}
	if d.vantage != nil {
		d.vantage.close()
	}
	// Last, since the disk may hold it.
	if err := d.keeper.flush(keepLast); err != nil {
		d.log.Error("not all that has changed is kept", "err", err)
	}
}

func (d *daemon) tasks() []task.Task {
	return []task.Task{
		d.monitor, d.guard,
		part{"control", d.control, d.ready},
		part{"proxy link", d.followProxy, nil},
		part{"blocklist", d.blocker.run, nil},
		part{"lease", d.lease.run, nil},
		part{"state", d.keeper.run, nil},
		part{"socket", func(ctx context.Context) error { return socket.Serve(ctx, d.api, d.handler()) }, nil},
		part{"console", d.serveConsole, nil},
	}
}

// part is a task made of a function.
type part struct {
	name  string
	run   func(context.Context) error
	ready chan struct{}
}

func (p part) Run(ctx context.Context) error { return p.run(ctx) }
func (p part) Ready() <-chan struct{}        { return p.ready }
func (p part) String() string                { return p.name }

// Status is the last snapshot; it never waits for the control loop.
func (d *daemon) Status() edge.SystemStatus { return *d.snapshot.Load() }

func (d *daemon) serveConsole(ctx context.Context) error {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collector{d})
	mux := http.NewServeMux()
	mux.Handle("/", console.Handler(d, d.events))
	mux.Handle("GET /metrics", promhttp.HandlerFor(prometheus.Gatherers{reg, prometheus.GathererFunc(bootMetrics)}, promhttp.HandlerOpts{}))
	return socket.Serve(ctx, d.management, mux)
}

// followProxy exchanges load with edgeproxy once a second.
func (d *daemon) followProxy(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		d.proxy.exchange(ctx, d.fleetLoad())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// fleetLoad is what the other nodes have said of their load. In a large fleet signs
// of life are rarer than the proxy would have them: what is no reason to doubt a
// word does not count as its age. What was said since the last one is of now.
func (d *daemon) fleetLoad() edge.FleetLoad {
	var out edge.FleetLoad
	c := d.config()
	fresh := freshOf(c)
	for _, m := range d.guard.Members() {
		if m.Age < 0 || m.Node == c.Local.ID {
			continue
		}
		age := max(0, m.Age-(fresh-c.Fleet.Guard.PromiseLease))
		if m.Age <= fresh {
			age = min(age, m.Said)
		}
		out.Rows = append(out.Rows, edge.FleetRow{Node: m.Node, Age: age, Load: m.Report.Load})
	}
	return out
}
