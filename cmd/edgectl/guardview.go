package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge"
)

func (o *options) decisionsCommand() *cobra.Command {
	var last int
	c := &cobra.Command{
		Use: "decisions", Short: "Show how the last rounds of this node ended, and on what", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if last < 1 {
				return fmt.Errorf("--last %d is not above 0", last)
			}
			var past []edge.GuardDecision
			if err := o.call(c.Context(), "GET", "/v1/guard/decisions", nil, &past); err != nil {
				return err
			}
			past = past[max(0, len(past)-last):]
			if o.output == "json" {
				return o.json(past)
			}
			return o.write(decisionsText(o.env, past))
		},
	}
	c.Flags().IntVar(&last, "last", 50, "how `many`, at most the 50 that are kept")
	return c
}

func (o *options) guardWhatIfCommand() *cobra.Command {
	var sites []string
	c := &cobra.Command{
		Use: "what-if --withdraw SITE...", Short: "Say whether sites could leave now, one after the other; nobody is asked",
		Example: "  edgectl guard what-if --withdraw fra\n  edgectl guard what-if --withdraw fra --withdraw lon\n  edgectl guard what-if --withdraw fra lon",
		RunE: func(c *cobra.Command, args []string) error {
			if sites = append(sites, args...); len(sites) == 0 || len(sites) == len(args) {
				return errors.New("--withdraw SITE is needed")
			}
			var out edge.GuardWhatIf
			if err := o.call(c.Context(), "GET", "/v1/guard/what-if?"+url.Values{"withdraw": sites}.Encode(), nil, &out); err != nil {
				return err
			}
			if o.output == "json" {
				return o.json(out)
			}
			return o.write(guardWhatIfText(o.env, out))
		},
	}
	c.Flags().StringSliceVar(&sites, "withdraw", nil, "the `site` that leaves; several leave in this order")
	return c
}

func (o *options) trustCommand() *cobra.Command {
	var length time.Duration
	var in edge.Trust
	c := &cobra.Command{
		Use: "trust CHECK --reason TEXT", Short: "Believe a check though it fails at many sites at once, on every box",
		Long: "Order the fleet to believe a check that is suspect (common cause): where it fails, the site may ask to\n" +
			"leave again. The guard still keeps the floor. The order spreads to every box and ends by itself.",
		Example: "  edgectl guard trust web-vip --for 1h --reason \"the origin is down for good, see INC-7\"",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if length <= 0 || length > edge.MaxTrust {
				return fmt.Errorf("--for %s is not above 0 and up to %s", length, edge.MaxTrust)
			}
			in.Until = o.now().Add(length).UTC()
			return o.trust(c, args[0], in)
		},
	}
	c.Flags().StringVar(&in.Reason, "reason", "", "why, in a few `words`")
	c.Flags().DurationVar(&length, "for", time.Hour, "how `long`")
	return c
}

func (o *options) untrustCommand() *cobra.Command {
	var in edge.Trust
	c := &cobra.Command{
		Use: "untrust CHECK --reason TEXT", Short: "Take that back, on every box", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return o.trust(c, args[0], in) },
	}
	c.Flags().StringVar(&in.Reason, "reason", "", "why, in a few `words`")
	return c
}

func (o *options) trust(c *cobra.Command, check string, in edge.Trust) error {
	if strings.TrimSpace(in.Reason) == "" {
		return errors.New("--reason TEXT is needed: it is what others will read")
	}
	in.Check = edge.ProbeID(check)
	var st edge.SystemStatus
	if err := o.call(c.Context(), "POST", "/v1/guard/trust", in, &st); err != nil {
		return err
	}
	if o.output == "json" {
		return o.json(st)
	}
	s := &status{SystemStatus: st}
	s.colour = o.colour
	if s.trusts(); s.b.Len() == 0 {
		s.say(plain, "no check is trusted by an order")
	}
	return o.write(s.b.String())
}

func guardText(e env, st edge.SystemStatus) string {
	s := &status{SystemStatus: st}
	s.colour = e.colour
	g := &st.Guard
	if old := e.now().Sub(st.Time); st.Time.IsZero() || old > staleAfter {
		s.say(bad, "this status is old: edged answers, but decides nothing")
	}
	s.guarded()
	s.suspects()
	s.trusts()
	for _, f := range g.Forced {
		s.say(bad, fmt.Sprintf("forced  %s off the air %s ago, without a permit: %s", f.Prefix, s.age(f.At), f.Reason))
	}
	s.rounds()
	s.keys()
	if n := len(g.Past); n > 0 {
		s.section(plain, fmt.Sprintf("the last %s: edgectl guard decisions has more", count(n, "round")))
		s.table(decisionHead(), decisionRows(g.Past))
	}
	if dropped := counters(g.Dropped); dropped != "" {
		s.section(plain, "gossip dropped: "+dropped)
	}
	return strings.TrimPrefix(s.b.String(), "\n")
}

// guarded shows what each prefix needs, who announces it, and how many may leave.
func (s *status) guarded() {
	if len(s.Guard.Prefixes) == 0 {
		s.section(bad, "guard: nothing is known of any prefix yet")
		return
	}
	var rows [][]cell
	for _, p := range s.Guard.Prefixes {
		t, room := plain, fmt.Sprintf("%d more may leave", p.MayLeave)
		switch {
		case p.Needed == 0:
			room = "not guarded"
		case p.MayLeave == 0:
			t, room = bad, "none may leave"
		case p.MayLeave == 1:
			t = warn
		}
		here := ""
		if a, asked := s.Guard.Asking[p.Prefix]; asked {
			here = answer(a, s)
		}
		sites := fmt.Sprintf("%d", len(p.Sites))
		if n := len(p.Silent); n > 0 {
			sites += fmt.Sprintf(", %d silent", n)
		}
		rows = append(rows, []cell{
			{p.Prefix.String(), plain}, {terms(p), plain}, {sites, plain}, {room, t}, {string(p.Lacks), plain}, {here, bad},
		})
	}
	s.table([]string{"PREFIX", "MUST STAY", "SITES", "HEAD-ROOM", "FOR ONE MORE", "THIS NODE"}, rows)
}

// terms are what must stay, in words.
func terms(p edge.GuardedPrefix) string {
	out := []string{count(p.Needed, "site")}
	if p.Needed != p.Floor {
		out[0] += fmt.Sprintf(" (floor %d)", p.Floor)
	}
	if p.Healthy > 0 {
		out = append(out, fmt.Sprintf("%d healthy", p.Healthy))
	}
	if p.Capacity > 0 {
		out = append(out, fmt.Sprintf("%.0f requests/s", p.Capacity))
	}
	for _, r := range slices.Sorted(maps.Keys(p.Regions)) {
		out = append(out, fmt.Sprintf("%d of %s", p.Regions[r], r))
	}
	return strings.Join(out, ", ")
}

func answer(a edge.Permit, s *status) string {
	switch {
	case a.OK:
		return "may leave"
	case !a.BlockedSince.IsZero():
		return "blocked for " + s.age(a.BlockedSince)
	case a.Refused:
		return "refused"
	}
	return "asks"
}

func (s *status) suspects() {
	for _, v := range s.Guard.Suspects {
		text, t := "common cause  "+strings.TrimPrefix(v.String(), "common cause: "), warn
		if v.Here {
			text, t = text+", here too", bad
		}
		if v.Trusted {
			text, t = text+", but trusted by an order", warn
		}
		if len(v.Sites) > 0 {
			text += ": fails at " + sites(v.Sites)
		}
		if len(v.Silent) > 0 {
			text += "; silent: " + sites(v.Silent)
		}
		s.say(t, text)
	}
}

func sites(ids []edge.SiteID) string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return strings.Join(out, ", ")
}

func (s *status) trusts() {
	for _, t := range s.Guard.Trust {
		s.say(warn, fmt.Sprintf("trusted  %s for %s, by %s: %s", t.Check, span(t.Until.Sub(s.Time)), t.By, t.Reason))
	}
}

// rounds shows what is open, who has promised this node, and whom it has promised.
func (s *status) rounds() {
	for _, p := range s.Guard.Prefixes {
		r := p.Round
		if r == nil {
			continue
		}
		s.section(plain, fmt.Sprintf("%s: round %d is open for %s", p.Prefix, r.N, s.age(r.Opened)))
		for _, h := range r.Held {
			s.say(plain, fmt.Sprintf("  %s has promised to stay, for %s", h.Node, span(h.Until.Sub(s.Time))))
		}
		for _, id := range slices.Sorted(maps.Keys(r.Nacked)) {
			s.say(warn, fmt.Sprintf("  %s refuses: %s", id, r.Nacked[id]))
		}
		for _, id := range r.Waiting {
			s.say(warn, fmt.Sprintf("  %s has not answered", id))
		}
	}
	if len(s.Guard.Bound)+len(s.Guard.Asking) > 0 {
		s.b.WriteByte('\n')
	}
	s.promises()
}

// keys are the members, with the short names of their keys.
func (s *status) keys() {
	var rows [][]cell
	for _, m := range s.Guard.Members {
		alive, age := cell{"yes", plain}, cell{span(m.Age), plain}
		if !m.Alive {
			alive = cell{"no", bad}
		}
		if m.Age < 0 {
			age = cell{"never heard", bad}
		}
		rows = append(rows, []cell{{string(m.Node), plain}, {string(m.Site), plain}, alive, age, {s.Guard.NodeKeys[m.Node], plain}})
	}
	if len(rows) == 0 {
		s.section(warn, "no other member is known")
	} else {
		s.table([]string{"MEMBER", "SITE", "ALIVE", "HEARD", "KEY"}, rows)
	}
	s.gossipKeys()
}

// gossipKeys are the keys of the gossip by their short names: what is to be compared
// between the boxes before the next step of a rotation.
func (s *status) gossipKeys() {
	s.keyNames("gossip", s.Guard.Keys)
}

// ticketKeys are those of TLS session tickets that the fleet shares.
func (s *status) ticketKeys() {
	s.keyNames("ticket", s.Proxy.TicketKeys)
	if why := s.Proxy.TicketErr; why != "" {
		s.say(warn, "edgeproxy makes its own ticket keys: "+why)
	}
}

func (s *status) keyNames(kind string, names []string) {
	for i, name := range names {
		use := "is accepted"
		if i == 0 {
			use = "encrypts, and is accepted"
		}
		s.say(plain, fmt.Sprintf("%s key %s %s", kind, name, use))
	}
}

func decisionHead() []string {
	return []string{"TIME (UTC)", "PREFIX", "ROUND", "TOOK", "SEVERITY", "PROMISED", "OUTCOME", "WANTED", "REFUSED", "SILENT"}
}

func decisionRows(past []edge.GuardDecision) [][]cell {
	var rows [][]cell
	for _, d := range past {
		outcome, t := string(d.Reason), plain
		if !d.Left || d.Forced {
			t = warn
		}
		var no []string
		for _, id := range slices.Sorted(maps.Keys(d.Nacked)) {
			no = append(no, fmt.Sprintf("%s: %s", id, d.Nacked[id]))
		}
		rows = append(rows, []cell{
			{d.Time.UTC().Format(time.DateTime), plain}, {d.Prefix.String(), plain}, {fmt.Sprint(d.Round), plain}, {span(d.Time.Sub(d.Opened)), plain},
			{fmt.Sprint(d.Severity), plain}, {strings.TrimSuffix(fmt.Sprintf("%d of %d: %s", len(d.Promised), d.Needed, nodes(d.Promised)), ": "), plain},
			{cmp.Or(outcome, "given up"), t}, {string(d.Wish), plain}, {strings.Join(no, "; "), plain}, {nodes(d.Silent), plain},
		})
	}
	return rows
}

func nodes(ids []edge.NodeID) string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return strings.Join(out, ", ")
}

func decisionsText(e env, past []edge.GuardDecision) string {
	var p page
	p.colour = e.colour
	if len(past) == 0 {
		p.say(plain, "this node has asked nobody since edged started")
		return p.b.String()
	}
	p.table(decisionHead(), decisionRows(past))
	return strings.TrimPrefix(p.b.String(), "\n")
}

func guardWhatIfText(e env, w edge.GuardWhatIf) string {
	var p page
	p.colour = e.colour
	var rows [][]cell
	for _, o := range w.Prefixes {
		verdict := cell{"may leave", plain}
		if !o.OK {
			verdict = cell{"may not", bad}
		}
		rows = append(rows, []cell{{o.Prefix.String(), plain}, {string(o.Site), plain}, verdict, {string(o.Reason), plain}})
	}
	p.table([]string{"PREFIX", "SITE", "VERDICT", "WHY"}, rows)
	for _, n := range w.Notes {
		p.say(faint, n)
	}
	return strings.TrimPrefix(p.b.String(), "\n")
}
