package watch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// verdict is what is wrong with a route; the zero value: nothing.
type verdict struct{ kind, why string }

// judgePath judges the path of a route to one of our prefixes. Prepending does
// not matter.
func judgePath(own Own, neighbours, path []uint32) verdict {
	if len(path) == 0 {
		return verdict{}
	}
	// The end of the path that is of our origins: one may stand behind the other.
	end := len(path)
	for end > 0 && slices.Contains(own.Origins, path[end-1]) {
		end--
	}
	if end == len(path) {
		return verdict{UnexpectedOrigin, fmt.Sprintf("AS%d originates it, which only %s may", path[end-1], asText(own.Origins))}
	}
	ours := own.Origins[0]
	if slices.Contains(path[:end], ours) {
		return verdict{Leak, fmt.Sprintf("AS%d stands in the middle of the path", ours)}
	}
	// What stands in front of our AS is one of our origins, or a neighbour.
	if end > 0 && path[end] == ours && len(neighbours) > 0 && !slices.Contains(neighbours, path[end-1]) {
		return verdict{Leak, fmt.Sprintf("AS%d stands next to AS%d and is no neighbour of it", path[end-1], ours)}
	}
	return verdict{}
}

// asText shows the first of several ASes.
func asText(asns []uint32) string {
	var names []string
	for _, n := range asns {
		names = append(names, "AS"+strconv.FormatUint(uint64(n), 10))
	}
	return some(names, 4)
}

// pathText shows a path, of a long one the beginning and the end.
func pathText(path []uint32) string {
	const most, half = 16, 7
	var hops []string
	for i, n := range path {
		switch {
		case len(path) <= most || i < half || i >= len(path)-half:
			hops = append(hops, strconv.FormatUint(uint64(n), 10))
		case i == half:
			hops = append(hops, "...")
		}
	}
	if len(hops) == 0 {
		return "of our own AS"
	}
	return strings.Join(hops, " ")
}

// some shows the first of several names.
func some(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
