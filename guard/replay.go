package guard

import (
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard/promise"
)

// windowSize is how many batches may overtake one another: each has a connection
// of its own, and one may wait for a packet that was lost.
const windowSize = 1024

// window remembers which numbers have been seen, of the newest windowSize; all
// older ones count as seen.
type window struct {
	top  uint64
	bits [windowSize / 64]uint64
}

func (w *window) has(n uint64) bool {
	if n > w.top {
		return false
	}
	return w.top-n >= windowSize || w.bits[n/64%uint64(len(w.bits))]&(1<<(n%64)) != 0
}

func (w *window) add(n uint64) {
	for i := range min(n-min(n, w.top), windowSize) {
		m := n - i
		w.bits[m/64%uint64(len(w.bits))] &^= 1 << (m % 64)
	}
	w.top = max(w.top, n)
	w.bits[n/64%uint64(len(w.bits))] |= 1 << (n % 64)
}

// sender is what is remembered of a node, so that nothing is taken twice.
type sender struct {
	boot  int64 // the newest that was seen, with a good signature
	got   window
	taken uint64 // batches of that boot
	beat  uint64 // the number of its newest pulse
	proof []byte // a pulse of that boot
	// What its pulses have said: which report stood when, and when that was made;
	// on this node's clock.
	stands      uint64
	stood, made time.Time
}

// refuse says what is wrong with a head of messages; nil: nothing is.
func (s *sender) refuse(h head) error {
	switch {
	case s == nil || h.boot > s.boot:
		return nil
	case h.boot < s.boot:
		return errStaleBoot
	case s.got.has(h.seq):
		return errReplayed
	}
	return nil
}

// noteBoot remembers the boot of a node whose signature was good. The lock is
// held.
func (g *Guard) noteBoot(h head) *sender {
	s := g.senders[h.node]
	if s == nil || s.boot < h.boot {
		s = &sender{boot: h.boot}
		g.senders[h.node] = s
	}
	return s
}

// bootOf is the newest boot id of a node; 0: not known. The lock is held.
func (g *Guard) bootOf(id edge.NodeID) int64 {
	if s := g.senders[id]; s != nil {
		return s.boot
	}
	return 0
}

// author finds the node of the roster that a head names.
func (r *roster) author(h head) (edge.Node, error) {
	n, ok := r.byID[h.node]
	switch {
	case !ok:
		return n, errUnknown
	case n.Site != h.site:
		return n, errSite
	}
	return n, nil
}

// addressed says what is wrong with the head of messages, before their signature
// is checked; nil: nothing is. The lock is held.
func (g *Guard) addressed(h head) error {
	switch {
	case h.node == g.self:
		return errSelf
	case h.to != g.self:
		return errMisdirected
	case h.toBoot != 0 && h.toBoot != g.boot && h.toBoot != g.born:
		return errOtherBoot
	}
	return g.senders[h.node].refuse(h)
}

// worth says whether a letter is worth a place in the inbox, by its head alone:
// what was recorded and is sent again must not push out what is new.
func (g *Guard) worth(raw []byte) bool {
	news, err := g.weigh(raw)
	if err != nil {
		g.drops.add(err.Error())
	}
	return news && err == nil
}

func (g *Guard) weigh(raw []byte) (bool, error) {
	kind, err := kindOf(raw)
	switch {
	case err != nil:
		return false, err
	case kind == kindDigest && len(raw) > maxDigest:
		return false, errOversize
	case kind == kindState || kind == kindDigest:
		return true, nil // they have no author
	case kind < kindMessages || kind > kindDigest:
		return false, errKind
	}
	l, err := open(raw, kind)
	if err == nil {
		_, err = g.roster.Load().author(l.head)
	}
	if err != nil {
		return false, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch kind {
	case kindReport:
		return g.isNews(l.head)
	case kindPulse:
		return true, g.beating(l.head)
	}
	return true, g.addressed(l.head)
}

// isNews says whether a report is newer than what is known of its node; one of
// this node itself is only if it is of another process. One of an earlier
// process is an error. The lock is held.
func (g *Guard) isNews(h head) (bool, error) {
	if h.node == g.self {
		return h.boot > g.boot, nil
	}
	if h.boot < g.bootOf(h.node) {
		return false, errStaleBoot
	}
	old, late := g.heard[h.node], g.late[h.node]
	if late != nil && !late.olderThan(h) {
		return false, nil
	}
	return old == nil || h.newer(old.report), nil
}

// signed opens a letter that a node of the roster has signed. may is asked under the
// lock, and before the signature is checked, which is dear: what it says of the head
// can have changed since when the letter is taken in.
func (g *Guard) signed(raw []byte, kind byte, may func(head) error) (letter, edge.Node, error) {
	l, err := open(raw, kind)
	if err != nil {
		return l, edge.Node{}, err
	}
	from, err := g.roster.Load().author(l.head)
	if err != nil {
		return l, from, err
	}
	g.mu.Lock()
	err = may(l.head)
	g.mu.Unlock()
	if err == nil && !l.by(from.PublicKey) {
		err = errSignature
	}
	return l, from, err
}

// mayCheck says whether there is time to check a signature that is not of the
// protocol. The lock is held.
func (g *Guard) mayCheck(kind byte, raw []byte) error {
	if !g.checks[kind].spend(time.Now(), checkCost(raw), checkBurst) {
		return errTooMany
	}
	return nil
}

// takeMessages believes a batch if it is signed by its sender, for this process,
// and new.
func (g *Guard) takeMessages(raw []byte) ([]promise.Message, error) {
	l, from, err := g.signed(raw, kindMessages, g.addressed)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.addressed(l.head); err != nil {
		return nil, err
	}
	if !g.stillThere(from) {
		return nil, errSignature
	}
	s := g.noteBoot(l.head)
	s.got.add(l.seq)
	s.taken++
	return decodeMessages(l)
}

// stillThere says whether the roster has not changed a node's key or site meanwhile.
// The lock is held.
func (g *Guard) stillThere(n edge.Node) bool {
	now, ok := g.roster.Load().byID[n.ID]
	return ok && now.PublicKey == n.PublicKey && now.Site == n.Site
}
