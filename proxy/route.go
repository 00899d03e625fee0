package proxy

import (
	"slices"
	"strings"

	"github.com/catchment-dev/edge"
)

// route returns the regions that may serve a request, and whether any route
// matches it. The first that matches is taken, as the configuration says.
func route(routes []edge.Route, authority, target string) ([]edge.RegionID, bool) {
	host := hostname(authority)
	path, _, _ := strings.Cut(target, "?")
	for _, r := range routes {
		if matchHost(r.Hosts, host) && matchPath(r.PathPrefix, path) {
			return r.Regions, true
		}
	}
	return nil, false
}

func matchHost(hosts []string, host string) bool {
	if len(hosts) == 0 || slices.Contains(hosts, host) {
		return true
	}
	label, rest, ok := strings.Cut(host, ".")
	return ok && label != "" && slices.Contains(hosts, "*."+rest)
}

// matchPath matches whole segments of the path as it was sent: nothing is
// decoded or cleaned, since the upstream sees the same bytes and decides.
func matchPath(prefix, path string) bool {
	prefix = strings.TrimSuffix(prefix, "/")
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (prefix == "" || rest == "" || rest[0] == '/')
}
