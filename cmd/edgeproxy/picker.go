package main

import (
	"errors"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/backbone"
	"github.com/catchment-dev/edge/proxy"
)

// picker lets the proxy choose by the backbone: the two do not know each
// other.
type picker struct{ s *backbone.Selector }

// Pick implements proxy.Picker.
func (p picker) Pick(allowed []edge.RegionID, tried []edge.UpstreamID) (proxy.Choice, error) {
	c, err := p.s.Pick(allowed, tried)
	switch {
	case errors.Is(err, backbone.ErrFull):
		return proxy.Choice{}, proxy.ErrFull
	case err != nil:
		return proxy.Choice{}, proxy.ErrDown
	}
	return proxy.Choice{Region: c.Region, Upstream: c.Upstream, Spill: c.Spill, Done: c.Done}, nil
}
