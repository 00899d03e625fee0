package guard

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/goleak"

	"github.com/catchment-dev/edge"
)

// TestMain checks that no goroutine is left. memberlist's timers end a little
// after it has been shut down. More tests run at once than there are cores:
// they wait for most of their time.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	code := m.Run()
	for deadline := time.Now().Add(15 * time.Second); code == 0; {
		err := goleak.Find()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		time.Sleep(50 * time.Millisecond) // polls
	}
	os.Exit(code)
}

var (
	prefix1 = netip.MustParsePrefix("192.0.2.0/24")
	key1    = []byte("0123456789abcdef0123456789abcdef")
	key2    = []byte("fedcba9876543210fedcba9876543210")
	quick   = edge.Guard{PromiseLease: 3 * time.Second, AskTimeout: time.Second, BackOff: 100 * time.Millisecond}
)

// blocks numbers the fleets of this process: each has loopback addresses of
// its own.
var blocks atomic.Uint32

// fleet is some nodes a, b, c... in this process, one a site.
type fleet struct {
	t      *testing.T
	roster []edge.Node
	floor  int
	nodes  []*node
	log    *testLog
	tune   func(*memberlist.Config)
	mu     sync.Mutex // guards nodes while they are started
}

type node struct {
	*Guard
	edge.Node
	held atomic.Bool
	says atomic.Pointer[[]edge.Claim] // in place of what tellAll says
	stop func()
}

// keyOf is the key of a node in these tests, always the same.
func keyOf[T ~string](name T) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(name))
	return ed25519.NewKeyFromSeed(seed[:])
}

// newFleet makes a roster of n nodes; none runs yet.
func newFleet(t *testing.T, n, floor int) *fleet {
	f := &fleet{t: t, floor: floor, log: &testLog{t: t}}
	t.Cleanup(f.log.end)
	block := netip.AddrFrom4([4]byte{127, byte(64 + os.Getpid()%128), byte(blocks.Add(uint32(n/256 + 1))), 0})
	for i := range n {
		block = block.Next()
		name := string(rune('a' + i%26))
		if i >= 26 {
			name += strconv.Itoa(i)
		}
		f.roster = append(f.roster, edge.Node{ID: edge.NodeID(name), Site: edge.SiteID(name), Gossip: netip.AddrPortFrom(block, 7946), PublicKey: PublicKey(keyOf(name))})
	}
	f.nodes = make([]*node, n)
	return f
}

func (f *fleet) options(i int) Options {
	return Options{
		Self: f.roster[i].ID, Roster: f.roster, Prefixes: []edge.Prefix{{Net: prefix1, MinSites: f.floor}}, Policy: quick,
		Keys: [][]byte{key1}, NodeKey: keyOf(f.roster[i].ID), Bind: f.roster[i].Gossip, Log: slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelInfo})).With("self", f.roster[i].ID),
	}
}

// testLog writes into the test's log, until the test is over: a timer of
// memberlist may still fire then.
type testLog struct {
	t    *testing.T
	mu   sync.Mutex
	over bool
	dead atomic.Int64 // times that a member was seen dead
}

func (l *testLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if bytes.Contains(b, []byte("alive=false")) {
		l.dead.Add(1)
	}
	if !l.over {
		l.t.Log(string(b[:len(b)-1]))
	}
	return len(b), nil
}

func (l *testLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
}

// start runs node i, announcing, with options changed by tweak.
func (f *fleet) start(i int, tweak ...func(*Options)) *node {
	f.t.Helper()
	n := &node{Node: f.roster[i]}
	n.held.Store(true)
	o := f.options(i)
	o.Held = func(p netip.Prefix) bool { return p == prefix1 && n.held.Load() }
	for _, do := range tweak {
		do(&o)
	}
	var err error
	if n.Guard, err = New(o); err != nil {
		f.t.Fatal(err)
	}
	n.tune = f.tune
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("run %s: %v", n.ID, err)
		}
	})
	f.t.Cleanup(n.stop)
	select {
	case <-n.Ready():
	case err := <-done:
		f.t.Fatalf("run %s: %v", n.ID, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[i] = n
	return n
}

// running are the nodes that have been started.
func (f *fleet) running() []*node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.nodes), func(n *node) bool { return n == nil })
}

func (f *fleet) startAll() {
	f.start(0)
	f.startRest()
}

func (f *fleet) startRest() {
	for i := 1; i < len(f.roster); i++ {
		f.start(i)
	}
	f.until("all see all alive", func() bool { return f.seen(len(f.roster) - 1) })
}

// seen says whether each running node sees n others alive.
func (f *fleet) seen(n int) bool {
	for _, g := range f.nodes {
		if g != nil && g.alive() != n {
			return false
		}
	}
	return true
}

func (n *node) alive() int {
	up := 0
	n.up.mu.Lock()
	defer n.up.mu.Unlock()
	for id, on := range n.up.on {
		if on && id != n.ID {
			up++
		}
	}
	return up
}

// until waits for a condition, with a deadline that fits a loaded machine.
func (f *fleet) until(what string, cond func() bool) { within(f.t, time.Minute, what, cond) }

func within(t *testing.T, d time.Duration, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(d); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", d, what)
		}
		time.Sleep(20 * time.Millisecond) // polls
	}
}

// tryLeave withdraws if the permit holds.
func (n *node) tryLeave() error {
	return n.Leave(context.Background(), prefix1, func(context.Context) error {
		n.held.Store(false)
		return nil
	})
}

func (f *fleet) announcing() int {
	on := 0
	for _, n := range f.nodes {
		if n.held.Load() {
			on++
		}
	}
	return on
}

func (n *node) report(id edge.NodeID) edge.MemberState {
	for _, m := range n.Members() {
		if m.Node == id {
			return m
		}
	}
	return edge.MemberState{}
}
