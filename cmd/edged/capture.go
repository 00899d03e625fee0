package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
	"github.com/catchment-dev/edge/cmd/internal/version"
	"github.com/catchment-dev/edge/xdp"
	"github.com/catchment-dev/edge/xdp/pcapng"
)

// The bounds of a capture: it takes time from the packets, and what is forgotten
// must end.
const (
	captureSeconds     = 10
	captureSecondsMost = 3600
	capturePackets     = 1000
	capturePacketsMost = 1_000_000
	// captureGrace is how long a client may take to read the rest.
	captureGrace = 5 * time.Second
)

// The trailers of a capture: how many packets it has, and why it broke off.
const (
	trailerPackets = "Edge-Packets"
	trailerError   = "Edge-Error"
)

// sampler hands out packets as they leave, until ctx ends or yield says no. The
// forwarder is one.
type sampler interface {
	Capture(ctx context.Context, o xdp.CaptureOptions, yield func(xdp.Sample) bool) error
}

// captureOrder is what is to be captured.
type captureOrder struct {
	by      string // who wants it; for others to read
	oneIn   uint32
	actions []string
	service edge.ServiceID // empty: whatever it is for
	length  time.Duration
	packets int
}

// comment is written into the file.
func (o captureOrder) comment() string {
	s := fmt.Sprintf("1 of %d packets that left by %s", o.oneIn, strings.Join(o.actions, ", "))
	if o.service != "" {
		s += "; of them those of service " + string(o.service)
	}
	return s
}

func parseCaptureOrder(v url.Values) (captureOrder, error) {
	o := captureOrder{by: cmp.Or(v.Get("by"), "somebody"), service: edge.ServiceID(v.Get("service"))}
	if err := onlyKeys(v, "rate", "actions", "service", "seconds", "packets", "by"); err != nil {
		return o, err
	}
	rate, err1 := whole(v, "rate", 1, math.MaxInt32)
	seconds, err2 := whole(v, "seconds", captureSeconds, captureSecondsMost)
	packets, err3 := whole(v, "packets", capturePackets, capturePacketsMost)
	if err := errors.Join(err1, err2, err3); err != nil {
		return o, err
	}
	if len(o.by) > maxReason {
		return o, fmt.Errorf("by has %d bytes, at most %d are taken", len(o.by), maxReason)
	}
	o.oneIn, o.length, o.packets = uint32(rate), time.Duration(seconds)*time.Second, packets
	all := xdp.Actions()
	o.actions = all
	if s := v.Get("actions"); s != "" {
		o.actions = strings.Split(s, ",")
	}
	for _, a := range o.actions {
		if !slices.Contains(all, a) {
			return o, fmt.Errorf("%q is no way to leave; there are %q", a, all)
		}
	}
	return o, nil
}

// captures serves captures, one at a time.
type captures struct {
	from sampler
	log  *slog.Logger
	// config is the one in force: it has the uplinks and the services.
	config func() *edge.Config

	mu      sync.Mutex
	running *captureOrder // nil: none
	since   time.Time
}

func (c *captures) begin(o *captureOrder) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != nil {
		return fmt.Errorf("a capture by %s is running since %s, and ends at %s at the latest: only one can run at a time",
			c.running.by, clock(c.since), clock(c.since.Add(c.running.length+captureGrace)))
	}
	c.running, c.since = o, time.Now()
	return nil
}

func (c *captures) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = nil
}

// ServeHTTP answers with the packets while they come. What can be refused is
// refused before; what goes wrong later is in a trailer.
func (c *captures) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o, err := parseCaptureOrder(r.URL.Query())
	var takes func([]byte) bool
	if err == nil {
		takes, err = c.filter(o.service)
	}
	if err != nil {
		socket.Fail(w, http.StatusBadRequest, err)
		return
	}
	if err := c.begin(&o); err != nil {
		socket.Fail(w, http.StatusConflict, err)
		return
	}
	defer c.end()
	// A client that stops reading must not hold the capture either.
	rc := http.NewResponseController(w)
	if err := rc.SetWriteDeadline(time.Now().Add(o.length + captureGrace)); err != nil {
		socket.Fail(w, http.StatusInternalServerError, fmt.Errorf("bound capture: %w", err))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), o.length)
	defer cancel()
	c.log.Info("capture begins", "by", o.by, "one_in", o.oneIn, "actions", o.actions, "service", o.service, "for", o.length, "packets", o.packets)
	h := w.Header()
	h.Set("Content-Type", pcapng.ContentType)
	h.Set("Connection", "close") // the deadline is the connection's
	h.Set("Trailer", trailerPackets+", "+trailerError)
	n, err := c.stream(ctx, flushing{w, rc}, o, takes)
	h.Set(trailerPackets, strconv.Itoa(n))
	if err != nil {
		h.Set(trailerError, err.Error())
	}
	c.log.Info("capture ends", "by", o.by, "packets", n, "err", err)
}

// stream writes samples to w until there are enough or ctx ends, and returns how
// many.
func (c *captures) stream(ctx context.Context, w io.Writer, o captureOrder, takes func([]byte) bool) (n int, err error) {
	out, err := pcapng.NewWriter(w, pcapng.Options{
		Application: "edged " + version.String(), Comment: o.comment(),
		Interfaces: c.config().Local.Forwarder.Interfaces,
	})
	if err != nil {
		return 0, err
	}
	var failed error
	err = c.from.Capture(ctx, xdp.CaptureOptions{OneIn: o.oneIn, Actions: o.actions}, func(s xdp.Sample) bool {
		if !takes(s.Data) {
			return true
		}
		failed = out.Write(pcapng.Packet{
			Time: s.Time, Interface: s.Interface, Length: s.Length, Action: s.Action, Reason: s.Reason, Data: s.Data,
		})
		if failed != nil {
			return false
		}
		n++
		return n < o.packets
	})
	if err != nil && ctx.Err() == nil {
		return n, fmt.Errorf("capture: %w", err)
	}
	return n, failed
}

// filter returns what tells the frames of a service; all are taken if it is
// empty.
func (c *captures) filter(id edge.ServiceID) (func(frame []byte) bool, error) {
	if id == "" {
		return func([]byte) bool { return true }, nil
	}
	services := c.config().Fleet.Services
	i := slices.IndexFunc(services, func(s edge.Service) bool { return s.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("%q is not a service of the configuration", id)
	}
	vip := vipMatch{addr: services[i].VIP.Addr(), port: services[i].VIP.Port(), protocol: services[i].Protocol}
	return vip.inFrame, nil
}

// flushing sends what is written at once: somebody may be watching.
type flushing struct {
	w  io.Writer
	rc *http.ResponseController
}

func (f flushing) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err == nil {
		err = f.rc.Flush()
	}
	return n, err
}
