package edge

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"time"
)

func (r *reader) guard(o *object) Guard {
	ms, s, m := time.Millisecond, time.Second, time.Minute
	return Guard{
		KeyFile:       need(o, "key_file", file()),
		PromiseLease:  want(o, "promise_lease", duration(s, MaxPromiseLease, 0), or(10*s)),
		AskTimeout:    want(o, "ask_timeout", duration(50*ms, 30*s, 0), or(s)),
		BackOff:       want(o, "back_off", duration(50*ms, m, 0), or(500*ms)),
		DrainTime:     want(o, "drain_time", duration(0, 10*m, 0), or(10*s)),
		SickDrainTime: want(o, "sick_drain_time", duration(0, 10*m, 0), or(s)),
		MaxCycles:     want(o, "max_cycles", number[int](1, 1000), or(3)),
		SpareSites:    want(o, "spare_sites", number[int](0, 1000), or(0)),
		MinFraction:   want(o, "min_fraction", fraction(), or(0.0)),
		MinHealthy:    want(o, "min_healthy", number[int](0, 1000), or(0)),
		MinCapacity:   want(o, "min_capacity", rateOrNone(), or(0.0)),
		CoverDemand:   want(o, "cover_demand", boolean(), or(false)),
		Regions: each(o, "regions", 0, func(o *object) RegionFloor {
			return RegionFloor{Region: need(o, "region", name[RegionID]()), MinSites: need(o, "min_sites", number[int](1, 1000))}
		}),
		MaxPlanned: want(o, "max_planned", number[int](1, 1000), or(1)),
		MaxLeaves:  want(o, "max_leaves", fraction(), or(0.25)),
	}
}

// rateOrNone is a number of requests a second, or 0.
func rateOrNone() rule[float64] {
	most := rate()
	return rule[float64]{takes: "requests per second 0 to 1000000000", bare: true, parse: func(s string) (float64, error) {
		if s == "0" {
			return 0, nil
		}
		f, err := most.parse(s)
		if err != nil {
			return 0, fmt.Errorf("%s is not a number of requests per second from 0 to 1000000000", asWritten(s))
		}
		return f, nil
	}}
}

// nodeKey is an Ed25519 public key in base64: its 32 bytes, or the DER that
// openssl writes, which has 12 bytes before them that are always the same (RFC
// 8410 section 4).
func nodeKey() rule[NodeKey] {
	spki := []byte{0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00}
	const takes = "Ed25519 public key in base64"
	return rule[NodeKey]{takes: takes, parse: func(s string) (NodeKey, error) {
		b, err := base64.StdEncoding.DecodeString(s)
		if len(b) > 32 {
			b = bytes.TrimPrefix(b, spki)
		}
		if err != nil || len(b) != 32 || strings.ContainsAny(s, "\r\n") || NodeKey(b) == (NodeKey{}) {
			return NodeKey{}, fmt.Errorf("%s is not an %s (32 bytes), as edgectl guard key prints it", quote(s), takes)
		}
		return NodeKey(b), nil
	}}
}
