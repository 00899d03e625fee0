package main

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/catchment-dev/edge"
)

// leaseSpeaker notes the longest time without an intent.
type leaseSpeaker struct {
	mu      sync.Mutex
	got     []edge.Intent
	at      time.Time
	longest time.Duration
}

func (s *leaseSpeaker) Set(_ context.Context, in edge.Intent) (edge.SpeakerState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.at.IsZero() {
		s.longest = max(s.longest, time.Since(s.at))
	}
	s.at = time.Now()
	s.got = append(s.got, in)
	return edge.SpeakerState{}, nil
}

func (s *leaseSpeaker) read() ([]edge.Intent, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got), s.longest
}

func (s *leaseSpeaker) State(context.Context) (edge.SpeakerState, error) {
	return edge.SpeakerState{}, nil
}

// While the loop is at work on a large table the lease does not run out; one
// that hangs lets it run out in the end.
func TestLeaseOutlastsABusyLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &leaseSpeaker{}
		k := &leaseKeeper{announcer: s}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.run(ctx) }()
		lease := 5 * time.Second
		time.Sleep(time.Minute)
		if got, _ := s.read(); len(got) != 0 {
			t.Fatal("an intent is sent before there is any")
		}
		in := edge.Intent{Generation: 7, Speaker: edge.Speaker{Lease: lease}, Announcements: []edge.Announcement{{Net: netip.MustParsePrefix("192.0.2.0/24")}}}
		if _, err := k.Set(ctx, in); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // the loop builds rings
		in.Generation = 8
		if _, err := k.Set(ctx, in); err != nil {
			t.Fatal(err)
		}
		got, longest := s.read()
		if longest >= lease/2 || len(got) < 8 {
			t.Errorf("%s passed without a renewal, %d intents were sent", longest, len(got))
		}
		for _, g := range got[1 : len(got)-1] {
			if g.Generation != 7 || len(g.Announcements) != 1 {
				t.Errorf("sent was %+v", g)
			}
		}
		time.Sleep(2 * time.Minute) // the loop hangs
		s.mu.Lock()
		silent, last := time.Since(s.at), s.got[len(s.got)-1].Generation
		s.mu.Unlock()
		if silent < time.Minute || last != 8 {
			t.Errorf("the last intent came %s ago, generation %d", silent, last)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
