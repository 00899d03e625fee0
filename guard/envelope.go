package guard

import (
	"bytes"
	"compress/flate"
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
// byte each. Version 1 is not signed; version 2 will end in the signature of
// the sender over all that comes before, so all that is relayed is kept and
// passed on byte by byte.
//
//	messages version kind JSON, a list
//	report   version kind len(node) node boot seq DEFLATE(JSON)
//	state    version kind {age_ms len report}*
//
// Numbers are big-endian: boot, seq 8 bytes, age_ms, len 4, len(node) 1. The
// head of a report repeats what is inside, so that one which is no news (most
// are not) costs nothing.
const (
	version = 1

	kindMessages = 1
	kindReport   = 2
	kindState    = 3
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
	maxText   = 256
	maxName   = 32
	maxItems  = 4096 // claims, regions
	maxBoot   = math.MaxInt64 - 1
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
	case len(raw) > maxReport:
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

// wire is a message as JSON.
type wire struct {
	Kind     promise.Kind  `json:"k"`
	From     edge.NodeID   `json:"f"`
	To       edge.NodeID   `json:"t"`
	Prefix   netip.Prefix  `json:"p"`
	Boot     int64         `json:"b"`
	N        uint64        `json:"n"`
	Severity int           `json:"s,omitempty"`
	Reason   edge.Reason   `json:"r,omitempty"`
	Lease    time.Duration `json:"l,omitempty"`
}

func encodeMessages(all []promise.Message) []byte {
	ws := make([]wire, len(all))
	for i, m := range all {
		ws[i] = wire{m.Kind, m.From, m.To, m.Prefix, m.Round.Boot, m.Round.N, m.Severity, edge.Reason(clean(string(m.Reason), maxText)), m.Lease}
	}
	b, err := json.Marshal(ws)
	if err != nil {
		panic(fmt.Sprintf("encode messages: %v", err)) // names, numbers and prefixes: cannot be
	}
	return append([]byte{version, kindMessages}, b...)
}

// decodeMessages takes all of a batch or nothing.
func decodeMessages(raw []byte) ([]promise.Message, error) {
	if err := expect(raw, kindMessages); err != nil {
		return nil, err
	}
	if len(raw) > maxBatchBytes {
		return nil, errOversize
	}
	var ws []wire
	if json.Unmarshal(raw[2:], &ws) != nil || len(ws) == 0 || len(ws) > maxBatch {
		return nil, errMalformed
	}
	out := make([]promise.Message, len(ws))
	for i, w := range ws {
		if !isName(string(w.From)) || !isName(string(w.To)) || !w.Prefix.IsValid() || w.Prefix != w.Prefix.Masked() ||
			w.Kind < promise.Intent || w.Kind > promise.Release || w.Lease < 0 || w.Boot > maxBoot {
			return nil, errMalformed
		}
		out[i] = promise.Message{
			Kind: w.Kind, From: w.From, To: w.To, Prefix: w.Prefix, Round: promise.Round{Boot: w.Boot, N: w.N},
			Severity: w.Severity, Reason: edge.Reason(clean(string(w.Reason), maxText)), Lease: w.Lease,
		}
	}
	return out, nil
}

// head is what can be known of a report without unpacking it.
type head struct {
	node edge.NodeID
	boot int64
	seq  uint64
}

func (h head) newer(than edge.Report) bool {
	return h.boot > than.Boot || h.boot == than.Boot && h.seq > than.Seq
}

func encodeReport(r edge.Report) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode report: %w", err)
	}
	out := bytes.NewBuffer([]byte{version, kindReport, byte(len(r.Node))})
	out.WriteString(string(r.Node))
	out.Write(binary.BigEndian.AppendUint64(nil, uint64(r.Boot)))
	out.Write(binary.BigEndian.AppendUint64(nil, r.Seq))
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
	if len(body) > maxReport || out.Len() > maxReport {
		return nil, fmt.Errorf("encode report: %d bytes are more than %d", len(body), maxReport)
	}
	return out.Bytes(), nil
}

func decodeHead(raw []byte) (head, []byte, error) {
	if err := expect(raw, kindReport); err != nil {
		return head{}, nil, err
	}
	b := raw[2:]
	if len(b) < 1 || len(b) < 1+int(b[0])+16 {
		return head{}, nil, errMalformed
	}
	name, b := string(b[1:1+b[0]]), b[1+b[0]:]
	h := head{edge.NodeID(name), int64(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint64(b[8:])}
	if !isName(name) || h.boot <= 0 || h.boot > maxBoot {
		return head{}, nil, errMalformed
	}
	return h, b[16:], nil
}

func decodeReport(h head, body []byte) (edge.Report, error) {
	var r edge.Report
	text, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(body)), maxReport+1))
	switch {
	case err != nil:
		return r, errMalformed
	case len(text) > maxReport:
		return r, errOversize
	case json.Unmarshal(text, &r) != nil:
		return r, errMalformed
	case r.Node != h.node || r.Boot != h.boot || r.Seq != h.seq:
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
}

func isRate(f float64) bool { return f >= 0 && f <= math.MaxFloat64 } // neither NaN nor infinite

func encodeState(now time.Time, all []heard) []byte {
	b := []byte{version, kindState}
	for _, h := range all {
		age := min(max(0, now.Sub(h.at).Milliseconds()), math.MaxUint32)
		b = binary.BigEndian.AppendUint32(b, uint32(age))
		b = binary.BigEndian.AppendUint32(b, uint32(len(h.raw)))
		b = append(b, h.raw...)
	}
	return b
}

// decodeState calls each with a copy of every report, as far as b can be read.
func decodeState(b []byte, each func(age time.Duration, raw []byte)) error {
	switch {
	case len(b) < 2:
		return errMalformed
	case b[0] != version:
		return errVersion
	case b[1] != kindState:
		return errKind
	}
	for b = b[2:]; len(b) > 0; {
		if len(b) < 8 {
			return errMalformed
		}
		age, n := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		if uint64(len(b)-8) < uint64(n) {
			return errMalformed
		}
		each(time.Duration(age)*time.Millisecond, bytes.Clone(b[8:8+n]))
		b = b[8+n:]
	}
	return nil
}

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
