package bfd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

var errStopped = errors.New("bfd has stopped")

// Engine runs BFD sessions. Its methods may be called by several goroutines
// at once, but none from Options.OnChange.
type Engine struct {
	log      *slog.Logger
	onChange func(Status)
	ready    chan struct{}
	done     chan struct{}
	asks     chan ask

	// mu guards what follows. The thread of Run takes it when it begins and
	// when it ends, never in between: no timer waits for a lock.
	mu      sync.Mutex
	begun   bool
	waiting []Config // of a Set before Run
	wakeFD  int      // an eventfd that interrupts the thread's wait; -1: not running
}

// ask is a call that the thread of Run is to answer.
type ask struct {
	set   bool
	want  []Config // if set
	reply chan answer
}

type answer struct {
	err     error
	states  []Status
	dropped map[string]uint64
}

// New returns an Engine without sessions that does nothing until Run.
func New(o Options) *Engine {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.OnChange == nil {
		o.OnChange = func(Status) {}
	}
	return &Engine{
		log: o.Log, onChange: o.OnChange, ready: make(chan struct{}), done: make(chan struct{}),
		asks: make(chan ask, 16), wakeFD: -1,
	}
}

// String is the name of the task.
func (e *Engine) String() string { return "bfd" }

// Ready is closed once Run serves sessions.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Run serves the sessions until ctx ends; then it tells the far ends that BFD
// is administratively down here and returns nil. It can be called once. The
// sockets are those of the network namespace of the calling thread, which Run
// locks and, if it may (CAP_SYS_NICE), gives the highest nice priority.
func (e *Engine) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l, first, err := e.begin()
	if err != nil {
		return err
	}
	var writer sync.WaitGroup
	writer.Go(l.writeLog)
	restore := l.raisePriority()
	stop := context.AfterFunc(ctx, e.wake)
	l.apply(first) // what it could not open is in States, and tried again
	close(e.ready)
	err = l.run(ctx)
	stop()
	e.end(l)
	restore()
	close(l.lines)
	writer.Wait()
	return err
}

func (e *Engine) begin() (*loop, []Config, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.begun {
		return nil, nil, errors.New("run bfd: it has been run before")
	}
	l, err := newLoop(e)
	if err != nil {
		return nil, nil, fmt.Errorf("run bfd: %w", err)
	}
	e.begun, e.wakeFD = true, l.wakeFD
	return l, e.waiting, nil
}

func (e *Engine) end(l *loop) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wakeFD = -1 // before it is closed: the number may be given to another file
	l.close()
	close(e.done)
}

// wake interrupts the wait of the thread.
func (e *Engine) wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.wakeFD >= 0 {
		// It fails only if the counter is full, and then the thread wakes anyway.
		_, _ = unix.Write(e.wakeFD, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// Set says which sessions there shall be; it is the whole set. A session whose
// Config is equal keeps its state, one with other timers changes them without
// a flap, one that is no longer named tells its far end AdminDown and ends.
//
// The error joins what is wrong with single configs and what could not be
// opened; all others run. A session that could not be opened is tried again
// every second. One with an invalid Config stays what it was. Before Run, the
// set is kept for it and checked only.
func (e *Engine) Set(want []Config) error {
	if kept, err := e.keep(want); kept {
		return err
	}
	a, ok := e.ask(ask{set: true, want: slices.Clone(want)})
	if !ok {
		return errStopped
	}
	return a.err
}

// keep does so if Run has not begun.
func (e *Engine) keep(want []Config) (kept bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.begun {
		return false, nil
	}
	e.waiting = slices.Clone(want)
	_, err = valid(want)
	return true, err
}

// States returns the sessions by address; nil while Run does not run.
func (e *Engine) States() []Status {
	a, _ := e.ask(ask{})
	return a.states
}

// Dropped counts, by reason, the packets that came from no configured peer:
// those of a peer are in its Status.
func (e *Engine) Dropped() map[string]uint64 {
	a, _ := e.ask(ask{})
	return a.dropped
}

// ask has the thread of Run answer; false: it does not run.
func (e *Engine) ask(a ask) (answer, bool) {
	e.mu.Lock()
	running := e.wakeFD >= 0
	e.mu.Unlock()
	if !running {
		return answer{}, false
	}
	a.reply = make(chan answer, 1)
	select {
	case e.asks <- a:
	case <-e.done:
		return answer{}, false
	}
	e.wake()
	select {
	case got := <-a.reply:
		return got, true
	case <-e.done:
		return answer{}, false
	}
}
