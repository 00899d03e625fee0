package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/catchment-dev/edge"
)

// pathTable is the part of GoBGP's server that changes its table.
type pathTable interface {
	AddPath(context.Context, *api.AddPathRequest) (*api.AddPathResponse, error)
	DeletePath(context.Context, *api.DeletePathRequest) error
}

// peerTable is the part of GoBGP's server that changes its peers.
type peerTable interface {
	AddPeer(context.Context, *api.AddPeerRequest) error
	UpdatePeer(context.Context, *api.UpdatePeerRequest) (*api.UpdatePeerResponse, error)
	DeletePeer(context.Context, *api.DeletePeerRequest) error
}

// set adds what is missing or different: the announcements, then the peers, so
// that a session that opens finds every path in the table already: a peer
// waits while a path could not be set. One that fails does not keep the others
// back. What stands by then is remembered, so the next call goes on from there.
// The error is about announcements; of a peer its state tells.
func (e *engine) set(ctx context.Context, list []edge.Announcement, peers []edge.Peer) error {
	var errs []error
	for _, a := range list {
		err := e.announce(ctx, a)
		if err != nil {
			errs = append(errs, err)
		}
		if hangs(err) {
			break
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, p := range peers {
		err := e.setPeer(ctx, p)
		if err != nil {
			e.refuse(p, err)
		}
		if hangs(err) {
			break
		}
	}
	return nil
}

// hangs says that the server did not answer: each further call would only wait
// for its limit.
func hangs(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// announce adds the path, or replaces it: an implicit update, so the routers
// see no withdrawal.
func (e *engine) announce(ctx context.Context, a edge.Announcement) error {
	r := routeOf(a)
	old, stands := e.routes[a.Net]
	if stands && !old.unsure && old.equal(r) {
		return nil
	}
	p, err := r.path(a.Net, e.key.asn)
	if err != nil {
		return err
	}
	err = do(ctx, "announce "+a.Net.String(), func(ctx context.Context) error {
		_, err := e.paths.AddPath(ctx, &api.AddPathRequest{TableType: api.TableType_GLOBAL, Path: p})
		return err
	})
	r.unsure = err != nil
	e.routes[a.Net] = r
	if err != nil {
		return err
	}
	e.log.Info("announce", "prefix", a.Net, "next_hop", r.nextHop, "degraded", a.Degrade, "reason", a.Reason,
		"prepend", r.attrs.Prepend, "med", r.attrs.MED, "communities", r.attrs.Communities, "update", stands)
	return nil
}

// withdraw deletes the path. One that was never added needs no call.
func (e *engine) withdraw(ctx context.Context, p netip.Prefix) error {
	r, stands := e.routes[p]
	if !stands {
		return nil
	}
	path, err := r.path(p, e.key.asn)
	if err != nil {
		return err
	}
	err = do(ctx, "withdraw "+p.String(), func(ctx context.Context) error {
		return e.paths.DeletePath(ctx, &api.DeletePathRequest{TableType: api.TableType_GLOBAL, Path: path})
	})
	if err != nil {
		r.unsure = true
		e.routes[p] = r
		return err
	}
	delete(e.routes, p)
	e.log.Info("withdraw", "prefix", p)
	return nil
}

// trimPeers removes the peers that are not wanted any more. It runs only while
// the caller who wants it waits for the answer: what has failed is not tried
// again before the next intent, and shown until then: see lingering.
func (e *engine) trimPeers(ctx context.Context, list []edge.Peer) {
	want := map[netip.Addr]bool{}
	for _, p := range list {
		want[p.Addr] = true
	}
	maps.DeleteFunc(e.refusals, func(addr netip.Addr, _ edge.Reason) bool { return !want[addr] })
	for _, p := range e.lingering(list) {
		err := e.removePeer(ctx, p, false)
		if err != nil {
			e.log.Error("remove peer", "peer", p.ID, "address", p.Addr, "err", err)
		} else {
			e.log.Info("peer removed", "peer", p.ID, "address", p.Addr)
		}
		if hangs(err) {
			break
		}
	}
	for addr := range e.peers {
		want[addr] = true
	}
	e.journal.keep(want)
}

// lingering are the peers that the server has and that are not in list, sorted
// by address.
func (e *engine) lingering(list []edge.Peer) []edge.Peer {
	left := maps.Clone(e.peers)
	for _, p := range list {
		delete(left, p.Addr)
	}
	return slices.SortedFunc(maps.Values(left), func(a, b edge.Peer) int { return a.Addr.Compare(b.Addr) })
}

// setPeer adds or changes a peer. The error says why it is refused, or goes on
// as it was.
func (e *engine) setPeer(ctx context.Context, p edge.Peer) error {
	old, runs := e.peers[p.Addr]
	if runs && samePeer(old, p) {
		e.peers[p.Addr] = p
		delete(e.refusals, p.Addr)
		return nil
	}
	e.journal.add(p.Addr)
	key, err := readKey(p)
	if err == nil && key != "" {
		err = testKey(p.Addr, key)
	}
	if err != nil && runs && old.PasswordFile != "" {
		// The session that runs has a key: keeping it breaks no promise.
		return fmt.Errorf("new settings refused, the session goes on with the old ones: %w", err)
	}
	if runs {
		e.journal.lost(p.Addr, "reset: the settings of the peer were changed")
		if err := e.removePeer(ctx, old, key != ""); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("peer refused: %w", err)
	}
	return e.addPeer(ctx, p, key)
}

func (e *engine) addPeer(ctx context.Context, p edge.Peer, key string) error {
	e.journal.clearKeyErr(p.Addr)
	err := do(ctx, "add peer "+string(p.ID), func(ctx context.Context) error {
		return e.peerings.AddPeer(ctx, &api.AddPeerRequest{Peer: apiPeer(p, key)})
	})
	if err != nil {
		// Perhaps a call that was given up has added it after all.
		e.deletePeer(ctx, p)
		return err
	}
	if err := e.journal.keyErr(p.Addr); err != nil {
		return errors.Join(fmt.Errorf("peer refused: install key on the listening socket: %w", err), e.deletePeer(ctx, p))
	}
	e.peers[p.Addr] = p
	delete(e.refusals, p.Addr)
	e.log.Info("peer added", "peer", p.ID, "address", p.Addr, "asn", p.ASN, "md5", key != "")
	return nil
}

// removePeer closes the session. GoBGP's DeletePeer leaves the key on the
// listening socket, so a later session without key could never come in. Its
// UpdatePeer does take it off; made "admin down" in the same step, the peer
// accepts nothing in between. A key that is about to be replaced stays until
// then.
func (e *engine) removePeer(ctx context.Context, p edge.Peer, keepKey bool) error {
	if p.PasswordFile != "" && !keepKey && e.key.listen != 0 {
		bare := apiPeer(p, "")
		bare.Conf.AdminDown = true
		err := do(ctx, "take key off peer "+string(p.ID), func(ctx context.Context) error {
			_, err := e.peerings.UpdatePeer(ctx, &api.UpdatePeerRequest{Peer: bare})
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := e.deletePeer(ctx, p); err != nil {
		return err
	}
	delete(e.peers, p.Addr)
	return nil
}

func (e *engine) deletePeer(ctx context.Context, p edge.Peer) error {
	err := do(ctx, "delete peer "+string(p.ID), func(ctx context.Context) error {
		return e.peerings.DeletePeer(ctx, &api.DeletePeerRequest{Address: p.Addr.String()})
	})
	if err == nil {
		return nil
	}
	// Gone already, by a call that was given up: that is what was wanted.
	if left, listErr := e.listPeers(ctx); listErr == nil && left[p.Addr] == nil {
		return nil
	}
	return err
}

func (e *engine) refuse(p edge.Peer, err error) {
	reason := edge.Reason(err.Error())
	if e.refusals[p.Addr] != reason {
		e.log.Error("set peer", "peer", p.ID, "address", p.Addr, "reason", reason)
	}
	e.refusals[p.Addr] = reason
}

func (e *engine) refused() bool { return len(e.refusals) > 0 }
