package guard

import (
	"log/slog"
	"net"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/catchment-dev/edge"
)

const (
	// answerEvery bounds what one node is sent in answer to its pulses.
	answerEvery = time.Second
	// inFlight is how long a report may be on its way before it is sent again.
	inFlight = time.Second
)

// courier sends what is not gossip: pulses, reports to those who lack them and
// figures of load. Only one goroutine uses it.
type courier struct {
	g     *Guard
	links *links
	// packet sends a packet, which may get lost.
	packet func(*memberlist.Node, []byte) error
	log    *slog.Logger

	pulsed time.Time // until then all pulses are sent that are due
	turn   int       // whose pulse is next
	told   uint64    // Seq of the report that was last sent to all
	toldAt time.Time
}

// tick sends what is due.
func (c *courier) tick(now time.Time) {
	c.pulses(now)
	c.tell(now)
	c.g.readLate(now)
}

// pulses go to all nodes of the roster in turn, also to those that are not alive
// by the failure detector: whoever hears one is not isolated. They are spread
// over the time that there is, not to come in bursts.
func (c *courier) pulses(now time.Time) {
	others := c.g.roster.Load().others
	if len(others) == 0 {
		return
	}
	every := pulseEvery(len(others)+1) / time.Duration(len(others))
	if now.Sub(c.pulsed) > every+pulseLeast { // at the beginning, or the box has slept
		c.pulsed = now.Add(-every)
	}
	for ; now.Sub(c.pulsed) >= every; c.pulsed = c.pulsed.Add(every) {
		c.turn = (c.turn + 1) % len(others)
		c.pulse(others[c.turn], now)
	}
}

func (c *courier) pulse(to edge.Node, now time.Time) { c.toss(to, c.g.pulseFor(to.ID, now)) }

// toss sends a packet.
func (c *courier) toss(to edge.Node, raw []byte) {
	if err := c.packet(&memberlist.Node{Name: string(to.ID), Addr: net.IP(to.Gossip.Addr().AsSlice()), Port: to.Gossip.Port()}, raw); err != nil {
		c.log.Debug("packet not sent", "to", to.ID, "err", err)
	}
}

// tell sends this node's report to each live member directly when gossip does not
// carry it: one that is larger than a packet, or has only figures of load that are
// new. To tell each once is an order less than gossip needs to be sure; what
// gets lost, the pulses find out.
func (c *courier) tell(now time.Time) {
	c.g.mu.Lock()
	own, rumored := c.g.own, c.g.rumored
	c.g.mu.Unlock()
	if own.report.Seq == c.told || own.report.Seq == rumored || now.Sub(c.toldAt) < loadLeast {
		return
	}
	c.told, c.toldAt = own.report.Seq, now
	for _, n := range c.g.roster.Load().others {
		if c.g.up.is(n.ID) {
			c.send(n, own.raw)
		}
	}
}

// send sends one report to one node, who does not pass it on, or a pulse of its own.
func (c *courier) send(to edge.Node, raw []byte) {
	if raw[1] == kindPulse {
		c.toss(to, raw)
		return
	}
	state := appendState([]byte{version, kindState}, raw, 0)
	if len(raw) <= maxRumor {
		c.toss(to, state)
		return
	}
	c.links.to(to).report(state)
}

// hearPulse takes a pulse in, and answers if one of the two has missed something.
func (c *courier) hearPulse(raw []byte) {
	p, err := c.g.takePulse(raw)
	if err != nil {
		c.g.drops.add(err.Error())
		return
	}
	if p.node == c.g.self {
		c.g.hearOfSelf(p.head)
		return
	}
	from, ok := c.g.roster.Load().byID[p.node]
	if !ok {
		return // it left the roster a moment ago
	}
	now := time.Now()
	answer, lacks := c.g.note(p, now)
	if answer {
		c.pulse(from, now)
	}
	if lacks != nil {
		c.send(from, lacks)
	}
}
