package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// errMore ends an answer that has not ended yet.
var errMore = errors.New("there is more to come")

// alwaysLook is how often an unfinished answer is judged whenever more of it has
// come; after that only each time it is twice as long. What is judged is all of
// it, so a target that sends single bytes would else have us read it 2^20 times.
const alwaysLook = 8

// read takes what there is of an answer.
func (g *engine) read(f *flight, now time.Time) {
	for f.phase == reading {
		n, err := receive(f.sock.fd, g.buf[:])
		switch {
		case err == unix.EAGAIN:
			return
		case err == unix.EINTR:
		case err != nil:
			g.broke(f, err, now)
		case n == 0:
			g.over(f, now)
		default:
			g.take(f, g.buf[:n], now)
		}
	}
}

// over takes in that the far end has nothing more to say.
func (g *engine) over(f *flight, now time.Time) {
	if f.kept && len(f.answer) == 0 {
		g.broke(f, io.EOF, now)
		return
	}
	g.judge(f, f.answer, io.EOF, now)
}

// take takes in a part of an answer. One part is all there is of most: those are
// judged where they lie.
func (g *engine) take(f *flight, part []byte, now time.Time) {
	all, had := part, len(f.answer)
	if f.mirror && had == 0 && f.echoes(part) && meetsItself(f.sock.fd, &f.to) {
		f.phase = connecting
		g.broke(f, unix.ECONNREFUSED, now)
		return
	}
	if had > 0 {
		f.answer = append(f.answer, part...)
		all = f.answer
	}
	if f.headed = f.headed || endsHead(all[max(0, had-3):]); !f.headed && len(all) > earlyHead {
		// A head that does not end would be read from its start again and again.
		if len(all) > maxHead {
			g.answered(f, result{err: errHead, end: now}, false)
		} else if had == 0 {
			f.answer = bytes.Clone(part)
		}
		return
	}
	if len(all) >= maxAnswer {
		g.judge(f, all[:maxAnswer], io.EOF, now)
		return
	}
	if !g.judge(f, all, errMore, now) && len(f.answer) == 0 {
		f.answer = bytes.Clone(part)
	}
}

// earlyHead is how much of a head is looked at before it has ended: what is no
// HTTP at all shows in its first line.
const earlyHead = 4096

// errHead is an answer whose head does not end.
var errHead = fmt.Errorf("read answer: its head is larger than %d bytes", maxHead)

// endsHead says whether an empty line is in b.
func endsHead(b []byte) bool {
	return bytes.Contains(b, []byte("\n\r\n")) || bytes.Contains(b, []byte("\n\n"))
}

// judge ends the run if the answer as it is decides it, and says whether. end is
// what comes after it.
func (g *engine) judge(f *flight, answer []byte, end error, now time.Time) bool {
	p := &f.e.probe
	h, plain := readPlain(answer)
	if plain {
		if w, err, decided := h.judge(answer, p); decided {
			g.answered(f, result{err: err, weight: w, end: now}, h.reusable(answer))
			return true
		}
	}
	if end == errMore {
		if f.looks >= alwaysLook && len(answer) < 2*f.looked {
			return false
		}
		f.looks, f.looked = f.looks+1, len(answer)
	}
	// Time is kept by the schedule: nothing in here waits.
	last := &final{err: end}
	w, err := judge(context.Background(), io.MultiReader(bytes.NewReader(answer), last), *p)
	if end == errMore && err != nil && last.reached {
		return false // whatever it says: net/http takes half a line for a line
	}
	g.answered(f, result{err: err, weight: w, end: now}, false)
	return true
}

// answered ends a run that has an answer, good or bad.
func (g *engine) answered(f *flight, r result, reusable bool) {
	if !f.keep || !reusable {
		g.end(f, r, true)
		return
	}
	s := f.sock
	f.sock = nil
	g.end(f, r, true)
	f.sock = s
}

// final is a reader at its end, which remembers whether it was reached.
type final struct {
	err     error
	reached bool
}

func (e *final) Read([]byte) (int, error) {
	e.reached = true
	return 0, e.err
}

// plainHead is the head of an answer of the most usual form.
type plainHead struct {
	status int
	size   int    // of the head, in bytes
	length int    // Content-Length; -1: not said
	weight string // value of WeightHeader
	weighs int    // how often it is there
	close  bool   // the far end will close
}

// readPlain reads the head of an answer if it is whole and of the most usual
// form: a final status, and nothing about which one would have to think. All
// others are for net/http, which is to give the same verdict on those that are
// read here: a test holds the two against each other.
func readPlain(b []byte) (h plainHead, ok bool) {
	const start = "HTTP/1.1 200"
	if len(b) < len(start)+2 || string(b[:7]) != start[:7] || b[7] != '0' && b[7] != '1' || b[8] != ' ' {
		return h, false
	}
	status, ok := digits(b[9:12])
	if !ok || status < 200 || b[12] != ' ' && b[12] != '\r' {
		return h, false
	}
	h = plainHead{status: status, length: -1, close: b[7] == '0'}
	for first := true; ; first = false {
		n := bytes.IndexByte(b[h.size:], '\n')
		if n < 1 || b[h.size+n-1] != '\r' {
			return h, false
		}
		line := b[h.size : h.size+n-1]
		h.size += n + 1
		if !printable(line) {
			return h, false
		}
		if first {
			continue
		}
		if len(line) == 0 {
			return h, true
		}
		if !h.field(line) {
			return h, false
		}
	}
}

// field reads one header field, and says whether it is plain.
func (h *plainHead) field(line []byte) bool {
	colon := bytes.IndexByte(line, ':')
	if colon < 1 || !token(line[:colon]) {
		return false
	}
	value := bytes.Trim(line[colon+1:], " \t")
	switch name := line[:colon]; {
	case is(name, "Content-Length"):
		n, ok := digits(value)
		if !ok || h.length >= 0 {
			return false
		}
		h.length = n
	case is(name, "Transfer-Encoding"), is(name, "Trailer"):
		return false
	case is(name, "Connection"):
		h.close = h.close || !is(value, "keep-alive")
	case is(name, WeightHeader):
		h.weight = string(value)
		h.weighs++
	}
	return true
}

// judge does what the function judge does, as far as the answer decides.
func (h *plainHead) judge(answer []byte, p *edge.Probe) (w *int, err error, decided bool) {
	if h.weighs == 1 {
		w = readWeight(h.weight)
	}
	if err := judgeStatus(h.status, *p); err != nil {
		return w, err, true
	}
	if p.Body == "" {
		return w, nil, true
	}
	body := answer[h.size:]
	if h.length < 0 || h.bodiless() {
		return nil, nil, false
	}
	body = body[:min(len(body), h.length, maxBody)]
	return w, nil, bytes.Contains(body, []byte(p.Body))
}

// bodiless says whether an answer has no body whatever its head says (RFC 9112
// section 6.3).
func (h *plainHead) bodiless() bool { return h.status == 204 || h.status == 304 }

// reusable says whether the connection is at the end of the answer, and open.
func (h *plainHead) reusable(answer []byte) bool {
	length := h.length
	if h.bodiless() {
		length = 0
	}
	return !h.close && length >= 0 && len(answer) == h.size+length
}

// digits reads a number of at most nine digits.
func digits(b []byte) (int, bool) {
	if len(b) < 1 || len(b) > 9 {
		return 0, false
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}

// is compares without regard to case, as far as ASCII goes.
func is(b []byte, name string) bool {
	return len(b) == len(name) && strings.EqualFold(string(b), name)
}

// printable says whether a line is printable ASCII and blanks.
func printable(line []byte) bool {
	for _, c := range line {
		if (c < ' ' || c > '~') && c != '\t' {
			return false
		}
	}
	return true
}

// token says whether a field name is made of letters, digits and '-': what
// nobody can read in another way.
func token(b []byte) bool {
	for _, c := range b {
		if c != '-' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return false
		}
	}
	return true
}
