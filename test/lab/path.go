package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Path is how a router holds a prefix that a box has announced.
type Path struct {
	ASPath []uint32
	// MED is 0 if there is none.
	MED uint32
	// Communities as AS:VALUE, sorted.
	Communities []string
}

// Path asks the router's BGP for the path of a prefix from the neighbour at an
// address.
func (r *Router) Path(ctx context.Context, prefix netip.Prefix, peer netip.Addr) (Path, error) {
	read := r.frrPath
	if r.plan.Kind == BIRD {
		read = r.birdPath
	}
	p, err := read(ctx, prefix, peer)
	if err != nil {
		return Path{}, fmt.Errorf("ask %s for the path of %s from %s: %w", r.name, prefix, peer, err)
	}
	slices.Sort(p.Communities)
	return p, nil
}

func (r *Router) birdPath(ctx context.Context, prefix netip.Prefix, peer netip.Addr) (Path, error) {
	name, err := r.boxAt(peer)
	if err != nil {
		return Path{}, err
	}
	out, err := r.Ask(ctx, fmt.Sprintf("show route %s protocol 'box-%s' all", prefix, name))
	if err != nil {
		return Path{}, err
	}
	return parseBIRDPath(out)
}

var (
	birdASPath      = regexp.MustCompile(`(?m)^\s+BGP\.as_path:(.*)$`)
	birdMED         = regexp.MustCompile(`(?m)^\s+BGP\.med: (\d+)`)
	birdCommunities = regexp.MustCompile(`(?m)^\s+BGP\.community:(.*)$`)
	birdCommunity   = regexp.MustCompile(`\((\d+),(\d+)\)`)
)

// parseBIRDPath reads "show route ... all" with one route.
func parseBIRDPath(out string) (p Path, err error) {
	path := birdASPath.FindStringSubmatch(out)
	if path == nil {
		return Path{}, fmt.Errorf("no AS path in %q", out)
	}
	for _, word := range strings.Fields(path[1]) {
		as, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return Path{}, fmt.Errorf("read AS path: %w", err)
		}
		p.ASPath = append(p.ASPath, uint32(as))
	}
	p.MED = uint32(total(birdMED, out))
	if list := birdCommunities.FindStringSubmatch(out); list != nil {
		for _, c := range birdCommunity.FindAllStringSubmatch(list[1], -1) {
			p.Communities = append(p.Communities, c[1]+":"+c[2])
		}
	}
	return p, nil
}

func (r *Router) frrPath(ctx context.Context, prefix netip.Prefix, peer netip.Addr) (Path, error) {
	family := "ipv4"
	if prefix.Addr().Is6() {
		family = "ipv6"
	}
	out, err := r.Ask(ctx, fmt.Sprintf("show bgp %s unicast %s json", family, prefix))
	if err != nil {
		return Path{}, err
	}
	return parseFRRPath(out, peer)
}

// parseFRRPath reads "show bgp FAMILY unicast PREFIX json".
func parseFRRPath(out string, peer netip.Addr) (Path, error) {
	var route struct {
		Paths []struct {
			Metric uint32 `json:"metric"`
			ASPath struct {
				Segments []struct {
					List []uint32 `json:"list"`
				} `json:"segments"`
			} `json:"aspath"`
			Community struct {
				List []string `json:"list"`
			} `json:"community"`
			Peer struct {
				ID netip.Addr `json:"peerId"`
			} `json:"peer"`
		} `json:"paths"`
	}
	if err := json.Unmarshal([]byte(out), &route); err != nil {
		return Path{}, fmt.Errorf("read its JSON: %w: %.300s", err, out)
	}
	for _, from := range route.Paths {
		if from.Peer.ID != peer {
			continue
		}
		p := Path{MED: from.Metric, Communities: from.Community.List}
		for _, s := range from.ASPath.Segments {
			p.ASPath = append(p.ASPath, s.List...)
		}
		return p, nil
	}
	return Path{}, errors.New("it has none")
}
