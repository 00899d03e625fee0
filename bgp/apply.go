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

// set adds what is missing or different: the announcements, then the peers, so
// that a session that opens finds every path in the table already: a peer
// waits while a path could not be set. One that fails does not keep the others
// back. What stands by then is remembered, so the next call goes on from there.
func (e *engine) set(ctx context.Context, list []edge.Announcement, peers []edge.Peer) error {
	if err := forEach(list, func(a edge.Announcement) error { return e.announce(ctx, a) }); err != nil {
		return err
	}
	return forEach(peers, func(p edge.Peer) error { return e.setPeer(ctx, p) })
}

// forEach does f for all and joins the errors, but gives up when the server no
// longer answers: each further call would only wait for its limit.
func forEach[T any](list []T, f func(T) error) error {
	var errs []error
	for _, v := range list {
		err := f(v)
		if err != nil {
			errs = append(errs, err)
		}
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			break
		}
	}
	return errors.Join(errs...)
}

// trim removes what is not wanted any more: announcements, then peers. It runs
// only while the caller who wants it waits for the answer: leave to withdraw
// may end, so what has failed is not tried again later.
func (e *engine) trim(ctx context.Context, list []edge.Announcement, peers []edge.Peer) error {
	nets, addrs := map[netip.Prefix]bool{}, map[netip.Addr]bool{}
	for _, a := range list {
		nets[a.Net] = true
	}
	for _, p := range peers {
		addrs[p.Addr] = true
	}
	for _, p := range slices.SortedFunc(maps.Keys(e.routes), netip.Prefix.Compare) {
		if nets[p] {
			continue
		}
		if err := e.withdraw(ctx, p); err != nil {
			return err
		}
	}
	return e.trimPeers(ctx, addrs)
}

// announce adds the path, or replaces it: an implicit update, so the routers
// see no withdrawal.
func (e *engine) announce(ctx context.Context, a edge.Announcement) error {
	r := routeOf(a)
	old, stands := e.routes[a.Net]
	if stands && old.equal(r) {
		return nil
	}
	p, err := r.path(a.Net, e.key.asn)
	if err != nil {
		return err
	}
	err = do(ctx, "announce "+a.Net.String(), func(ctx context.Context) error {
		_, err := e.srv.AddPath(ctx, &api.AddPathRequest{TableType: api.TableType_GLOBAL, Path: p})
		return err
	})
	if err != nil {
		delete(e.routes, a.Net) // not known: AddPath again does no harm
		return err
	}
	e.routes[a.Net] = r
	e.log.Info("announce", "prefix", a.Net, "next_hop", r.nextHop, "degraded", a.Degrade, "reason", a.Reason,
		"prepend", r.attrs.Prepend, "med", r.attrs.MED, "communities", r.attrs.Communities, "update", stands)
	return nil
}

func (e *engine) withdraw(ctx context.Context, p netip.Prefix) error {
	path, err := e.routes[p].path(p, e.key.asn)
	if err != nil {
		return err
	}
	err = do(ctx, "withdraw "+p.String(), func(ctx context.Context) error {
		return e.srv.DeletePath(ctx, &api.DeletePathRequest{TableType: api.TableType_GLOBAL, Path: path})
	})
	if err != nil {
		return err
	}
	delete(e.routes, p)
	e.log.Info("withdraw", "prefix", p)
	return nil
}

func (e *engine) trimPeers(ctx context.Context, want map[netip.Addr]bool) error {
	for addr := range e.refusals {
		if !want[addr] {
			delete(e.refusals, addr)
		}
	}
	for addr, p := range e.peers {
		if want[addr] {
			continue
		}
		if err := e.removePeer(ctx, p, false); err != nil {
			return err
		}
		e.log.Info("peer removed", "peer", p.ID, "address", addr)
	}
	e.journal.keep(want)
	return nil
}

// setPeer adds or changes a peer. One that must be refused is no error: the
// others go on.
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
		e.refuse(p, fmt.Errorf("new settings refused, the session goes on with the old ones: %w", err))
		return nil
	}
	if runs {
		e.journal.lost(p.Addr, "reset: the settings of the peer were changed")
		if err := e.removePeer(ctx, old, key != ""); err != nil {
			return err
		}
	}
	if err != nil {
		e.refuse(p, fmt.Errorf("peer refused: %w", err))
		return nil
	}
	return e.addPeer(ctx, p, key)
}

func (e *engine) addPeer(ctx context.Context, p edge.Peer, key string) error {
	e.journal.clearKeyErr(p.Addr)
	err := do(ctx, "add peer "+string(p.ID), func(ctx context.Context) error {
		return e.srv.AddPeer(ctx, &api.AddPeerRequest{Peer: apiPeer(p, key)})
	})
	if err != nil {
		// Perhaps a call that was given up has added it after all.
		e.deletePeer(ctx, p)
		return err
	}
	if err := e.journal.keyErr(p.Addr); err != nil {
		e.refuse(p, fmt.Errorf("peer refused: install key on the listening socket: %w", err))
		return e.deletePeer(ctx, p)
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
			_, err := e.srv.UpdatePeer(ctx, &api.UpdatePeerRequest{Peer: bare})
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
		return e.srv.DeletePeer(ctx, &api.DeletePeerRequest{Address: p.Addr.String()})
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
		e.log.Error("peer refused", "peer", p.ID, "address", p.Addr, "reason", reason)
	}
	e.refusals[p.Addr] = reason
}

func (e *engine) refused() bool { return len(e.refusals) > 0 }
