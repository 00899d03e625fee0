package main

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard"
)

// guardKeys are the contents of the key files of the guard.
type guardKeys struct {
	node   ed25519.PrivateKey
	gossip [][]byte
}

// readGuardKeys reads the files that c names. The node's key must be the one that
// the fleet knows of this node: nobody would believe it else.
func readGuardKeys(c *edge.Config) (guardKeys, error) {
	node, err := guard.ReadNodeKey(c.Local.KeyFile)
	if err == nil {
		err = guard.CheckNodeKey(node, c.Local.ID, c.Fleet.Nodes)
	}
	if err != nil {
		return guardKeys{}, fmt.Errorf("node.key_file: %w", err)
	}
	gossip, err := guard.ReadGossipKeys(c.Fleet.Guard.KeyFile)
	if err != nil {
		return guardKeys{}, fmt.Errorf("fleet.guard.key_file: %w", err)
	}
	return guardKeys{node, gossip}, nil
}

// diff says what is new in the files, without a secret.
func (k guardKeys) diff(next guardKeys) []string {
	var out []string
	if !k.node.Equal(next.node) {
		out = append(out, "content of node.key_file: changed")
	}
	if a, b := k.names(), next.names(); a != b {
		out = append(out, fmt.Sprintf("content of fleet.guard.key_file: keys %s -> %s", a, b))
	}
	return out
}

func (k guardKeys) names() string {
	var out []string
	for _, key := range k.gossip {
		out = append(out, guard.KeyName(key))
	}
	return strings.Join(out, ", ")
}

func (d *daemon) openGuard(c *edge.Config) (err error) {
	if d.keys, err = readGuardKeys(c); err != nil {
		return err
	}
	var before time.Duration
	if d.leases, before, err = openLeases(d.keeper, c.Fleet.Guard.PromiseLease, d.started); err != nil {
		d.log.Warn("how long promises of the process before may bind", "assumed", before, "err", err)
	}
	d.guard, err = guard.New(guard.Options{
		Self: c.Local.ID, Roster: c.Fleet.Nodes, Sites: c.Fleet.Sites, Prefixes: d.guarded(c), Policy: d.leases.bound(c.Fleet.Guard),
		Keys: d.keys.gossip, NodeKey: d.keys.node, Bind: c.Local.GossipBind, Held: d.holds, Log: d.log,
		LeaseBefore: before,
	})
	if err != nil {
		return fmt.Errorf("start guard: %w", err)
	}
	return nil
}

// guarded are the prefixes with their floors. A prefix that is to be announced by other
// sites only has a floor of 0 if that is but one site, which so may leave it. This site
// leaves for its sake, and not before it is there.
func (d *daemon) guarded(c *edge.Config) []edge.Prefix {
	out := slices.Clone(c.Fleet.Prefixes)
	for i := range out {
		p := &out[i]
		if _, elsewhere := p.AnnouncedAt(c.Self().Site); elsewhere != "" && !has(d.leaving.prefixes, p.Net) {
			p.MinSites = max(1, p.MinSites)
		}
	}
	return out
}

// updateGuard has the guard go by a configuration and the keys in force.
func (d *daemon) updateGuard(c *edge.Config) {
	d.guard.Update(guard.Settings{
		Roster: c.Fleet.Nodes, Sites: c.Fleet.Sites, Prefixes: d.guarded(c), Policy: d.leases.bound(c.Fleet.Guard), NodeKey: d.keys.node,
	})
	if err := d.guard.Rekey(d.keys.gossip); err != nil {
		d.log.Error("gossip keys", "err", err)
	}
}
