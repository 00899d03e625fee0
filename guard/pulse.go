package guard

import (
	"crypto/ed25519"
	"encoding/binary"
	"time"

	"github.com/catchment-dev/edge"
)

// isolatedAfter is how long no other site may be heard. In a fleet of two it takes
// ten pulses; in a large one, some come each second.
const isolatedAfter = 10 * time.Second

// errLate is why a pulse is dropped that came after a newer one, or again.
const errLate = dropped("stale_pulse")

// pulse is a sign of life, for one node. It says which report of the sender stands,
// since the others would not hear of it otherwise while nothing changes, and which of
// the receiver's the sender has: what got lost is sent again. It is signed, and
// numbered in the head, and names the process that it is for: nobody else can keep
// alive what a node has said, nor can who has recorded it.
type pulse struct {
	head
	stands uint64 // Seq of the report; 0: it has not said anything yet
	knows  head   // of the receiver's, boot and seq
	// Before this was sent: when the sender last said that the report stands, and
	// when it made it.
	age, made time.Duration
	raw       string // as it came; empty: not known
}

const pulseBody = 3*8 + 2*4 // bytes

func encodePulse(p pulse, key ed25519.PrivateKey) []byte {
	b := p.head.append(kindPulse)
	for _, v := range []uint64{p.stands, uint64(p.knows.boot), p.knows.seq} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	b = binary.BigEndian.AppendUint32(b, millis(p.age))
	return sign(binary.BigEndian.AppendUint32(b, millis(p.made)), key)
}

// decodePulse reads a pulse whose signature has been checked.
func decodePulse(l letter) (pulse, error) {
	if len(l.body) != pulseBody {
		return pulse{}, errMalformed
	}
	c := &cursor{b: l.body}
	p := pulse{head: l.head, stands: c.uint64(), knows: head{boot: c.boot(), seq: c.uint64()}}
	span := func() time.Duration { return time.Duration(binary.BigEndian.Uint32(c.take(4))) * time.Millisecond }
	p.age, p.made = span(), span()
	if c.bad {
		return pulse{}, errMalformed
	}
	return p, nil
}

// peer is what is known of another node beside what it says.
type peer struct {
	at time.Time // when it was last heard itself
	// When it was last answered, sent this node's report and sent all that it
	// lacked, and when a report of it was last read.
	asked, sent, compared, read time.Time
}

// peer returns what is known of a node of the roster. The lock is held.
func (g *Guard) peer(id edge.NodeID) *peer {
	p := g.peers[id]
	if p == nil {
		p = &peer{}
		g.peers[id] = p
	}
	return p
}

// pulseFor makes the next pulse for a node.
func (g *Guard) pulseFor(to edge.NodeID, now time.Time) []byte {
	g.mu.Lock()
	g.beats++
	p := pulse{
		head:   head{node: g.self, site: g.roster.Load().self.Site, boot: g.boot, seq: g.beats, to: to, toBoot: g.bootOf(to)},
		stands: g.own.report.Seq, age: now.Sub(g.vouched), made: now.Sub(g.own.at),
	}
	if h := g.heard[to]; h != nil {
		p.knows = head{boot: h.report.Boot, seq: h.report.Seq}
	}
	key := g.key
	g.mu.Unlock()
	return encodePulse(p, key)
}

// beating says what is wrong with the head of a pulse, before its signature is
// checked; nil: nothing is. The lock is held.
func (g *Guard) beating(h head) error {
	s := g.senders[h.node]
	switch {
	case h.node == g.self && h.boot > g.boot:
		return nil // see hearOfSelf
	case h.node == g.self:
		return errSelf
	case h.to != g.self:
		return errMisdirected
	case s == nil || h.boot > s.boot || h.boot == s.boot && h.seq > s.beat:
		return nil
	case h.boot < s.boot && g.tellOf(h, time.Now()) != nil:
		return nil // its clock went back: see hearOfSelf
	case h.boot < s.boot:
		return errStaleBoot
	}
	return errLate
}

// tellOf is what tells a process that is older than what is heard of its node that it
// is: a report of that, or a sign of life if no report came; nil: not now. The lock is
// held.
func (g *Guard) tellOf(h head, now time.Time) []byte {
	s, old := g.senders[h.node], g.heard[h.node]
	switch {
	case now.Sub(g.peer(h.node).sent) < answerEvery:
		return nil
	case s != nil && h.boot < s.boot && s.proof != nil && (old == nil || old.report.Boot < s.boot):
		return s.proof
	case old != nil && h.boot < old.report.Boot:
		return old.raw
	}
	return nil
}

// takePulse believes a pulse if it is signed by its sender, and new.
func (g *Guard) takePulse(raw []byte) (pulse, error) {
	l, from, err := g.signed(raw, kindPulse, func(h head) error {
		if err := g.beating(h); err != nil {
			return err
		}
		return g.mayCheck(kindPulse, raw)
	})
	if err != nil {
		return pulse{}, err
	}
	p, err := decodePulse(l)
	if err != nil {
		return pulse{}, err
	}
	p.raw = string(raw)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stillThere(from) {
		return pulse{}, errSignature
	}
	return p, g.beating(l.head)
}

// note keeps what a pulse says. answer: its sender is to be sent one, as it does not
// know this process, or this node not that one, or not what it says; lacks: a report
// which the sender has not got, or a sign of life of a process that it takes for a later one.
func (g *Guard) note(p pulse, now time.Time) (answer bool, lacks []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, h, was := g.peer(p.node), g.heard[p.node], g.bootOf(p.node)
	if p.boot < was {
		g.drops.add(string(errStaleBoot))
		if lacks = g.tellOf(p.head, now); lacks != nil {
			at.sent = now
		}
		return false, lacks
	}
	s := g.noteBoot(p.head)
	s.beat = p.seq
	if s.proof == nil && p.raw != "" {
		s.proof = []byte(p.raw)
	}
	// One for another process may have been recorded: it is no sign of life now.
	bound := p.toBoot == g.boot || p.toBoot == g.born
	if bound {
		at.at = now
		s.vouch(p, now)
		if h != nil {
			h.heed(s)
		}
	}
	news := p.stands > 0 && (h == nil || head{boot: p.boot, seq: p.stands}.newer(h.report))
	if answer = (!bound || was != p.boot || news) && now.Sub(at.asked) >= answerEvery; answer {
		at.asked = now
	}
	if p.knows.older(g.own.report) && now.Sub(g.own.at) >= inFlight && now.Sub(at.sent) >= answerEvery {
		at.sent, lacks = now, g.own.raw
	}
	return answer, lacks
}

// vouch keeps that a report stands.
func (s *sender) vouch(p pulse, now time.Time) {
	if stood := now.Add(-p.age); p.stands >= s.stands && stood.After(s.stood) {
		s.stands, s.stood, s.made = p.stands, stood, now.Add(-p.made)
	}
}

// heed makes a report as old as its node has said itself that it is. One that is
// newer than that was said since.
func (h *heard) heed(s *sender) {
	if s == nil || s.stands == 0 || s.boot != h.report.Boot || h.report.Seq < s.stands {
		return
	}
	if s.stood.After(h.at) {
		h.at = s.stood
	}
	if h.report.Seq == s.stands {
		h.made = s.made
	}
}

// isolated says whether no node of another site has been heard for a while. In a
// fleet of one site nobody is. The lock is held.
func (g *Guard) isolated(now time.Time) bool {
	r := g.roster.Load()
	alone := false
	for _, n := range r.others {
		if n.Site == r.self.Site {
			continue
		}
		alone = true
		if p := g.peers[n.ID]; p != nil && now.Sub(p.at) < isolatedAfter {
			return false
		}
	}
	return alone && now.Sub(g.started) >= isolatedAfter
}
