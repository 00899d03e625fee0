package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/catchment-dev/edge"
)

// flowsOf is a forwarder with these flows; an error ends the reading of them.
type flowsOf struct {
	all  []edge.FlowEntry
	fail error
}

func (f flowsOf) Flows(yield func(edge.FlowEntry) bool) error {
	for _, e := range f.all {
		if !yield(e) {
			return nil
		}
	}
	return f.fail
}

func TestListFlows(t *testing.T) {
	flow := func(service edge.ServiceID, backend edge.BackendID, src string) edge.FlowEntry {
		e := edge.FlowEntry{Service: service, Backend: backend, Protocol: edge.TCP, Left: time.Second}
		if src != "" {
			e.Src = netip.MustParseAddrPort(src)
		}
		return e
	}
	a, b, c, d := flow("web", "a2", "192.0.2.2:9"), flow("web", "a1", "192.0.2.1:9"), flow("dns", "a1", "[2001:db8::1]:9"), flow("dns", "a2", "")
	src := flowsOf{all: []edge.FlowEntry{a, b, c, d}}
	for query, want := range map[string]flowList{
		"":                        {[]edge.FlowEntry{d, c, b, a}, 4, 4},
		"service=web":             {[]edge.FlowEntry{b, a}, 2, 2},
		"backend=a2":              {[]edge.FlowEntry{d, a}, 2, 2},
		"service=dns&backend=a2":  {[]edge.FlowEntry{d}, 1, 1},
		"source=192.0.2.0/24":     {[]edge.FlowEntry{b, a}, 2, 2},
		"source=192.0.2.3/31":     {[]edge.FlowEntry{a}, 1, 1},
		"source=192.0.2.1":        {[]edge.FlowEntry{b}, 1, 1},
		"source=::ffff:192.0.2.1": {[]edge.FlowEntry{b}, 1, 1},
		"source=2001:db8::/32":    {[]edge.FlowEntry{c}, 1, 1},
		"source=::/0":             {[]edge.FlowEntry{c}, 1, 1},
		"limit=1":                 {[]edge.FlowEntry{a}, 4, 1},
		"service=none":            {[]edge.FlowEntry{}, 0, 0},
	} {
		v, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		q, err := parseFlowQuery(v)
		if err != nil {
			t.Errorf("%s: %v", query, err)
			continue
		}
		got, err := listFlows(t.Context(), src, q)
		if err != nil {
			t.Errorf("%s: %v", query, err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", query, diff)
		}
	}
	for _, query := range []string{"limit=0", "limit=100001", "limit=x", "source=x", "source=192.0.2.0/33", "source=::ffff:192.0.2.0/120", "from=x", "limit=1&limit=2"} {
		v, _ := url.ParseQuery(query)
		if _, err := parseFlowQuery(v); err == nil {
			t.Errorf("%s is taken", query)
		}
	}
}

// TestListFlowsBreaksOff: half of a list is not given out as the whole.
func TestListFlowsBreaksOff(t *testing.T) {
	if _, err := listFlows(t.Context(), flowsOf{fail: errors.New("closed")}, flowQuery{}); err == nil {
		t.Error("an error of the forwarder is none")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := listFlows(ctx, flowsOf{all: make([]edge.FlowEntry, 3)}, flowQuery{}); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody waits, and there is %v", err)
	}
}

func TestKnownService(t *testing.T) {
	d := &daemon{}
	d.cfg.Store(testConfig())
	for id, want := range map[edge.ServiceID]string{"": "<nil>", "web": "<nil>", "wbe": `"wbe" is not a service of the configuration; there are ["web"]`} {
		if got := fmt.Sprint(d.knownService(id)); got != want {
			t.Errorf("%q: %s", id, got)
		}
	}
}
