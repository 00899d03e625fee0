package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// TestProbeSpeaker: the sessions that carry our prefixes are counted, and what
// edgebgp said too long ago is not known.
func TestProbeSpeaker(t *testing.T) {
	up, down := &edge.BFDState{State: "up"}, &edge.BFDState{State: "down", Diag: "control detection time expired"}
	peers := []edge.PeerState{
		{ID: "a", Session: "established", BFD: up},
		{ID: "b", Session: "active", LastErr: "connection refused", BFD: down},
		{ID: "glass", Session: "established"},
	}
	d := &daemon{}
	settings := &edge.Speaker{Peers: []edge.Peer{{ID: "a"}, {ID: "b"}, {ID: "glass", Watch: true}}}
	d.held.Store(&readBack{edge.SpeakerState{Speaker: settings, Peers: peers}, time.Now()})
	for _, tt := range []struct {
		probe   func(context.Context, edge.Probe) error
		atLeast int
		want    string // "": passes
	}{
		{d.probeBGP, 1, ""},
		{d.probeBGP, 2, "1 of 2 BGP sessions are established, at least 2 are needed; b: connection refused"},
		{d.probeBFD, 1, ""},
		{d.probeBFD, 2, "1 of 2 BFD sessions are up, at least 2 are needed; b: control detection time expired"},
	} {
		err := tt.probe(t.Context(), edge.Probe{AtLeast: tt.atLeast, Interval: time.Second})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("at least %d: %v, want %q", tt.atLeast, err, tt.want)
		}
	}
	d.held.Store(&readBack{edge.SpeakerState{Peers: peers}, time.Now().Add(-time.Minute)})
	if err := d.probeBGP(t.Context(), edge.Probe{AtLeast: 1, Interval: time.Second}); !errors.Is(err, edge.ErrUnknown) {
		t.Errorf("after a minute of silence: %v", err)
	}
}

// TestCounting: a program that is attached and sees nothing of what comes is no
// forwarder.
func TestCounting(t *testing.T) {
	var c countProbe
	for i, tt := range []struct {
		uplinks, seen uint64
		bad           bool
	}{
		{5000, 10, false}, // nothing to compare with
		{5999, 10, false}, // too few to judge by
		{6999, 10, true},
		{9000, 11, false},
		{9000, 11, false}, // silence
		{100, 11, false},  // an uplink was replaced
		{2000, 11, true},
	} {
		if err := c.look(tt.uplinks, tt.seen); (err != nil) != tt.bad {
			t.Errorf("look %d: %v", i, err)
		}
	}
}
