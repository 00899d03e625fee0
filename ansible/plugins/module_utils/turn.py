# SPDX-License-Identifier: Apache-2.0
"""Whether it is a node's turn to leave by an order, by what its guard has heard.
Pure. It is an estimate: nothing is asked, and the promises decide in the end."""

from __future__ import annotations

from ansible_collections.catchment.edge.plugins.module_utils import readiness

_LEAVING = ("draining", "leaving", "last-resort")


def judge(status, what_if, max_planned):
    """[{prefix, site, node, why}]: who is in the way of this node leaving each prefix
    that it announces, empty if nobody is. prefix None concerns all; site and node are
    None where nobody in particular is."""
    guard = status.get("guard") or {}
    mine = [d["prefix"] for d in status.get("decisions") or [] if readiness.on_air(d)]
    if not mine:
        return []
    if guard.get("isolated"):
        return [_way(None, "no other site has been heard by gossip for ten seconds: who is cut off gets no promises")]
    out = _turn(status, max_planned)
    siblings = _siblings(status)
    floors = {p.get("prefix"): p.get("floor", 0) for p in guard.get("prefixes") or []}
    for o in what_if.get("prefixes") or []:
        prefix, why = o.get("prefix"), o.get("reason") or ""
        if prefix not in mine or o.get("ok") or o.get("site") != status.get("site"):
            continue
        # Another node of this site that stays is enough for the guard; the estimate
        # is of sites, and does not know of it. What binds the node itself holds.
        if floors.get(prefix) == 0 or (prefix in siblings and not _binds(why)):
            continue
        out.append(_way(prefix, why))
        if not _binds(why):
            out += _missing(status, prefix)
    return out


def _way(prefix, why, site=None, node=None):
    return {"prefix": prefix, "site": site, "node": node, "why": why}


def _binds(why):
    """Whether a reason is this node's own, not that too few would stay."""
    return why.startswith(("promises given before", "bound by a promise", "already withdrawn", "it is not heard")) \
        or "leaving for sickness" in why or "by an order already" in why or "have left within a minute" in why


def _others(status):
    return [m for m in (status.get("guard") or {}).get("members") or [] if m.get("node") != status.get("node")]


def _fresh(status, member):
    """Whether its word counts, as it does for the guard. Gossip can make a member look
    alive; only its age tells."""
    return 0 <= member.get("age_ns", -1) <= ((status.get("guard") or {}).get("fresh_ns") or 0)


def _claims(member):
    return {c.get("prefix"): c for c in (member.get("report") or {}).get("claims") or []}


def _siblings(status):
    """Prefixes that another node of this site announces and does not want to leave."""
    out = set()
    for m in _others(status):
        if m.get("site") == status.get("site") and _fresh(status, m):
            out |= {p for p, c in _claims(m).items()
                    if c.get("announcing") and not c.get("drained") and c.get("health") in ("healthy", "full", "degraded")}
    return out


def _turn(status, max_planned):
    """max_planned: so many sites may be leaving by an order at a time, none while one
    leaves for sickness."""
    orders, out = {}, []
    for m in _others(status):
        if m.get("site") == status.get("site") or not _fresh(status, m):
            continue
        for prefix, c in sorted(_claims(m).items()):
            if c.get("rung") not in _LEAVING:
                continue
            if (c.get("severity") or 0) > 1:
                out.append(_way(None, f"it leaves {prefix} for sickness, and orders wait for that: {c.get('reason') or 'no reason is known'}", m.get("site"), m.get("node")))
            elif c.get("drained"):
                orders.setdefault(m.get("site"), _way(None, f"it is leaving by an order: {c.get('reason') or 'no reason is known'}", m.get("site"), m.get("node")))
    if len(orders) >= max_planned:
        out += [orders[s] for s in sorted(orders)]
    return out


def _missing(status, prefix):
    """The sites that announce a prefix no more, or are not heard of: those that would
    have to be back."""
    guard = status.get("guard") or {}
    of = next((p for p in guard.get("prefixes") or [] if p.get("prefix") == prefix), {})
    out = []
    for m in _others(status):
        site, node = m.get("site"), m.get("node")
        if site in (of.get("sites") or []) or site == status.get("site"):
            continue
        if not _fresh(status, m):
            out.append(_way(prefix, "it is not heard of, and counts as gone", site, node))
            continue
        c = _claims(m).get(prefix)
        if c is None:
            out.append(_way(prefix, "it does not know the prefix", site, node))
        else:
            why = c.get("reason") or "no reason is known"
            out.append(_way(prefix, f"it is {c.get('rung')}: {why}" + ("" if c.get("rung") == "withdrawn" or c.get("announcing") else "; no router holds it"), site, node))
    return out


def text(entry):
    """One of judge, in a line."""
    place = [entry["prefix"] or "all prefixes"]
    if entry["node"]:
        place.append(f"{entry['node']} of site {entry['site']}")
    return f"{', '.join(place)}: {entry['why']}"
