package e2e

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge/guard/promise"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// gossipLabel is how all gossip of ours begins, in the clear: memberlist's mark of a
// label, its length, and itself.
const gossipLabel = "\xf4\x09catchment"

// seal is memberlist's encryption with a gossip key.
type seal struct{ key []byte }

func (s seal) gcm() cipher.AEAD {
	block, err := aes.NewCipher(s.key)
	if err != nil {
		panic(err) // a key of another length
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return gcm
}

// sealed is version, nonce and text.
func (s seal) sealed(text, head []byte) []byte {
	gcm := s.gcm()
	out := make([]byte, 1+gcm.NonceSize())
	rand.Read(out[1:])
	out[0] = 1
	return gcm.Seal(out, out[1:], text, append(head, gossipLabel[2:]...))
}

func (s seal) packet(text []byte) []byte {
	return append([]byte(gossipLabel), s.sealed(text, nil)...)
}

func (s seal) stream(text []byte) []byte {
	head := binary.BigEndian.AppendUint32([]byte{10}, uint32(1+12+16+len(text)))
	return append([]byte(gossipLabel), append(slices.Clone(head), s.sealed(text, head)...)...)
}

// opened is the text of a stream.
func (s seal) opened(stream []byte) ([]byte, error) {
	b, ok := bytes.CutPrefix(stream, []byte(gossipLabel))
	if !ok || len(b) < 5+1+12 {
		return nil, errors.New("it does not begin as gossip does")
	}
	return s.gcm().Open(nil, b[6:18], b[18:], append(slices.Clone(b[:5]), gossipLabel[2:]...))
}

// spot is where a box takes gossip.
func spot(b *lab.Box) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(b.Addr4), gossipPort)
}

// send has the intruder send so many packets a second for a while, and returns how
// many those were. Who is late catches up.
func (s *siege) send(ctx context.Context, to netip.AddrPort, rate float64, length time.Duration, packet func(i int) []byte) (sent int, err error) {
	conn, err := s.Lab.Clients["intruder"].Dial(ctx, "udp", to.String())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for start := time.Now(); ; {
		past := min(time.Since(start), length)
		for ; sent < int(rate*past.Seconds()); sent++ {
			conn.Write(packet(sent)) // what is refused or lost is the receiver's matter
		}
		if past == length {
			return sent, nil
		}
		select {
		case <-ctx.Done():
			return sent, nil
		case <-tick.C:
		}
	}
}

// stream has the intruder send bytes over a connection of its own.
func (s *siege) stream(ctx context.Context, to netip.AddrPort, b []byte) error {
	conn, err := s.Lab.Clients["intruder"].Dial(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write(b)
	return err
}

// streams sends bytes a hundred times a second, over a connection each, until ctx ends.
func (s *siege) streams(ctx context.Context, to netip.AddrPort, b []byte, sent *uint64) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := s.stream(context.WithoutCancel(ctx), to, b); err != nil {
			return err
		}
		*sent++
	}
}

// taps are those on the routers' sides of the boxes' links.
type taps struct {
	since time.Time
	of    map[*lab.Box]*lab.Tap
}

func (s *siege) listen() (*taps, error) {
	t := &taps{since: time.Now(), of: map[*lab.Box]*lab.Tap{}}
	for _, b := range s.boxes() {
		tap, err := s.Lab.Routers[b.Router].Tap(b.Name(), gossipPort)
		if err != nil {
			t.close()
			return nil, err
		}
		t.of[b] = tap
	}
	return t, nil
}

func (t *taps) close() {
	for _, tap := range t.of {
		tap.Close()
	}
}

// keepLetters takes from the taps what the attacks to come are made of: at least
// three seconds of what is usual, and c1's promises to b1.
func (s *siege) keepLetters(ctx context.Context, t *taps) error {
	err := story.Until(ctx, "three seconds are recorded", func() error {
		if time.Since(t.since) < 3*time.Second {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.letters, s.usual = map[*lab.Box][][]byte{}, map[*lab.Box]float64{}
	length := time.Since(t.since).Seconds()
	t.close()
	for b, tap := range t.of {
		s.letters[b] = tap.Datagrams(spot(b))
		s.usual[b] = float64(len(s.letters[b])) / length
		if len(s.letters[b]) == 0 {
			return fmt.Errorf("no datagram to %s was recorded", b.Name())
		}
	}
	asker := s.Lab.Boxes["b1"]
	// The letters are JSON behind their head. The last promise is one with which b1 has
	// left: those before may have been signed by the other key.
	want, promises := fmt.Appendf(nil, `"k":%d,"f":"c1","t":"b1","p":"%s"`, promise.Promise, lab.Prefix4), 0
	all := t.of[asker].Streams(spot(asker))
	for _, one := range all {
		text, err := seal{s.key}.opened(one.Data)
		if err != nil {
			return fmt.Errorf("open a stream of %d bytes from %s: %w", len(one.Data), one.From, err)
		}
		if bytes.Contains(text, want) {
			s.promise = one.Data
			promises++
		}
	}
	s.Say("recorded in %.1f s: %d streams to b1, of which %d are promises of c1; datagrams a second: %s", length, len(all), promises, s.rates())
	if promises == 0 {
		return errors.New("no promise of c1 was recorded")
	}
	return nil
}

func (s *siege) rates() string {
	var out []string
	for _, b := range s.boxes() {
		out = append(out, fmt.Sprintf("%s %.0f", b.Name(), s.usual[b]))
	}
	return strings.Join(out, ", ")
}
