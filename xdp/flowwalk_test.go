package xdp

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"golang.org/x/sync/errgroup"
)

// Who lists flows and is slow at it holds up nobody, and what changes meanwhile is
// none of the list's business. Close waits for it, and ends it.
func TestSlowListOfFlows(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 2)
	apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, b...)))
	for i := range someFlows {
		d.sendTo(t, i, vipA, 6, flagSYN)
	}
	begun, goOn := make(chan struct{}), make(chan struct{})
	var list errgroup.Group
	seen := 0
	list.Go(func() error {
		return d.Flows(func(e edge.FlowEntry) bool {
			if seen++; seen == 1 {
				close(begun)
				<-goOn
			}
			return e.Service == "a"
		})
	})
	<-begun
	answered := make(chan error, 1)
	go func() {
		_, errStats := d.Stats()
		_, errLookup := d.Lookup(edge.Flow{Src: addrPort("100.64.0.1:1000"), Dst: addrPort(vipA), Protocol: edge.TCP}, nil)
		errApply := d.Apply(t.Context(), tableOf(service("b", vipB, edge.TCP, b...)))
		answered <- errors.Join(errStats, errLookup, errApply, d.Block(t.Context(), prefixes("203.0.113.0/24")))
	}()
	select {
	case err := <-answered:
		check(t, err)
	case <-time.After(patience):
		t.Error("nothing answers while flows are listed")
	}
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	eventually(t, "close begins", d.closing.Load)
	select {
	case err := <-closed:
		t.Errorf("closed while a flow is shown: %v", err)
	default:
	}
	close(goOn)
	check(t, <-closed)
	if err := list.Wait(); !errors.Is(err, errClosed) || seen != 1 {
		t.Errorf("the list ended after %d flows: %v", seen, err)
	}
}

// Everything that reads the flow tables may meet Close, and says so afterwards.
func TestReadersOfFlowsMeetClose(t *testing.T) {
	for range 5 {
		d := policyBox(t, 1<<12)
		apply(t, d.Forwarder, tableOf(service("a", vipA, edge.TCP, pool(t, 2)...)))
		for i := range someFlows {
			d.sendTo(t, i, vipA, 6, flagSYN)
		}
		var g errgroup.Group
		reading := make(chan struct{}, 2)
		until := func(read func() error) {
			g.Go(func() error {
				for i := 0; ; i++ {
					if err := read(); errors.Is(err, errClosed) {
						return nil
					} else if err != nil {
						return fmt.Errorf("after %d times: %w", i, err)
					}
					if i == 0 {
						reading <- struct{}{}
					}
				}
			})
		}
		until(func() error { return d.Flows(func(edge.FlowEntry) bool { return true }) })
		until(func() error {
			_, err := d.Lookup(edge.Flow{Src: addrPort("100.64.0.1:1000"), Dst: addrPort(vipA), Protocol: edge.TCP}, nil)
			return err
		})
		<-reading
		<-reading
		check(t, d.Close())
		check(t, g.Wait())
	}
}
