package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/catchment-dev/edge/test/lab"
)

// lookEvery is the pause between two looks at a console.
const lookEvery = 50 * time.Millisecond

// Console is what a machine has written to its serial line, as text: without the
// sequences that move a terminal's cursor. Its methods may be called by several
// goroutines at once.
type Console struct {
	log io.Writer

	mu    sync.Mutex
	text  bytes.Buffer
	strip stripper
}

// Mark is a place in a console: the end of what was written when it was taken.
type Mark int

// Write implements io.Writer; it never fails because of the text.
func (c *Console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clean := c.strip.text(p)
	c.text.Write(clean)
	if c.log != nil {
		if _, err := c.log.Write(clean); err != nil {
			return 0, fmt.Errorf("write log of console: %w", err)
		}
	}
	return len(p), nil
}

// Mark returns the end of the text so far.
func (c *Console) Mark() Mark {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Mark(c.text.Len())
}

// Since returns what was written after a mark.
func (c *Console) Since(m Mark) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.text.Bytes()[m:])
}

// Await waits until what was written after the mark matches, and returns the groups of
// the first match and the mark behind it. The error ends with the last lines.
func (c *Console) Await(ctx context.Context, from Mark, re *regexp.Regexp) ([]string, Mark, error) {
	var groups []string
	var behind Mark
	err := lab.UntilEvery(ctx, lookEvery, fmt.Sprintf("the console shows %q", re), func() error {
		text := c.Since(from)
		at := re.FindStringSubmatchIndex(text)
		if at == nil {
			return errors.New("it does not")
		}
		groups, behind = re.FindStringSubmatch(text), from+Mark(at[1])
		return nil
	})
	if err != nil {
		return nil, from, fmt.Errorf("%w; its last lines:\n%s", err, c.Tail(40))
	}
	return groups, behind, nil
}

// Tail returns the last lines.
func (c *Console) Tail(lines int) string {
	all := strings.Split(strings.TrimRight(c.Since(0), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// stripper takes the control sequences of a terminal (ECMA-48) out of a stream, and
// carriage returns. Its zero value is at the beginning of a stream.
type stripper struct{ state stripState }

type stripState byte

const (
	inText    stripState = iota
	inEscape             // after ESC
	inControl            // after ESC [: until a byte of 0x40 to 0x7e
	inString             // after ESC ] P X ^ _: until BEL, or ESC \
	inStringEscape
	inCharset // after ESC and one of ( ) * + # % space: one byte more
)

// text returns the text of the next piece of the stream.
func (s *stripper) text(p []byte) []byte {
	out := make([]byte, 0, len(p))
	for _, b := range p {
		if s.step(b) && (b == '\n' || b == '\t' || b >= ' ' && b != 0x7f) {
			out = append(out, b)
		}
	}
	return out
}

// step says whether the byte is text.
func (s *stripper) step(b byte) bool {
	switch s.state {
	case inEscape:
		s.state = afterEscape(b)
	case inControl:
		if b >= 0x40 && b <= 0x7e {
			s.state = inText
		}
	case inCharset:
		s.state = inText
	case inString:
		if b == 0x07 {
			s.state = inText
		} else if b == 0x1b {
			s.state = inStringEscape
		}
	case inStringEscape:
		s.state = inString
		if b == '\\' {
			s.state = inText
		}
	default:
		if b != 0x1b {
			return true
		}
		s.state = inEscape
	}
	return false
}

func afterEscape(b byte) stripState {
	switch {
	case b == '[':
		return inControl
	case strings.IndexByte("]PX^_", b) >= 0:
		return inString
	case strings.IndexByte("()*+#% ", b) >= 0:
		return inCharset
	case b == 0x1b:
		return inEscape
	}
	return inText
}
