package rpki

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// session is one connection to a cache.
type session struct {
	f       *feed
	list    serverList
	s       *server       // of the list
	longest time.Duration // between two queries; 0: as the cache says
	conn    net.Conn
	in      *bufio.Reader
	version uint8
	agreed  bool   // on the version
	last    []byte // the PDU read last, or its header: what an error report quotes
	notify  bool   // a Serial Notify has come and was not answered by a query
	notes   int    // since the last query
	asked   time.Time
}

// session talks to a cache of the list until that fails or ctx ends. One that
// is not the first is left after a while. Never returns nil.
func (f *feed) session(ctx context.Context, list serverList, s *server, longest time.Duration) error {
	conn, err := f.c.dial(ctx, s.at)
	if err != nil {
		return bare(err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	x := &session{f: f, list: list, s: s, longest: longest, conn: conn, in: bufio.NewReaderSize(conn, maxPDU), version: s.version}
	var leave time.Time
	if s != list[0] {
		leave = time.Now().Add(preferPause)
	}
	for {
		if err := x.query(); err != nil {
			return x.report(err)
		}
		if err := x.idle(leave); err != nil {
			return x.report(err)
		}
	}
}

// report tells the cache what was wrong with what it sent, before the session
// ends. An error report is never answered by another one.
func (x *session) report(err error) error {
	var bad *pduError
	var change *changeError
	switch {
	case errors.As(err, &bad):
		x.send(errorReport(x.version, bad.code, x.last, bad.text))
	case errors.As(err, &change):
		x.send(errorReport(x.version, change.code, prefixPDU(x.version, change.record), change.Error()))
	}
	if !errors.Is(err, errPrefer) && x.f.table.of == x.s.at && (bad != nil || change != nil || isReport(err)) {
		// The cache and we do not agree about the data: all of them next time.
		// What is in use stays until then, or until it expires.
		*x.f.table = rtrTable{}
	}
	return err
}

func isReport(err error) bool {
	var r *reportError
	return errors.As(err, &r)
}

func (x *session) send(b []byte) error {
	x.conn.SetWriteDeadline(time.Now().Add(writeLimit))
	if _, err := x.conn.Write(b); err != nil {
		return fmt.Errorf("send: %w", bare(err))
	}
	return nil
}

// read returns the next PDU, which must have come before deadline. Nothing is
// lost of one that has come in part by then.
func (x *session) read(deadline time.Time) (pdu, error) {
	head, err := x.peek(headerSize, deadline)
	if err != nil {
		return pdu{}, err
	}
	x.last = append(x.last[:0], head...)
	if err := x.checkVersion(head[0], head[1]); err != nil {
		return pdu{}, err
	}
	length, err := pduLength(head)
	if err != nil {
		return pdu{}, unanswered(head[1], err)
	}
	b, err := x.peek(length, deadline)
	if err != nil {
		return pdu{}, err
	}
	x.last = append(x.last[:0], b...)
	p, err := parsePDU(b)
	if err != nil {
		return pdu{}, unanswered(p.kind, err)
	}
	x.in.Discard(length)
	if p.kind == kindError {
		return pdu{}, x.reported(p)
	}
	return p, nil
}

// unanswered keeps an error report that is malformed from being answered by
// another one: two sides could go on like that for ever.
func unanswered(kind uint8, err error) error {
	if kind == kindError {
		return errors.New(err.Error())
	}
	return err
}

func (x *session) peek(n int, deadline time.Time) ([]byte, error) {
	if x.in.Buffered() < n { // a deadline for each PDU would cost as much as the PDU
		x.conn.SetReadDeadline(deadline)
	}
	b, err := x.in.Peek(n)
	if errors.Is(err, io.EOF) && len(b) > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("read: %w", bare(err))
	}
	return b, nil
}

// checkVersion is RFC 8210 section 7. The first PDU but a Serial Notify settles
// the version: ours, or a lower one that we speak. An error report has whatever
// version its sender likes.
func (x *session) checkVersion(v, kind uint8) error {
	switch {
	case v == x.version || kind == kindError:
	case !x.agreed && kind == kindNotify:
	case x.agreed:
		return &pduError{codeOtherVersion, fmt.Sprintf("version %d in a session of version %d", v, x.version)}
	case v < x.version:
		x.version = v
	default:
		return &pduError{codeVersion, fmt.Sprintf("version %d is not spoken here", v)}
	}
	x.agreed = x.agreed || kind != kindNotify && kind != kindError
	return nil
}

func (x *session) reported(p pdu) error {
	if p.session == codeVersion && !x.agreed && x.version > 0 {
		return errVersion
	}
	return &reportError{code: p.session, text: p.text}
}

// query asks for what is new, or for all, and puts the answer in use.
func (x *session) query() error {
	full := !x.f.table.matches(x)
	x.asked, x.notify, x.notes = time.Now(), false, 0
	limit := x.asked.Add(answerLimit)
	if full {
		if err := x.send(resetQuery(x.version)); err != nil {
			return err
		}
	} else if err := x.send(serialQuery(x.version, x.f.table.session, x.f.table.serial)); err != nil {
		return err
	}
	p, err := x.answer(limit)
	if err == nil && p.kind == kindCacheRest && !full {
		full = true
		if err = x.send(resetQuery(x.version)); err == nil {
			p, err = x.answer(limit)
		}
	}
	var report *reportError
	if full && errors.As(err, &report) {
		report.reset = true
	}
	if err != nil {
		return err
	}
	if p.kind != kindResponse {
		return corrupt("a PDU of type %d answers a query", p.kind)
	}
	if !full && x.version != x.f.table.version {
		return errVersion // the differences are to data that we do not have
	}
	return x.take(p.session, full, limit)
}

// matches says whether a Serial Query can be asked.
func (t *rtrTable) matches(x *session) bool {
	return t.of == x.s.at && t.version == x.version && t.set != nil && time.Now().Before(t.expires)
}

// answer reads the first PDU of an answer.
func (x *session) answer(limit time.Time) (pdu, error) {
	for {
		p, err := x.read(before(limit, silenceLimit))
		if timedOut(err) {
			return p, errors.New("the cache does not answer")
		}
		if err != nil || p.kind != kindNotify {
			return p, err
		}
		if err := x.noted(); err != nil {
			return p, err
		}
	}
}

// noted remembers a Serial Notify that came when a query was under way. Before
// the version is settled it says nothing (RFC 8210 section 7).
func (x *session) noted() error {
	x.notify = x.notify || x.agreed
	return x.count()
}

// count counts a Serial Notify.
func (x *session) count() error {
	if x.notes++; x.notes > maxNotes {
		return corrupt("more than %d notifications since the last query", maxNotes)
	}
	return nil
}

// take reads the VRPs up to End of Data and puts them in use.
func (x *session) take(id uint16, full bool, limit time.Time) error {
	t := x.f.table
	if !full && id != t.session {
		return x.mismatch(id)
	}
	var changes []record
	pdus := 0
	defer func() { x.s.took(pdus) }()
	for ; ; pdus++ {
		p, err := x.read(before(limit, silenceLimit))
		switch {
		case timedOut(err):
			return errors.New("the cache does not finish its answer")
		case err != nil:
			return err
		case p.kind == kindNotify:
			if err := x.noted(); err != nil {
				return err
			}
		case p.kind == kindRouterKey && pdus-len(changes) < x.f.c.most: // BGPsec is not ours
		case p.kind == kindRouterKey:
			return fmt.Errorf("%w: the cache sends more than %d router keys", errTooMany, x.f.c.most)
		case p.kind == kindEnd && p.session != id:
			return x.mismatch(p.session)
		case p.kind == kindEnd:
			return x.finish(p, full, changes)
		case p.kind != kindIPv4 && p.kind != kindIPv6:
			return corrupt("a PDU of type %d is among the VRPs", p.kind)
		case len(changes) == x.f.c.most:
			return fmt.Errorf("%w: the cache sends more than %d", errTooMany, x.f.c.most)
		default:
			changes = append(changes, p.record)
		}
	}
}

// finish puts an answer in use, all of it or nothing.
func (x *session) finish(end pdu, full bool, changes []record) error {
	t := x.f.table
	set := t.set
	if full || len(changes) > 0 {
		var old []record
		if !full {
			old = set.records
		}
		records, err := merge(old, changes)
		if err != nil {
			return err
		}
		if len(records) > x.f.c.most {
			return fmt.Errorf("%w: the cache has more than %d", errTooMany, x.f.c.most)
		}
		set = sortedSet(records)
	}
	x.s.told, x.s.fails = intervalsOf(end, x.longest), 0
	x.list.good(x.s)
	now := time.Now()
	*t = rtrTable{of: x.s.at, version: x.version, session: end.session, serial: end.serial, set: set, expires: now.Add(x.s.told.expire)}
	x.f.use(set, Status{
		Source: rtrSource(x.s.at.String(), x.version), Serial: end.serial, VRPs: set.Len(),
		Updated: now, Expires: t.expires, LastErr: x.list.trouble(),
	})
	return nil
}

// mismatch is a session id that is not ours: the cache has begun anew, and what
// we have of it is void (RFC 8210 section 5.1).
func (x *session) mismatch(id uint16) error {
	if x.f.table.of == x.s.at {
		x.f.flush(fmt.Sprintf("the RTR cache %s has begun a new session", x.s.at))
	}
	return corrupt("session id %d in a session of another id", id)
}

// idle waits until it is time for the next query. It ends with errPrefer at
// leave, unless that is zero.
func (x *session) idle(leave time.Time) error {
	next := later(x.asked.Add(x.s.told.refresh), x.s.rest)
	for {
		if x.notify {
			next = later(x.asked.Add(queryPause), x.s.rest)
		}
		wake := next
		if !leave.IsZero() && leave.Before(wake) {
			wake = leave
		}
		p, err := x.read(wake)
		switch {
		case timedOut(err) && wake.Equal(leave):
			return errPrefer
		case timedOut(err):
			return nil
		case err != nil:
			return err
		case p.kind != kindNotify:
			return corrupt("a PDU of type %d was not asked for", p.kind)
		case p.session != x.f.table.session:
			return x.mismatch(p.session)
		case p.serial != x.f.table.serial:
			x.notify = true
		}
		if err := x.count(); err != nil {
			return err
		}
	}
}

// before is the earlier of limit and the time in d.
func before(limit time.Time, d time.Duration) time.Time {
	if t := time.Now().Add(d); t.Before(limit) {
		return t
	}
	return limit
}
