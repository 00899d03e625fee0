package boot

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// statusAge is how old a status of edged may be: it makes one at least each second.
const statusAge = 10 * time.Second

// Edged says why edged does not work, by its status.
func Edged(st edge.SystemStatus, now time.Time) error {
	switch age := now.Sub(st.Time); {
	case st.Time.IsZero():
		return errors.New("edged answers, but has decided nothing since it started")
	case age > statusAge || age < -statusAge:
		return fmt.Errorf("edged answers, but its status is %s old: it decides nothing", age.Round(time.Second))
	case st.SpeakerErr != "":
		return fmt.Errorf("edged does not reach edgebgp: %s", st.SpeakerErr)
	}
	return nil
}

// BGP says why no router hears of this box: of the peers that are configured, and
// are not only watched, one has to be established. More are not asked for: that
// another router is down is not the fault of the version. That the box is drained
// changes nothing, as its sessions stay.
func BGP(st edge.SystemStatus) error {
	var down []string
	for _, p := range st.Speaker.Peers {
		if watched(st.Speaker.Speaker, p.ID) {
			continue
		}
		if p.Session == "established" {
			return nil
		}
		down = append(down, fmt.Sprintf("%s is %s (%s)", p.ID, cmp.Or(p.Session, "unknown"), cmp.Or(p.LastErr, "no error yet")))
	}
	if len(down) == 0 {
		return nil // none is configured
	}
	return fmt.Errorf("no peer is established: %s", strings.Join(down, ", "))
}

func watched(s *edge.Speaker, id edge.PeerID) bool {
	return s != nil && slices.ContainsFunc(s.Peers, func(p edge.Peer) bool { return p.ID == id && p.Watch })
}

// BGPOf is BGP, but a configuration with peers needs a status that has them: edgebgp
// may not have heard of them yet.
func BGPOf(c *edge.Config, st edge.SystemStatus) error {
	if want := slices.ContainsFunc(c.Local.Speaker.Peers, func(p edge.Peer) bool { return !p.Watch }); want && len(st.Speaker.Peers) == 0 {
		return errors.New("peers are configured, and edgebgp has none yet")
	}
	return BGP(st)
}

// Setup is what edge-setup leaves of the configuration: result.json.
type Setup struct {
	State      string   `json:"state"` // ok, rescue or unconfigured
	Source     string   `json:"source,omitempty"`
	Generation int      `json:"generation"`
	Errors     []string `json:"errors,omitempty"`
}

// The states of a Setup.
const (
	SetupOK           = "ok"
	SetupRescue       = "rescue"
	SetupUnconfigured = "unconfigured"
)

// Configuration says why the configuration cannot be used. A box that has none is
// no worse for the version that it runs, unless the one before had one.
func Configuration(s Setup, before bool) error {
	switch s.State {
	case SetupOK:
		return nil
	case SetupUnconfigured:
		if before {
			return errors.New("the version before had a configuration, and this one sees none")
		}
		return nil
	case SetupRescue:
		return fmt.Errorf("the configuration of %s is not valid: %s", cmp.Or(s.Source, "this box"), cmp.Or(strings.Join(s.Errors, "; "), "no reason is known"))
	}
	return fmt.Errorf("edge-setup left the state %.40q, which is unknown here", s.State)
}
