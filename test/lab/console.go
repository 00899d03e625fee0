package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// RelayConsole takes connections on an address of the machine's loopback and
// passes each to the console of the box, until ctx ends. It returns nil then.
// ready, if not nil, is called with the address that it listens on.
func (b *Box) RelayConsole(ctx context.Context, address string, ready func(net.Addr)) error {
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil || !at.IP.IsLoopback() {
		return fmt.Errorf("relay console of %s: %q is not a loopback address and port", b.name, address)
	}
	ln, err := net.ListenTCP("tcp", at)
	if err != nil {
		return fmt.Errorf("relay console of %s: %w", b.name, err)
	}
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	defer ln.Close()
	if ready != nil {
		ready(ln.Addr())
	}
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := ln.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("relay console of %s: %w", b.name, err)
		}
		conns.Go(func() { b.relayConn(ctx, c) })
	}
}

// relayConn joins one connection to the console. Either end closes both.
func (b *Box) relayConn(ctx context.Context, near net.Conn) {
	defer near.Close()
	dial, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	far, err := b.Dial(dial, "tcp", fmt.Sprintf("127.0.0.1:%d", ManagementPort))
	if err != nil {
		return // the browser sees a closed connection: edged is down
	}
	defer far.Close()
	stop := context.AfterFunc(ctx, func() {
		near.Close()
		far.Close()
	})
	defer stop()
	var answer sync.WaitGroup
	answer.Go(func() {
		io.Copy(near, far)
		near.Close()
	})
	io.Copy(far, near)
	far.(*net.TCPConn).CloseWrite()
	answer.Wait()
}
