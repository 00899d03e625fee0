package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// staleAfter is how old a status may be: edged makes one at least each second.
const staleAfter = 10 * time.Second

// statusText is the status for an operator: what needs a person first, then
// what is announced, then why. What is not known is written as such.
func statusText(e env, st edge.SystemStatus, verbose bool) string {
	s := &status{SystemStatus: st, verbose: verbose}
	s.colour = e.colour
	s.head(e.now())
	s.prefixes()
	s.peers()
	s.services()
	s.probes()
	s.members()
	s.guard()
	s.regions()
	s.forwarder()
	return s.b.String()
}

type status struct {
	edge.SystemStatus
	page
	verbose bool
}

// age is how long ago t was, by the clock of the node.
func (s *status) age(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return span(s.Time.Sub(t))
}

// span is a duration in its two largest units.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch d = max(d, 0); {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d >= 10*time.Second:
		return fmt.Sprintf("%ds", d/time.Second)
	case d >= time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return fmt.Sprintf("%dms", d.Milliseconds())
}

func (s *status) head(now time.Time) {
	s.say(plain, fmt.Sprintf("node %s  site %s  version %s  up %s  generation %d  config %.12s",
		known(string(s.Node)), known(string(s.Site)), known(s.Version), s.age(s.Started), s.Generation, known(s.ConfigHash)))
	alarms := s.alarms(now)
	for _, a := range alarms {
		s.say(bad, "ALARM  "+a)
	}
	for _, d := range s.Drains {
		s.say(warn, drainText(d, s.Time))
	}
	s.prefers()
	if len(alarms) == 0 {
		s.say(plain, "no alarms")
	}
}

func drainText(d edge.Drain, now time.Time) string {
	what := "everything"
	switch {
	case d.Service != "":
		what = "service " + string(d.Service)
	case d.Prefix != netip.Prefix{}:
		what = d.Prefix.String()
	}
	until := ""
	if !d.Until.IsZero() {
		until = fmt.Sprintf(", for %s more", span(d.Until.Sub(now)))
	}
	if d.ByFile {
		until += ", by file"
	}
	if d.Stop {
		until += ", until it is started again"
	}
	return fmt.Sprintf("drain  %s since %s%s: %s", what, span(now.Sub(d.Since)), until, d.Reason)
}

// alarms are those of edged and what only the reader of its status can see.
func (s *status) alarms(now time.Time) []string {
	var out []string
	if s.Time.IsZero() {
		out = append(out, "edged answers, but has decided nothing since it started")
	} else if old := now.Sub(s.Time); old > staleAfter {
		out = append(out, fmt.Sprintf("this status is %s old: edged answers, but decides nothing", span(old)))
	}
	out = append(out, s.Alarms...)
	told := func(a string) bool { return strings.Contains(a, s.ConfigErr) }
	if s.ConfigErr != "" && !slices.ContainsFunc(s.Alarms, told) {
		out = append(out, "the last reload was refused: "+s.ConfigErr)
	}
	return out
}

func (s *status) prefixes() {
	if len(s.Decisions) == 0 {
		s.section(bad, "prefixes: nothing has been decided yet")
		return
	}
	var rows [][]cell
	for _, d := range s.Decisions {
		health := edge.HealthUnknown
		for _, h := range s.Conditions {
			if h.Prefix == d.Prefix {
				health = h.Health
			}
		}
		rung := known(string(d.Rung))
		if a := s.Guard.Asking[d.Prefix]; d.Rung.WantsOut() && !a.BlockedSince.IsZero() {
			rung += ", blocked"
		}
		rows = append(rows, []cell{
			{d.Prefix.String(), plain}, {rung, rungTone(d.Rung)}, {s.age(d.Since), plain},
			{health.String(), healthTone(health)}, {fmt.Sprintf("%d/%d", s.Speaker.Holders(d.Prefix), len(s.Speaker.Peers)), plain}, {string(d.Reason), plain},
		})
	}
	s.table([]string{"PREFIX", "RUNG", "SINCE", "HEALTH", "PEERS HOLD IT", "REASON"}, rows)
}

func rungTone(r edge.Rung) tone {
	switch r {
	case edge.Announced:
		return plain
	case edge.Degraded, edge.Draining, edge.Withdrawn:
		return warn
	}
	return bad
}

func healthTone(h edge.Health) tone {
	switch h {
	case edge.Healthy:
		return plain
	case edge.HealthDegraded, edge.HealthFull:
		return warn
	}
	return bad
}

func (s *status) peers() {
	b := s.Speaker
	switch {
	case b.Started.IsZero():
		s.section(bad, "edgebgp: unknown, it has not answered")
	case s.SpeakerErr != "":
		s.section(bad, "edgebgp: does not answer, this is what it said last: "+s.SpeakerErr)
	case b.Expired:
		s.section(bad, fmt.Sprintf("edgebgp: generation %d, lease EXPIRED: it has degraded everything by itself", b.Generation))
	default:
		s.section(plain, fmt.Sprintf("edgebgp: up %s, generation %d, lease ends in %s unless renewed", s.age(b.Started), b.Generation, span(b.LeaseLeft)))
	}
	if len(b.Peers) == 0 {
		s.say(bad, "BGP peers: none known")
		return
	}
	var rows [][]cell
	for _, p := range b.Peers {
		t := plain
		if p.Session != "established" || s.SpeakerErr != "" {
			t = bad
		}
		rows = append(rows, []cell{
			{string(p.ID), plain}, {p.Addr.String(), plain}, {fmt.Sprint(p.ASN), plain}, {known(p.Session), t}, {s.age(p.Since), plain},
			{fmt.Sprint(len(p.Held)), plain}, {fmt.Sprint(p.Flaps), plain}, {p.LastErr, plain},
		})
	}
	s.table([]string{"BGP PEER", "ADDRESS", "AS", "SESSION", "SINCE", "HOLDS", "FLAPS", "LAST ERROR"}, rows)
}

func (s *status) services() {
	var rows [][]cell
	for _, v := range s.Services {
		up, t := 0, plain
		var others []string
		all := len(v.Backends)
		for _, b := range v.Backends {
			if !b.DrainingUntil.IsZero() && b.State == edge.Unknown {
				all-- // it has left: what it still has are flows
			}
			if b.InRing {
				up++
				continue
			}
			others = append(others, strings.TrimSuffix(fmt.Sprintf("%s %s: %s", b.ID, b.State, b.Reason), ": "))
		}
		if up == 0 {
			t = bad
		}
		rows = append(rows, []cell{
			{string(v.ID), plain}, {edge.VIPText(v.VIP, v.Protocol), plain},
			{fmt.Sprintf("%d/%d", up, all), t}, {strings.Join(others, "; "), plain},
		})
	}
	if len(rows) > 0 {
		s.table([]string{"SERVICE", "VIP", "IN RING", "NOT IN RING"}, rows)
	}
}

func (s *status) probes() {
	counts := map[edge.ProbeState]int{}
	var rows [][]cell
	for _, p := range s.Probes {
		counts[p.State]++
		if p.State == edge.Up && !s.verbose {
			continue
		}
		t := bad
		switch p.State {
		case edge.Up:
			t = plain
		case edge.Full:
			t = warn
		}
		last := p.LastErr
		if last != "" && !p.LastErrAt.IsZero() {
			last = fmt.Sprintf("%s ago: %s", s.age(p.LastErrAt), last)
		}
		rows = append(rows, []cell{{string(p.Probe), plain}, {p.State.String(), t}, {s.age(p.Since), plain}, {s.age(p.LastRun), plain}, {last, plain}})
	}
	full := ""
	if n := counts[edge.Full]; n > 0 {
		full = fmt.Sprintf(", %d full", n)
	}
	s.section(plain, fmt.Sprintf("probes: %d up%s, %d down, %d unknown", counts[edge.Up], full, counts[edge.Down], counts[edge.Unknown]))
	if len(rows) > 0 {
		s.table([]string{"PROBE", "STATE", "SINCE", "LAST RUN", "LAST ERROR"}, rows)
	}
}

func (s *status) members() {
	var rows [][]cell
	for _, m := range s.Guard.Members {
		if m.Node == s.Node {
			continue
		}
		alive, age := cell{"yes", plain}, cell{span(m.Age), plain}
		if !m.Alive {
			alive = cell{"no", bad}
		}
		claims := "unknown"
		if m.Age < 0 {
			age = cell{"never heard", bad}
		} else if len(m.Report.Says) > 0 {
			claims = claimsText(m.Report.Says)
		}
		rows = append(rows, []cell{{string(m.Node), plain}, {string(m.Site), plain}, alive, age, {claims, plain}})
	}
	if len(rows) == 0 {
		s.section(warn, "guard: no other member is known")
		return
	}
	s.table([]string{"MEMBER", "SITE", "ALIVE", "HEARD", "CLAIMS"}, rows)
}

func claimsText(says []edge.Claim) string {
	var out []string
	for _, c := range says {
		text := fmt.Sprintf("%s %s, %s", c.Prefix, known(string(c.Rung)), c.Health)
		if c.Rung.OnAir() && !c.Announcing {
			text += ", but no peer holds it"
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// guard shows what binds this node and what it asks for.
func (s *status) guard() {
	s.suspects()
	s.trusts()
	s.promises()
	if dropped := counters(s.Guard.Dropped); dropped != "" {
		s.say(plain, "gossip dropped: "+dropped)
	}
}

// promises are those that this node has given, and asks for.
func (s *status) promises() {
	for _, b := range s.Guard.Bound {
		s.say(warn, fmt.Sprintf("promised %s to stay with %s, for %s more", b.To, b.Prefix, span(b.Until.Sub(s.Time))))
	}
	asking := make([]netip.Prefix, 0, len(s.Guard.Asking))
	for p := range s.Guard.Asking {
		asking = append(asking, p)
	}
	slices.SortFunc(asking, func(a, b netip.Prefix) int { return cmp.Compare(a.String(), b.String()) })
	for _, p := range asking {
		permit := s.Guard.Asking[p]
		verdict := "waiting"
		switch {
		case permit.OK:
			verdict = "permitted"
		case !permit.BlockedSince.IsZero():
			verdict = "blocked for " + s.age(permit.BlockedSince)
		case permit.Refused:
			verdict = "refused"
		}
		s.say(warn, strings.TrimSuffix(fmt.Sprintf("asks to leave with %s: %s, %d of %d needed promises: %s",
			p, verdict, len(permit.Promised), permit.Needed, permit.Reason), ": "))
	}
}

// counters lists what has counted anything, in the order of the names.
func counters(m map[string]uint64) string {
	var out []string
	for k, n := range m {
		if n > 0 {
			out = append(out, fmt.Sprintf("%s %d", k, n))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func (s *status) regions() {
	p := s.Proxy
	if p.PID == 0 {
		s.section(warn, "edgeproxy: unknown, it has not answered")
		return
	}
	s.section(plain, fmt.Sprintf("edgeproxy: pid %d, up %s, %.1f requests/s, %d connections, %d requests, answers: %s",
		p.PID, s.age(p.Started), p.Load.Demand, p.Connections, p.Requests, cmp.Or(counters(p.Responses), "none yet")))
	if p.ConfigHash != "" && s.ConfigHash != "" && p.ConfigHash != s.ConfigHash {
		s.say(warn, fmt.Sprintf("edgeproxy runs another configuration: %.12s", p.ConfigHash))
	}
	s.ticketKeys()
	var rows [][]cell
	for _, r := range p.Load.Regions {
		t, rtt := plain, "not measured"
		if r.Up == 0 {
			t = bad
		} else if r.Up < r.Of {
			t = warn
		}
		if r.RTT > 0 {
			rtt = fmt.Sprintf("%.1fms", float64(r.RTT)/1e6)
		}
		rows = append(rows, []cell{
			{string(r.Region), plain}, {fmt.Sprintf("%d/%d", r.Up, r.Of), t}, {rtt, plain},
			{fmt.Sprintf("%.1f/%.1f", r.Sent, r.Allowance), plain}, {r.LastErr, plain},
		})
	}
	if len(rows) > 0 {
		s.table([]string{"REGION", "UP", "RTT", "SENT/ALLOWANCE", "LAST ERROR"}, rows)
	}
}

func (s *status) forwarder() {
	f := s.Forwarder
	if f.Mode == "" {
		s.section(bad, "forwarder: unknown, nothing is known to be attached")
		return
	}
	s.section(plain, fmt.Sprintf("forwarder: %s on %s, flow table %d, received %d",
		f.Mode, cmp.Or(strings.Join(f.Interfaces, ", "), "no interface"), f.Flows, f.Received))
	var rows [][]cell
	order := []string{"pass", "tx", "redirect", "drop"}
	verdicts := slices.SortedStableFunc(slices.Values(f.Verdicts), func(a, b edge.VerdictCount) int {
		return cmp.Compare(slices.Index(order, a.Action), slices.Index(order, b.Action))
	})
	for _, v := range verdicts {
		if v.Count > 0 || s.verbose {
			rows = append(rows, []cell{{v.Action, plain}, {fmt.Sprint(v.Count), plain}, {string(v.Reason), plain}})
		}
	}
	if len(rows) > 0 {
		s.table([]string{"VERDICT", "PACKETS", "REASON"}, rows)
	}
}
