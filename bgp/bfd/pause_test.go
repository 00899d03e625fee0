package bfd

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// TestOwnPause: the thread sleeps for three detection times, as a starved box
// would have it do, and takes the packets that have come meanwhile before it
// judges.
func TestOwnPause(t *testing.T) {
	t.Parallel()
	sa, sb := pair(t)
	sb.Up(t, "v0", "10.0.0.3/24")
	b := run(t, sb)
	var pause atomic.Int64
	a := &running{t: t, end: func() {}}
	a.Engine = New(Options{OnChange: func(s Status) {
		a.change(s)
		if d := time.Duration(pause.Load()); d > 0 && s.Peer.String() == "10.0.0.3" {
			<-time.After(d) // it must not block: so it does
		}
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := sa.Go(func() error { return a.Run(ctx) })
	defer func() { cancel(); must(t, <-done) }()
	<-a.Ready()

	cfg := to("10.0.0.2", "10.0.0.1")
	cfg.Multiplier = 50 // the far end is patient: it is ours that is tested
	other := to("10.0.0.3", "10.0.0.1")
	a.set(cfg, other)
	b.set(to("10.0.0.1", "10.0.0.2"))
	before := a.becomes("10.0.0.2", "up, detection 300 ms", func(s Status) bool { return s.State == Up && s.Detect == 300*ms })
	b.becomes("10.0.0.1", "detection 5 s", func(s Status) bool { return s.Detect == 5*time.Second })

	pause.Store(int64(900 * ms))
	other.AdminDown = true
	began := time.Now()
	a.set(cfg, other)
	if took := time.Since(began); took < 900*ms {
		t.Fatalf("the thread was not held up: %s", took)
	}
	after := a.becomes("10.0.0.2", "took what had come", func(s Status) bool { return s.Received > before.Received+8 })
	if after.Flaps != 0 || after.State != Up {
		t.Errorf("our own pause was taken for the far end's: %+v", after)
	}
}
