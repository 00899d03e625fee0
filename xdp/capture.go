package xdp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf/ringbuf"
)

// SnapLength is how many bytes of a packet are captured at most.
const SnapLength = 256

// ErrCapturing says that somebody captures already: one at a time can.
var ErrCapturing = errors.New("a capture is running already")

// CaptureOptions say which packets are captured.
type CaptureOptions struct {
	// OneIn captures one of so many packets, at random, at least 1.
	OneIn uint32
	// Actions are those of the packets that are captured: pass, tx, redirect,
	// drop. None captures all.
	Actions []string
}

// Sample is a captured packet.
type Sample struct {
	Time time.Time
	// Interface is where it came in; its number if it has gone meanwhile.
	Interface string
	// Action and Reason are how it left. Data is its beginning as it left, at most
	// SnapLength bytes: encapsulated if it was sent to a backend. Length is what
	// all of it has.
	Action string
	Reason edge.Reason
	Length int
	Data   []byte
}

// Actions are the ways in which a packet can leave, as CaptureOptions takes them.
func Actions() []string { return slices.Clone(actionNumber) }

// actionNumber is enum action of reasons.h.
var actionNumber = []string{"pass", "tx", "redirect", "drop"}

// Capture calls yield with packets as they leave, until it returns false or ctx
// ends, which is no error. It costs the packets that are captured some 300 ns
// each, the others nothing. When the reader is slower than the packets some are
// missed. One capture at a time runs, else ErrCapturing.
func (f *Forwarder) Capture(ctx context.Context, o CaptureOptions, yield func(Sample) bool) error {
	actions, err := actionMask(o.Actions)
	if err != nil {
		return fmt.Errorf("capture packets: %w", err)
	}
	if o.OneIn < 1 {
		return errors.New("capture packets: one in 0 is none")
	}
	if !f.capturing.TryLock() {
		return fmt.Errorf("capture packets: %w", ErrCapturing)
	}
	defer f.capturing.Unlock()
	r, err := ringbuf.NewReader(f.coll.Maps[edgeMapSamples])
	if err != nil {
		return fmt.Errorf("open map %s: %w", edgeMapSamples, err)
	}
	defer r.Close()
	if err := drain(r); err != nil {
		return err
	}
	if err := f.sample(o.OneIn, actions); err != nil {
		return err
	}
	err = f.readSamples(ctx, r, yield)
	return errors.Join(err, f.sample(0, 0))
}

func actionMask(names []string) (mask uint32, err error) {
	if len(names) == 0 {
		return 1<<len(actionNumber) - 1, nil
	}
	for _, name := range names {
		i := slices.Index(actionNumber, name)
		if i < 0 {
			return 0, fmt.Errorf("action %q is not one of %v", name, actionNumber)
		}
		mask |= 1 << i
	}
	return mask, nil
}

// sample has the program capture, or stop.
func (f *Forwarder) sample(oneIn, actions uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	want := f.host
	want.Sample, want.SampleActions = oneIn, actions
	return f.putHost(want)
}

// drain throws away what a former capture has left.
func drain(r *ringbuf.Reader) error {
	r.SetDeadline(time.Now())
	var rec ringbuf.Record
	for {
		switch err := r.ReadInto(&rec); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			r.SetDeadline(time.Time{})
			return nil
		case err != nil:
			return fmt.Errorf("read map %s: %w", edgeMapSamples, err)
		}
	}
}

func (f *Forwarder) readSamples(ctx context.Context, r *ringbuf.Reader, yield func(Sample) bool) error {
	// A deadline would have to wait for the read that it is to end.
	defer context.AfterFunc(ctx, func() { r.Flush() })()
	now, err := monotonic()
	if err != nil {
		return err
	}
	s := sampler{f: f, boot: time.Now().Add(-now), names: make(map[int]string)}
	var rec ringbuf.Record
	for ctx.Err() == nil {
		err := r.ReadInto(&rec)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ringbuf.ErrFlushed) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read map %s: %w", edgeMapSamples, err)
		}
		one, ok := s.read(rec.RawSample)
		if ok && !yield(one) {
			return nil
		}
	}
	return nil
}

// sampler turns what the program hands over into samples.
type sampler struct {
	f     *Forwarder
	boot  time.Time      // when the program's clock was 0
	names map[int]string // of interfaces, once asked for
}

// read reads a struct sample of maps.h.
func (r sampler) read(b []byte) (Sample, bool) {
	if len(b) < sampleHead {
		return Sample{}, false
	}
	le := binary.LittleEndian
	n := min(int(le.Uint32(b[16:])), len(b)-sampleHead, SnapLength)
	v := r.f.verdict(edgeVerdict(le.Uint32(b[20:])))
	s := Sample{
		Time: r.boot.Add(time.Duration(le.Uint64(b))), Action: v.action, Reason: v.reason,
		Length: int(le.Uint32(b[12:])), Data: slices.Clone(b[sampleHead : sampleHead+n]),
	}
	s.Interface = r.interfaceName(int(le.Uint32(b[8:])))
	return s, true
}

// sampleHead is what stands before the data of a struct sample.
const sampleHead = 24

func (r sampler) interfaceName(index int) string {
	if name, ok := r.names[index]; ok {
		return name
	}
	r.f.mu.Lock()
	dev, err := r.f.nl.LinkByIndex(index)
	r.f.mu.Unlock()
	r.names[index] = "interface " + strconv.Itoa(index)
	if err == nil {
		r.names[index] = dev.Attrs().Name
	}
	return r.names[index]
}
