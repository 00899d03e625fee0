package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// drainingName is the file in state_dir with who is draining: a restart of edged
// must neither end a drain nor begin it again.
const drainingName = "draining.json"

// draining is what this node remembers of its services that neither the
// configuration nor the probes can tell: which backends have left, and which pool
// is in use. It is a value that is not changed: what is planned and then refused
// leaves nothing behind. Its times are of the wall clock.
type draining struct {
	Left  []leaver  `json:"left"`
	Pools []poolUse `json:"pools"`
	// departures are not kept on disk: the others say it again.
	departures departures
}

// leaver is a backend that is no longer in the configuration of this node. TCP
// flows that it has follow it until the drain timeout of its service has passed
// since; it gets no SYN, and nothing of any other protocol.
type leaver struct {
	Service edge.ServiceID `json:"service"`
	Backend edge.BackendID `json:"backend"`
	Addr    netip.Addr     `json:"address"`
	Since   time.Time      `json:"since"`
}

func (l leaver) is(s edge.ServiceID, b edge.BackendID) bool { return l.Service == s && l.Backend == b }

// poolUse is the pool of a service that new flows go to, and since when.
type poolUse struct {
	Service edge.ServiceID `json:"service"`
	Pool    edge.Pool      `json:"pool"`
	Since   time.Time      `json:"since"`
}

// pool is which pool of a service is in use after this choice. While nobody gets
// new flows nothing is switched: to drop is no failback. A service that is seen
// for the first time counts as switched now, which can only keep flows.
func (m draining) pool(s edge.ServiceID, c edge.Choice, now time.Time) poolUse {
	next := poolUse{Service: s, Pool: c.Pool, Since: now}
	i := slices.IndexFunc(m.Pools, func(u poolUse) bool { return u.Service == s })
	if i < 0 {
		return next
	}
	was := m.Pools[i]
	was.Since = past(was.Since, now)
	if was.Pool == next.Pool || !slices.ContainsFunc(c.Shares, func(w int) bool { return w > 0 }) {
		return was
	}
	return next
}

// of are the backends that have left v's service and still drain. One that is
// back is none of them, also with another address: a service has a name but
// once, so then its flows move at once. Neither is one that the table could not
// hold: a drain must not be why a configuration is refused.
func (m draining) of(self edge.Node, v view) []leaver {
	var out []leaver
	for _, l := range m.Left {
		if l.Service != v.service.ID {
			continue
		}
		l.Since = past(l.Since, v.now)
		back := slices.ContainsFunc(v.targets, func(t target) bool { return t.id == l.Backend })
		over := !v.now.Before(l.Since.Add(v.service.DrainTimeout))
		source := self.Addr4
		if l.Addr.Is6() {
			source = self.Addr6
		}
		if !back && !over && source.IsValid() && l.Addr != v.service.VIP.Addr() {
			out = append(out, l)
		}
	}
	return out
}

// past is t, but not later than now: a clock that was set back must not make a
// drain longer.
func past(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return t
}

// remembered is what is to be known after this look.
func remembered(views []view) draining {
	var m draining
	for _, v := range views {
		m.Left = append(m.Left, v.left...)
		if v.service.Failover != nil {
			m.Pools = append(m.Pools, v.use)
		}
	}
	return m
}

// leave adds who is in before and not in after, of the services that stay: they
// drain from now on. Only a backend that TCP flows followed has anything to
// drain. It returns too how many cannot be drained, since the table is full of
// others: then those that left first are given up.
func (m draining) leave(before []edge.TableService, after *edge.Config, now time.Time) (draining, int) {
	next := draining{Left: slices.Clone(m.Left), Pools: m.Pools, departures: m.departures}
	total := 0
	for _, s := range after.Fleet.Services {
		stay := map[edge.BackendID]bool{}
		for _, t := range targets(after, s) {
			stay[t.id] = true
		}
		total += len(stay)
		i := slices.IndexFunc(before, func(o edge.TableService) bool {
			return o.ID == s.ID && o.VIP == s.VIP && o.Protocol == s.Protocol
		})
		if i < 0 || s.Protocol == edge.UDP {
			continue
		}
		for _, b := range before[i].Backends {
			if !b.KeepTCP || stay[b.ID] {
				continue
			}
			if !slices.ContainsFunc(m.Left, func(l leaver) bool { return l.is(s.ID, b.ID) }) {
				next.Left = append(next.Left, leaver{Service: s.ID, Backend: b.ID, Addr: b.Addr, Since: now})
			}
		}
	}
	over := min(max(total+len(next.Left)-edge.MaxBackends, 0), len(next.Left))
	next.Left = next.Left[over:]
	return next, over
}

// everything is what the process before may have had flows of: nobody knows any
// more which of its backends were up. The configuration may be older than what was
// in force last (see remember): who has drained already then drains once more,
// which moves nothing but flows that it still has.
func everything(c *edge.Config) []edge.TableService {
	var out []edge.TableService
	for _, s := range c.Fleet.Services {
		ts := edge.TableService{ID: s.ID, VIP: s.VIP, Protocol: s.Protocol}
		for _, t := range targets(c, s) {
			ts.Backends = append(ts.Backends, edge.TableBackend{ID: t.id, Addr: t.addr, KeepTCP: true})
		}
		out = append(out, ts)
	}
	return out
}

// readDraining reads what an earlier process kept. A file that cannot be read is
// no reason not to start: flows move sooner then.
func readDraining(dir string) (draining, error) {
	path := filepath.Join(dir, drainingName)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return draining{}, nil
	}
	if err != nil {
		return draining{}, fmt.Errorf("read draining backends: %w", err)
	}
	m, err := parseDraining(b)
	if err != nil {
		return draining{}, fmt.Errorf("read draining backends: %s: %w", path, err)
	}
	return m, nil
}

// parseDraining checks all that the forwarder would refuse a table for.
func parseDraining(b []byte) (draining, error) {
	var m draining
	if err := json.Unmarshal(b, &m); err != nil {
		return draining{}, err
	}
	for i, l := range m.Left {
		switch {
		case l.Service == "" || l.Backend == "" || len(l.Backend) > maxName || strings.ContainsRune(string(l.Backend), 0):
			return draining{}, fmt.Errorf("entry %d has no usable name", i)
		case !edge.IsHost(l.Addr):
			return draining{}, fmt.Errorf("backend %s: address %s is not one of a host", l.Backend, l.Addr)
		case slices.ContainsFunc(m.Left[:i], func(o leaver) bool { return o.is(l.Service, l.Backend) }):
			return draining{}, fmt.Errorf("backend %s of service %s is there twice", l.Backend, l.Service)
		}
	}
	for _, u := range m.Pools {
		if u.Pool != edge.PoolPrimary && u.Pool != edge.PoolFailover {
			return draining{}, fmt.Errorf("pool %q of service %s is not known", u.Pool, u.Service)
		}
	}
	return m, nil
}

// maxName is the longest name of a backend, in bytes.
const maxName = 32

// keepDraining has m remembered. A disk that fails must not stop the forwarding:
// it costs the deadline only if edged is started again.
func (d *daemon) keepDraining(m draining) {
	m.departures = d.draining.departures
	if reflect.DeepEqual(m, d.draining) {
		return
	}
	d.draining = m
	d.keeper.keep(drainingName, "who is draining", m)
}

// plan is the table for all, be it in force or to come, and what is to be
// remembered if it comes.
func (d *daemon) plan(all *edge.Config, statuses []edge.Status) (edge.Table, draining) {
	now, m := time.Now(), d.draining
	old, c := d.served(d.config()), d.served(all)
	if d.config() != all {
		m = d.leave(table(old, d.seed, look(old, statuses, m, now)).Services, c, now)
	}
	views := look(c, statuses, m, now)
	return table(c, d.seed, views), remembered(views)
}

// leave is draining.leave, and tells of what cannot be drained.
func (d *daemon) leave(before []edge.TableService, after *edge.Config, now time.Time) draining {
	next, over := d.draining.leave(before, after, now)
	if over > 0 {
		d.log.Warn("backends that have left are not drained: the forwarder has no room for them", "backends", over, "limit", edge.MaxBackends)
	}
	return next
}
