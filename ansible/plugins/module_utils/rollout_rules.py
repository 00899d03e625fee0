# SPDX-License-Identifier: Apache-2.0
"""Which nodes may be off the air together. Pure.

The guard on the boxes has the last word at the moment of each drain; these rules keep
a rollout from asking for what it would refuse, and from what it does not know of:
the head-room of the sites that stay.
"""

from __future__ import annotations


class Fleet:
    """What is known of the fleet when a batch is chosen.

    fleet is edge_fleet of the inventory, looks the answer of edge_status by node,
    loads requests a second by node, out the nodes that are off the air for other
    reasons and stay so (failed, left out, not reached), coming those that are back before
    the batch begins.
    """

    def __init__(self, fleet, looks, loads=None, out=(), coming=()):
        self.sites = {s["name"]: list(s.get("nodes") or []) for s in fleet.get("sites") or []}
        self.capacity = {s["name"]: float(s.get("capacity") or 0) for s in fleet.get("sites") or []}
        self.site_of = {n: s for s, nodes in self.sites.items() for n in nodes}
        self.max_planned = max(1, int((fleet.get("guard") or {}).get("max_planned") or 1))
        self.looks, self.loads, self.out = looks, dict(loads or {}), set(out)
        self.coming = set(coming)
        self.floors = _floors(fleet, looks)

    def add_site_of(self, node, site):
        """A node that the description of the fleet does not name stands where it says."""
        if node not in self.site_of:
            self.site_of[node] = site or node
            self.sites.setdefault(self.site_of[node], []).append(node)
            self.capacity.setdefault(self.site_of[node], 0.0)

    def load(self, site):
        """Requests a second of a site; None if a node of it has not told. What a node has
        served that is off the air now comes to others."""
        if any(self.loads.get(n) is None for n in self.sites[site] if n not in self.out):
            return None
        return sum(self.loads.get(n) or 0.0 for n in self.sites[site])

    def demand(self):
        """Requests a second of the fleet, or None."""
        each = [self.load(s) for s in self.sites]
        return None if None in each else sum(each)

    def standing(self, site, gone):
        return [n for n in self.sites[site] if n not in gone]

    def announcers(self, prefix, gone):
        """Sites that announce a prefix by a node that stays."""
        return {s for s in self.sites if any(self._announces(n, prefix) for n in self.standing(s, gone))}

    def _announces(self, node, prefix):
        look = self.looks.get(node)
        if look is None or not look.get("decisions"):
            return look is None  # it is not in this run: what others hear of it has been judged
        return any(d.get("prefix") == prefix and (d.get("on_air") or node in self.coming) and not d.get("elsewhere") for d in look["decisions"])

    def left(self, gone):
        """Capacity that stays, by site. A site with half of its nodes has half of it."""
        return {s: self.capacity[s] * len(self.standing(s, gone)) / len(nodes) if nodes else 0.0 for s, nodes in self.sites.items()}

    def capacities_known(self):
        return all(self.capacity[s] > 0 for s, nodes in self.sites.items() if nodes)


def _floors(fleet, looks):
    """How many other sites must stay, by prefix: the highest that anybody says."""
    out, free = {}, {p.get("prefix") for p in fleet.get("prefixes") or [] if p.get("unconditional")}
    for p in fleet.get("prefixes") or []:
        out[p.get("prefix")] = 0 if p.get("unconditional") else int(p.get("min_sites") or 0)
    for look in looks.values():
        for g in (look.get("guard") or {}).get("prefixes") or []:
            if g.get("prefix") not in free:
                out[g.get("prefix")] = max(out.get(g.get("prefix"), 0), int(g.get("floor") or 0))
    return out


def objections(fleet, batch):
    """Why these nodes may not be off the air together; empty if they may."""
    batch, gone = list(batch), fleet.out | set(batch)
    sites = sorted({fleet.site_of[n] for n in batch})
    out = []
    if len(sites) > fleet.max_planned:
        out.append(f"sites {', '.join(sites)} at once, and guard.max_planned is {fleet.max_planned}")
    for s in sites:
        out += _site(fleet, s, [n for n in batch if fleet.site_of[n] == s], gone)
    return out + _floor(fleet, sites, gone) + _room(fleet, sites, gone)


def _site(fleet, site, mine, gone):
    nodes = fleet.sites[site]
    if len(mine) < 2:
        return []
    if len(mine) == len(nodes):
        return [f"all {len(nodes)} nodes of site {site}"]
    if len(mine) > len(nodes) // 2:
        return [f"more than half of the nodes of site {site}"]
    load, room = fleet.load(site), fleet.left(gone)[site]
    if load is not None and fleet.capacity[site] > 0 and load > room:
        return [f"site {site} serves {load:.0f} requests/s, and {room:.0f} of its capacity would be left"]
    return []


def _floor(fleet, sites, gone):
    out = []
    for prefix, floor in sorted(fleet.floors.items()):
        before, after = fleet.announcers(prefix, fleet.out), fleet.announcers(prefix, gone)
        if (before - after) & set(sites) and len(after) < floor:
            out.append(f"{prefix} would stay announced at {len(after)} sites, and its floor is {floor}")
    return out


def _room(fleet, sites, gone):
    demand = fleet.demand()
    if demand is None or not fleet.capacities_known():
        return []
    left = fleet.left(gone)
    have = sum(left.values())
    if have < demand:
        return [f"capacity for {have:.0f} requests/s would stay, and the fleet is asked for {demand:.0f}"]
    if len(sites) > 1 and have - max(left.values(), default=0.0) < demand:
        return [f"without {', '.join(sites)} the loss of one more site would leave capacity for {have - max(left.values(), default=0.0):.0f} requests/s, "
                f"and the fleet is asked for {demand:.0f}"]
    return []


def thin(fleet, node):
    """What is to be known of the turn of one node though it is no reason against it."""
    gone = fleet.out | {node}
    site, left, out = fleet.site_of[node], fleet.left(fleet.out | {node}), []
    demand = fleet.demand()
    if demand is None or not fleet.capacities_known():
        return out
    if sum(left.values()) - max(left.values(), default=0.0) < demand:
        out.append(f"while {site} is without {node}, the loss of one more site would leave less capacity than the fleet is asked for")
    load = fleet.load(site)
    if fleet.standing(site, gone) and load is not None and load > left[site]:
        out.append(f"while {node} is away, the rest of site {site} has less capacity ({left[site]:.0f} requests/s) than it serves ({load:.0f})")
    return out
