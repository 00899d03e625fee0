package guard

import (
	"bytes"
	"compress/flate"
	"crypto/ed25519"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard/promise"
)

// Everything that this package sends begins with a version and a kind, one
// byte each. What a node says ends in its signature over all that comes before
// (see sign.go), so all that is relayed is kept and passed on byte by byte.
//
//	messages version kind who len(to) to to_boot JSON, a list; signature
//	report   version kind who DEFLATE(JSON) signature
//	pulse    version kind who len(to) to to_boot stands boot seq age_ms made_ms signature
//	state    version kind {age_ms len report}*
//	digest   version kind len(node) node {len(node) node boot seq}*
//	who      len(node) node len(site) site boot seq
//
// Numbers are big-endian: boot, to_boot, seq, stands 8 bytes, age_ms, made_ms, len
// 4, len() 1, signature 64. The head, which is all before the body, tells who
// speaks, as which process, and whether it is news: what is not (most is not) is
// dropped before a signature is checked, and no body is read before that. A state
// and a digest are not signed: in the one each report is, and what the other makes
// a node do is to send a bounded number of reports to a node of the roster.
const (
	version = 2

	kindMessages = 1
	kindReport   = 2
	kindState    = 3
	kindPulse    = 4
	kindDigest   = 5
)

// Limits, in bytes unless they say otherwise.
const (
	// maxRumor fits a gossip packet of 1400 bytes with its encryption (29),
	// label (11) and framing (5).
	maxRumor = 1300
	// maxBatch bounds what is sent to one node at once: a site that falls sick
	// asks for all its prefixes.
	maxBatch      = 128 // messages
	maxBatchBytes = 512 << 10
	// maxReport bounds a report before and after it is unpacked.
	maxReport = 1 << 20
	// maxMessage bounds what is received: a report in a state, for one.
	maxMessage = maxReport + 1<<10
	maxText    = 256
	maxName    = 32
	maxItems   = 4096 // claims, regions
	maxBoot    = math.MaxInt64 - 1
	// maxHead is more than any head and signature take.
	maxHead = 256
)

// dropped is an error whose text is the reason under which it is counted.
type dropped string

func (d dropped) Error() string { return string(d) }

// The reasons of the decoder.
const (
	errMalformed = dropped("malformed")
	errVersion   = dropped("unknown_version")
	errKind      = dropped("unknown_kind")
	errOversize  = dropped("oversize")
)

// kindOf reads the first two bytes.
func kindOf(raw []byte) (byte, error) {
	switch {
	case len(raw) < 2:
		return 0, errMalformed
	case raw[0] != version:
		return 0, errVersion
	case len(raw) > maxMessage:
		return 0, errOversize
	}
	return raw[1], nil
}

func expect(raw []byte, kind byte) error {
	k, err := kindOf(raw)
	if err == nil && k != kind {
		err = errKind
	}
	return err
}

// wire is a message as JSON. Who sends it to whom is in the head.
type wire struct {
	Kind     promise.Kind  `json:"k"`
	From     edge.NodeID   `json:"f"`
	To       edge.NodeID   `json:"t"`
	Prefix   netip.Prefix  `json:"p"`
	Boot     int64         `json:"b"`
	N        uint64        `json:"n"`
	Severity int           `json:"s,omitempty"`
	Reason   edge.Reason   `json:"r,omitempty"`
	Well     bool          `json:"w,omitempty"`
	Veto     bool          `json:"v,omitempty"`
	Lease    time.Duration `json:"l,omitempty"`
}

func encodeMessages(h head, all []promise.Message, key ed25519.PrivateKey) []byte {
	ws := make([]wire, len(all))
	for i, m := range all {
		ws[i] = wire{
			Kind: m.Kind, From: m.From, To: m.To, Prefix: m.Prefix, Boot: m.Round.Boot, N: m.Round.N,
			Severity: m.Severity, Reason: edge.Reason(clean(string(m.Reason), maxText)), Well: m.Well, Veto: m.Veto, Lease: m.Lease,
		}
	}
	b, err := json.Marshal(ws)
	if err != nil {
		panic(fmt.Sprintf("encode messages: %v", err)) // names, numbers and prefixes: cannot be
	}
	return sign(append(h.append(kindMessages), b...), key)
}

// decodeMessages takes all of a batch or nothing. Its signature must have been
// checked: nobody may speak for another, nor to somebody else.
func decodeMessages(l letter) ([]promise.Message, error) {
	var ws []wire
	if json.Unmarshal(l.body, &ws) != nil || len(ws) == 0 || len(ws) > maxBatch {
		return nil, errMalformed
	}
	out := make([]promise.Message, len(ws))
	for i, w := range ws {
		switch {
		case !w.Prefix.IsValid() || w.Prefix != w.Prefix.Masked() || w.Kind < promise.Intent || w.Kind > promise.Release || w.Lease < 0 || w.Boot > maxBoot:
			return nil, errMalformed
		case w.From != l.node:
			return nil, errSpoken
		case w.To != l.to:
			return nil, errMisdirected
		}
		out[i] = promise.Message{
			Kind: w.Kind, From: w.From, To: w.To, Prefix: w.Prefix, Round: promise.Round{Boot: w.Boot, N: w.N},
			Severity: w.Severity, Reason: edge.Reason(clean(string(w.Reason), maxText)), Well: w.Well, Veto: w.Veto, Lease: w.Lease,
		}
	}
	return out, nil
}

// head is what stands before the body, in the clear.
type head struct {
	node edge.NodeID
	site edge.SiteID
	boot int64
	// seq counts the reports of a process, its pulses, or its batches to one node,
	// from 1.
	seq uint64
	// to is for whom messages and pulses are, and for which process of it; 0: not
	// known.
	to     edge.NodeID
	toBoot int64
}

// isDirect says whether letters of a kind are for one node.
func isDirect(kind byte) bool { return kind == kindMessages || kind == kindPulse }

func (h head) append(kind byte) []byte {
	name := func(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }
	b := name(name([]byte{version, kind}, string(h.node)), string(h.site))
	b = binary.BigEndian.AppendUint64(b, uint64(h.boot))
	b = binary.BigEndian.AppendUint64(b, h.seq)
	if isDirect(kind) {
		b = binary.BigEndian.AppendUint64(name(b, string(h.to)), uint64(h.toBoot))
	}
	return b
}

// letter is what a node says: a head, a body and a signature.
type letter struct {
	head
	raw    []byte // all of it
	body   []byte
	signed []byte // what the signature is over
	seal   []byte
}

// open reads the head of a letter of a kind, and believes nothing yet.
func open(raw []byte, kind byte) (letter, error) {
	if err := expect(raw, kind); err != nil {
		return letter{}, err
	}
	c := &cursor{b: raw[2:]}
	l := letter{raw: raw, head: head{node: edge.NodeID(c.name()), site: edge.SiteID(c.name()), boot: c.boot(), seq: c.uint64()}}
	c.bad = c.bad || l.boot == 0
	if isDirect(kind) {
		l.to, l.toBoot = edge.NodeID(c.name()), c.boot()
	}
	n := len(c.b) - ed25519.SignatureSize
	if c.bad || n < 0 {
		return letter{}, errMalformed
	}
	l.body, l.seal = c.b[:n], c.b[n:]
	l.signed = raw[:len(raw)-ed25519.SignatureSize]
	if kind == kindMessages && n > maxBatchBytes {
		return letter{}, errOversize
	}
	return l, nil
}

// cursor reads a head; bad says that it was cut short or holds nonsense.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) take(n int) []byte {
	if c.bad || len(c.b) < n {
		c.bad = true
		return make([]byte, n)
	}
	out := c.b[:n]
	c.b = c.b[n:]
	return out
}

func (c *cursor) name() string {
	s := string(c.take(int(c.take(1)[0])))
	c.bad = c.bad || !isName(s)
	return s
}

func (c *cursor) uint64() uint64 { return binary.BigEndian.Uint64(c.take(8)) }

func (c *cursor) boot() int64 {
	n := c.uint64()
	c.bad = c.bad || n > maxBoot
	return int64(n)
}

func (h head) newer(than edge.Report) bool {
	return h.boot > than.Boot || h.boot == than.Boot && h.seq > than.Seq
}

func (h head) older(than edge.Report) bool {
	return h.boot < than.Boot || h.boot == than.Boot && h.seq < than.Seq
}

func encodeReport(r edge.Report, key ed25519.PrivateKey) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode report: %w", err)
	}
	out := bytes.NewBuffer(head{node: r.Node, site: r.Site, boot: r.Boot, seq: r.Seq}.append(kindReport))
	z, err := flate.NewWriter(out, flate.DefaultCompression)
	if err == nil {
		_, err = z.Write(body)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("pack report: %w", err)
	}
	if len(body) > maxReport || out.Len() > maxReport-maxHead {
		return nil, fmt.Errorf("encode report: %d bytes are more than %d", len(body), maxReport)
	}
	return sign(out.Bytes(), key), nil
}

// decodeReport unpacks a report whose signature has been checked.
func decodeReport(l letter) (edge.Report, error) {
	var r edge.Report
	text, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(l.body)), maxReport+1))
	switch {
	case err != nil:
		return r, errMalformed
	case len(text) > maxReport:
		return r, errOversize
	case json.Unmarshal(text, &r) != nil:
		return r, errMalformed
	case r.Node != l.node || r.Site != l.site || r.Boot != l.boot || r.Seq != l.seq:
		return r, errMalformed
	}
	return r, checkReport(&r)
}

// checkReport refuses what no node has reason to say and makes texts clean:
// reports are shown to operators and other processes reckon with them.
func checkReport(r *edge.Report) error {
	if !isName(string(r.Site)) || len(r.Says) > maxItems || len(r.Load.Regions) > maxItems || !isRate(r.Load.Demand) {
		return errMalformed
	}
	for i := range r.Says {
		c := &r.Says[i]
		if !c.Prefix.IsValid() || c.Prefix != c.Prefix.Masked() || len(c.Rung) > maxName {
			return errMalformed
		}
	}
	for i := range r.Load.Regions {
		v := &r.Load.Regions[i]
		if !isName(string(v.Region)) || v.RTT < 0 || v.Up < 0 || v.Of < v.Up || !isRate(v.Sent) || !isRate(v.Allowance) {
			return errMalformed
		}
	}
	tidyReport(r)
	return nil
}

// maxOrders bounds the orders of a report.
const maxOrders = 256

// tidyReport makes texts harmless and short, and leaves out what is said beside
// claims and load and makes no sense: that must not cost the claims.
func tidyReport(r *edge.Report) {
	for i := range r.Says {
		c := &r.Says[i]
		c.Rung, c.Reason = edge.Rung(clean(string(c.Rung), maxName)), edge.Reason(clean(string(c.Reason), maxText))
	}
	for i := range r.Load.Regions {
		r.Load.Regions[i].LastErr = clean(r.Load.Regions[i].LastErr, maxText)
	}
	if len(r.Shared) > maxItems {
		r.Shared = nil
	}
	maps.DeleteFunc(r.Shared, func(id edge.ProbeID, _ edge.ProbeState) bool { return !isName(string(id)) })
	r.Spared = slices.DeleteFunc(r.Spared, func(s edge.Spared) bool {
		return !isName(string(s.Node)) || !s.Prefix.IsValid() || s.Prefix != s.Prefix.Masked()
	})
	r.Spared = r.Spared[:min(len(r.Spared), maxItems)]
	r.Prefer = slices.DeleteFunc(r.Prefer, func(o edge.Preference) bool { return o.Check() != nil })
	r.Prefer = r.Prefer[:min(len(r.Prefer), maxOrders)]
	for i := range r.Prefer {
		r.Prefer[i].Reason = clean(r.Prefer[i].Reason, maxText)
	}
	tidyMore(r)
}

func isRate(f float64) bool { return f >= 0 && f <= math.MaxFloat64 } // neither NaN nor infinite

// isName says whether s can be a name of the configuration.
func isName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// clean makes text from outside fit for a terminal and a log: no control
// characters, at most limit bytes, whole runes.
func clean(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
