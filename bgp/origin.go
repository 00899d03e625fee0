package bgp

import (
	"maps"
	"net/netip"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/rpki"
)

// verdict is what the RPKI says of the announcements, and what comes of it.
type verdict struct {
	origins []edge.Origin
	status  rpki.Status
	// accepted are the announcements that were let through once: nothing that
	// the RPKI says takes one of them away.
	accepted map[netip.Prefix]bool
	// refused are the others.
	refused map[netip.Prefix]edge.Reason
	// news says that refused is another one since the last wish.
	news bool
	// What all that was made of.
	set    *rpki.Set
	intent *edge.Intent
}

// judge looks at the announcements of the intent with the VRPs of now.
//
// The rule is that knowledge changes something and ignorance nothing: a prefix of
// which nothing is known is announced, and stays refused if it was.
func (s *Speaker) judge() {
	v := &s.verdict
	var set *rpki.Set
	set, v.status = s.aides.rpki.Current()
	if s.intent == nil || v.set == set && v.intent == s.intent {
		return
	}
	v.set, v.intent, v.origins = set, s.intent, nil
	refused := map[netip.Prefix]edge.Reason{}
	speaker := s.intent.Speaker
	for _, a := range s.intent.Announcements {
		says := rpki.Verdict{Validity: rpki.Unknown}
		if rpkiConfigured(speaker) {
			says = set.Validate(a.Net, speaker.ASN)
			v.origins = append(v.origins, edge.Origin{Net: a.Net, Validity: string(says.Validity), Evidence: says.Evidence})
		}
		if why := v.refuse(a.Net, says, speaker.RPKI.RefuseInvalid); why != "" {
			refused[a.Net] = why
		}
	}
	for net, why := range refused {
		if v.refused[net] == "" {
			s.log.Warn("announcement refused", "prefix", net, "reason", why)
		}
	}
	v.news = v.news || !maps.Equal(v.refused, refused)
	v.refused = refused
}

// refuse says why a prefix is not to be announced; empty: it is accepted.
func (v *verdict) refuse(net netip.Prefix, says rpki.Verdict, refuseInvalid bool) edge.Reason {
	switch {
	case v.accepted[net] || !refuseInvalid:
	case says.Validity == rpki.InvalidLength || says.Validity == rpki.InvalidOrigin:
		return edge.Reason("RPKI " + string(says.Validity) + ": " + says.Evidence)
	case says.Validity == rpki.Unknown && v.refused[net] != "":
		return v.refused[net]
	}
	if v.accepted == nil {
		v.accepted = map[netip.Prefix]bool{}
	}
	v.accepted[net] = true
	return ""
}

// forget is for a prefix that was withdrawn: the next time it is new.
func (v *verdict) forget(net netip.Prefix) { delete(v.accepted, net) }

func rpkiConfigured(s edge.Speaker) bool { return s.RPKI.File != "" || len(s.RPKI.Servers) > 0 }

// rpkiState is the source of the VRPs as it is shown.
func (s *Speaker) rpkiState() edge.SourceState {
	if s.intent == nil || !rpkiConfigured(s.intent.Speaker) {
		return edge.SourceState{}
	}
	st := s.verdict.status
	out := edge.SourceState{Source: st.Source, Updated: st.Updated, Items: st.VRPs, LastErr: st.LastErr}
	if out.Source == "" {
		out.Source = "none yet"
	}
	if why := s.aides.failed["rpki"]; why != "" {
		out.LastErr = why
	}
	return out
}
