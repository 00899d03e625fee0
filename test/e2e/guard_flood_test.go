package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

const (
	// floodFactor is how many times the usual rate a flood has.
	floodFactor = 100
	// floodLeast is what is taken for usual at least, in datagrams a second: so small a
	// fleet has little to say.
	floodLeast = 10
	// floodLate is how long after it knows that it is sick a site may be on the air
	// in a flood. A machine that is busy with other things has floodTries.
	floodLate  = 2 * time.Second
	floodTries = 3
	// floodMemory bounds what edged may take more in a flood, in MiB: with the race
	// detector it takes several times what it does without. It may not take a whole core.
	floodMemory = 256
)

// flood sends all boxes a hundred times what they usually get: first what they did
// get, so with the right key, then garbage of three kinds. A site that falls sick
// in it leaves as fast as ever.
func (s *siege) flood(ctx context.Context) error {
	other := seal{newGossipKey()}
	rng := rand.New(rand.NewPCG(5, 100))
	var junk [][]byte
	for range 300 {
		b := make([]byte, 20+rng.IntN(1300))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		junk = append(junk, b, append([]byte(gossipLabel), b...), other.packet(b))
	}
	garbage := map[*lab.Box][][]byte{}
	for _, b := range s.boxes() {
		garbage[b] = junk
	}
	if err := s.floodWith(ctx, "what was recorded", s.letters, s.promise); err != nil {
		return err
	}
	reasons := []string{"wrong_label", "not_encrypted", "wrong_key"}
	before := map[string]uint64{}
	box := s.Lab.Boxes["b1"]
	for _, r := range reasons {
		n, err := dropped(ctx, box, r)
		if err != nil {
			return err
		}
		before[r] = n
	}
	if err := s.floodWith(ctx, "garbage", garbage, other.stream(junk[0])); err != nil {
		return err
	}
	for _, r := range reasons {
		if err := s.counts(ctx, box, r, before[r]+100); err != nil {
			return err
		}
	}
	return nil
}

// floodWith floods until a site has left in time.
func (s *siege) floodWith(ctx context.Context, name string, packets map[*lab.Box][][]byte, stream []byte) error {
	var late []string
	for range floodTries {
		took, err := s.leavesInFlood(ctx, name, packets, stream)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := s.returns(ctx, s.Lab.Boxes["b1"]); err != nil {
			return fmt.Errorf("after %s: %w", name, err)
		}
		if err := s.together(ctx); err != nil {
			return fmt.Errorf("after %s: %w", name, err)
		}
		if took <= floodLate {
			return nil
		}
		late = append(late, took.String())
		out, err := s.Lab.Boxes["b1"].Ctl(ctx, "guard", "decisions", "--last", "8")
		s.Say("%s: that was late: %v\n%s", name, err, out)
	}
	return fmt.Errorf("%s: b1 has left after %s", name, strings.Join(late, ", "))
}

// leavesInFlood is one try.
func (s *siege) leavesInFlood(ctx context.Context, name string, packets map[*lab.Box][][]byte, stream []byte) (time.Duration, error) {
	before, err := s.usage()
	if err != nil {
		return 0, err
	}
	floodCtx, stop := context.WithCancel(ctx)
	defer stop()
	var g errgroup.Group
	start := time.Now()
	sent := make([]int, len(s.boxes()))
	for i, b := range s.boxes() {
		g.Go(func() (err error) {
			list := packets[b]
			sent[i], err = s.send(floodCtx, spot(b), floodFactor*max(s.usual[b], floodLeast), time.Minute, func(i int) []byte { return list[i%len(list)] })
			return err
		})
	}
	var streams uint64
	g.Go(func() error { return s.streams(floodCtx, spot(s.Lab.Boxes["b1"]), stream, &streams) })
	// It is well under way when the site falls sick.
	err = story.Until(ctx, "the flood has lasted for a second", func() error {
		if time.Since(start) < time.Second {
			return errors.New("not yet")
		}
		return nil
	})
	var took time.Duration
	if err == nil {
		took, err = s.leaves(ctx, s.Lab.Boxes["b1"])
	}
	after, usageErr := s.usage()
	stop()
	length := time.Since(start)
	if err = errors.Join(err, usageErr, g.Wait()); err != nil {
		return 0, err
	}
	s.Say("%s to b1: %.0f streams a second too", name, float64(streams)/length.Seconds())
	for i, b := range s.boxes() {
		rate := float64(sent[i]) / length.Seconds()
		u, v := before[b], after[b]
		s.Say("%s to %s: %.0f packets a second, usual are %.0f; edged takes %.0f %% of a core, and %d MiB of memory, before %d",
			name, b.Name(), rate, s.usual[b], 100*(v.cpu-u.cpu).Seconds()/length.Seconds(), v.mib, u.mib)
		if rate < floodFactor/2*max(s.usual[b], floodLeast) { // to be tried again
			s.Say("the flood to %s was no flood: %.0f packets a second", b.Name(), rate)
			took = max(took, 2*floodLate)
		}
		if v.mib > u.mib+floodMemory || v.cpu-u.cpu > length || v.pid != u.pid {
			err = errors.Join(err, fmt.Errorf("edged of %s: %+v, before %+v", b.Name(), v, u))
		}
	}
	return took, err
}

// usage is what an edged takes.
type usage struct {
	pid int
	cpu time.Duration
	mib int
}

func (s *siege) usage() (map[*lab.Box]usage, error) {
	out := map[*lab.Box]usage{}
	for _, b := range s.boxes() {
		u := usage{pid: b.Daemon(lab.Control).PID()}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", u.pid))
		if err != nil {
			return nil, fmt.Errorf("read CPU of %s: %w", b.Name(), err)
		}
		// After the name, which is in brackets (proc_pid_stat(5)): utime and stime are
		// fields 14 and 15, in hundredths of a second, rss is 24, in pages.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		var user, system, pages int
		if len(fields) < 22 {
			return nil, fmt.Errorf("read CPU of %s: %q", b.Name(), stat)
		}
		if _, err := fmt.Sscan(fields[11]+" "+fields[12]+" "+fields[21], &user, &system, &pages); err != nil {
			return nil, fmt.Errorf("read CPU of %s: %w", b.Name(), err)
		}
		u.cpu, u.mib = time.Duration(user+system)*10*time.Millisecond, pages*os.Getpagesize()>>20
		out[b] = u
	}
	return out, nil
}
