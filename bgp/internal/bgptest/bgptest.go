// Package bgptest gives a test network namespaces, links between them, and real
// routers that run inside.
//
// It is for the tests of package bgp and of those below it; no process of the
// product runs it. It owns what it starts: namespaces, folders and children go
// when the test ends, and the log of a child is shown if the test has failed. It
// never touches an interface outside the namespaces that it has made, and it
// does not know what is asked of a router: the configurations, and what a router
// shows of its routes, belong to the tests of each package.
package bgptest

import (
	"os"
	"testing"
	"time"
)

// Must ends the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TempDir is a folder that goes with the test. Its name is short enough for the
// path of a unix socket (108 bytes), which that of t.TempDir is not.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "bgp")
	Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Poll is the pause between two looks at a condition, greater than 0.
type Poll time.Duration

// patience is how long a test waits for what is to come. It is no claim of how
// soon: on a box that has other work a real router may be late by many seconds.
const patience = time.Minute

// Eventually polls cond, which says what is still missing, until it says
// nothing. It ends the test if that does not come. A test that claims how soon
// something is compares the times of the events themselves, as those that a State
// gives, with limits that others' work on the box cannot break.
func (p Poll) Eventually(t testing.TB, cond func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		missing := cond()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, missing)
		}
		time.Sleep(time.Duration(p))
	}
}
