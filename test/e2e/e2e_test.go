// Package e2e shows that the whole product works together, on the lab's small
// internet with BIRD and FRR as the far ends: the story of the demo, with the
// daemons under the race detector, and then what an operator does and what bad
// input gets. It needs root, and fails where something is missing.
package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

func TestMain(m *testing.M) {
	lab.Janitor()
	os.Exit(m.Run())
}

// world is one lab that all parts of the test use, one after the other: to
// build it is most of the cost.
type world struct {
	*story.Teller
}

// edgeLease is the lease of edgebgp in the labs of these tests. In the 5 s of the
// demo an edged with the race detector need not be back on a busy machine.
const edgeLease = 15 * time.Second

// patient is a topology with that lease.
func patient(top lab.Topology) lab.Topology {
	edit := top.Edit
	top.Edit = func(box, yaml string) string {
		if edit != nil {
			yaml = edit(box, yaml)
		}
		return strings.Replace(yaml, " lease: 5s", fmt.Sprint(" lease: ", edgeLease), 1)
	}
	return top
}

// TestEdge is one test on one lab. Each part leaves the lab as it found it; a
// part that fails ends the test, since the rest would only show consequences.
func TestEdge(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	bin := t.TempDir()
	if err := lab.Build(ctx, bin, true); err != nil {
		t.Fatal(err)
	}
	l, err := lab.New(ctx, patient(lab.Default()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := l.Start(bin); err != nil {
		t.Fatal(err)
	}
	w := world{&story.Teller{Lab: l, Say: t.Logf}}
	if err := w.Settle(ctx); err != nil {
		t.Fatalf("%v\n%s", err, l.Logs(40))
	}
	for _, s := range story.Steps() {
		w.part(ctx, t, s.Name, func(ctx context.Context, _ *testing.T) error { return s.Run(ctx, w.Teller) })
	}
	for _, p := range parts {
		w.part(ctx, t, p.name, func(ctx context.Context, t *testing.T) error { return p.run(ctx, t, w) })
	}
	w.noRaces(t)
}

// parts come after the story.
var parts = []struct {
	name string
	run  func(context.Context, *testing.T, world) error
}{
	{"drain survives a restart", drain},
	{"an order moves traffic, and is taken back", prefer},
	{"a file drains", drainByFile},
	{"a drain file that hangs changes nothing", drainFileHangs},
	{"a drained box stops serving", drainWhole},
	{"a reload that is wrong changes nothing", badReload},
	{"a reload that drops a prefix asks the guard", dropPrefix},
	{"a reload that would end the sessions is refused", sessionsReload},
	{"a dead region is skipped", regionDies},
	{"no region can be reached: degraded, never withdrawn", allRegionsDie},
	{"edged restarts while a backend is down", restartBesideDeadBackend},
	{"those who left come back when the last one dies", lastOneDies},
	{"edged is stopped: nothing is withdrawn", stopEdged},
	{"the lease runs out: degraded, not withdrawn", lease},
	{"edgebgp restarts by itself", speakerRestart},
	{"edgebgp is told to stop: it asks the guard first", stopSpeaker},
	{"explain", explain},
	{"console and metrics", console},
	{"malformed requests", malformedRequests},
	{"garbage at the gossip port", gossipGarbage},
	{"every packet is accounted for", accounting},
}

func (w world) part(ctx context.Context, t *testing.T, name string, run func(context.Context, *testing.T) error) {
	t.Helper()
	ok := t.Run(name, func(t *testing.T) {
		w.Say = t.Logf
		if err := run(ctx, t); err != nil {
			t.Fatalf("%v\n%s", err, w.Lab.Logs(25))
		}
	})
	w.Say = t.Logf
	if !ok {
		t.FailNow()
	}
}

// rung waits until one prefix of a box stands on a rung.
func (w world) rung(ctx context.Context, box, prefix string, want edge.Rung) error {
	return story.Until(ctx, fmt.Sprintf("%s of %s is %s", prefix, box, want), func() error {
		st, err := w.Lab.Boxes[box].Status(ctx)
		if err != nil {
			return err
		}
		for _, d := range st.Decisions {
			if d.Prefix.String() == prefix {
				if d.Rung == want {
					return nil
				}
				return fmt.Errorf("it is %s: %s", d.Rung, d.Reason)
			}
		}
		return fmt.Errorf("nothing is decided on it; alarms %v", st.Alarms)
	})
}
