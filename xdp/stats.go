package xdp

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/catchment-dev/edge"
)

// Stats reads the counters: of the data plane since it was loaded, of services
// and backends since they came, whichever process was there. It lists every
// verdict that there is, and the services and backends that are in the table.
func (f *Forwarder) Stats() (edge.ForwarderStats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := edge.ForwarderStats{
		Mode: string(f.mode), Flows: f.o.Flows, HalfFlows: f.o.HalfFlows, Memory: f.memory(), Blocked: f.blocked,
	}
	for _, u := range f.uplinks {
		st.Interfaces = append(st.Interfaces, u.name)
	}
	total, err := f.readVerdictCounts()
	if err != nil {
		return st, err
	}
	st.Received = total.Received
	for _, v := range f.verdicts {
		st.Verdicts = append(st.Verdicts, edge.VerdictCount{Action: v.action, Reason: v.reason, Count: total.Left[v.value]})
	}
	if err := f.readServiceCounts(&st); err != nil {
		return st, err
	}
	return st, f.readBackendCounts(&st)
}

// readTries is how often the counters are read until each CPU's agree. They are
// copied while it may be between counting a packet in and counting it out: a busy
// one is there most of the time, and what it says then is read again.
const readTries = 1000

// readVerdictCounts adds up the first copy of each CPU's counters that agrees in
// itself: so the sum does, whatever the other CPUs are at. Should a CPU's not agree
// in any try, its last copy is taken.
func (f *Forwarder) readVerdictCounts() (edgeVerdicts, error) {
	var perCPU, settled []edgeVerdicts
	var done []bool
	for range readTries {
		if err := f.coll.Maps[edgeMapVerdictCount].Lookup(uint32(0), &perCPU); err != nil {
			return edgeVerdicts{}, fmt.Errorf("read verdict counters: %w", err)
		}
		if settled == nil {
			settled, done = make([]edgeVerdicts, len(perCPU)), make([]bool, len(perCPU))
		}
		for cpu, c := range perCPU {
			if !done[cpu] {
				settled[cpu], done[cpu] = c, c.agree()
			}
		}
		if !slices.Contains(done, false) {
			break
		}
	}
	var total edgeVerdicts
	for _, c := range settled {
		total.Received += c.Received
		for i, n := range c.Left {
			total.Left[i] += n
		}
	}
	return total, nil
}

// agree says whether each packet that was received has left.
func (c *edgeVerdicts) agree() bool {
	left := uint64(0)
	for _, n := range c.Left {
		left += n
	}
	return left == c.Received
}

func (f *Forwarder) readServiceCounts(st *edge.ForwarderStats) error {
	for id := range f.state.tables {
		var perCPU []edgeSvcCount
		if err := f.coll.Maps[edgeMapSvcCount].Lookup(id, &perCPU); err != nil {
			return fmt.Errorf("read counters of service %q: %w", f.state.serviceName(id), err)
		}
		st.Services = append(st.Services, serviceCount(f.state.serviceName(id), perCPU))
	}
	slices.SortFunc(st.Services, func(a, b edge.ServiceCount) int { return cmp.Compare(a.Service, b.Service) })
	return nil
}

// serviceCount adds up what each CPU has counted.
func serviceCount(name edge.ServiceID, perCPU []edgeSvcCount) edge.ServiceCount {
	c := edge.ServiceCount{Service: name, By: make(map[string]uint64)}
	for _, n := range perCPU {
		c.Packets += n.Packets
		c.Bytes += n.Bytes
		c.By["table"] += n.Table
		c.By["half"] += n.Half
		c.By["ring"] += n.Ring
		c.By["server_id"] += n.ServerId
		c.By["icmp_error"] += n.IcmpError
		c.By["fragment"] += n.Fragment
		c.By["limited"] += n.Limited
		c.New += n.Opened
		c.Established += n.Established
		c.Evicted += n.Evicted
	}
	return c
}

func (f *Forwarder) readBackendCounts(st *edge.ForwarderStats) error {
	for id, b := range f.state.backend.have {
		if b.state() == stateNone {
			continue
		}
		var perCPU []edgeCount
		if err := f.coll.Maps[edgeMapBackendCount].Lookup(id, &perCPU); err != nil {
			return fmt.Errorf("read counters of backend %q: %w", f.state.backendName(id), err)
		}
		c := edge.BackendCount{Service: f.state.serviceName(b.Svc), Backend: f.state.backendName(id)}
		for _, n := range perCPU {
			c.Packets += n.Packets
			c.Bytes += n.Bytes
		}
		st.Backends = append(st.Backends, c)
	}
	slices.SortFunc(st.Backends, func(a, b edge.BackendCount) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Backend, b.Backend))
	})
	return nil
}
