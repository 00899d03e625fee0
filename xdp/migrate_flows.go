package xdp

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/flows"
	"github.com/catchment-dev/edge/xdp/model"
	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"
)

// flowCarrier copies the flows of v1, a hash map of 5-tuples, into our flow
// table.
type flowCarrier struct {
	from     *ebpf.Map
	to       flowMemory
	backends map[uint32]edgeBackend
	seeds    map[uint32][2]uint64 // of the services

	// keep says that a flow which our table knows stays as it is there.
	keep bool

	// Of one pass.
	now, until     flows.Tick
	carried, stale int
	evicted        int
}

// carryFlows copies all flows while v1 still forwards, again if many new ones
// have come meanwhile.
func (l *loader) carryFlows() error {
	const passes, few = 4, 100
	for n := range passes {
		c, err := l.carry()
		if err != nil {
			return err
		}
		begin := time.Now()
		if err := c.pass(); err != nil {
			return err
		}
		l.o.Log.Info("flows are carried over", "pass", n+1, "flows", c.carried, "stale", c.stale, "evicted", c.evicted, "took", time.Since(begin))
		if c.carried < few {
			break
		}
	}
	return nil
}

// switchLink is takeLink while flows are carried over all the time. A new flow
// of v1 that has sent a packet to our program before it was carried over has met
// our ring, which is another: the less time there is for that, the better.
func (l *loader) switchLink(ifname string) error {
	c, err := l.carry()
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	var g errgroup.Group
	g.Go(func() error {
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			if err := c.pass(); err != nil {
				return err
			}
		}
	})
	err = l.takeLink(ifname)
	close(stop)
	return errors.Join(err, g.Wait())
}

// carryLastFlows copies the flows that have come between the last pass and the
// moment in which the program was replaced. Packets of theirs may have met our
// program already, and been sent where our ring says: what v1 says is right.
func (l *loader) carryLastFlows() error {
	c, err := l.carry()
	if err != nil {
		return err
	}
	if err := c.pass(); err != nil {
		return err
	}
	l.o.Log.Info("data plane migrated", "from", oldSchema, "to", schema, "last_flows", c.carried)
	return nil
}

// carryMissingFlows goes on after a migration that was cut short: our program
// may have been at work for long, and knows better about the flows that it has.
func (l *loader) carryMissingFlows() error {
	if l.old.complete() != nil {
		return nil // they have been carried over: the old pins were being removed
	}
	c, err := l.carry()
	if err != nil {
		return err
	}
	c.keep = true
	if err := c.pass(); err != nil {
		return err
	}
	l.o.Log.Info("migration is completed", "from", oldSchema, "to", schema, "last_flows", c.carried)
	return nil
}

// carry returns the carrier of this migration.
func (l *loader) carry() (*flowCarrier, error) {
	if l.carrier != nil {
		return l.carrier, nil
	}
	c := &flowCarrier{from: l.old.coll.Maps[edgeMapFlow], seeds: make(map[uint32][2]uint64)}
	// What v1 says of backends is what we have: the ids are the same.
	backends, err := newMirror[uint32, edgeBackend](l.coll, edgeMapBackend)
	if err != nil {
		return nil, err
	}
	c.backends = backends.have
	for id := range l.old.coll.Maps[edgeMapSvc].MaxEntries() {
		table, err := readV1Table(l.old.coll.Maps[edgeMapSvc], id)
		if err != nil {
			return nil, fmt.Errorf("read table of service id %d: %w", id, err)
		}
		if table != nil {
			c.seeds[id] = table.Seed
		}
	}
	if c.to, err = mapFlows(l.coll); err != nil {
		return nil, err
	}
	l.carrier = c
	l.held = append(l.held, c)
	return c, nil
}

// Close implements io.Closer.
func (c *flowCarrier) Close() error { return c.to.unmap() }

// pass copies all flows that are not there yet.
func (c *flowCarrier) pass() error {
	now, err := monotonic()
	if err != nil {
		return err
	}
	c.now = flows.TickAt(now)
	c.until = c.now + flows.Tick(ticks(defaultIdle))
	c.carried, c.stale, c.evicted = 0, 0, 0
	return c.run()
}

// run reads the whole map in batches. What v1 puts there meanwhile is seen or not.
func (c *flowCarrier) run() error {
	var cursor ebpf.MapBatchCursor
	keys, values := make([]v1FlowKey, 4096), make([]v1Flow, 4096)
	for {
		n, err := c.from.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read flows of schema %s: %w", oldSchema, err)
		}
		for i := range n {
			c.put(keys[i], values[i])
		}
		if err != nil {
			return nil
		}
	}
}

// put copies a flow, if a packet of it would still follow it.
func (c *flowCarrier) put(k v1FlowKey, v v1Flow) {
	b := c.backends[v.Backend]
	seed, served := c.seeds[k.Svc]
	if !served || b.state() == stateNone || b.gen() != v.Generation || b.Svc != k.Svc {
		c.stale++
		return
	}
	tuple := flows.Tuple{
		Src: addrPortOf(k.Src, k.Sport), Dst: addrPortOf(k.Dst, k.Dport), Protocol: edge.Protocol(k.Proto),
	}
	hash := model.FlowHash(model.Hash(seed, model.Tuple{
		V6: tuple.Src.Addr().Is6(), Src: k.Src, Dst: k.Dst, SPort: tuple.Src.Port(), DPort: tuple.Dst.Port(), Proto: k.Proto,
	}), k.Svc)
	if e, ok := c.to.Find(hash, c.now); ok && (c.keep || e.Backend == v.Backend && e.Generation == v.Generation) {
		return
	}
	c.carried++
	e := flows.Entry{Backend: v.Backend, Generation: v.Generation, Until: c.until, Service: k.Svc, Tuple: tuple}
	if c.to.Put(hash, e, c.now) {
		c.evicted++
	}
}

func addrPortOf(a [16]byte, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a).Unmap(), netOrder(port))
}
