package main

import (
	"errors"
	"net/http"
	"slices"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
)

// ordered returns the settings with the families of each peer in the order in
// which edgebgp reports them, so that two can be compared.
// What the loop fills in for each intent is left out.
func ordered(s edge.Speaker) edge.Speaker {
	s.Own, s.Resting = nil, false
	s.Peers = slices.Clone(s.Peers)
	for i := range s.Peers {
		s.Peers[i].Families = slices.Sorted(slices.Values(s.Peers[i].Families))
	}
	return s
}

// refused says that edgebgp would have to take something off the air for the intent that
// nobody has ordered: since edged has looked a session may have come up, or gone.
func refused(err error) bool {
	var r *socket.Refusal
	return errors.As(err, &r) && r.Code == http.StatusConflict
}
