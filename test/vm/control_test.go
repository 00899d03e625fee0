package vm

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// answering is the far end of a control socket.
func answering(t *testing.T, answers ...string) *control {
	t.Helper()
	near, far := net.Pipe()
	c := &control{conn: near, waiting: map[int]chan message{}, events: map[string]int{}}
	go c.read()
	go func() {
		defer far.Close()
		far.Write([]byte(`{"QMP": {"version": {}}}` + "\n"))
		d := json.NewDecoder(far)
		for _, a := range answers {
			var got struct{ ID int }
			if d.Decode(&got) != nil {
				return
			}
			id, _ := json.Marshal(got.ID)
			far.Write([]byte(strings.ReplaceAll(a, "ID", string(id)) + "\n"))
		}
	}()
	t.Cleanup(func() { near.Close() })
	return c
}

func TestControl(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c := answering(t,
		`{"event": "RESET", "data": {"guest": true}} {"return": {"status": "running"}, "id": ID}`,
		`{"error": {"class": "GenericError", "desc": "no such thing"}, "id": ID}`,
		`{"return": 7, "id": ID}`,
	)
	var out struct{ Status string }
	if err := c.do(ctx, "query-status", nil, &out); err != nil || out.Status != "running" {
		t.Errorf("got %+v, %v", out, err)
	}
	if n := c.seen("RESET"); n != 1 {
		t.Errorf("%d events were seen, want 1", n)
	}
	if err := c.do(ctx, "nonsense", map[string]any{"a": 1}, nil); err == nil || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("what qemu refuses gives %v", err)
	}
	if err := c.do(ctx, "query-status", nil, &out); err == nil {
		t.Error("a number was decoded as a status")
	}
	if err := c.do(ctx, "quit", nil, nil); err == nil {
		t.Error("qemu that is gone has answered")
	}
}

func TestControlWaitEnds(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	c := &control{conn: near, waiting: map[int]chan message{}, events: map[string]int{}}
	go c.read()
	go json.NewDecoder(far).Decode(new(any)) // takes the command and says nothing
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.do(ctx, "stop", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	near.Close()
}
