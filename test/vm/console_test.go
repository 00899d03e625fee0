package vm

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestConsoleIsText(t *testing.T) {
	for _, c := range []struct{ raw, want string }{
		{"a\r\nb", "a\nb"},
		{"\x1b[2J\x1b[01;01Hedge-initrd: \x1b[0;32mok\x1b[0m\n", "edge-initrd: ok\n"},
		{"\x1b]0;title\x07x\x1b]8;;http://h\x1b\\y", "xy"},
		{"\x1b(Bplain\x1b=\x1b>", "plain"},
		{"bell\x07 and null\x00", "bell and null"},
		{"grün\tx", "grün\tx"},
		{"\x1b\x1b[1mz", "z"},
		{"cut \x1b[3", "cut "},
	} {
		var whole, bytewise stripper
		if got := whole.text([]byte(c.raw)); string(got) != c.want {
			t.Errorf("%q gives %q, want %q", c.raw, got, c.want)
		}
		var got []byte
		for _, b := range []byte(c.raw) {
			got = append(got, bytewise.text([]byte{b})...)
		}
		if string(got) != c.want {
			t.Errorf("%q byte by byte gives %q, want %q", c.raw, got, c.want)
		}
	}
}

func FuzzConsole(f *testing.F) {
	f.Add([]byte("\x1b[2Jhello\x1b]0;t\x07\r\n"), 3)
	f.Add([]byte("\x1b(B\x1b\\"), 1)
	f.Fuzz(func(t *testing.T, raw []byte, at int) {
		if len(raw) == 0 {
			return
		}
		at = ((at % len(raw)) + len(raw)) % len(raw)
		var whole, halves stripper
		want := whole.text(raw)
		got := append(halves.text(raw[:at]), halves.text(raw[at:])...)
		if !bytes.Equal(got, want) {
			t.Errorf("%q in two at %d gives %q, in one %q", raw, at, got, want)
		}
		if bytes.ContainsAny(want, "\x1b\r\x00\x07") {
			t.Errorf("%q gives %q", raw, want)
		}
	})
}

func TestConsoleAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := &Console{log: &log}
		write(t, c, "version 1.0 old\n")
		mark := c.Mark()
		go func() {
			for _, piece := range []string{"noise\nver", "sion 1.1", " slot b\nmore\n"} {
				time.Sleep(time.Second)
				write(t, c, piece)
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		groups, behind, err := c.Await(ctx, mark, regexp.MustCompile(`version (\S+) slot (\S+)\n`))
		if err != nil || groups[1] != "1.1" || groups[2] != "b" {
			t.Fatalf("got %q, %v", groups, err)
		}
		if rest := c.Since(behind); rest != "more\n" {
			t.Errorf("behind the match is %q", rest)
		}
		if log.String() != c.Since(0) {
			t.Errorf("the log has %q", log.String())
		}
		_, _, err = c.Await(ctx, behind, regexp.MustCompile(`never`))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.HasSuffix(err.Error(), "more") {
			t.Errorf("the error of a wait in vain is %v", err)
		}
	})
}

func write(t *testing.T, c *Console, s string) {
	if _, err := c.Write([]byte(s)); err != nil {
		t.Error(err)
	}
}

func TestConsoleTail(t *testing.T) {
	c := &Console{}
	write(t, c, "1\n2\n3\n\n")
	if got := c.Tail(2); got != "2\n3" {
		t.Errorf("the last 2 lines are %q", got)
	}
	if got := c.Tail(9); got != "1\n2\n3" {
		t.Errorf("the last 9 lines are %q", got)
	}
}
