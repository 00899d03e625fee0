package watch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// message is what a line of the feed says.
type message struct {
	routes []Route // without a Source
	lost   string  // this vantage point has no routes any more
	notice string  // of the feed itself: why it does not do what was asked
}

// risLine is a line as RIS Live writes it; fields that are not ours are left out.
// A name that is there twice is taken as the decoder takes it, which mixes the two:
// nothing comes of it but what the line says, once or the other time.
type risLine struct {
	Type string `json:"type"`
	Data struct {
		Timestamp     float64   `json:"timestamp"` // Unix seconds; 0: none
		Peer          string    `json:"peer"`
		Host          string    `json:"host"`
		Type          string    `json:"type"`
		State         string    `json:"state"` // of a RIS_PEER_STATE
		Path          risPath   `json:"path"`
		Withdrawals   []string  `json:"withdrawals"`
		Message       string    `json:"message"` // of a ris_error
		Announcements []risNews `json:"announcements"`
	} `json:"data"`
}

type risNews struct {
	Prefixes []string `json:"prefixes"`
}

// risPath is an AS path; the members of an AS_SET stand in a list of their own,
// and are taken as if they were in sequence.
type risPath []uint32

// maxHops is what one path may have: more is no path but an attempt.
const maxHops = 4096

// UnmarshalJSON reads what is known to be JSON.
func (p *risPath) UnmarshalJSON(b []byte) error {
	*p = nil
	if string(b) == "null" {
		return nil
	}
	if b[0] != '[' {
		return errors.New("the path is not a list")
	}
	for depth := 0; len(b) > 0; {
		switch c := b[0]; {
		case c == '[' && depth < 2:
			depth++
		case c == ']':
			depth--
		case c == ',' || c == ' ' || c == '\t' || c == '\r' || c == '\n':
		default:
			word := b[:max(1, bytes.IndexAny(b, ",] \t\r\n"))]
			n, err := strconv.ParseUint(string(word), 10, 32)
			if err != nil {
				return fmt.Errorf("%.20q in the path is not an AS number", word)
			}
			if *p = append(*p, uint32(n)); len(*p) > maxHops {
				return fmt.Errorf("a path of more than %d ASes", maxHops)
			}
			b = b[len(word):]
			continue
		}
		b = b[1:]
	}
	return nil
}

// parseLine reads one line. What it does not know is no message and no error; a
// line of which a part is malformed is one, and nothing of it is used.
func parseLine(line []byte, now time.Time) (m message, err error) {
	var in risLine
	if err := json.Unmarshal(line, &in); err != nil {
		if unknown(line) {
			return m, nil
		}
		return m, fmt.Errorf("not a message: %s", printable(err.Error()))
	}
	d := &in.Data
	switch {
	case in.Type == "ris_error":
		m.notice = "the feed reports: " + printable(d.Message)
		return m, nil
	case in.Type != "ris_message" || d.Type != "UPDATE" && d.Type != "RIS_PEER_STATE":
		return m, nil
	case d.Host == "" && d.Peer == "":
		return m, errors.New("a message without a host and a peer")
	}
	peer := strings.TrimSpace(printable(d.Host) + " " + printable(d.Peer))
	if d.Type == "RIS_PEER_STATE" {
		if d.State == "down" {
			m.lost = peer
		}
		return m, nil
	}
	at, err := timestamp(d.Timestamp, now)
	if err != nil {
		return m, err
	}
	for _, text := range d.Withdrawals {
		p, err := parsePrefix(text)
		if err != nil {
			return message{}, err
		}
		m.routes = append(m.routes, Route{Prefix: p, Peer: peer, At: at, Withdrawn: true})
	}
	for _, a := range d.Announcements {
		for _, text := range a.Prefixes {
			p, err := parsePrefix(text)
			if err != nil {
				return message{}, err
			}
			if len(d.Path) == 0 {
				return message{}, errors.New("an announcement without a path")
			}
			m.routes = append(m.routes, Route{Prefix: p, ASPath: d.Path, Peer: peer, At: at})
		}
	}
	return m, nil
}

// unknown says whether a line is one of those that we know nothing of, whose data
// may have any form.
func unknown(line []byte) bool {
	var in struct {
		Type *string `json:"type"`
	}
	return json.Unmarshal(line, &in) == nil && in.Type != nil && *in.Type != "ris_message" && *in.Type != "ris_error"
}

func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("%.60q is not a prefix", text)
	}
	return p, nil
}

// timestamp returns when something was seen, at most now.
func timestamp(seconds float64, now time.Time) (time.Time, error) {
	if seconds < 0 || seconds > 1<<33 {
		return now, fmt.Errorf("timestamp %g is none", seconds)
	}
	whole, part := math.Modf(seconds)
	if at := time.Unix(int64(whole), int64(part*1e9)); seconds > 0 && at.Before(now) {
		return at, nil
	}
	return now, nil
}

// printable makes the words of a stranger fit for a log and a terminal.
func printable(text string) string {
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text[:min(len(text), maxPeer)]))
	return strings.Clone(text)
}

// errLong is a line of more than maxLine bytes.
var errLong = fmt.Errorf("a line of more than %d bytes", maxLine)

// lines reads lines of a bounded length. An error of the reader loses nothing:
// reading can go on, as it must at the end of a file that grows.
type lines struct {
	in   *bufio.Reader
	buf  []byte // the beginning of a line
	skip bool   // it is too long, or not its beginning: forget it up to its end
	over int    // bytes that were skipped of it since errLong
}

func newLines(r io.Reader) *lines { return &lines{in: bufio.NewReaderSize(r, 1<<16)} }

// next returns the next line that is not blank, without its end. It is valid
// until the next call. A line that is too long is errLong, once in maxBacklog bytes.
func (l *lines) next() ([]byte, error) {
	for {
		part, err := l.in.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, l.add(part, err)
		}
		if err != nil {
			if err := l.add(part, nil); err != nil {
				return nil, err
			}
			continue
		}
		if l.skip {
			l.skip = false
			continue
		}
		line := part
		if len(l.buf) > 0 {
			if err := l.add(part, nil); err != nil {
				l.skip = false // this was its end
				return nil, err
			}
			line = l.buf
			l.forget()
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
	}
}

// add keeps the beginning of a line, and returns err or that it is too long.
func (l *lines) add(part []byte, err error) error {
	if l.skip {
		if l.over += len(part); l.over >= maxBacklog && err == nil {
			l.over = 0
			return errLong
		}
		return err
	}
	if len(l.buf)+len(part) > maxLine {
		l.forget()
		l.skip, l.over = true, 0
		return errLong
	}
	l.buf = append(l.buf, part...)
	return err
}

// forget drops the beginning of a line, and the memory of a long one.
func (l *lines) forget() {
	if cap(l.buf) > 1<<16 {
		l.buf = nil
	}
	l.buf = l.buf[:0]
}

// partial says whether a line has begun.
func (l *lines) partial() bool { return len(l.buf) > 0 || l.skip }
