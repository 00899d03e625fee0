package main

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/version"
	"github.com/catchment-dev/edge/health"
	"github.com/catchment-dev/edge/xdp/nft"
)

// command is something that an operator wants done by the control loop, which
// alone may change what it decides from.
type command struct {
	do   func(context.Context) error
	done chan error
}

// order has the control loop run f and waits for it.
func (d *daemon) order(ctx context.Context, f func(context.Context) error) error {
	c := command{do: f, done: make(chan error, 1)}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	select {
	case d.commands <- c:
	case <-ctx.Done():
		return errBusy
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return errBusy
	}
}

// control is the loop: look, decide, act, tell.
func (d *daemon) control(ctx context.Context) error {
	tick := time.NewTimer(beat)
	defer tick.Stop()
	defer d.drains.file.wait()
	first := true
	for {
		d.turn(ctx)
		tick.Reset(d.loop.sleep(d.config(), time.Now()))
		if first {
			close(d.ready)
			first = false
		}
		select {
		case <-ctx.Done():
			return nil
		case c := <-d.commands:
			c.done <- c.do(ctx)
		case <-d.monitor.Changed():
		case <-d.guard.Changed():
		case <-tick.C:
		}
	}
}

// sleep is how long nothing need be done if nothing happens: a beat, or less if a prefix
// has drained for long enough before.
func (l *loop) sleep(c *edge.Config, now time.Time) time.Duration {
	out := beat
	for _, d := range l.last {
		length := c.Fleet.Guard.DrainTime
		if d.Severity >= edge.SeveritySick {
			length = c.Fleet.Guard.SickDrainTime
		}
		if left := d.Since.Add(length).Sub(now); d.Rung == edge.Draining && left > 0 {
			out = min(out, left)
		}
	}
	return out
}

// turn is one round of the loop. The table goes first: a prefix is announced
// only once the forwarder knows its services.
func (d *daemon) turn(ctx context.Context) {
	now, members := time.Now(), d.guard.Members()
	d.follow(now, members)
	if d.leases.follow(d.config().Fleet.Guard.PromiseLease, now); d.leases.paid(d.config().Fleet.Guard.PromiseLease) {
		d.updateGuard(d.config())
	}
	s := d.sees(now, members)
	if !d.loop.adopted && d.loop.adopt(ctx) {
		d.carryFromSpeaker()
		d.loop.wasOff(d.config(), now)
	}
	if d.mayApply() {
		d.apply(ctx, s.statuses)
	}
	if d.loop.adopted {
		d.decide(ctx, s)
	}
	if d.loop.speakerErr == nil { // else it grows old
		d.held.Store(&readBack{d.loop.state, d.loop.stateAt})
	}
	d.guard.Publish(edge.Report{
		Says: d.claims(), Load: d.load(), Spared: d.spared(),
		Shared: s.shared, Prefer: d.prefers,
		Failing: s.failing, Trust: d.trusts, Forced: d.forced.own,
	})
	d.show(s)
}

// sight is what a turn goes by.
type sight struct {
	now      time.Time
	members  []edge.MemberState
	statuses []edge.Status
	shared   map[edge.ProbeID]edge.ProbeState
	failing  []edge.Failure
}

func (d *daemon) sees(now time.Time, members []edge.MemberState) sight {
	s := sight{now: now, members: members, statuses: d.statuses()}
	s.shared = health.SharedStates(d.config(), s.statuses)
	s.failing = health.Causes(d.loop.graph(d.config()), s.statuses, now)
	return s
}

// follow takes in the orders that come by file and from other nodes, and ends
// those whose time is over.
func (d *daemon) follow(now time.Time, members []edge.MemberState) {
	for _, c := range d.drains.settle() {
		if c.back {
			d.noteOrder("drain", drainName(c.Drain), "drained", "ended", "undrain")
		} else {
			d.noteOrder("drain", drainName(c.Drain), "-", "drained", c.Reason)
		}
	}
	d.followStop()
	d.drains.follow(d.config().Local.DrainFile, now)
	for _, o := range d.drains.expire(now) {
		d.noteOrder("drain", drainName(o), "drained", "ended", "its time is over")
	}
	d.followPrefers(now, members)
	d.followTrusts(now, members)
	d.followForced(now, members)
	d.followDepartures(now, members)
	d.followRest(now, members)
}

// load is what the proxy said of its load; one that has stopped answering gets
// no requests.
func (d *daemon) load() edge.LoadRow {
	proxy, age, _ := d.proxy.last()
	if age > proxySilence {
		proxy.Load.Demand = 0
	}
	return proxy.Load
}

// proxySilence is how old the proxy's last answer may be to be believed.
const proxySilence = 5 * time.Second

// mayApply says whether the tables are this process's to fill. Those of the
// process before stay until it is known what is on the air and which backends
// are up: a restart must not put a dead backend back, nor drop what is leaving.
// But a single check that is slow must not keep all services as they were.
func (d *daemon) mayApply() bool {
	if d.inherited && d.loop.adopted && (d.monitor.Settled() || time.Since(d.started) > settleLimit) {
		d.inherited = false
	}
	return !d.inherited
}

// settleLimit is how long the tables of the process before are kept at most.
const settleLimit = 30 * time.Second

// decide runs the loop and forgets what has left.
func (d *daemon) decide(ctx context.Context, s sight) {
	in := d.inputs(s)
	d.loop.step(ctx, in)
	d.departed(s.now, s.members)
}

// inputs are all that is decided from.
func (d *daemon) inputs(s sight) inputs {
	d.followShared(s.now, s.members, s.shared)
	in := inputs{
		now: s.now, config: d.config(), generation: d.generation,
		statuses: s.statuses, settled: d.monitor.Settled(), drain: d.drainOf, others: d.othersOf(s.members),
		suspect: d.jury(s).Try, worse: d.worse(s.now, s.members),
		sharedBy: d.sharedBy(s.members), unserved: d.unserved(s.statuses), quiet: d.meter.quiet, prefers: d.prefers, resting: d.drains.node(),
	}
	in.notReady = d.drains.file.unheard(d.config().Local.DrainFile)
	if err := d.tableErr.Load(); err != nil {
		in.notReady = edge.Reason(fmt.Sprintf("the forwarder's table could not be applied: %v", *err))
	}
	return in
}

// othersOf counts, for each prefix, the other sites that say they announce it:
// by a word that is known to stand still. For one lease of a promise after
// the start it answers -1, not to take silence for an empty fleet. If another
// node of this site announces, the site does, and no number is too small. A wrong
// count does no harm: it can only bring a prefix on the air.
func (d *daemon) othersOf(members []edge.MemberState) func(netip.Prefix) int {
	lease := d.config().Fleet.Guard.PromiseLease
	if time.Since(d.started) < lease {
		return func(netip.Prefix) int { return -1 }
	}
	own, fresh := d.config().Self().Site, freshOf(d.config())
	sites := map[netip.Prefix]map[edge.SiteID]bool{}
	for _, m := range members {
		if m.Node == d.config().Local.ID || m.Age < 0 || m.Age > fresh {
			continue
		}
		for _, c := range m.Report.Says {
			if !c.Announcing {
				continue
			}
			if sites[c.Prefix] == nil {
				sites[c.Prefix] = map[edge.SiteID]bool{}
			}
			sites[c.Prefix][m.Site] = true
		}
	}
	return func(p netip.Prefix) int {
		if sites[p][own] {
			return math.MaxInt
		}
		return len(sites[p])
	}
}

// reapply is how often an unchanged table is applied again: the forwarder then
// looks for the next hops of the backends anew, since routes change.
const reapply = 10 * time.Second

// guards are those of the BGP settings in force.
func (d *daemon) guards() []nft.Guard { return bgpGuards(d.loop.bgp) }

// apply fills the forwarder's tables when they have changed.
func (d *daemon) apply(ctx context.Context, statuses []edge.Status) {
	t, m := d.plan(d.config(), statuses)
	if d.tableErr.Load() == nil && reflect.DeepEqual(t, d.applied) && time.Since(d.appliedAt) < reapply {
		d.keepDraining(m)
		return
	}
	if d.tableErr.Load() != nil && time.Since(d.appliedAt) < time.Second {
		return // what the kernel has just refused it would refuse again
	}
	d.appliedAt = time.Now()
	if d.filterErr = filter(d.config(), d.guards()); d.filterErr != nil {
		d.log.Warn("set packet filter", "err", d.filterErr)
	}
	if err := d.fwd.Apply(ctx, t); err != nil {
		d.log.Error("apply table", "err", err)
		d.tableErr.Store(&err)
		return
	}
	d.tableErr.Store(nil)
	d.applied = t
	d.keepDraining(m)
}

// show makes the snapshot that status, console and metrics read.
func (d *daemon) show(s sight) {
	c, statuses := d.config(), s.statuses
	st := &edge.SystemStatus{
		Node: c.Local.ID, Site: c.Self().Site, Version: version.String(), Time: time.Now(), Started: d.started,
		Generation: d.generation, ConfigHash: c.Hash, ConfigErr: d.configErr,
		Decisions: d.standing(), Drains: d.drains.all(), Prefers: slices.DeleteFunc(slices.Clone(d.prefers), func(o edge.Preference) bool { return !o.Holds(time.Now()) }),
		Probes: d.monitor.Statuses(), Speaker: d.loop.state, Guard: d.guardState(s),
		Services: summaries(c, look(c, statuses, d.draining, time.Now())),
	}
	for i := range st.Services {
		v := &st.Services[i]
		if _, resting := d.rest.resting[v.Prefix]; resting {
			v.Reason = "not served here: its prefix is drained"
		}
	}
	for _, p := range c.Fleet.Prefixes {
		st.Conditions = append(st.Conditions, edge.PrefixHealth{Prefix: p.Net, MinSites: p.MinSites, Condition: d.loop.conditions[p.Net]})
	}
	if err := d.loop.speakerErr; err != nil {
		st.SpeakerErr = err.Error()
	}
	st.Proxy, _, _ = d.proxy.last()
	var err error
	if st.Forwarder, err = d.fwd.Stats(); err != nil {
		d.log.Warn("read forwarder's counters", "err", err)
	} else {
		d.meter.observe(st.Time, c, st.Forwarder)
	}
	d.noteEvents(st)
	st.Alarms = d.alarms(st)
	d.snapshot.Store(st)
}
