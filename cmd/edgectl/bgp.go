package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge"
)

func (o *options) bgpCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "bgp [PEER]", Short: "Show the BGP peers, what each is sent, and why",
		Long: "Show the peers with the reason of the last disconnect, what was written to each and why,\n" +
			"what is not sent and why, how much each has sent, BFD, what the RPKI says of our announcements\n" +
			"and what the world is seen to make of them. With PEER, also list what that one has sent, as\n" +
			"far as edgebgp keeps it, and why none of it is used.",
		Example: "  edgectl bgp\n  edgectl bgp r-a\n  edgectl bgp r-a -o json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var st edge.SystemStatus
			if err := o.call(c.Context(), "GET", "/v1/status", nil, &st); err != nil {
				return err
			}
			if len(args) == 1 {
				if err := onePeer(&st.Speaker, edge.PeerID(args[0])); err != nil {
					return problem{err}
				}
			}
			if o.output == "json" {
				return o.json(st.Speaker)
			}
			return o.write(bgpText(o.env, st, len(args) == 1))
		},
	}
	c.AddCommand(o.preferCommand(), o.unpreferCommand())
	return c
}

// onePeer leaves one peer in s.
func onePeer(s *edge.SpeakerState, id edge.PeerID) error {
	var names []string
	for _, p := range s.Peers {
		if p.ID == id {
			s.Peers = []edge.PeerState{p}
			return nil
		}
		names = append(names, string(p.ID))
	}
	return fmt.Errorf("there is no peer %s here; there is %s", id, cmp.Or(strings.Join(names, ", "), "none"))
}

// bgpText is all peers, or one, of which it also lists what it has sent.
func bgpText(e env, st edge.SystemStatus, one bool) string {
	s := &status{SystemStatus: st}
	s.colour = e.colour
	b := st.Speaker
	if b.Started.IsZero() {
		s.say(bad, "edgebgp: unknown, it has not answered")
		return s.b.String()
	}
	if st.SpeakerErr != "" {
		s.say(bad, "edgebgp does not answer, this is what it said last: "+st.SpeakerErr)
	}
	if b.Speaker != nil {
		s.say(plain, fmt.Sprintf("AS %d  router id %s  up %s  lease ends in %s unless renewed", b.Speaker.ASN, b.Speaker.RouterID, s.age(b.Started), span(b.LeaseLeft)))
	}
	if b.Expired {
		s.say(bad, "the lease has run out: edgebgp has degraded everything by itself")
	}
	if b.KeepErr != "" {
		s.say(bad, "edgebgp cannot keep what it announces, a restart of it would announce what it kept last: "+b.KeepErr)
	}
	s.prefers()
	for _, p := range b.Peers {
		s.peer(p)
		s.received(p, one)
		s.bfd(p.BFD)
		s.sent(p)
		if one {
			s.rejected(p)
		}
	}
	s.world()
	return s.b.String()
}

// peer is the session with one peer.
func (s *status) peer(p edge.PeerState) {
	t := plain
	if p.Session != "established" {
		t = bad
	}
	s.section(t, fmt.Sprintf("peer %s  %s  AS %d  %s for %s  flaps %d", p.ID, p.Addr, p.ASN, known(p.Session), s.age(p.Since), p.Flaps))
	if p.Session == "established" && p.Local.IsValid() {
		s.say(plain, fmt.Sprintf("  from %s  router id %s  hold %s  keepalive %s  families %s", p.Local, p.RemoteID, p.Hold, p.Keepalive, familyText(p.Families)))
	}
	if p.LastErr != "" {
		when := ""
		if !p.LastErrAt.IsZero() {
			when = fmt.Sprintf(" %s ago", s.age(p.LastErrAt))
		}
		s.say(plain, fmt.Sprintf("  last trouble%s: %s", when, p.LastErr))
	}
	m := p.Messages
	s.say(plain, fmt.Sprintf("  updates: %d sent, %d prefixes withdrawn, %d received, %d malformed", m.UpdatesSent, m.WithdrawsSent, m.UpdatesReceived, m.Malformed))
	if p.Pending > 0 {
		s.say(warn, fmt.Sprintf("  %s not brought about yet", count(p.Pending, "change")))
	}
}

func (s *status) bfd(f *edge.BFDState) {
	if f == nil {
		return
	}
	t := plain
	if f.State != "up" {
		t = bad
	}
	why := cmp.Or(f.LastErr, f.Diag)
	s.say(t, strings.TrimSuffix(fmt.Sprintf("  BFD %s for %s, the other end %s, detects in %s, flaps %d: %s", f.State, s.age(f.Since), f.Remote, f.Detect, f.Flaps, why), ": "))
}

// sent is what the peer was sent, and why so.
func (s *status) sent(p edge.PeerState) {
	var rows [][]cell
	for _, h := range p.Held {
		rows = append(rows, []cell{{h.Net.String(), plain}, {h.NextHop.String(), plain}, {attributesText(h.Attributes), plain}, {s.why(h.Net), plain}})
	}
	for _, n := range p.NotSent {
		rows = append(rows, []cell{{n.Net.String(), plain}, {"not sent", warn}, {}, {string(n.Reason), plain}})
	}
	if len(rows) > 0 {
		s.table([]string{"PREFIX", "NEXT HOP", "ATTRIBUTES", "WHY"}, rows)
	}
}

// why says why a prefix is announced as it is.
func (s *status) why(p netip.Prefix) string {
	for _, a := range s.Speaker.Announcements {
		if a.Net != p {
			continue
		}
		switch {
		case a.Degrade:
			return "degraded: " + string(a.Reason)
		case a.Reason != "":
			return string(a.Reason)
		}
		return "healthy"
	}
	return "it is being withdrawn"
}

func attributesText(a edge.Attributes) string {
	var out []string
	add := func(ok bool, format string, args ...any) {
		if ok {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(a.Prepend > 0, "prepend %d", a.Prepend)
	add(a.MED > 0, "med %d", a.MED)
	add(a.LocalPref > 0, "local-pref %d", a.LocalPref)
	for _, c := range a.Communities {
		add(true, "%s", c)
	}
	for _, c := range a.Large {
		add(true, "%s", c)
	}
	return cmp.Or(strings.Join(out, " "), "none")
}

func familyText(list []edge.Family) string {
	out := make([]string, len(list))
	for i, f := range list {
		out[i] = string(f)
	}
	return cmp.Or(strings.Join(out, ","), "none")
}

// world is what others say of our prefixes.
func (s *status) world() {
	b := s.Speaker
	if b.RPKI.Source != "" {
		s.section(plain, fmt.Sprintf("RPKI: %s, %d VRPs, updated %s ago", b.RPKI.Source, b.RPKI.Items, s.age(b.RPKI.Updated)))
		if b.RPKI.LastErr != "" {
			s.say(warn, "  "+b.RPKI.LastErr)
		}
		var rows [][]cell
		for _, o := range b.Origins {
			t := plain
			if strings.HasPrefix(o.Validity, "invalid") {
				t = bad
			}
			rows = append(rows, []cell{{o.Net.String(), plain}, {o.Validity, t}, {o.Evidence, plain}})
		}
		if len(rows) > 0 {
			s.table([]string{"PREFIX", "RPKI", "EVIDENCE"}, rows)
		}
	}
	if b.Watch.Source != "" {
		s.section(plain, fmt.Sprintf("watch: %s, %d seen, last %s ago", b.Watch.Source, b.Watch.Items, s.age(b.Watch.Updated)))
		if b.Watch.LastErr != "" {
			s.say(warn, "  "+b.Watch.LastErr)
		}
	}
	for _, w := range b.Sightings {
		s.say(bad, fmt.Sprintf("%s of %s, since %s, last %s ago: %s", w.Kind, w.Net, s.age(w.Since), s.age(w.Last), w.Evidence))
	}
}

// prefers shows the orders to move traffic.
func (s *status) prefers() {
	for _, o := range s.Prefers {
		s.say(warn, preferText(o, s.Time))
	}
}

func preferText(o edge.Preference, now time.Time) string {
	what := "all traffic"
	if o.Prefix != (netip.Prefix{}) {
		what = "traffic of " + o.Prefix.String()
	}
	sites := make([]string, len(o.Sites))
	for i, id := range o.Sites {
		sites[i] = string(id)
	}
	return fmt.Sprintf("prefer  %s goes to %s for %s more (the other sites: %s), by %s: %s",
		what, strings.Join(sites, ", "), span(o.Until.Sub(now)), attributesText(edge.Attributes{Prepend: o.Prepend, MED: o.MED}), o.By, o.Reason)
}

func (o *options) preferCommand() *cobra.Command {
	var (
		in     edge.Preference
		prefix string
		length time.Duration
	)
	c := &cobra.Command{
		Use: "prefer SITE... --for TIME --reason TEXT", Short: "Move traffic to sites for a while, by prepends and MED at all others",
		Long: "Have every site but those named announce with more prepends or a MED. It spreads to all nodes by\n" +
			"gossip, is logged at each, ends by itself, and replaces an earlier order for the same prefix. It\n" +
			"needs nobody's permit: a prefix that every site makes less attractive is still announced.",
		Example: "  edgectl bgp prefer b --for 2h --reason \"b has room\"\n  edgectl bgp prefer b c --prefix 198.51.100.0/24 --prepend 3 --med 50 --for 30m --reason test",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if strings.TrimSpace(in.Reason) == "" {
				return errors.New("--reason TEXT is needed: it is what others will read")
			}
			if length < time.Second || length > edge.MaxPreference {
				return fmt.Errorf("--for %s is not between 1s and %s", length, edge.MaxPreference)
			}
			if err := prefixFlag(prefix, &in.Prefix); err != nil {
				return err
			}
			for _, a := range args {
				in.Sites = append(in.Sites, edge.SiteID(a))
			}
			in.Until = o.now().Add(length).UTC()
			return o.prefer(c, in)
		},
	}
	f := c.Flags()
	f.StringVar(&in.Reason, "reason", "", "why, in a few `words`")
	f.StringVar(&prefix, "prefix", "", "only this `prefix`; without it, all")
	f.IntVar(&in.Prepend, "prepend", 2, "how `often` the other sites add their AS, 0 to 10")
	f.Uint32Var(&in.MED, "med", 0, "the `MED` of the other sites; 0 sends what they send now")
	f.DurationVar(&length, "for", time.Hour, "how `long`, at most 168h")
	return c
}

func (o *options) unpreferCommand() *cobra.Command {
	var in edge.Preference
	var prefix string
	c := &cobra.Command{
		Use: "unprefer --reason TEXT", Short: "Take back an order to move traffic", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if strings.TrimSpace(in.Reason) == "" {
				return errors.New("--reason TEXT is needed: it is what others will read")
			}
			if err := prefixFlag(prefix, &in.Prefix); err != nil {
				return err
			}
			in.Until = o.now().Add(edge.MaxPreference).UTC() // outlives the order, wherever that is still told
			return o.prefer(c, in)
		},
	}
	c.Flags().StringVar(&in.Reason, "reason", "", "why, in a few `words`")
	c.Flags().StringVar(&prefix, "prefix", "", "only this `prefix`; without it, the order for all")
	return c
}

func prefixFlag(s string, to *netip.Prefix) error {
	if s == "" {
		return nil
	}
	if err := prefixArg(nil, []string{s}); err != nil {
		return fmt.Errorf("--prefix: %w", err)
	}
	*to = prefixOf([]string{s})
	return nil
}

func (o *options) prefer(c *cobra.Command, in edge.Preference) error {
	var st edge.SystemStatus
	if err := o.call(c.Context(), "POST", "/v1/prefer", in, &st); err != nil {
		return err
	}
	if o.output == "json" {
		return o.json(st.Prefers)
	}
	var b strings.Builder
	for _, p := range st.Prefers {
		b.WriteString(line(preferText(p, st.Time)) + "\n")
	}
	if b.Len() == 0 {
		b.WriteString("no order to move traffic holds\n")
	}
	return o.write(b.String())
}
