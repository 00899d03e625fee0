package proxy

import (
	"context"
	"errors"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/proxy/http1"
)

// Picker chooses where a request goes. Safe for concurrent use.
type Picker interface {
	// Pick returns an upstream of one of the allowed regions (empty: of any),
	// not one of those that this request has tried already. The error is
	// ErrDown or ErrFull.
	Pick(allowed []edge.RegionID, tried []edge.UpstreamID) (Choice, error)
}

// The errors of a Picker.
var (
	// ErrDown: none of the allowed regions can be reached.
	ErrDown = errors.New("no region is up")
	// ErrFull: those that can be reached have no room.
	ErrFull = errors.New("no_room")
)

// Choice is where a request goes.
type Choice struct {
	Region   edge.RegionID
	Upstream edge.Upstream
	// Spill says why it is not the nearest region; empty if it is.
	Spill edge.Reason
	// Done must be called exactly once when the request is over, also when it
	// ends in a panic: with an error only if the upstream could not be connected
	// to.
	Done func(err error)
}

// maxChoices is how many upstreams one request may try. Only a failed connect
// leads to another one: nothing of the request has been sent by then.
const maxChoices = 3

// forward has the request answered by an upstream.
func (s *Server) forward(ctx context.Context, v *visit, r *Request, regions []edge.RegionID) *Response {
	t := trip{req: r, header: forwardHeader(r, v.connInfo, v.line.ID), wait: s.gen.Load().proxy.UpstreamTimeout, stall: s.stall}
	var tried []edge.UpstreamID
	var failed error
	for range maxChoices {
		c, err := s.picker.Pick(regions, tried)
		if err != nil {
			if failed != nil {
				break
			}
			return v.refusePick(err)
		}
		v.line.Region, v.line.Upstream, v.line.Reason = c.Region, c.Upstream.ID, c.Spill
		t.addr = c.Upstream.Addr
		resp, err := s.try(ctx, v, c, t)
		if err == nil {
			return resp
		}
		failed = err
		if !errors.Is(err, errDial) {
			break
		}
		tried = append(tried, c.Upstream.ID)
	}
	return v.refuseTrip(r, failed)
}

// try has one upstream answer. A pooled connection that turned out to be
// closed says nothing about the upstream, so a request that is safe to repeat
// gets one new connection to it.
func (s *Server) try(ctx context.Context, v *visit, c Choice, t trip) (resp *Response, err error) {
	defer func() {
		if resp == nil { // a panic comes past here too
			c.Done(onlyDial(err))
		}
	}()
	v.line.Attempts++
	resp, x, err := s.pool.roundTrip(ctx, t)
	if errors.Is(err, errStale) && repeatable(t.req) {
		v.line.Attempts++
		t.fresh = true
		resp, x, err = s.pool.roundTrip(ctx, t)
	}
	if err != nil {
		return nil, err
	}
	v.line.Reused = x.u.reused
	resp.Header.Keep(func(name string) bool { return !ours(name) })
	resp.Done = func(int64, error) {
		x.finish()
		c.Done(nil)
	}
	return resp, nil
}

// repeatable says whether a request may be sent twice: safe by its method and
// without a body that is gone already (RFC 9110 section 9.2.2).
func repeatable(r *Request) bool {
	return r.Body == nil && (r.Method == "GET" || r.Method == "HEAD" || r.Method == "OPTIONS")
}

func onlyDial(err error) error {
	if errors.Is(err, errDial) {
		return err
	}
	return nil
}

func (v *visit) refusePick(err error) *Response {
	resp := v.refuse(503, edge.Reason(err.Error()))
	if errors.Is(err, ErrFull) {
		resp.Header.Add("Retry-After", "1")
	}
	return resp
}

// refuseTrip is the answer when the last attempt has failed. The text names no
// address: it goes to the client; the log line has the upstream.
func (v *visit) refuseTrip(r *Request, err error) *Response {
	var f *http1.Fault
	switch {
	case errors.As(err, &f):
		resp := v.refuse(f.Status, f.Reason)
		resp.Close = true
		return resp
	case errors.Is(err, errClient):
		resp := v.refuse(statusClientGone, edge.Reason(err.Error()))
		resp.Close = true
		return resp
	case errors.Is(err, errLate):
		return v.refuse(504, edge.Reason(err.Error()))
	case errors.Is(err, errDial):
		return v.refuse(502, edge.Reason(errDial.Error()+": "+plain(err)))
	case errors.Is(err, errStale):
		return v.refuse(502, edge.Reason(errStale.Error()+", and "+r.Method+" is not repeated"))
	}
	return v.refuse(502, edge.Reason(err.Error()))
}
