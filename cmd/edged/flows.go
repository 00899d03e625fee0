package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
)

// How many flows an answer lists: if nothing is asked for, and at most.
const (
	flowsListed = 1000
	flowsMost   = 100_000
)

// flowSource has the flow tables. The forwarder is one.
type flowSource interface {
	Flows(yield func(edge.FlowEntry) bool) error
}

// flowQuery is which flows are asked for; what is zero does not matter.
type flowQuery struct {
	service edge.ServiceID
	backend edge.BackendID
	source  netip.Prefix
	limit   int
}

// flowList answers GET /v1/flows: the flows that were asked for, some of them
// listed.
type flowList struct {
	Flows []edge.FlowEntry `json:"flows"`
	Total int              `json:"total"`
	Shown int              `json:"shown"`
}

func (d *daemon) serveFlows(w http.ResponseWriter, r *http.Request) {
	q, err := parseFlowQuery(r.URL.Query())
	if err == nil {
		err = d.knownService(q.service)
	}
	if err != nil {
		socket.Fail(w, http.StatusBadRequest, err)
		return
	}
	out, err := listFlows(r.Context(), d.fwd, q)
	if err != nil {
		socket.Fail(w, http.StatusInternalServerError, err)
		return
	}
	socket.JSON(w, http.StatusOK, out)
}

// knownService says which services there are, if id is not empty and none of
// them: an empty list would look as if there were no traffic.
func (d *daemon) knownService(id edge.ServiceID) error {
	var all []edge.ServiceID
	for _, s := range d.config().Fleet.Services {
		all = append(all, s.ID)
	}
	if id == "" || slices.Contains(all, id) {
		return nil
	}
	return fmt.Errorf("%q is not a service of the configuration; there are %q", id, all)
}

func parseFlowQuery(v url.Values) (flowQuery, error) {
	if err := onlyKeys(v, "service", "backend", "source", "limit"); err != nil {
		return flowQuery{}, err
	}
	q := flowQuery{service: edge.ServiceID(v.Get("service")), backend: edge.BackendID(v.Get("backend"))}
	var err error
	if q.limit, err = whole(v, "limit", flowsListed, flowsMost); err != nil {
		return q, err
	}
	if s := v.Get("source"); s != "" {
		q.source, err = parseSource(s)
	}
	return q, err
}

// parseSource reads a prefix, or an address as the prefix of itself.
func parseSource(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("source %q is neither an address nor a prefix, like 192.0.2.0/24", s)
	}
	return p.Masked(), nil
}

// onlyKeys refuses a question that has other parts: one that is not understood
// would be answered as if it had not been there.
func onlyKeys(v url.Values, keys ...string) error {
	for k, values := range v {
		if !slices.Contains(keys, k) {
			return fmt.Errorf("%q is not asked with; there are %q", k, keys)
		}
		if len(values) > 1 {
			return fmt.Errorf("%q is given more than once", k)
		}
	}
	return nil
}

// whole reads a number from 1 to most; def if it is not given.
func whole(v url.Values, key string, def, most int) (int, error) {
	s := v.Get(key)
	if s == "" {
		return def, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("%s %q is not a whole number from 1 to %d", key, s, most)
	}
	return n, nil
}

func (q flowQuery) takes(e edge.FlowEntry) bool {
	return (q.service == "" || q.service == e.Service) &&
		(q.backend == "" || q.backend == e.Backend) &&
		(!q.source.IsValid() || q.source.Contains(e.Src.Addr()))
}

// listFlows goes through the tables once; the list is in the order of services
// and sources. It ends early, with an error, when ctx does.
func listFlows(ctx context.Context, src flowSource, q flowQuery) (flowList, error) {
	out := flowList{Flows: []edge.FlowEntry{}}
	err := src.Flows(func(e edge.FlowEntry) bool {
		if !q.takes(e) {
			return ctx.Err() == nil
		}
		if out.Total++; len(out.Flows) < q.limit {
			out.Flows = append(out.Flows, e)
		}
		return ctx.Err() == nil
	})
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return out, fmt.Errorf("read flow tables: %w", err)
	}
	out.Shown = len(out.Flows)
	slices.SortFunc(out.Flows, func(a, b edge.FlowEntry) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), a.Src.Compare(b.Src), a.Dst.Compare(b.Dst), cmp.Compare(a.Protocol, b.Protocol))
	})
	return out, nil
}
