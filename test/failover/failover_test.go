package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/catchment-dev/edge/test/figure"
	"github.com/catchment-dev/edge/test/lab"
)

func TestMain(m *testing.M) {
	lab.Janitor()
	goleak.VerifyTestMain(m)
}

// TestFailover is the short form of what the command measures, with both kinds
// of router: the route goes and comes back, by what is meant to make it go. No
// time is judged.
func TestFailover(t *testing.T) {
	bin := t.TempDir()
	if err := lab.Build(t.Context(), bin, true); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []lab.RouterKind{lab.BIRD, lab.FRR} {
		t.Run(string(kind), func(t *testing.T) {
			r, err := newRig(t.Context(), bin, kind, watched)
			if err != nil {
				t.Fatal(err)
			}
			r.after = 500 * time.Millisecond
			defer func() {
				if t.Failed() {
					t.Log(r.lab.Logs(30))
				}
				if err := r.close(); err != nil {
					t.Error(err)
				}
			}()
			t.Run("edgebgp_killed", func(t *testing.T) { fails(t, r, "edgebgp_killed", bySocket) })
			t.Run("link_cut_bfd", func(t *testing.T) { fails(t, r, "link_cut_bfd", byBFD) })
		})
	}
}

func fails(t *testing.T, r *rig, name string, why func(context.Context, *rig) error) {
	ctx := t.Context()
	if err := r.settle(ctx); err != nil {
		t.Fatal(err)
	}
	chosen, err := choose(scenarios(), []string{name})
	if err != nil {
		t.Fatal(err)
	}
	s := chosen[0]
	s.also = why
	res, err := measure(ctx, r, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(res)
	if res.took <= 0 || res.back <= 0 || res.asked == 0 {
		t.Errorf("got %+v", res)
	}
	if err := r.settle(ctx); err != nil {
		t.Error(err)
	}
}

// bySocket is an error unless the router says that the connection was closed.
func bySocket(ctx context.Context, r *rig) error {
	return r.reason(ctx, "Socket: Connection closed", "Down Peer closed the session")
}

// byBFD is an error unless the speaker and the router say that it was BFD.
func byBFD(ctx context.Context, r *rig) error {
	p, err := peer(ctx, r.box)
	if err != nil {
		return err
	}
	if !strings.Contains(p.LastErr, "BFD") || p.BFD == nil || p.BFD.State != "down" || p.BFD.Diag == "" {
		return fmt.Errorf("the speaker says %q, %+v", p.LastErr, p.BFD)
	}
	return r.reason(ctx, "BFD session down", "(Cease/BFD Down)")
}

// reason is an error unless the router gives this reason for the end of its
// session with the box: BIRD when it is asked, FRR in its log, since BFD, which is
// down a second later in any case, replaces what FRR answers.
func (r *rig) reason(ctx context.Context, bird, frr string) error {
	if r.lab.Topology.Routers[0].Kind == lab.FRR {
		if log := r.lab.Logs(100); !strings.Contains(log, frr) {
			return fmt.Errorf("FRR has not logged %q", frr)
		}
		return nil
	}
	out, err := r.router.Ask(ctx, "show protocols all 'box-"+r.box.Name()+"'")
	if err == nil && !strings.Contains(out, bird) {
		err = fmt.Errorf("BIRD does not say %q:\n%s", bird, out)
	}
	return err
}

func TestAffectedCountsFromTheFault(t *testing.T) {
	at := time.Unix(1000, 0)
	bad := errors.New("no answer")
	sample := func(after, took time.Duration, err error) lab.Sample {
		return lab.Sample{At: at.Add(after), Took: took, Err: err}
	}
	samples := lab.Samples{
		sample(-3*time.Second, time.Millisecond, nil),
		sample(-20*time.Millisecond, 10*time.Millisecond, nil), // answered before
		sample(-10*time.Millisecond, time.Second, bad),         // under way
		sample(time.Millisecond, time.Second, bad),
		sample(time.Second, time.Millisecond, nil),
		sample(6*time.Second, time.Second, bad), // too late
	}
	if got, err := affected(samples, at, at.Add(6*time.Second)); len(got) != 3 || len(got.Failed()) != 2 || err != nil {
		t.Errorf("%s, %v; want 3, 2 of them failed", got, err)
	}
	sick := append(lab.Samples{sample(-2*time.Second, time.Millisecond, bad)}, samples...)
	if _, err := affected(sick, at, at.Add(6*time.Second)); err == nil {
		t.Error("a request that failed before the fault is counted as if it were of it")
	}
	if _, err := affected(nil, at, at.Add(time.Second)); err == nil {
		t.Error("nobody has asked, and none is said to be lost")
	}
}

func TestChoose(t *testing.T) {
	all := scenarios()
	seen := map[string]bool{}
	for _, s := range all {
		if seen[s.name] {
			t.Errorf("%s is there twice", s.name)
		}
		seen[s.name] = true
		if s.against != "" && !slices.ContainsFunc(all, func(o scenario) bool { return o.name == s.against }) {
			t.Errorf("%s is compared with %s, which is not measured", s.name, s.against)
		}
	}
	if got, err := choose(all, nil); err != nil || len(got) != len(all) {
		t.Errorf("got %d, %v; want all", len(got), err)
	}
	if got, err := choose(all, []string{"drain"}); err != nil || len(got) != 1 || got[0].name != "drain" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := choose(all, []string{"drain", "flood"}); err == nil {
		t.Error("an unknown name is taken")
	}
}

func TestReport(t *testing.T) {
	ms := func(n ...int) (out []result) {
		for i, one := range n {
			out = append(out, result{took: time.Duration(one) * time.Millisecond, lost: i, asked: 10})
		}
		return out
	}
	with := scenario{name: "frozen_bfd", aim: time.Second, against: "frozen_nobfd"}
	r := &report{rows: []row{
		{with, lab.BIRD, ms(900, 800, 700)},
		{scenario{name: "frozen_nobfd"}, lab.BIRD, ms(8000)},
		{with, lab.FRR, ms(1500)},
		{scenario{name: "router_back", aim: 5 * time.Second}, lab.BIRD, []result{{took: time.Second}}},
	}}
	dir := t.TempDir()
	more := filepath.Join(dir, "more.json")
	if err := os.WriteFile(more, []byte(`[{"name": "bgp.BenchmarkSpeaker", "value": 0, "unit": "ns/op"}, {"name": "bgp.BenchmarkSpeaker", "value": 0.5, "unit": "announce_s"}, {"name": "bgp.BenchmarkSpeaker", "value": 42, "unit": "full_MiB"}]`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.add(more); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "bench", "failover.json")
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	got, err := figure.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []figure.Figure{
		{Name: "frozen_bfd", Value: 0.8, Unit: "s", Against: "frozen_nobfd", Ratio: 0.1}, {Name: "frozen_bfd_lost", Value: 2, Unit: "requests"}, {Name: "frozen_bfd_cut", Unit: "requests"},
		{Name: "frozen_nobfd", Value: 8, Unit: "s"}, {Name: "frozen_nobfd_lost", Unit: "requests"}, {Name: "frozen_nobfd_cut", Unit: "requests"},
		{Name: "frozen_bfd_frr", Value: 1.5, Unit: "s", Against: "aim", Ratio: 1.5}, {Name: "frozen_bfd_frr_lost", Unit: "requests"}, {Name: "frozen_bfd_frr_cut", Unit: "requests"},
		{Name: "router_back", Value: 1, Unit: "s", Against: "aim", Ratio: 0.2},
		{Name: "speaker_announce", Value: 0.5, Unit: "s"}, {Name: "speaker_memory", Value: 42, Unit: "MiB"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	for _, line := range []string{"frozen_bfd      ", "MISSED", "0.900 0.800 0.700", "speaker_announce"} {
		if !strings.Contains(r.table(), line) {
			t.Errorf("the table has no %q:\n%s", line, r.table())
		}
	}
}
