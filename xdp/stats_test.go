package xdp

import (
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// feedAll has every CPU run packets, each nearly all the time, until stop.
func (d device) feedAll(g *errgroup.Group, stop *atomic.Bool, frame []byte) {
	for cpu := range runtime.NumCPU() {
		g.Go(func() error {
			runtime.LockOSThread() // for good: the thread ends with this
			var only unix.CPUSet
			only.Set(cpu)
			if err := unix.SchedSetaffinity(0, &only); err != nil {
				return err
			}
			for !stop.Load() {
				if _, err := d.program().Run(&ebpf.RunOptions{Data: frame, Repeat: 1 << 12}); err != nil && !errors.Is(err, unix.EINTR) {
					return err
				}
			}
			return nil
		})
	}
}

// Whenever the counters are read each packet has left once, also while every CPU
// is nearly always in the middle of one.
func TestCountersAgreeUnderLoad(t *testing.T) {
	const reads = 2000
	d := oneBox(t)
	var stop atomic.Bool
	var g errgroup.Group
	// Of a long way, and left as it is: the program is fed with it over and over.
	p := tcpPacket("["+client6+"]:1", "["+vip6+"]:"+portLocal)
	p.extType, p.ext = 60, slices.Repeat([]byte{60, 0, 1, 4, 0, 0, 0, 0}, 6)
	p.ext[40] = 6
	d.feedAll(&g, &stop, p.frame())
	var before edge.ForwarderStats
	wrong, grew := 0, 0
	for range reads {
		st := stats(t, d.Forwarder)
		sum := uint64(0)
		for _, v := range st.Verdicts {
			sum += v.Count
		}
		if sum != st.Received {
			wrong++
		}
		if st.Received < before.Received {
			t.Errorf("received %d, before that %d", st.Received, before.Received)
		}
		if st.Received > before.Received {
			grew++
		}
		before = st
	}
	stop.Store(true)
	check(t, g.Wait())
	if wrong > 0 || grew < reads/50 {
		t.Errorf("of %d reads %d do not agree, %d found more packets; %d packets in all", reads, wrong, grew, before.Received)
	}
	balanced(t, d.Forwarder)
}

// Of two CPUs one is always in the middle of a packet, now this one, now that one:
// together they never agree.
func TestCountersOfBusyCPUs(t *testing.T) {
	d := oneBox(t)
	cpus, err := ebpf.PossibleCPU()
	check(t, err)
	if cpus < 2 {
		t.Fatal("one CPU is not enough")
	}
	at := func(busy int) []edgeVerdicts {
		all := make([]edgeVerdicts, cpus)
		for cpu := range all {
			all[cpu].Received, all[cpu].Left[edgeVerdictPASS_LOCAL] = 1000, 1000
		}
		all[busy].Received++
		return all
	}
	m := d.coll.Maps[edgeMapVerdictCount]
	check(t, m.Put(uint32(0), at(0)))
	var stop atomic.Bool
	var g errgroup.Group
	g.Go(func() error {
		for i := 0; !stop.Load(); i++ {
			if err := m.Put(uint32(0), at(i%2)); err != nil {
				return err
			}
		}
		return nil
	})
	// The two change places only while the writer runs: not in the time of each read.
	agreed := 0
	for range 200 {
		got, err := d.readVerdictCounts()
		check(t, err)
		if !got.agree() {
			continue
		}
		agreed++
		if want := uint64(1000 * cpus); got.Received != want {
			t.Errorf("received %d, want %d", got.Received, want)
		}
	}
	t.Logf("%d of 200 reads agree", agreed)
	if agreed < 50 {
		t.Errorf("only %d of 200 reads agree", agreed)
	}
	stop.Store(true)
	check(t, g.Wait())
	// What is never read whole is what it was last.
	check(t, m.Put(uint32(0), at(1)))
	if got, err := d.readVerdictCounts(); err != nil || got.Received != uint64(1000*cpus+1) {
		t.Errorf("received %d, %v", got.Received, err)
	}
}
