package health

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/catchment-dev/edge"
)

// ntpEpoch is 1900, from which NTP counts seconds, in Unix time (RFC 5905
// section 6).
const ntpEpoch = -2208988800

// probeSNTP asks p.Addr for the time, once, as a client without a state (RFC
// 5905 section 14).
func probeSNTP(ctx context.Context, p edge.Probe) error {
	if p.MaxOffset <= 0 {
		return fmt.Errorf("%w: no offset is given that the clock may have", edge.ErrUnknown)
	}
	c, err := from(p.Source)(ctx, "udp", p.Addr.String())
	if err != nil {
		return silentServer(ctx, err, p)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	s, err := askTime(c)
	if err != nil {
		return silentServer(ctx, err, p)
	}
	if err := s.usable(); err != nil {
		return fmt.Errorf("%w: %s %w", edge.ErrUnknown, p.Addr, err)
	}
	return s.judge(p)
}

// silentServer marks an error as unknown, whatever it is.
func silentServer(ctx context.Context, err error, p edge.Probe) error {
	return fmt.Errorf("ask %s for the time: %w", p.Addr, ofThisBox(explain(ctx, err, p.Timeout)))
}

// sample is one answer of a server, with when we sent and got it.
type sample struct {
	leap, stratum byte
	kiss          string        // why a server of stratum 0 refuses
	root          time.Duration // how far the server may be off itself
	offset, delay time.Duration
}

// askTime sends one request and waits for its answer. The request has a random
// number instead of our time: only who has seen it can answer, and it tells
// nobody how we are off.
func askTime(c net.Conn) (sample, error) {
	request := make([]byte, 48)
	request[0] = 4<<3 | 3 // version 4, mode client
	_, _ = rand.Read(request[40:])
	sent := time.Now()
	if _, err := c.Write(request); err != nil {
		return sample{}, err
	}
	buf := make([]byte, 1024)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return sample{}, err
		}
		// Not the difference of two readings of a clock that may be stepped.
		took := time.Since(sent)
		if s, ok := parseTime(buf[:n], request[40:], sent, took); ok {
			return s, nil
		}
	}
}

// parseTime reads an answer; false if it does not belong to the request whose
// transmit timestamp was token.
func parseTime(b, token []byte, sent time.Time, took time.Duration) (sample, bool) {
	if len(b) < 48 || b[0]&7 != 4 || string(b[24:32]) != string(token) {
		return sample{}, false
	}
	s := sample{
		leap: b[0] >> 6, stratum: b[1], kiss: clean(string(b[12:16])),
		// Root delay/2 + root dispersion, in 16.16 seconds.
		root: ntpShort(b[4:])/2 + ntpShort(b[8:]),
	}
	t1 := ntpTime(sent)
	t4 := t1 + ntpSpan(took)
	t2, t3 := binary.BigEndian.Uint64(b[32:]), binary.BigEndian.Uint64(b[40:])
	// Differences of timestamps, which hold across the end of an era (2036).
	out, back := int64(t2-t1), int64(t3-t4)
	s.offset = ntpDuration(out/2 + back/2)
	s.delay = took - ntpDuration(int64(t3-t2))
	return s, true
}

// usable says what is wrong with the time of the server.
func (s sample) usable() error {
	switch {
	case s.stratum == 0:
		return fmt.Errorf("refuses to tell the time: %q", s.kiss)
	case s.stratum > 15 || s.leap == 3:
		return errors.New("is not synchronised itself")
	case s.delay < 0:
		return errors.New("answered with times that cannot be")
	}
	return nil
}

// judge compares the offset. What the way of the packets and the server itself
// may have added to it is held in favour of our clock.
func (s sample) judge(p edge.Probe) error {
	off, doubt := s.offset.Abs(), s.delay/2+s.root
	switch {
	case off <= p.MaxOffset:
		return nil
	case off-doubt <= p.MaxOffset:
		return fmt.Errorf("%w: the answer of %s is too inexact to tell whether the clock is off by %s", edge.ErrUnknown, p.Addr, p.MaxOffset)
	}
	return fmt.Errorf("the clock is off by %s from that of %s, at most %s is wanted", coarse(off), p.Addr, p.MaxOffset)
}

// ntpTime is t in 32.32 seconds since the begin of its era.
func ntpTime(t time.Time) uint64 {
	return uint64(t.Unix()-ntpEpoch)<<32 | uint64(t.Nanosecond())<<32/uint64(time.Second)
}

// ntpSpan is d, which is not negative, in 32.32 seconds.
func ntpSpan(d time.Duration) uint64 {
	return uint64(d/time.Second)<<32 | uint64(d%time.Second)<<32/uint64(time.Second)
}

// ntpDuration is a difference of two timestamps.
func ntpDuration(d int64) time.Duration {
	return time.Duration(d>>32)*time.Second + time.Duration((uint64(d)&0xffffffff)*uint64(time.Second)>>32)
}

// ntpShort reads 16.16 seconds.
func ntpShort(b []byte) time.Duration {
	return time.Duration(uint64(binary.BigEndian.Uint32(b)) * uint64(time.Second) >> 16)
}
