package lab

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"slices"
	"sync"
	"testing"
	"time"
)

// source gives packets as they are sent into it, and then nothing until closed.
type source chan []byte

func (s source) Read(b []byte) (int, error) {
	p, ok := <-s
	if !ok {
		return 0, io.EOF
	}
	return copy(b, p), nil
}

// arrival is a packet and when it came out.
type arrival struct {
	n  uint64
	at time.Time
}

type sink struct {
	mu  sync.Mutex
	got []arrival
	new chan struct{}
}

func (s *sink) Write(b []byte) (int, error) {
	s.mu.Lock()
	s.got = append(s.got, arrival{binary.BigEndian.Uint64(b), time.Now()})
	s.mu.Unlock()
	s.new <- struct{}{}
	return len(b), nil
}

func TestRelayKeepsOrderAndTime(t *testing.T) {
	for _, delay := range []time.Duration{0, 3 * time.Millisecond, 20 * time.Millisecond} {
		t.Run(delay.String(), func(t *testing.T) {
			// Alone it is 0.1 ms; tests share the cores with each other, and with others.
			for try := 1; ; try++ {
				median := medianLate(t, delay)
				if median <= 2*time.Millisecond {
					break
				} else if t.Logf("the median packet came %s late", median); try == 10 {
					t.Fatal("10 times too late")
				}
			}
		})
	}
}

// medianLate is how much later than the delay most packets are.
func medianLate(t *testing.T, delay time.Duration) time.Duration {
	t.Helper()
	const n = 200
	from, to := make(source), &sink{new: make(chan struct{}, n)}
	r := newRelay(from, to, delay)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { r.read(ctx) })
	wg.Go(func() {
		if err := r.write(ctx); err != nil {
			t.Error(err)
		}
	})
	sent := make([]time.Time, n)
	pace := time.NewTicker(400 * time.Microsecond) // the sender's
	defer pace.Stop()
	for i := range n {
		sent[i] = time.Now()
		from <- binary.BigEndian.AppendUint64(nil, uint64(i))
		for range i % 3 {
			<-pace.C
		}
	}
	for range n {
		<-to.new
	}
	cancel()
	close(from)
	wg.Wait()
	var late []time.Duration
	for i, a := range to.got {
		if a.n != uint64(i) {
			t.Fatalf("packet %d came as number %d", a.n, i)
		}
		late = append(late, a.at.Sub(sent[i])-delay)
	}
	slices.Sort(late)
	if late[0] < 0 {
		t.Errorf("a packet came %s early", -late[0])
	}
	return late[n/2]
}

func TestRelayBoundsItsQueue(t *testing.T) {
	from, to := make(source), &sink{new: make(chan struct{}, 2*relayQueue)}
	r := newRelay(from, to, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { r.read(ctx) })
	wg.Go(func() { r.write(ctx) })
	packet := bytes.Repeat([]byte{1}, 8)
	for range relayQueue + 100 {
		from <- packet
	}
	if err := Until(limit(t, patience), "packets are dropped", func() error {
		if r.dropped.Load() < 90 {
			return io.ErrNoProgress
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	cancel() // also ends the hour's wait
	close(from)
	wg.Wait()
	if len(to.got) > 0 {
		t.Errorf("%d packets came out an hour early", len(to.got))
	}
}
