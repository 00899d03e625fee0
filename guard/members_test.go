package guard

import (
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

var (
	membersFlag = flag.Int("members", 24, "how many members TestMembers runs in this process")
	figuresFlag = flag.String("gossip", "", "the file for the figures of TestMembers")
)

const (
	spreadLimit = 5 * time.Second
	idleLimit   = 5 << 10 // bytes a second, sent and received, on the wire
)

// TestMembers runs many members in one process, which all tell of their load as
// edged does. At rest, each must need little; a claim that changes must be at all
// others soon. It is not parallel, as it needs the machine.
func TestMembers(t *testing.T) {
	n := *membersFlag
	f := newFleet(t, n, 1)
	quiet := func(o *Options) { o.Log = slog.New(slog.DiscardHandler) }
	// One after the other, as 300 boxes would: each of them has its own CPU.
	began := time.Now()
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	halt := f.tellAll()
	defer halt()
	for i := range n {
		f.start(i, quiet)
		if i%20 == 19 || i == n-1 {
			within(t, 4*time.Minute, fmt.Sprint(i+1, " members alive at all"), func() bool { return f.seen(i) })
			t.Logf("%d members alive at all after %s", i+1, time.Since(began).Round(time.Millisecond))
		}
	}
	within(t, 4*time.Minute, "all known to all", f.known)
	within(t, time.Minute, "the gossip at rest", func() bool {
		return !slices.ContainsFunc(f.nodes, func(g *node) bool { return g.rumors.NumQueued() > 0 })
	})
	t.Logf("%d members know each other after %s", n, time.Since(began))
	tries, rounds := 3, 3 // the machine does other things beside the tests
	if *figuresFlag != "" {
		tries, rounds = 1, 20
	}
	for i := range tries {
		m := f.measure(rounds)
		t.Log(m)
		t.Logf("dropped by all: %v", f.dropped())
		bad := m.bad()
		if bad == "" || i == tries-1 {
			writeFigures(t, m)
		}
		if bad == "" {
			return
		}
		t.Log(bad)
	}
	t.Errorf("%d times too much", tries)
}

// measured is what the members of a fleet take.
type measured struct {
	members, claims int
	idle, worst     float64 // bytes a second, the mean and the most
	cpu             float64 // % of a core
	old             int     // words that do not count, with nothing new
	half, last      time.Duration
}

func (m measured) String() string {
	return fmt.Sprintf("%d members. At rest: %.0f bytes/s sent and received by a member, the most %.0f; %.2f %% of a core; %d words too old. %d claims: at half of the members after %s, at the last after %s",
		m.members, m.idle, m.worst, m.cpu, m.old, m.claims, m.half, m.last)
}

func (m measured) bad() string {
	switch {
	case m.idle > idleLimit:
		return fmt.Sprintf("at rest a member takes more than %d bytes/s", idleLimit)
	case m.old > 0:
		return "words are too old to count"
	case m.last > spreadLimit:
		return fmt.Sprintf("a claim took more than %s to the last member", spreadLimit)
	}
	return ""
}

func (f *fleet) measure(claims int) measured {
	f.t.Helper()
	m := measured{members: len(f.nodes), claims: claims}
	over := max(2*pulseEvery(m.members), 6*time.Second)
	if *figuresFlag != "" {
		over = 5 * time.Minute // with one exchange of states that each of 300 begins
	}
	work := processTime(f.t)
	m.idle, m.worst = f.idle(over)
	m.cpu = 100 * (processTime(f.t) - work).Seconds() / over.Seconds() / float64(m.members)
	m.old = f.tooOld()
	var took []time.Duration
	for i := range claims {
		took = append(took, f.spreadOf(rand.IntN(m.members), edge.Reason(fmt.Sprint("change ", i)))...)
	}
	slices.Sort(took)
	m.half, m.last = took[len(took)/2], took[len(took)-1]
	return m
}

// figure is one line of the file.
type figure struct {
	Name    string  `json:"name"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	Against string  `json:"against"`
	Ratio   float64 `json:"ratio"`
}

func writeFigures(t *testing.T, m measured) {
	t.Helper()
	if *figuresFlag == "" {
		return
	}
	b, err := json.MarshalIndent([]figure{
		{"members", float64(m.members), "members", "", 0},
		{"spread_p50", m.half.Seconds(), "s", "", 0},
		{"spread_max", m.last.Seconds(), "s", "limit", m.last.Seconds() / spreadLimit.Seconds()},
		{"idle_bytes", m.idle, "B/s", "limit", m.idle / idleLimit},
		{"idle_cpu", m.cpu, "% of a core", "", 0},
	}, "", "  ")
	if err == nil {
		err = os.WriteFile(*figuresFlag, append(b, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tellAll has each running node say each half second what edged would: the same
// claims, and figures of load that are never quite the same. It returns what
// stops it.
func (f *fleet) tellAll() func() {
	stop, over := make(chan struct{}), sync.WaitGroup{}
	says := claim("healthy")
	over.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			for _, n := range f.running() {
				own := says
				if s := n.says.Load(); s != nil {
					own = *s
				}
				n.Publish(edge.Report{Says: own, Load: edge.LoadRow{Demand: 100 + 2*rand.Float64(), Regions: []edge.RegionView{
					{Region: "eu", RTT: 10 * time.Millisecond, Up: 2, Of: 2, Sent: 80 + rand.Float64(), Allowance: 500},
					{Region: "us", RTT: 90 * time.Millisecond, Up: 2, Of: 2, Sent: 20 + 0.5*rand.Float64(), Allowance: 500},
				}}})
			}
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	})
	return func() { close(stop); over.Wait() }
}

// known says whether each node has a report of each other one.
func (f *fleet) known() bool {
	return !slices.ContainsFunc(f.running(), func(n *node) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.heard) < len(f.running())-1
	})
}

// idle measures the traffic of a member, the mean and the most, in bytes a second.
func (f *fleet) idle(over time.Duration) (mean, most float64) {
	before := make([]int64, len(f.nodes))
	for i, n := range f.nodes {
		sent, received := n.Traffic()
		before[i] = sent + received
	}
	began := time.Now()
	within(f.t, over+time.Minute, "the end of what is measured", func() bool { return time.Since(began) > over })
	for i, n := range f.nodes {
		sent, received := n.Traffic()
		rate := float64(sent+received-before[i]) / time.Since(began).Seconds()
		mean += rate / float64(len(f.nodes))
		most = max(most, rate)
	}
	return mean, most
}

// tooOld counts the words that are too old: with nothing new for a while, none is.
func (f *fleet) tooOld() int {
	old := 0
	for _, n := range f.nodes {
		for _, m := range n.Members() {
			if m.Age > n.fresh() {
				old++
			}
		}
	}
	return old
}

// dropped is what all members have dropped, by reason.
func (f *fleet) dropped() map[string]uint64 {
	sum := map[string]uint64{}
	for _, n := range f.running() {
		for why, k := range n.drops.all() {
			sum[why] += k
		}
	}
	return sum
}

// spreadOf changes a claim of node i, and returns after what time each other had
// it.
func (f *fleet) spreadOf(i int, reason edge.Reason) []time.Duration {
	f.t.Helper()
	from, says := f.nodes[i], claim(reason)
	from.says.Store(&says)
	began := time.Now()
	from.Publish(edge.Report{Says: says})
	took, left := []time.Duration{}, slices.Clone(f.nodes)
	within(f.t, 4*spreadLimit, "a claim at all", func() bool {
		left = slices.DeleteFunc(left, func(n *node) bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			h := n.heard[from.ID]
			has := n == from || h != nil && sameClaims(h.report.Says, says)
			if has && n != from {
				took = append(took, time.Since(began))
			}
			return has
		})
		return len(left) == 0
	})
	return took
}
