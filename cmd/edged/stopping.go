package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// speakerStops is why the node is drained while edgebgp is to stop.
const speakerStops = "edgebgp is to stop"

// followStop takes in whether edgebgp is to stop, by what it said last: it has said so
// still when it has stopped. To close its sessions takes everything off the air, so it
// waits until all has left: as by an operator's drain of the node, with the guard's
// permit. The order ends when an edgebgp answers that is not to stop: nobody has to take
// it back.
func (d *daemon) followStop() {
	since, was := d.loop.state.Stopping, d.drains.stop
	switch {
	case since.IsZero() && was != nil:
		d.drains.stop = nil
		d.noteStop("is to stop", "runs", "another edgebgp has answered, and is not to stop")
	case !since.IsZero() && was == nil:
		d.drains.stop = &edge.Drain{Reason: speakerStops, Since: since, Stop: true}
		d.noteStop("runs", "is to stop", "the node is drained until another edgebgp answers")
	}
}

func (d *daemon) noteStop(from, to, why string) {
	d.log.Info("edgebgp "+to, "reason", why)
	d.events.Add(edge.Event{Time: time.Now(), Kind: "drain", Subject: "edgebgp", From: from, To: to, Evidence: why})
}

// stopAlarm says what edgebgp waits for while the guard refuses; empty: nothing, or it
// has not been refused.
func stopAlarm(st *edge.SystemStatus) string {
	if st.Speaker.Stopping.IsZero() || st.SpeakerErr != "" {
		return ""
	}
	var stay []string
	why := edge.Reason("")
	for _, dec := range st.Decisions {
		if p := st.Guard.Asking[dec.Prefix]; dec.Rung == edge.LastResort {
			stay, why = append(stay, dec.Prefix.String()), p.Reason
		}
	}
	if len(stay) == 0 {
		return ""
	}
	more := ""
	if n := len(stay) - 3; n > 0 {
		stay, more = stay[:3], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("edgebgp is to stop since %s, and goes on announcing %s%s, which may not leave: %s; a second SIGTERM, or the end of its TimeoutStopSec, takes them off the air without leave",
		clock(st.Speaker.Stopping), strings.Join(stay, ", "), more, why)
}
