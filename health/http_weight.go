package health

import (
	"net/http"
	"strconv"

	"github.com/catchment-dev/edge"
)

// WeightHeader is where an answer says the weight of its sender, as Google's
// passthrough load balancer and Kubernetes' kube-proxy have it.
const WeightHeader = "X-Load-Balancing-Endpoint-Weight"

// weight reads WeightHeader; nil if it does not hold exactly one usable weight.
func weight(h http.Header) *int {
	said := h.Values(WeightHeader)
	if len(said) != 1 {
		return nil
	}
	return readWeight(said[0])
}

// readWeight reads one value of the header. A sign, a fraction or an exponent is
// no weight: whoever sends it means another scale than ours.
func readWeight(said string) *int {
	for _, c := range said {
		if c < '0' || c > '9' {
			return nil
		}
	}
	w, err := strconv.Atoi(said)
	if err != nil || w > edge.MaxWeight {
		return nil
	}
	return &w
}
