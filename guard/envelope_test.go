package guard

import (
	"bytes"
	"compress/flate"
	"crypto/ed25519"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard/promise"
)

var messages = []promise.Message{
	{Kind: promise.Intent, From: "a1", To: "b1", Prefix: prefix1, Round: promise.Round{Boot: 1_700_000_000_000_000_000, N: 3}, Severity: 2, Reason: "proxy: down"},
	{Kind: promise.Promise, From: "a1", To: "b1", Prefix: netip.MustParsePrefix("2001:db8::/48"), Round: promise.Round{Boot: 1, N: 1 << 60}, Lease: 10 * time.Second, Well: true},
	{Kind: promise.Nack, From: "a1", To: "b1", Prefix: prefix1, Reason: "it is draining"},
	{Kind: promise.Nack, From: "a1", To: "b1", Prefix: prefix1, Reason: "orders wait", Veto: true},
	{Kind: promise.Release, From: "a1", To: "b1", Prefix: prefix1},
}

var report1 = edge.Report{
	Node: "a1", Site: "a", Boot: 1_700_000_000_000_000_000, Seq: 7,
	Says: []edge.Claim{{Prefix: prefix1, Announcing: true, Rung: edge.LastResort, Health: edge.Sick, Since: time.Unix(1_700_000_000, 5).UTC(), Reason: "proxy: down"}},
	Load: edge.LoadRow{Demand: 1.5, Regions: []edge.RegionView{{Region: "eu", RTT: time.Millisecond, Up: 1, Of: 2, Sent: 1, Allowance: 2, LastErr: "x"}}},
}

var head1 = head{node: "a1", site: "a", boot: 1_700_000_000_000_000_000, seq: 9, to: "b1", toBoot: 5}

var pulse1 = pulse{head: head1, stands: 7, knows: head{boot: 5, seq: 6}, age: time.Second, made: time.Minute}

func TestMessageRoundTrip(t *testing.T) {
	raw := encodeMessages(head1, messages, keyOf("a1"))
	l, err := open(raw, kindMessages)
	if err != nil {
		t.Fatal(err)
	}
	if l.head != head1 || !l.by(PublicKey(keyOf("a1"))) || l.by(PublicKey(keyOf("b1"))) {
		t.Errorf("head %+v", l.head)
	}
	got, err := decodeMessages(l)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(messages, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("(-sent +received)\n%s", diff)
	}
	full := make([]promise.Message, maxBatch)
	for i := range full {
		full[i] = messages[0]
		full[i].Reason = edge.Reason(strings.Repeat("<", 2*maxText))
	}
	if l, err = open(encodeMessages(head1, full, keyOf("a1")), kindMessages); err == nil {
		_, err = decodeMessages(l)
	}
	if err != nil {
		t.Errorf("the largest batch: %v", err)
	}
}

func TestBadMessages(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*promise.Message)
		want  error
	}{
		"from":   {func(m *promise.Message) { m.From = "A" }, errSpoken},
		"other":  {func(m *promise.Message) { m.From = "b1" }, errSpoken},
		"to":     {func(m *promise.Message) { m.To = "c1" }, errMisdirected},
		"kind":   {func(m *promise.Message) { m.Kind = 9 }, errMalformed},
		"prefix": {func(m *promise.Message) { m.Prefix = netip.MustParsePrefix("192.0.2.1/24") }, errMalformed},
		"lease":  {func(m *promise.Message) { m.Lease = -1 }, errMalformed},
		"boot":   {func(m *promise.Message) { m.Round.Boot = maxBoot + 1 }, errMalformed},
	} {
		bad := messages[0]
		c.spoil(&bad)
		l, err := open(encodeMessages(head1, []promise.Message{messages[0], bad}, keyOf("a1")), kindMessages)
		if err == nil {
			_, err = decodeMessages(l)
		}
		if err != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestSignatureCoversAll: whatever single bit is turned over, nobody believes the
// letter; nor when it is cut short or made longer.
func TestSignatureCoversAll(t *testing.T) {
	key := PublicKey(keyOf("a1"))
	raw := encodeMessages(head1, messages[:1], keyOf("a1"))
	for i := range raw {
		for bit := range 8 {
			bad := bytes.Clone(raw)
			bad[i] ^= 1 << bit
			if l, err := open(bad, kindMessages); err == nil && l.by(key) {
				t.Fatalf("bit %d of byte %d is not signed", bit, i)
			}
		}
		if l, err := open(raw[:i], kindMessages); err == nil && l.by(key) {
			t.Fatalf("the first %d of %d bytes are taken", i, len(raw))
		}
	}
	if l, err := open(append(bytes.Clone(raw), 0), kindMessages); err == nil && l.by(key) {
		t.Error("a longer one is taken")
	}
	// The signature of a report is none of messages, and none without our context.
	plain := append(bytes.Clone(raw[:len(raw)-ed25519.SignatureSize]), ed25519.Sign(keyOf("a1"), raw[:len(raw)-ed25519.SignatureSize])...)
	if l, err := open(plain, kindMessages); err != nil || l.by(key) {
		t.Errorf("a signature for another purpose is taken: %v", err)
	}
}

func TestReportRoundTrip(t *testing.T) {
	raw, err := encodeReport(report1, keyOf("a1"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeWhole(raw)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(report1, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("(-sent +received)\n%s", diff)
	}
}

func decodeWhole(raw []byte) (edge.Report, error) {
	l, err := open(raw, kindReport)
	if err != nil {
		return edge.Report{}, err
	}
	return decodeReport(l)
}

func TestBadReports(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*edge.Report)
		want  error
	}{
		"site":        {func(r *edge.Report) { r.Site = "A b" }, errMalformed},
		"boot":        {func(r *edge.Report) { r.Boot = -1 }, errMalformed},
		"prefix":      {func(r *edge.Report) { r.Says[0].Prefix = netip.Prefix{} }, errMalformed},
		"host bits":   {func(r *edge.Report) { r.Says[0].Prefix = netip.MustParsePrefix("192.0.2.1/24") }, errMalformed},
		"demand":      {func(r *edge.Report) { r.Load.Demand = -1 }, errMalformed},
		"up of":       {func(r *edge.Report) { r.Load.Regions[0].Up = 3 }, errMalformed},
		"many claims": {func(r *edge.Report) { r.Says = make([]edge.Claim, maxItems+1) }, errMalformed},
	} {
		r := report1
		r.Says, r.Load.Regions = append([]edge.Claim(nil), r.Says...), append([]edge.RegionView(nil), r.Load.Regions...)
		c.spoil(&r)
		raw, err := encodeReport(r, keyOf("a1"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeWhole(raw); err != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestBomb: a small packet that unpacks to much is given up early.
func TestBomb(t *testing.T) {
	r := report1
	r.Says = nil
	raw, err := encodeReport(r, keyOf("a1"))
	if err != nil {
		t.Fatal(err)
	}
	head := raw[:4+len(r.Node)+len(r.Site)+16]
	bomb := sign(append(bytes.Clone(head), packed(t, strings.Repeat(" ", 64<<20))...), keyOf("a1"))
	if _, err := decodeWhole(bomb); err != errOversize {
		t.Errorf("a bomb of %d bytes: %v", len(bomb), err)
	}
	if _, err := encodeReport(edge.Report{Node: "a1", Says: make([]edge.Claim, 20000)}, keyOf("a1")); err == nil {
		t.Error("encoded more than the others take")
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "a\x1b[31mb\n": "a [31mb ", "\xff": "?", "größe": "größe", strings.Repeat("ö", 200): strings.Repeat("ö", 128),
	} {
		if got := clean(in, maxText); got != want {
			t.Errorf("clean %q: %q, want %q", in, got, want)
		}
	}
}

// FuzzDecode: no bytes from outside crash a decoder, and what is taken comes out
// of the encoder again. The bytes are taken as they come, and as a body that has
// been signed.
func FuzzDecode(f *testing.F) {
	raw, err := encodeReport(report1, keyOf("a1"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encodeMessages(head1, messages[:1], keyOf("a1")))
	f.Add(raw)
	for _, raw := range [][]byte{encodeMessages(head1, messages, keyOf("a1")), raw} {
		l, err := open(raw, raw[1])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(l.body)
	}
	f.Add(appendState(appendState([]byte{version, kindState}, raw, time.Minute), raw, 0))
	pulsed := encodePulse(pulse1, keyOf("a1"))
	f.Add(pulsed)
	f.Add(pulsed[len(pulsed)-ed25519.SignatureSize-pulseBody : len(pulsed)-ed25519.SignatureSize])
	f.Add(encodeDigest("b1", []head{head1, {node: "c1", boot: 5, seq: 6}}))
	f.Add([]byte{})
	f.Add([]byte{version, kindState, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, kind := range []byte{kindMessages, kindReport, kindPulse} {
			if l, err := open(b, kind); err == nil && !bytes.Equal(l.head.append(kind), b[:len(b)-len(l.body)-len(l.seal)]) {
				t.Errorf("head %+v comes back as another", l.head)
			}
		}
		fuzzMessages(t, letter{head: head1, body: b})
		fuzzReport(t, letter{head: head{node: "a1", site: "a", boot: report1.Boot, seq: report1.Seq}, body: b})
		fuzzPulse(t, letter{head: head1, body: b})
		if from, all, err := decodeDigest(b); err == nil && !bytes.Equal(encodeDigest(from, all), b) {
			t.Errorf("digest %x comes back as another", b)
		}
		total := 0
		decodeState(b, func(age time.Duration, raw []byte) {
			total += len(raw)
			if age < 0 {
				t.Errorf("age %s", age)
			}
		})
		if total > len(b) {
			t.Errorf("%d bytes out of %d", total, len(b))
		}
	})
}

func fuzzMessages(t *testing.T, l letter) {
	all, err := decodeMessages(l)
	if err != nil {
		return
	}
	again, err := open(encodeMessages(l.head, all, keyOf("a1")), kindMessages)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeMessages(again); err != nil || !slices.Equal(got, all) {
		t.Errorf("%+v comes back as %+v, %v", all, got, err)
	}
}

func fuzzPulse(t *testing.T, l letter) {
	p, err := decodePulse(l)
	if err != nil {
		return
	}
	again, err := open(encodePulse(p, keyOf("a1")), kindPulse)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodePulse(again); err != nil || got != p {
		t.Errorf("%+v comes back as %+v, %v", p, got, err)
	}
}

func fuzzReport(t *testing.T, l letter) {
	r, err := decodeReport(l)
	if err != nil {
		return
	}
	raw, err := encodeReport(r, keyOf("a1"))
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	if _, err := decodeWhole(raw); err != nil {
		t.Errorf("%+v: %v", r, err)
	}
}

// FuzzKeys: a file of keys is taken as it is meant, or refused.
func FuzzKeys(f *testing.F) {
	f.Add([]byte("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n# the old one\n\nZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=\n"))
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n-----END PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if keys, err := parseGossipKeys(b); err == nil && checkGossipKeys(keys) != nil {
			t.Errorf("took %d keys", len(keys))
		}
		if key, err := parseNodeKey(b); err == nil && len(key) != ed25519.PrivateKeySize {
			t.Errorf("took a key of %d bytes", len(key))
		}
	})
}

func packed(t *testing.T, s string) []byte {
	var out bytes.Buffer
	z, err := flate.NewWriter(&out, flate.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
