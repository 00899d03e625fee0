package image

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
)

// The tests of this file need no image: make test runs them by their name.

func TestShortPath(t *testing.T) {
	table := func(community string) string {
		return "BIRD 2.0.12 ready.\nTable master4:\n198.51.100.0/24      unicast [box-a1 12:00:00.000] * (100) [AS64512i]\n" +
			"\tvia 10.1.0.2 on a1\n\tType: BGP univ\n\tBGP.origin: IGP\n\tBGP.as_path: 64512\n" + community
	}
	for _, c := range []struct {
		what, out string
		err       error
		want      pathState
		ok        bool
	}{
		{"a path", table(""), nil, pathFull, true},
		{"with another community", table("\tBGP.community: (64512,1)\n"), nil, pathFull, true},
		{"nobody prefers it", table("\tBGP.community: (64512,1) (65535,0)\n"), nil, pathLast, true},
		{"nobody has it", "Network not found\n", errors.New("exit status 1"), pathGone, true},
		{"BIRD does not answer", "", errors.New("exit status 1"), "", false},
		{"others have it", "BIRD 2.0.12 ready.\n", nil, pathGone, true},
		{"an answer that is none", "", nil, "", false},
	} {
		if got, ok := parsePath(c.out, boxName, c.err); got != c.want || ok != c.ok {
			t.Errorf("%s: %q, %v, want %q, %v", c.what, got, ok, c.want, c.ok)
		}
	}
}

func TestShortConfig(t *testing.T) {
	in := `node:
  name: a1
  key_file: /tmp/lab/secrets/node-a1.key
  run_dir: /tmp/lab/a1/run
  state_dir: /tmp/lab/a1/state
  bpf_dir: /tmp/lab/a1/bpf/edge
  drain_file: /tmp/lab/a1/drain
  forwarder:
    interfaces: [eth0]
fleet:
  proxy:
    access_log: /tmp/lab/a1/access.log
      - {name: proxy, kind: process, pid_file: /tmp/lab/a1/run/edgeproxy.pid, interval: 300ms, timeout: 300ms, rise: 2, fall: 2}
`
	want := `node:
  name: a1
  key_file: /etc/edge/secrets/node-a1.key
  forwarder:
    interfaces: [enp0s5]
fleet:
  proxy:
      - {name: proxy, kind: process, pid_file: /run/edge/edgeproxy.pid, interval: 5s, timeout: 4s, rise: 1, fall: 3}
`
	if got := imageConfig(in, "/tmp/lab", "a1"); got != want {
		t.Errorf("got\n%s", got)
	}
}

// TestShortPatterns: what the scenarios wait for is what is written.
func TestShortPatterns(t *testing.T) {
	for _, c := range []struct {
		re         *regexp.Regexp
		text, want string
	}{
		{verified, "[    2.1] edge-initrd: version 1.2.0-rc1 slot b verified\n", "1.2.0-rc1 b"},
		{exposureOf, "→ Overall exposure level for edgeproxy.service: 1.9 OK :-)", "edgeproxy 1.9"},
	} {
		if m := c.re.FindStringSubmatch(c.text); m == nil || strings.Join(m[1:], " ") != c.want {
			t.Errorf("%q gives %q of %q, want %q", c.re, m, c.text, c.want)
		}
	}
}

// TestShortExcused: a request may fail only with a turn of the routers in it.
func TestShortExcused(t *testing.T) {
	start := time.Now()
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	good := make(lab.Samples, 200)
	failed := lab.Sample{At: at(10), Took: time.Second, Err: errors.New("reset")}
	for _, c := range []struct {
		what   string
		failed int
		turn   float64
		ok     bool
	}{
		{"in it", 3, 10.5, true}, {"just seen after it", 1, 11.2, true}, {"before it", 1, 9.9, false},
		{"long after it", 1, 12, false}, {"too many", 10, 10.5, false},
	} {
		err := excused(append(slices.Clone(good), slices.Repeat(lab.Samples{failed}, c.failed)...), []seenPath{{at(c.turn), pathGone}})
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// TestShortAim: the moment at which a slot is half written is found, whatever part of the
// time a machine writes.
func TestShortAim(t *testing.T) {
	for begin := 1; begin < 100; begin += 7 {
		var a aim
		begins, ends := time.Duration(begin)*time.Second, time.Duration(begin+8)*time.Second
		for range 8 {
			if a.followed {
				break
			}
			after := a.next(60 * time.Second)
			a.saw(after, after > begins, after > ends)
		}
		if !a.followed {
			t.Errorf("from %s to %s it was not found: %+v", begins, ends, a)
		}
	}
	a := aim{followed: true}
	if a.saw(time.Second, true, false) {
		t.Error("a second one is followed")
	}
}

// TestShortApart: of two boxes that are rolled one is there at any time.
func TestShortApart(t *testing.T) {
	start := time.Now()
	path := func(seconds ...int) (seen []seenPath) {
		for i, s := range seconds {
			seen = append(seen, seenPath{start.Add(time.Duration(s) * time.Second), []pathState{pathFull, pathLast, pathGone, pathFull, pathGone}[i]})
		}
		return seen
	}
	for _, c := range []struct {
		what string
		a, b []seenPath
		ok   bool
	}{
		{"one after the other", path(0, 10, 11, 60), path(0, 70, 71, 120), true},
		{"the other first", path(0, 70, 71, 120), path(0, 10, 11, 60), true},
		{"both at once", path(0, 10, 11, 60), path(0, 50, 51, 120), false},
		{"one within the other", path(0, 10, 11, 60), path(0, 20, 21, 30), false},
		{"one has not left", path(0, 10, 11, 60), path(0), false},
		{"one has not come back", path(0, 10, 11), path(0, 70, 71, 120), false},
		{"one leaves again", path(0, 10, 11, 60, 65), path(0, 70, 71, 120), false},
		{"one is less attractive for a moment", append(path(0, 3), path(4, 10, 11, 60)...), path(0, 70, 71, 120), true},
		{"one is withdrawn at once", append(path(0), path(0, 10, 11, 60)[2:]...), path(0, 70, 71, 120), false},
	} {
		if err := apart(c.a, c.b); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
