package health

import (
	"context"
	"sync"
)

// patience runs calls from which the kernel may never return: those into a file
// system whose disk or server is gone. At most one hangs for each key, and who
// asks meanwhile waits for the same one. It may be used by several goroutines
// at once. The zero value is ready.
type patience struct {
	mu    sync.Mutex
	calls map[string]*hanging
}

// hanging is a call that has not returned; its results, when done is closed.
type hanging struct {
	done  chan struct{}
	value any
	err   error
}

// call returns what f returns, or the error of ctx if that ends first.
func (s *patience) call(ctx context.Context, key string, f func() (any, error)) (any, error) {
	h := s.join(key, f)
	select {
	case <-h.done:
		return h.value, h.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *patience) join(key string, f func() (any, error)) *hanging {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.calls[key]; h != nil {
		return h
	}
	h := &hanging{done: make(chan struct{})}
	if s.calls == nil {
		s.calls = map[string]*hanging{}
	}
	s.calls[key] = h
	go func() {
		h.value, h.err = f()
		s.mu.Lock()
		delete(s.calls, key)
		s.mu.Unlock()
		close(h.done)
	}()
	return h
}
