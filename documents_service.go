package edge

import (
	"net/netip"
	"time"
)

// ServiceSummary is one service and its backends here.
type ServiceSummary struct {
	ID       ServiceID      `json:"id"`
	VIP      netip.AddrPort `json:"vip"`
	Protocol Protocol       `json:"protocol"`
	Prefix   netip.Prefix   `json:"prefix"`
	// Pool is the one that new flows go to, Reason why these are not simply the
	// healthy ones of the primary pool, by their weights.
	Pool     Pool             `json:"pool,omitempty"`
	Reason   Reason           `json:"reason,omitempty"`
	Backends []BackendSummary `json:"backends"`
}

// BackendSummary is one backend of a service. It is there too while it is
// draining after it has left the configuration.
type BackendSummary struct {
	ID   BackendID  `json:"id"`
	Addr netip.Addr `json:"address"`
	Pool Pool       `json:"pool,omitempty"`
	// Weight is the configured one or what its check said; EffectiveWeight is its
	// share of new flows now, 0: it gets none.
	Weight          int        `json:"weight"`
	EffectiveWeight int        `json:"effective_weight"`
	Local           bool       `json:"local"`
	State           ProbeState `json:"state"`
	// InRing says whether new flows can reach it.
	InRing bool `json:"in_ring"`
	// DrainingUntil is until when TCP flows follow it, after it has left the
	// configuration or the pool in use; zero: it is not draining.
	DrainingUntil time.Time `json:"draining_until,omitzero"`
	Reason        Reason    `json:"reason,omitempty"`
}

// Explanation answers GET /v1/explain?what=...: plain lines, most important
// first, and the facts behind them.
type Explanation struct {
	What  string   `json:"what"`
	Kind  string   `json:"kind"`
	Lines []string `json:"lines"`
}

// Problem is the body of every answer that is not 2xx.
type Problem struct {
	Error string `json:"error"`
}
