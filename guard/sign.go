package guard

import (
	"crypto/ed25519"
	"slices"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard/promise"
)

// signing separates our signatures from those of anything else that a node's
// key may be used for: it is the context of Ed25519ctx (RFC 8032 section 5.1).
var signing = &ed25519.Options{Context: "catchment guard 2"}

// The reasons for which a letter is not believed.
const (
	errUnknown     = dropped("unknown_sender")
	errSelf        = dropped("self_sent")
	errSite        = dropped("wrong_site")
	errStaleBoot   = dropped("stale_boot")
	errReplayed    = dropped("replayed")
	errOtherBoot   = dropped("other_boot") // for an earlier process of this node
	errSignature   = dropped("bad_signature")
	errSpoken      = dropped("wrong_sender") // signed by one, said in the name of another
	errMisdirected = dropped("misdirected")
)

// sign appends the signature over all of b.
func sign(b []byte, key ed25519.PrivateKey) []byte {
	seal, err := key.Sign(nil, b, signing)
	if err != nil {
		panic("sign: " + err.Error()) // only for options that are wrong
	}
	return append(b, seal...)
}

// by says whether the key of a node has signed the letter.
func (l letter) by(key edge.NodeKey) bool {
	return ed25519.VerifyWithOptions(key[:], l.signed, l.seal, signing) == nil
}

// seal signs a batch of messages to a node, the seq-th; nil: nothing of it is to be sent.
func (g *Guard) seal(to edge.NodeID, seq uint64, batch []promise.Message) []byte {
	g.mu.Lock()
	h := head{node: g.self, site: g.roster.Load().self.Site, boot: g.boot, seq: seq, to: to, toBoot: g.bootOf(to)}
	key := g.key
	g.mu.Unlock()
	// Of rounds of before the key was changed: they would use up the new numbers too.
	batch = slices.DeleteFunc(batch, func(m promise.Message) bool {
		return (m.Kind == promise.Intent || m.Kind == promise.Release) && m.Round.Boot > h.boot
	})
	if len(batch) == 0 {
		return nil
	}
	return encodeMessages(h, batch, key)
}
