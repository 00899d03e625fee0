package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/catchment-dev/edge/test/lab"
)

// control is the socket by which qemu is told what to do (QMP). Its methods may be
// called by several goroutines at once.
type control struct {
	conn net.Conn

	write sync.Mutex

	mu      sync.Mutex
	next    int
	waiting map[int]chan message
	events  map[string]int
	err     error // why nothing more is read
}

// message is whatever qemu says.
type message struct {
	ID     int             `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Event string `json:"event"`
}

// dialControl connects and leaves the mode in which qemu takes no commands. The caller
// runs read.
func dialControl(ctx context.Context, path string) (*control, error) {
	var conn net.Conn
	err := lab.Until(ctx, "qemu listens on its control socket", func() (err error) {
		conn, err = net.Dial("unix", path)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &control{conn: conn, waiting: map[int]chan message{}, events: map[string]int{}}, nil
}

// read takes messages until the other end is gone.
func (c *control) read() {
	d := json.NewDecoder(c.conn)
	for {
		var m message
		if err := d.Decode(&m); err != nil {
			c.fail(err)
			return
		}
		c.take(m)
	}
}

func (c *control) take(m message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Event != "" {
		c.events[m.Event]++
		return
	}
	if w, ok := c.waiting[m.ID]; ok { // the greeting has no id: nobody waits for 0
		delete(c.waiting, m.ID)
		w <- m
	}
}

func (c *control) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for id, w := range c.waiting {
		delete(c.waiting, id)
		close(w)
	}
}

// do runs a command and decodes what it returns into out, unless that is nil.
func (c *control) do(ctx context.Context, command string, args, out any) error {
	id, answer, err := c.expect()
	if err == nil {
		err = c.send(map[string]any{"execute": command, "arguments": args, "id": id})
	}
	if err != nil {
		return fmt.Errorf("tell qemu %s: %w", command, err)
	}
	select {
	case m, ok := <-answer:
		switch {
		case !ok:
			return fmt.Errorf("tell qemu %s: it is gone", command)
		case m.Error != nil:
			return fmt.Errorf("tell qemu %s: %s: %s", command, m.Error.Class, m.Error.Desc)
		case out == nil:
			return nil
		}
		if err := json.Unmarshal(m.Return, out); err != nil {
			return fmt.Errorf("read what qemu answers to %s: %w", command, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("tell qemu %s: %w", command, context.Cause(ctx))
	}
}

// expect makes a place for an answer.
func (c *control) expect() (id int, answer <-chan message, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, nil, errors.New("it is gone")
	}
	c.next++
	w := make(chan message, 1)
	c.waiting[c.next] = w
	return c.next, w, nil
}

func (c *control) send(v map[string]any) error {
	if v["arguments"] == nil {
		delete(v, "arguments")
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c.write.Lock()
	defer c.write.Unlock()
	_, err = c.conn.Write(b)
	return err
}

// seen counts the events of a name, such as RESET.
func (c *control) seen(event string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events[event]
}
