package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Session is what a router itself says of its BGP session with a box.
type Session struct {
	// Established says that it is, Since when that began: to the millisecond in
	// BIRD, to the second in FRR.
	Established bool
	Since       time.Time
	// Opened counts the sessions that have been established with this neighbour.
	// BIRD does not count them: there it is 0, and Since tells two apart.
	Opened int
	// Updates counts what the box has announced on this session, Withdraws what it
	// has withdrawn, both in prefixes: an implicit update is one more of Updates.
	// FRR counts over all sessions, since Count.
	Updates, Withdraws int
	// Paths is how many prefixes of the box the router holds.
	Paths int
}

// Count has the router count what it receives from its boxes. BIRD does so
// anyway; FRR counts messages only, so it writes each prefix into its log.
func (r *Router) Count(ctx context.Context) error {
	if r.plan.Kind == BIRD {
		return nil
	}
	return r.Tell(ctx, "log stdout debugging", "debug bgp updates in")
}

// Session asks the router for its session with the neighbour at an address.
func (r *Router) Session(ctx context.Context, peer netip.Addr) (Session, error) {
	read := r.frrSession
	if r.plan.Kind == BIRD {
		read = r.birdSession
	}
	s, err := read(ctx, peer)
	if err != nil {
		return Session{}, fmt.Errorf("ask %s for its session with %s: %w", r.name, peer, err)
	}
	return s, nil
}

// birdSession reads the protocol of the box: its state, and the figures of both
// channels.
func (r *Router) birdSession(ctx context.Context, peer netip.Addr) (Session, error) {
	name, err := r.boxAt(peer)
	if err != nil {
		return Session{}, err
	}
	out, err := r.Ask(ctx, fmt.Sprintf("show protocols all 'box-%s'", name))
	if err != nil {
		return Session{}, err
	}
	return parseBIRDSession(out, time.Now())
}

func (r *Router) boxAt(peer netip.Addr) (string, error) {
	i := slices.IndexFunc(r.plan.Boxes, func(n neighbor) bool { return n.Peer == peer })
	if i < 0 {
		return "", errors.New("no box is at that address")
	}
	return r.plan.Boxes[i].Name, nil
}

var (
	birdState     = regexp.MustCompile(`(?m)^\S+ +BGP +\S+ +\S+ +(\d\d:\d\d:\d\d\.\d+) +(\S+)`)
	birdUpdates   = regexp.MustCompile(`(?m)^ +Import updates: +(\d+)`)
	birdWithdraws = regexp.MustCompile(`(?m)^ +Import withdraws: +(\d+)`)
	birdImported  = regexp.MustCompile(`(?m)^ +Routes: +(\d+) imported`)
)

// parseBIRDSession reads "show protocols all". The time of day in it is of the
// last 24 hours.
func parseBIRDSession(out string, now time.Time) (s Session, err error) {
	m := birdState.FindStringSubmatch(out)
	if m == nil {
		return Session{}, fmt.Errorf("no line of a protocol in %q", out)
	}
	clock, err := time.ParseInLocation("15:04:05.000", m[1], now.Location())
	if err != nil {
		return Session{}, fmt.Errorf("read its time: %w", err)
	}
	s.Established = m[2] == "Established"
	year, month, day := now.Date()
	s.Since = time.Date(year, month, day, clock.Hour(), clock.Minute(), clock.Second(), clock.Nanosecond(), now.Location())
	if s.Since.After(now.Add(time.Second)) {
		s.Since = s.Since.AddDate(0, 0, -1)
	}
	s.Updates, s.Withdraws, s.Paths = total(birdUpdates, out), total(birdWithdraws, out), total(birdImported, out)
	return s, nil
}

// total adds up the first group of all matches, which is a number.
func total(of *regexp.Regexp, text string) (sum int) {
	for _, m := range of.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[1]) // digits only
		sum += n
	}
	return sum
}

// frrSession reads the neighbour of bgpd, and its log: see Count.
func (r *Router) frrSession(ctx context.Context, peer netip.Addr) (Session, error) {
	out, err := r.Ask(ctx, fmt.Sprintf("show bgp neighbors %s json", peer))
	if err != nil {
		return Session{}, err
	}
	s, err := parseFRRSession(out, peer, time.Now())
	if err != nil {
		return Session{}, err
	}
	log, err := os.ReadFile(r.file("bgpd.log"))
	if err != nil {
		return Session{}, fmt.Errorf("read its log: %w", err)
	}
	s.Updates, s.Withdraws = countFRRLog(string(log), peer)
	return s, nil
}

// parseFRRSession reads "show bgp neighbors PEER json".
func parseFRRSession(out string, peer netip.Addr, now time.Time) (s Session, err error) {
	var all map[string]json.RawMessage
	var n struct {
		State  string `json:"bgpState"`
		Up     int64  `json:"bgpTimerUpMsec"`
		Opened int    `json:"connectionsEstablished"`
		Family map[string]struct {
			Accepted int `json:"acceptedPrefixCounter"`
		} `json:"addressFamilyInfo"`
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return Session{}, fmt.Errorf("read its JSON: %w: %.300s", err, out)
	}
	if err := json.Unmarshal(all[peer.String()], &n); err != nil {
		return Session{}, fmt.Errorf("read its neighbour: %w: %.300s", err, out)
	}
	s.Established, s.Opened = n.State == "Established", n.Opened
	s.Since = now.Add(-time.Duration(n.Up) * time.Millisecond)
	for _, f := range n.Family {
		s.Paths += f.Accepted
	}
	return s, nil
}

// countFRRLog counts the lines of "debug bgp updates in" about a neighbour that
// name a prefix; one that changes nothing counts as well.
func countFRRLog(log string, peer netip.Addr) (updates, withdraws int) {
	about := regexp.MustCompile(`(?m) ` + regexp.QuoteMeta(peer.String()) + `(?:\([^)]*\))? rcvd (?:UPDATE about )?[0-9a-f.:]+/\d+ .*$`)
	for _, line := range about.FindAllString(log, -1) {
		if strings.Contains(line, "withdrawn") {
			withdraws++
		} else {
			updates++
		}
	}
	return updates, withdraws
}
