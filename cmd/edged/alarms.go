package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/catchment-dev/edge"
)

// alarms are the conditions that need a person, worst first.
func (d *daemon) alarms(st *edge.SystemStatus) []string {
	out := []string{}
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, dec := range st.Decisions {
		switch since := st.Guard.Asking[dec.Prefix].BlockedSince; {
		case dec.Rung != edge.LastResort:
		case !since.IsZero():
			add("%s is announced as a last resort, blocked since %s: %s", dec.Prefix, clock(since), dec.Reason)
		default:
			add("%s is announced as a last resort: %s", dec.Prefix, dec.Reason)
		}
	}
	if why := stopAlarm(st); why != "" {
		add("%s", why)
	}
	out = append(out, d.guardAlarms(st)...)
	others := d.othersOf(st.Guard.Members)
	for _, dec := range st.Decisions {
		if !dec.Rung.OnAir() && others(dec.Prefix) == 0 {
			add("%s is announced by no site that this node knows of", dec.Prefix)
		}
	}
	if err := d.fwd.Attached(); err != nil {
		add("the forwarder is not attached: %v", err)
	}
	if err := d.fwd.Pinned(); err != nil {
		add("pins were removed by hand: the data plane ends when edged does, so drain before you restart it: %v", err)
	}
	if err := d.tableErr.Load(); err != nil {
		add("the forwarder's table could not be applied: %v", *err)
	}
	if d.loop.speakerErr != nil {
		add("edgebgp does not answer: %v", d.loop.speakerErr)
	}
	out = append(out, speakerAlarms(st.Speaker)...)
	for _, dec := range st.Decisions {
		if dec.Rung.OnAir() && st.Speaker.Holders(dec.Prefix) == 0 && established(st.Speaker) && st.Time.Sub(dec.Since) > settleTime {
			add("%s is %s, but no peer holds it: edgectl bgp says why", dec.Prefix, dec.Rung)
		}
		if dec.Rung == edge.Announced {
			continue
		}
		if why := d.loop.flaps[dec.Prefix].TooOften(st.Time, d.config().Fleet.Guard.MaxCycles); why != "" {
			add("%s was %s", dec.Prefix, why)
		}
	}
	for _, err := range d.keeper.alarms(st.Time) {
		add("%v", err)
	}
	if err := d.drains.fileErr; err != nil {
		add("the drain file is not followed: %v", err)
	}
	for _, o := range st.Drains {
		if err := d.known(o.Prefix, o.Service); err != nil {
			add("a drain orders nothing: %v", err)
		}
	}
	if d.loop.bgpWaits != "" {
		add("node.bgp of the configuration is not in force: %s; to apply it, drain the node", d.loop.bgpWaits)
	}
	if px, age, err := d.proxy.last(); !needsProxy(d.config()) {
		// Nobody misses it.
	} else if err != nil || age > proxySilence {
		add("edgeproxy does not answer: %v", err)
	} else if px.ConfigHash != st.ConfigHash {
		add("edgeproxy runs another configuration than edged: run edgectl reload")
	} else if px.TicketErr != "" {
		add("edgeproxy makes its own ticket keys, so that clients which come from another box begin anew: %s; mend the file and run edgectl reload", px.TicketErr)
	}
	if st.Guard.Isolated {
		add("isolated: no other site has been heard by gossip for ten seconds: nothing is withdrawn and nothing let go")
	}
	if n := st.Guard.Dropped["own_report"]; n > 0 {
		add("what this node says of itself could not be sent to the fleet %d times: see its log", n)
	}
	if c := d.monitor.Canary(); c.State == edge.Down {
		add("this box is too busy to judge: what its probes fail does not count: %s", c.LastErr)
	}
	if st.ConfigErr != "" {
		add("the last reload was refused: %s", st.ConfigErr)
	}
	if d.hostErr != nil {
		add("the host is not prepared: %v", d.hostErr)
	}
	if d.filterErr != nil {
		add("the packet filter is not set: %v", d.filterErr)
	}
	if err := d.blocker.err.Load(); err != nil {
		add("the blocklist is not the one of the file: %v", *err)
	}
	out = append(out, watchdogAlarms(imageDir, watchdogClass, sinceBoot())...)
	return append(out, bootAlarms(imageDir)...)
}

// established says whether any session that carries our prefixes is.
func established(s edge.SpeakerState) bool {
	return slices.ContainsFunc(s.Peers, func(p edge.PeerState) bool { return p.Session == "established" && !watched(s.Speaker, p.ID) })
}

// speakerAlarms are those about BGP: sessions, BFD, what the world sees.
func speakerAlarms(s edge.SpeakerState) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, p := range s.Peers {
		if p.Session != "established" {
			add("BGP peer %s is %s: %s", p.ID, p.Session, cmp.Or(p.LastErr, "no error yet"))
		}
		if p.BFD != nil && p.BFD.State == "down" && p.BFD.Flaps > 0 {
			add("BFD with %s is down: %s", p.ID, cmp.Or(p.BFD.LastErr, p.BFD.Diag, "no reason yet"))
		}
		if p.OverLimit {
			add("BGP peer %s sends more prefixes than its import_limit; none is used, but it is perhaps a leak", p.ID)
		}
	}
	if s.KeepErr != "" {
		add("edgebgp cannot keep its intent, a restart would announce an older one: %s", s.KeepErr)
	}
	for _, o := range s.Origins {
		if strings.HasPrefix(o.Validity, "invalid") {
			add("%s is RPKI %s: %s", o.Net, o.Validity, o.Evidence)
		}
	}
	if s.RPKI.LastErr != "" {
		add("RPKI data of %s: %s", s.RPKI.Source, s.RPKI.LastErr)
	}
	for _, w := range s.Sightings {
		add("%s: %s, seen since %s: %s", w.Net, w.Kind, w.Since.UTC().Format("2006-01-02 15:04:05"), w.Evidence)
	}
	return out
}
