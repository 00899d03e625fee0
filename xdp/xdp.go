// Package xdp is the forwarder: the XDP program, its maps and its links.
//
// It owns everything under Options.Dir on the bpffs, and is the only writer of
// those maps: it loads the program or adopts what is pinned, turns an
// edge.Table into map elements, and reads the counters back. What it pins
// outlives it: packets are forwarded whether or not any process has a
// Forwarder open. It has the kernel keep the next hops of the backends
// resolved. It never decides which backends are healthy, never touches
// addresses, routes or sysctls (the uplinks need forwarding on, or the route of
// an encapsulated packet is not looked up), and detaches only on Remove or when
// an interface leaves Options.Interfaces. edged runs it.
package xdp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/flows"
	"github.com/catchment-dev/edge/xdp/nic"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrIncompatible marks pinned state that this binary cannot take over: a newer
// version has pinned it, its maps have another size, or somebody else's program
// has taken the place of ours. Remove deletes it, and every flow with it.
var ErrIncompatible = errors.New("pinned data plane is incompatible")

// Options say where and how the data plane is loaded.
type Options struct {
	// Dir is a directory on a bpffs, made if it is missing. One Forwarder at a
	// time may have it open.
	Dir string
	// Interfaces are the names of the uplinks, in the network namespace of the
	// calling thread; at least one. A pinned interface that is not named is
	// detached.
	Interfaces []string
	// Mode is native or generic; empty is native. Native that the driver
	// refuses is an error, never a silent fallback.
	Mode edge.XDPMode
	// Flows is how many established flows the flow table has room for, at least
	// 1, at 130 bytes of kernel memory each. HalfFlows is the same for flows that
	// have shown one packet, at 128 bytes; 0 is 65,536.
	Flows, HalfFlows int
	// Memory bounds what all maps may take, in bytes; 0 does not. More than that
	// is refused before any map is made; maps that are pinned already are taken
	// over in any case.
	Memory int64
	// Services and Blocked are how many services and blocked prefixes to reckon
	// with there; they bound nothing by themselves.
	Services, Blocked int
	// Log gets state changes, never packets. Nil discards them.
	Log *slog.Logger
}

// Forwarder is the loaded data plane, in the network namespace of the thread
// that opened it. All methods may be called concurrently, and from any thread
// except Attach, which wants one in that namespace.
type Forwarder struct {
	log        *slog.Logger
	o          Options
	mode       edge.XDPMode
	lock       *os.File // flock on Dir while open
	coll       *ebpf.Collection
	inner      *ebpf.MapSpec // of a service's table
	blockSpec  *ebpf.MapSpec // of a blocklist
	filterSpec *ebpf.MapSpec // of the filter before it
	sizes      nic.Sizes
	flows      flowMemory
	half       halfMemory
	capturing  sync.Mutex // held by who captures
	verdicts   []verdict
	nl         *netlink.Handle // in the namespace of Open
	sockets    sockets         // there too
	blocking   sync.Mutex      // held by who builds a blocklist; taken before mu
	closing    atomic.Bool
	// mapped is held for reading by who looks at flows and half without mu. They
	// go with both: mapped is taken before mu.
	mapped sync.RWMutex

	mu      sync.Mutex
	uplinks []uplink
	extra   map[string]link.Link // attached by Attach, not pinned
	state   *state
	host    edgeHost   // as it is in the kernel
	blocked int        // prefixes in the blocklist
	vlans   []nic.VLAN // above the uplinks
	// hops are the next hops that the kernel keeps resolved for us; nil before the
	// first Apply.
	hops     map[hop]bool
	troubles map[trouble]string // that have been logged, and why
}

// Open loads the data plane and attaches it to the interfaces, or adopts what
// is pinned in o.Dir: the maps stay, and with them all flows; the program
// stays if it is the same, else it is replaced in place without a gap. Maps of
// the schema before are migrated: flows stay, but a connection opened in the
// moment of the switch may move. If it fails, what was pinned and attached
// before is as it was. If the process ends meanwhile, packets are forwarded, and
// the next Open goes on. It waits for another process to close the directory
// until ctx ends, 10 s at most.
func Open(ctx context.Context, o Options) (*Forwarder, error) {
	o, err := o.checked()
	if err != nil {
		return nil, err
	}
	if err := makeDir(o.Dir); err != nil {
		return nil, err
	}
	lock, err := lockDir(ctx, o.Dir)
	if err != nil {
		return nil, err
	}
	spec, err := loadEdge()
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("read embedded program: %w", err)
	}
	f, err := open(o, spec)
	if err != nil {
		lock.Close()
		return nil, err
	}
	f.lock = lock
	return f, nil
}

func (o Options) checked() (Options, error) {
	if o.Mode == "" {
		o.Mode = edge.XDPNative
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.HalfFlows = cmp.Or(o.HalfFlows, defaultHalfFlows)
	seen := make(map[string]bool)
	for _, name := range o.Interfaces {
		if seen[name] {
			return o, fmt.Errorf("open data plane: interface %s is named twice", name)
		}
		seen[name] = true
	}
	switch {
	case len(o.Interfaces) == 0:
		return o, errors.New("open data plane: no interface is named")
	case o.Mode != edge.XDPNative && o.Mode != edge.XDPGeneric:
		return o, fmt.Errorf("open data plane: mode %q is not %s or %s", o.Mode, edge.XDPNative, edge.XDPGeneric)
	case o.Flows < 1 || o.Flows > maxFlows:
		return o, fmt.Errorf("open data plane: %d flows is not 1 to %d", o.Flows, maxFlows)
	case o.HalfFlows < 1 || o.HalfFlows > maxFlows:
		return o, fmt.Errorf("open data plane: %d half-open flows is not 1 to %d", o.HalfFlows, maxFlows)
	}
	return o, nil
}

func open(o Options, spec *ebpf.CollectionSpec) (*Forwarder, error) {
	l, err := newLoader(o, spec)
	if err != nil {
		return nil, err
	}
	f := &Forwarder{
		log: o.Log, o: o, mode: o.Mode, nl: l.nl, sizes: l.sizes, extra: make(map[string]link.Link),
		inner: innerOf(spec, edgeMapSvc), blockSpec: innerOf(spec, edgeMapBlocklist),
		filterSpec: innerOf(spec, edgeMapBlockFilter),
	}
	f.verdicts, err = readVerdicts(spec.Types)
	if err == nil {
		f.sockets, err = openSockets(unix.NETLINK_ROUTE, unix.NETLINK_GENERIC)
	}
	if err != nil {
		l.nl.Close()
		return nil, err
	}
	defer l.close()
	if err := l.run(); err != nil {
		l.rollback()
		l.nl.Close()
		f.sockets.close()
		return nil, err
	}
	f.coll, f.uplinks = l.coll, l.links
	// Only reads: nothing needs to be undone if it fails.
	if f.state, err = readState(f.coll, time.Now()); err != nil {
		f.closeAll()
		return nil, err
	}
	if err = errors.Join(f.mapTables(), f.openHost()); err != nil {
		f.closeAll()
		return nil, err
	}
	return f, nil
}

func (f *Forwarder) mapTables() (err error) {
	if f.flows, err = mapFlows(f.coll); err != nil {
		return err
	}
	f.half, err = mapHalf(f.coll)
	return err
}

// size gives the flow tables the room that was asked for.
func size(spec *ebpf.CollectionSpec, o Options) error {
	buckets, places := uint32(flows.Buckets(o.Flows)), uint32(flows.Places(o.HalfFlows))
	spec.Maps[edgeMapFlow].MaxEntries = buckets
	spec.Maps[edgeMapFlowDetail].MaxEntries = buckets * flows.Ways
	spec.Maps[edgeMapHalf].MaxEntries = places
	return errors.Join(spec.Variables[edgeVarFlowBuckets].Set(buckets), spec.Variables[edgeVarHalfPlaces].Set(places))
}

// Close releases what this process holds. The data plane goes on as it is, on
// the uplinks; interfaces attached by Attach are detached.
func (f *Forwarder) Close() error {
	f.closing.Store(true)
	f.mapped.Lock()
	defer f.mapped.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	if f.lock != nil {
		// Nobody is left to read what a capture samples.
		want := f.host
		want.Sample, want.SampleActions = 0, 0
		err = f.putHost(want)
	}
	err = errors.Join(err, f.closeAll())
	if f.lock == nil {
		return err
	}
	err = errors.Join(err, f.lock.Close())
	f.lock = nil
	return err
}

func (f *Forwarder) closeAll() error {
	var errs []error
	for _, l := range f.extra {
		errs = append(errs, l.Close())
	}
	for _, u := range f.uplinks {
		errs = append(errs, u.link.Close())
	}
	f.extra, f.uplinks = nil, nil
	errs = append(errs, f.flows.unmap(), f.half.unmap())
	f.coll.Close()
	f.nl.Close()
	f.sockets.close()
	return errors.Join(errs...)
}

// Remove detaches the program from every interface and deletes all that is
// pinned in dir, of any schema, and dir itself. It fails while a Forwarder has
// dir open. A dir that does not exist is fine.
func Remove(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := onBPFFS(dir); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	lock, err := lockDir(ctx, dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	return removePins(dir)
}
