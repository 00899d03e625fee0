package guard

import (
	"bytes"
	"compress/flate"
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
	{Kind: promise.Promise, From: "b1", To: "a1", Prefix: netip.MustParsePrefix("2001:db8::/48"), Round: promise.Round{Boot: 1, N: 1 << 60}, Lease: 10 * time.Second},
	{Kind: promise.Nack, From: "b1", To: "a1", Prefix: prefix1, Reason: "it is draining"},
	{Kind: promise.Release, From: "a1", To: "b1", Prefix: prefix1},
}

var report1 = edge.Report{
	Node: "a1", Site: "a", Boot: 1_700_000_000_000_000_000, Seq: 7,
	Says: []edge.Claim{{Prefix: prefix1, Announcing: true, Rung: edge.LastResort, Health: edge.Sick, Since: time.Unix(1_700_000_000, 5).UTC(), Reason: "proxy: down"}},
	Load: edge.LoadRow{Demand: 1.5, Regions: []edge.RegionView{{Region: "eu", RTT: time.Millisecond, Up: 1, Of: 2, Sent: 1, Allowance: 2, LastErr: "x"}}},
}

func TestMessageRoundTrip(t *testing.T) {
	got, err := decodeMessages(encodeMessages(messages))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(messages, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("(-sent +received)\n%s", diff)
	}
	bad := messages[0]
	bad.From = "A"
	if _, err := decodeMessages(encodeMessages([]promise.Message{messages[0], bad})); err != errMalformed {
		t.Errorf("a batch with a bad message: %v", err)
	}
	full := make([]promise.Message, maxBatch)
	for i := range full {
		full[i] = messages[0]
		full[i].Reason = edge.Reason(strings.Repeat("<", 2*maxText))
	}
	if _, err := decodeMessages(encodeMessages(full)); err != nil {
		t.Errorf("the largest batch: %v", err)
	}
}

func TestReportRoundTrip(t *testing.T) {
	raw, err := encodeReport(report1)
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
	h, body, err := decodeHead(raw)
	if err != nil {
		return edge.Report{}, err
	}
	return decodeReport(h, body)
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
		raw, err := encodeReport(r)
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
	raw, err := encodeReport(r)
	if err != nil {
		t.Fatal(err)
	}
	head := raw[:3+len(r.Node)+16]
	bomb := append(bytes.Clone(head), packed(t, strings.Repeat(" ", 64<<20))...)
	if _, err := decodeWhole(bomb); err != errOversize {
		t.Errorf("a bomb of %d bytes: %v", len(bomb), err)
	}
	if _, err := encodeReport(edge.Report{Node: "a1", Says: make([]edge.Claim, 20000)}); err == nil {
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

// FuzzDecode: no bytes from outside crash a decoder, and what is taken comes
// out of the encoder again.
func FuzzDecode(f *testing.F) {
	f.Add(encodeMessages(messages[:1]))
	f.Add(encodeMessages(messages))
	raw, err := encodeReport(report1)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(encodeState(time.Unix(100, 0), []heard{{raw: raw, at: time.Unix(40, 0)}, {raw: raw}}))
	f.Add([]byte{})
	f.Add([]byte{version, kindState, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		if all, err := decodeMessages(b); err == nil {
			again, err := decodeMessages(encodeMessages(all))
			if err != nil || !slices.Equal(again, all) {
				t.Errorf("%+v comes back as %+v, %v", all, again, err)
			}
		}
		if r, err := decodeWhole(b); err == nil {
			raw, err := encodeReport(r)
			if err != nil {
				t.Fatalf("%+v: %v", r, err)
			}
			if _, err := decodeWhole(raw); err != nil {
				t.Errorf("%+v: %v", r, err)
			}
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
