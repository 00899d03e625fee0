# SPDX-License-Identifier: Apache-2.0
"""Which routes of a node its routers hold, and how they are marked: by what was written
to them, as edgebgp reads it back. Pure."""

from __future__ import annotations

from ansible_collections.catchment.edge.plugins.module_utils import orders, readiness

# GRACEFUL_SHUTDOWN (RFC 8326): the routes that are marked so are the last resort of
# whoever holds them.
MARK = "65535:0"
UNTIL = ("full", "leaving", "gone")


def table(status, scope):
    """A line for each prefix and router: [{prefix, peer, rung, sent, why, communities,
    prepend, med, marked}]. why says of one that is not sent, why."""
    out = []
    for d in orders.concerned(status, scope):
        if readiness.elsewhere(d):
            continue
        unsent = readiness.unsent(status, d.get("prefix")) if readiness.on_air(d) else {}
        for p in readiness.peers(status):
            out.append(_line(d, p, unsent))
    return out


def _line(decision, peer, unsent):
    prefix, name = decision.get("prefix"), peer.get("id")
    held = next((h for h in peer.get("held") or [] if h.get("prefix") == prefix), None) if peer.get("session") == "established" else None
    line = {"prefix": prefix, "peer": name, "rung": decision.get("rung"), "sent": held is not None, "why": None,
            "communities": [], "prepend": 0, "med": 0, "marked": False}
    if held is None:
        line["why"] = _why_not(decision, peer, unsent)
        return line
    communities = held.get("communities") or []
    line.update(communities=communities, prepend=held.get("prepend", 0), med=held.get("med", 0), marked=MARK in communities)
    return line


def _why_not(decision, peer, unsent):
    if not readiness.on_air(decision):
        return decision.get("reason") or f"it is {decision.get('rung')}"
    if peer.get("session") != "established":
        return f"the session is {peer.get('session') or 'unknown'}: {peer.get('last_error') or 'no error yet'}"
    return unsent.get(peer.get("id")) or "it is not meant for this peer"


def lacks(status, scope, until):
    """What keeps the routes from being so: full (held, and nothing says that they are to
    go), leaving (each that is held is marked, or gone already) or gone."""
    lines = table(status, scope)
    if not status.get("decisions"):
        return ["edged has decided on no prefix yet"]
    if until == "gone":
        return [f"{line['peer']} holds {line['prefix']}" for line in lines if line["sent"]]
    if until == "leaving":
        return [f"{line['peer']} holds {line['prefix']} without {MARK}" for line in lines if line["sent"] and not line["marked"]] + _staying(status, scope)
    return orders.not_back(status, scope) + _unheld(lines) + [
        f"{line['peer']} holds {line['prefix']} with {MARK} still" for line in lines if line["marked"] and not _by_policy(status, line)]


def _staying(status, scope):
    """Prefixes that are at their best: without a router nothing else tells of them."""
    return [f"{d.get('prefix')} is announced" for d in orders.concerned(status, scope) if d.get("rung") == "announced"]


def _unheld(lines):
    held = {line["prefix"] for line in lines if line["sent"]}
    return [f"no router holds {p}" for p in sorted({line["prefix"] for line in lines if line["rung"] == "announced"} - held)]


def _by_policy(status, line):
    """Whether an operator has the mark sent with everything."""
    speaker = status.get("speaker") or {}
    of = [a.get("normal") or {} for a in speaker.get("announcements") or [] if a.get("prefix") == line["prefix"]]
    of += [p.get("announce") or {} for p in (speaker.get("speaker") or {}).get("peers") or [] if p.get("id") == line["peer"]]
    return any(MARK in (a.get("communities") or []) for a in of)


class Marks:
    """What was seen, look after look: whether a route was marked before it was gone.
    Who moves to other routes by the mark loses nothing when the withdrawal comes."""

    def __init__(self, scope):
        self.scope, self.seen = scope, {}

    def look(self, status):
        for line in table(status, self.scope):
            if line["sent"]:
                key = line["peer"], line["prefix"]
                self.seen[key] = self.seen.get(key, False) or line["marked"]

    def by_peer(self):
        """{peer: whether all that it held was seen marked}; of peers that held nothing,
        nothing."""
        out = {}
        for (peer, _), marked in self.seen.items():
            out[peer] = out.get(peer, True) and marked
        return out
