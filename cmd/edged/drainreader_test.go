package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
)

// wantOrders compares the orders by file, by their reasons.
func wantOrders(t *testing.T, d *drains, want ...string) {
	t.Helper()
	var got []string
	for _, o := range d.byFile {
		got = append(got, o.Reason)
	}
	if !slices.Equal(got, want) {
		t.Errorf("orders %q, want %q", got, want)
	}
}

func wantFileErr(t *testing.T, d *drains, want string) {
	t.Helper()
	if (d.fileErr == nil) != (want == "") || d.fileErr != nil && !strings.Contains(d.fileErr.Error(), want) {
		t.Errorf("error %v, want %q", d.fileErr, want)
	}
}

// TestDrainFileHangs: a file system that does not answer holds one goroutine and
// no turn. What was ordered before the start is in force and ends at its time,
// nothing new is announced, and the hang is told of.
func TestDrainFileHangs(t *testing.T) {
	dir, abort := hangingFS(t)
	path := filepath.Join(dir, "drain")
	state, now := t.TempDir(), time.Now()
	before := testDrains(t, state)
	before.order([]edge.Drain{
		{Reason: "for ever", ByFile: true}, {Prefix: p4, Reason: "a minute", Until: now.Add(time.Minute), ByFile: true},
	})
	mustDo(t, before.keeper.flush(time.Minute))
	d := testDrains(t, state)
	turn := func(limit time.Duration) {
		t.Helper()
		began := time.Now()
		if d.follow(path, now); time.Since(began) > limit {
			t.Fatalf("the loop was held for %s", time.Since(began))
		}
		if n := running(".lookAt("); n != 1 {
			t.Fatalf("%d looks are under way", n)
		}
	}
	turn(2 * time.Second)
	wantOrders(t, d, "for ever", "a minute")
	wantFileErr(t, d, "")
	if why := d.file.unheard(path); !strings.Contains(string(why), "has not answered since edged started") {
		t.Errorf("something new may be announced: %q", why)
	}
	since := now.UTC().Format(time.DateTime)
	now = now.Add(drainSilence)
	for range 100 { // in all for less than the first look waits
		turn(firstLook / 2)
	}
	wantFileErr(t, d, path+" does not answer since "+since+"; what it ordered before stays in force")
	now = now.Add(time.Minute)
	turn(firstLook / 2)
	wantOrders(t, d, "for ever")
	d.file.wait()
	if n := running(".lookAt("); n != 1 {
		t.Errorf("at the end %d looks are under way", n)
	}
	abort()
	d.file.first = time.Minute
	for deadline := time.Now().Add(time.Minute); d.file.unheard(path) != ""; time.Sleep(time.Millisecond) {
		if d.follow(path, now); time.Now().After(deadline) {
			t.Fatal("the error of the file system was never heard")
		}
	}
	wantOrders(t, d, "for ever")
	wantFileErr(t, d, "transport endpoint is not connected; what it ordered before stays in force")
	d.file.wait()
	if n := running(".lookAt("); n != 0 {
		t.Errorf("%d looks are left behind", n)
	}
}

// slowFile is a drain file whose file system answers only when it is told to.
type slowFile struct {
	mu    sync.Mutex
	hang  chan struct{} // nil: it answers at once, or after delay
	delay time.Duration
	says  drainLook
	// looks counts all, under those under way, most how many those were at most.
	looks, under, most int
}

func (f *slowFile) look(path string, _ drainLook) drainLook {
	f.mu.Lock()
	l, hang, delay := f.says, f.hang, f.delay
	f.looks++
	f.under++
	f.most = max(f.most, f.under)
	f.mu.Unlock()
	l.path, l.seen, l.whole = path, l.err == nil, true
	<-time.After(delay)
	if hang != nil {
		<-hang
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.under--
	return l
}

// orders has the file say something else.
func (f *slowFile) orders(reasons ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.says = drainLook{stamp: fileStamp{path: "f", inode: f.says.stamp.inode + 1, size: 1}}
	for i, r := range reasons {
		f.says.list = append(f.says.list, edge.Drain{Service: edge.ServiceID(fmt.Sprint(r, i)), Reason: r, ByFile: true})
	}
}

// stall has the file system hang from the next look on, until end is called.
func (f *slowFile) stall() (end func()) {
	hang := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay, f.hang = 0, hang
	return func() {
		f.mu.Lock()
		f.hang = nil
		f.mu.Unlock()
		close(hang)
		synctest.Wait()
	}
}

// TestDrainFileStalls: in virtual time, what a file orders that stops answering,
// and answers again.
func TestDrainFileStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := testDrains(t, t.TempDir())
		f := &slowFile{delay: 900 * time.Millisecond}
		d.file.look = f.look
		f.orders("a", "b")
		turn := func(want time.Duration) {
			t.Helper()
			began := time.Now()
			if d.follow("/f", began); time.Since(began) != want {
				t.Errorf("the turn has waited for %s, want %s", time.Since(began), want)
			}
		}
		turn(900 * time.Millisecond) // the first look comes before all decisions
		wantOrders(t, d, "a", "b")
		f.delay = 0 // no look is under way now
		f.orders("a")
		turn(0)
		wantOrders(t, d, "a", "b") // not settled yet
		end := f.stall()
		turn(nextLook)
		for range 20 * time.Second / beat {
			time.Sleep(beat)
			turn(0)
			wantOrders(t, d, "a", "b") // whether b has gone for good nobody can see
		}
		wantFileErr(t, d, "/f does not answer since 2000-01-01 00:00:00")
		f.orders("a", "c")
		end()
		turn(0) // takes the old answer
		wantFileErr(t, d, "")
		wantOrders(t, d, "a")
		turn(0)
		wantOrders(t, d, "a", "c")
		if f.most != 1 {
			t.Errorf("%d looks at a time", f.most)
		}
		f.says = drainLook{err: errors.New("line 1: no")}
		turn(0)
		wantFileErr(t, d, "line 1: no; what it ordered before stays")
		wantOrders(t, d, "a", "c")
	})
}

// TestDrainFileChanges: another path is looked at when the look at the old one is
// back, and none needs no look.
func TestDrainFileChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := testDrains(t, t.TempDir())
		f := &slowFile{}
		d.file.look = f.look
		f.orders("old")
		end := f.stall()
		d.follow("/old", time.Now())
		if d.file.unheard("/old") == "" {
			t.Error("something new may be announced")
		}
		time.Sleep(drainSilence)
		d.follow("/new", time.Now())
		wantFileErr(t, d, "/new cannot be looked at: /old, which was node.drain_file, does not answer since 2000-01-01 00:00:00")
		synctest.Wait()
		if f.looks != 1 || d.file.unheard("/new") == "" {
			t.Errorf("%d looks, and %q", f.looks, d.file.unheard("/new"))
		}
		d.follow("", time.Now())
		wantFileErr(t, d, "")
		if why := d.file.unheard(""); why != "" {
			t.Errorf("no file is waited for: %q", why)
		}
		end()
		f.orders("new")
		d.follow("/new", time.Now())
		wantOrders(t, d, "new")
		wantFileErr(t, d, "")
		if why := d.file.unheard("/new"); why != "" {
			t.Errorf("it has answered: %q", why)
		}
	})
}

// TestDrainFileLost: a file that cannot even be seen is an error while that lasts
// and no longer, and its orders end at their time.
func TestDrainFileLost(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	path, now := filepath.Join(dir, "drain"), time.Now()
	mustDo(t, os.Mkdir(dir, 0o755))
	mustDo(t, os.WriteFile(path, []byte("node x\nprefix 198.51.100.0/24 until "+now.Add(time.Minute).Format(time.RFC3339)+" y"), 0o644))
	d := testDrains(t, t.TempDir())
	d.file.first, d.file.next = time.Minute, time.Minute
	look := func(why string, want ...string) {
		t.Helper()
		d.follow(path, now)
		wantOrders(t, d, want...)
		wantFileErr(t, d, why)
	}
	look("", "x", "y")
	mustDo(t, os.Rename(dir, dir+".away"))
	mustDo(t, os.WriteFile(dir, nil, 0o644))
	look("not a directory", "x", "y")
	now = now.Add(time.Minute)
	look("not a directory", "x")
	mustDo(t, os.Remove(dir))
	mustDo(t, os.Rename(dir+".away", dir)) // the file itself is as it was
	look("", "x")
}

// TestUnheardDrainFile: nothing new is announced before the drain file has
// answered; what is on the air stays, and leaves if it was ordered to before.
func TestUnheardDrainFile(t *testing.T) {
	d := testDrains(t, t.TempDir())
	r := newRig(t)
	r.in.notReady = d.file.unheard("/f")
	r.speaker.held = []edge.Announcement{{Net: p4}}
	for range 20 {
		r.step(t, time.Second)
	}
	if a, b := r.loop.last[p4], r.loop.last[p6]; a.Rung != edge.Announced || b.Rung != edge.Withheld || !strings.Contains(string(b.Reason), "drain file /f has not answered") {
		t.Errorf("%+v, %+v", a, b)
	}
	r.guard.permit = edge.Permit{OK: true}
	d.byFile = []edge.Drain{{Reason: "before", ByFile: true}}
	r.in.drain = func(p netip.Prefix) *edge.Drain { return d.of(p, nowhere) }
	r.step(t, time.Second)
	if a := r.loop.last[p4]; a.Rung.OnAir() {
		t.Errorf("%+v", a)
	}
}
