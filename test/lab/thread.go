package lab

import (
	"errors"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// errGone is returned for work on a host that was closed.
var errGone = errors.New("host is closed")

// thread is an OS thread that runs functions, one after the other. A process
// started on it gets the thread's namespaces, and its parent-death signal when
// the thread ends: the kernel ties that signal to the thread that forked, not
// to the process.
type thread struct {
	work chan func()
	quit chan struct{}
	once sync.Once
	done chan struct{}
}

// startThread starts a thread and runs setup on it. If setup fails there is no
// thread. It must never be the process's first thread: /proc/PID/ns shows that
// one's namespaces, so that the test process would look like one of the lab's.
func startThread(setup func() error) (*thread, error) {
	t := &thread{work: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
	ready := make(chan error, 1)
	go t.run(setup, ready)
	if err := <-ready; err != nil {
		<-t.done
		return nil, err
	}
	return t, nil
}

func (t *thread) run(setup func() error, ready chan error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// Keep the first thread busy until another goroutine has one of its own.
		handed := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(handed)
			t.loop(setup, ready)
		}()
		<-handed
		runtime.UnlockOSThread()
		return
	}
	t.loop(setup, ready)
}

// loop never unlocks the thread, whose namespaces nobody else may get: it ends
// with the goroutine.
func (t *thread) loop(setup func() error, ready chan error) {
	defer close(t.done)
	err := setup()
	ready <- err
	if err != nil {
		return
	}
	for {
		select {
		case f := <-t.work:
			f()
		case <-t.quit:
			return
		}
	}
}

// do runs f on the thread and returns its error.
func (t *thread) do(f func() error) error {
	result := make(chan error, 1)
	select {
	case t.work <- func() { result <- f() }:
		return <-result
	case <-t.done:
		return errGone
	}
}

// stop ends the thread once its current function is done.
func (t *thread) stop() {
	t.once.Do(func() { close(t.quit) })
	<-t.done
}
