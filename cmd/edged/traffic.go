package main

import (
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
)

// Figures of the rule when the traffic of a prefix has gone.
const (
	// meterEvery is the least time between two samples of a rate.
	meterEvery = time.Second
	// quietShare of the rate at the start of the drain, or quietRate packets a
	// second if that is more and at most half of it (our own probes go on), is no
	// traffic any more.
	quietShare = 0.05
	quietRate  = 20
	// stillRate is how many packets a second at most do not count as traffic, when it
	// is asked whether anything comes at all, and meterLimit how old what is known of
	// it may be.
	stillRate  = 1
	meterLimit = 3 * time.Second
)

// meter measures how many packets a second come for each prefix.
type meter struct {
	at    time.Time
	count map[netip.Prefix]uint64
	rate  map[netip.Prefix]float64
	base  map[netip.Prefix]float64 // when the prefix began to drain
	since map[netip.Prefix]time.Time
	busy  map[netip.Prefix]time.Time // when there was traffic last
}

func newMeter() *meter {
	return &meter{
		count: map[netip.Prefix]uint64{}, rate: map[netip.Prefix]float64{},
		base: map[netip.Prefix]float64{}, since: map[netip.Prefix]time.Time{},
		busy: map[netip.Prefix]time.Time{},
	}
}

// observe takes in the forwarder's counters.
func (m *meter) observe(now time.Time, c *edge.Config, st edge.ForwarderStats) {
	passed := now.Sub(m.at)
	if !m.at.IsZero() && passed < meterEvery {
		return
	}
	count := map[netip.Prefix]uint64{}
	at := map[edge.ServiceID]netip.Prefix{}
	for _, s := range c.Fleet.Services {
		if p, ok := c.Fleet.PrefixOf(s.VIP.Addr()); ok {
			at[s.ID] = p.Net
		}
	}
	for _, s := range st.Services {
		if p, ok := at[s.Service]; ok {
			count[p] += s.Packets
		}
	}
	for p, n := range count {
		was, ok := m.count[p]
		if ok = ok && n >= was && !m.at.IsZero(); ok {
			m.rate[p] = float64(n-was) / passed.Seconds()
		}
		if !ok || m.rate[p] > stillRate {
			m.busy[p] = now
		}
	}
	m.at, m.count = now, count
}

// drains notes that a prefix begins to drain.
func (m *meter) drains(p netip.Prefix, now time.Time) { m.base[p], m.since[p] = m.rate[p], now }

// quiet says whether the traffic of a prefix that drains has gone: it judges by a
// sample that began after the drain did.
func (m *meter) quiet(p netip.Prefix) bool {
	since, ok := m.since[p]
	if !ok || m.at.Sub(since) < 2*meterEvery {
		return false
	}
	if _, counted := m.count[p]; !counted {
		return false // nothing is known of it
	}
	return m.rate[p] <= max(quietShare*m.base[p], min(quietRate, m.base[p]/2))
}

// still says whether nothing has come for p for the settle time.
func (m *meter) still(p netip.Prefix, now time.Time) bool {
	_, counted := m.count[p]
	return counted && now.Sub(m.at) < meterLimit && now.Sub(m.busy[p]) >= settleTime
}
