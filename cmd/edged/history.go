package main

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
)

const flapsFile = "flaps.json"

// watchLoop has the loop tell of what it decides, and remember what an earlier
// process has withdrawn how often.
func (d *daemon) watchLoop() error {
	d.loop.keepFlaps = func(m flaps) { d.keeper.keep(flapsFile, "withdrawals", m) }
	d.loop.changed = func(from, to edge.Decision) {
		if to.Rung == edge.Draining {
			d.meter.drains(to.Prefix, time.Now())
		}
		d.log.Info("prefix changes", "prefix", to.Prefix, "from", from.Rung, "to", to.Rung, "reason", to.Reason)
		d.events.Add(edge.Event{
			Time: to.Since, Kind: "prefix", Subject: to.Prefix.String(),
			From: cmp.Or(string(from.Rung), "none"), To: string(to.Rung), Evidence: string(to.Reason),
		})
	}
	var kept flaps
	if err := readState(d.keeper.dir, flapsFile, "withdrawals", &kept); err != nil {
		return err
	}
	left := map[netip.Prefix]time.Time{}
	for p, f := range kept { // the file may say null
		d.loop.flaps[p] = f
		if n := len(f.Withdrawn); n > 0 {
			left[p] = f.Withdrawn[n-1]
		}
	}
	d.guard.RecallLeft(left)
	return nil
}

// noteOrder puts an order of an operator into the ring and the log.
func (d *daemon) noteOrder(kind, subject, from, to, why string) {
	d.log.Info("order of an operator", "kind", kind, "what", subject, "from", from, "to", to, "reason", why)
	d.events.Add(edge.Event{Time: time.Now(), Kind: kind, Subject: subject, From: from, To: to, Evidence: why})
}

// noteEvents puts the changes at edgebgp since the last snapshot into the ring.
func (d *daemon) noteEvents(st *edge.SystemStatus) {
	before := map[edge.PeerID]edge.PeerState{}
	for _, p := range d.peersSeen {
		before[p.ID] = p
	}
	for _, p := range st.Speaker.Peers {
		was := before[p.ID]
		delete(before, p.ID)
		d.noteChange(st.Time, "peer", p.ID, was.Session, p.Session, p.LastErr)
		d.noteChange(st.Time, "bfd", p.ID, bfdState(was), bfdState(p), bfdError(p))
	}
	for _, was := range before {
		d.noteChange(st.Time, "peer", was.ID, was.Session, "none", "edgebgp has it no more")
	}
	d.peersSeen = st.Speaker.Peers
}

func (d *daemon) noteChange(at time.Time, kind string, peer edge.PeerID, from, to, why string) {
	from, to = cmp.Or(from, "none"), cmp.Or(to, "none")
	if from == to || !telling(kind, from, to) {
		return
	}
	if to == "established" || to == "up" {
		why = ""
	}
	d.events.Add(edge.Event{Time: at, Kind: kind, Subject: string(peer), From: from, To: to, Evidence: why})
}

// telling leaves out the way of a session through its states while it does not
// come up: that repeats every few seconds.
func telling(kind, from, to string) bool {
	return kind != "peer" || from == "established" || to == "established"
}

func bfdState(p edge.PeerState) string {
	if p.BFD == nil {
		return ""
	}
	return p.BFD.State
}

func bfdError(p edge.PeerState) string {
	if p.BFD == nil {
		return ""
	}
	return cmp.Or(p.BFD.LastErr, p.BFD.Diag)
}
