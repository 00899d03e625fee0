package health

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/catchment-dev/edge"
)

// maxDNS is the size of the largest answer, in bytes: the length before a
// message over TCP has 16 bits (RFC 1035 section 4.2.2).
const maxDNS = 1<<16 - 1

// probeDNS is the prober of kind dns: one query (RFC 1035) over UDP, again over
// TCP if the answer was cut off, or over TCP at once.
func probeDNS(ctx context.Context, p edge.Probe) error {
	q, err := newQuery(p)
	if err != nil {
		return fmt.Errorf("%w: %w", edge.ErrUnknown, err)
	}
	if !p.TCP {
		err := q.udp(ctx, p)
		if !errors.Is(err, errTruncated) {
			return err
		}
	}
	return q.tcp(ctx, p)
}

// query is one question, ready to be sent.
type query struct {
	id       uint16
	question dnsmessage.Question
	wire     []byte
}

// recordTypes are the types that can be asked for, by their names.
func recordTypes() map[string]dnsmessage.Type {
	return map[string]dnsmessage.Type{
		"A": dnsmessage.TypeA, "AAAA": dnsmessage.TypeAAAA, "TXT": dnsmessage.TypeTXT,
		"NS": dnsmessage.TypeNS, "SOA": dnsmessage.TypeSOA,
	}
}

func newQuery(p edge.Probe) (query, error) {
	kind, ok := recordTypes()[strings.ToUpper(p.RecordType)]
	if !ok {
		return query{}, fmt.Errorf("record type %q is not A, AAAA, TXT, NS or SOA", p.RecordType)
	}
	name, err := dnsmessage.NewName(strings.TrimSuffix(p.Name, ".") + ".")
	if err != nil {
		return query{}, fmt.Errorf("name %.60q: %w", p.Name, err)
	}
	q := query{
		id:       uint16(rand.Uint32()),
		question: dnsmessage.Question{Name: name, Type: kind, Class: dnsmessage.ClassINET},
	}
	m := dnsmessage.Message{
		// A resolver shall find the answer; a server of the zone ignores it.
		Header:    dnsmessage.Header{ID: q.id, RecursionDesired: true},
		Questions: []dnsmessage.Question{q.question},
	}
	if q.wire, err = m.Pack(); err != nil {
		return query{}, fmt.Errorf("name %.60q: %w", p.Name, err)
	}
	return q, nil
}

// udp asks over UDP. Datagrams that are no answer to this query may come from
// anybody: they are passed over.
func (q query) udp(ctx context.Context, p edge.Probe) error {
	c, err := from(p.Source)(ctx, "udp", p.Addr.String())
	if err != nil {
		return fmt.Errorf("ask %s: %w", p.Addr, denied(explain(ctx, err, p.Timeout)))
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := c.Write(q.wire); err != nil {
		return fmt.Errorf("ask %s: %w", p.Addr, denied(explain(ctx, err, p.Timeout)))
	}
	stray := ""
	buf := make([]byte, 4096) // no EDNS is offered, so 512 would do
	for {
		n, err := c.Read(buf)
		if err != nil {
			return fmt.Errorf("ask %s: %w%s", p.Addr, explain(ctx, err, p.Timeout), stray)
		}
		err = q.judge(buf[:n], p.Expect)
		if !errors.Is(err, errStray) {
			return err
		}
		stray = "; datagrams came that do not answer the question"
	}
}

// tcp asks over TCP, where nobody else can answer.
func (q query) tcp(ctx context.Context, p edge.Probe) error {
	c, err := connect(ctx, from(p.Source), p, p.Addr.String())
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	b, err := q.exchange(c)
	if err != nil {
		return fmt.Errorf("ask %s over TCP: %w", p.Addr, broken(ctx, err, p))
	}
	err = q.judge(b, p.Expect)
	if errors.Is(err, errTruncated) {
		return errors.New("the answer over TCP is cut off")
	}
	return err
}

func (q query) exchange(c net.Conn) ([]byte, error) {
	frame := binary.BigEndian.AppendUint16(nil, uint16(len(q.wire)))
	if _, err := c.Write(append(frame, q.wire...)); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, min(int(binary.BigEndian.Uint16(size[:])), maxDNS))
	_, err := io.ReadFull(c, b)
	return b, err
}
