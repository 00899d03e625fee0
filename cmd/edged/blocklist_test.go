package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func blockFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "block")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadBlocklist(t *testing.T) {
	l, err := readBlocklist(blockFile(t, "# of the abuse desk\n192.0.2.0/24\n\n 2001:db8::/32 # a network\n198.51.100.7\r\n2001:db8::1"))
	if err != nil {
		t.Fatal(err)
	}
	var want []netip.Prefix
	for _, s := range []string{"192.0.2.0/24", "2001:db8::/32", "198.51.100.7/32", "2001:db8::1/128"} {
		want = append(want, netip.MustParsePrefix(s))
	}
	if !slices.Equal(l.sources, want) {
		t.Errorf("read %v, want %v", l.sources, want)
	}
	if l, err := readBlocklist(""); err != nil || len(l.sources) != 0 {
		t.Errorf("no file: %v, %v", l, err)
	}
}

func TestReadBlocklistMistakes(t *testing.T) {
	path := blockFile(t, "192.0.2.0/24\n192.0.2.1/24\n\nexample.net\n0.0.0.0/0\n::ffff:192.0.2.1\nfe80::1%eth0\n192.0.2.0/33\n")
	_, err := readBlocklist(path)
	if err == nil {
		t.Fatal("mistakes are taken")
	}
	for _, want := range []string{
		":2: 192.0.2.1/24 has bits behind its length: is 192.0.2.0/24 meant?",
		`:4: "example.net" is neither`, ":5: 0.0.0.0/0 would block everybody", ":6: ", ":7: ", ":8: ",
	} {
		if !strings.Contains(err.Error(), path+want) {
			t.Errorf("error does not say %q: %v", want, err)
		}
	}
	if _, err := readBlocklist(blockFile(t, strings.Repeat("x\n", 1000))); strings.Count(err.Error(), "\n") >= maxBlockErrors {
		t.Errorf("the message has %d lines", strings.Count(err.Error(), "\n"))
	}
	if _, err := readBlocklist("/dev/zero"); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("a device: %v", err)
	}
	if _, err := readBlocklist(blockFile(t, "192.0.2.0/24\n"+strings.Repeat("x", 1<<17))); err == nil || !strings.Contains(err.Error(), "line 2 is longer") {
		t.Errorf("a long line: %v", err)
	}
	if _, err := readBlocklist("/nonexistent"); err == nil || !strings.Contains(err.Error(), "blocklist_file") {
		t.Errorf("missing file: %v", err)
	}
}

// slowForwarder takes a second to put a list in force, and counts.
type slowForwarder struct {
	lists [][]netip.Prefix
	err   error
}

func (f *slowForwarder) Block(ctx context.Context, sources []netip.Prefix) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second):
	}
	if f.err == nil {
		f.lists = append(f.lists, sources)
	}
	return f.err
}

// Whoever wants a list waits for nothing, the last one wanted is the one in
// force, and one that is in force already costs nothing.
func TestBlocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fwd := &slowForwarder{}
		b := newBlocker(slog.New(slog.DiscardHandler))
		b.fwd = fwd
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.run(ctx) }()
		list := func(n byte) blocklist {
			return blocklist{hash: [32]byte{n}, sources: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 32)}}
		}
		start := time.Now()
		b.want(list(1))
		synctest.Wait() // it is being worked on
		for n := range byte(5) {
			b.want(list(2 + n))
		}
		if time.Since(start) != 0 {
			t.Error("wanting a list takes time")
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(fwd.lists) != 2 || fwd.lists[1][0] != list(6).sources[0] {
			t.Errorf("in force were %v", fwd.lists)
		}
		b.want(list(6))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(fwd.lists) != 2 {
			t.Error("a list that is in force was put there again")
		}
		fwd.err = errors.New("no memory")
		b.want(list(7))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if err := b.err.Load(); err == nil || !errors.Is(*err, fwd.err) {
			t.Errorf("the error is not told: %v", err)
		}
		b.want(list(6)) // what is in force all the same
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if err := b.err.Load(); err != nil {
			t.Errorf("still told: %v", *err)
		}
		b.want(list(8))
		synctest.Wait()
		cancel()
		if err := <-done; err != nil || b.err.Load() != nil {
			t.Errorf("stopped in the middle: %v, %v", err, b.err.Load())
		}
	})
}
