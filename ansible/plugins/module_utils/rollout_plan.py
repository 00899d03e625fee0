# SPDX-License-Identifier: Apache-2.0
"""In which order nodes are taken, and whether a rollout may begin or go on. Pure.

Half-done nodes of this owner first, then a canary, one node of each site, and the
waves. Nodes of a batch are off the air together, as rollout_rules allows it.
"""

from __future__ import annotations

import re

from ansible_collections.catchment.edge.plugins.module_utils import rollout_rules

WAVES = ("20%", "50%", "100%")
_WAVE = re.compile(r"([1-9][0-9]*)(%?)")


class Wish:
    """What an operator asks for."""

    def __init__(self, version, owner="", back=False, canary="", waves=WAVES, leave_out=(), allow_unhealthy=False, newest=(), unproven=()):
        self.version, self.owner, self.back, self.canary = version, owner, back, canary
        self.waves, self.leave_out, self.allow_unhealthy = list(waves), set(leave_out), allow_unhealthy
        self.newest = list(newest)  # for a way back: the nodes that got the version, the last first
        self.unproven = set(unproven)  # nodes that have the version, and whose soak was cut or has failed


class Node:
    """How a node stands."""

    def __init__(self, name, look, facts):
        self.name, self.look, self.facts = name, look or {}, facts or {}
        self.reached = "healthy" in self.look
        self.running = self.facts.get("running")
        self.good = bool(self.facts.get("good", True))
        self.ready = bool(self.look.get("ready"))

    def orders(self, owner):
        """(ours, others): the orders to drain that are in force."""
        said = [str(d.get("reason") or "") for d in self.look.get("drains") or []]
        ours = [r for r in said if owner and r.startswith(f"rollout {owner}: ")]
        return ours, [r for r in said if r not in ours]

    def not_reached(self):
        return " ".join(str(self.look.get("msg") or "it has not answered").split())


def sizes(waves, total):
    """How many nodes each wave has, as Ansible's serial counts: the last again and again."""
    out, left, i = [], total, 0
    if not waves:
        raise ValueError("rollout_waves is empty: give at least one size, such as 100%")
    shares = [_WAVE.fullmatch(str(w).strip()) for w in waves]
    if None in shares:
        raise ValueError(f"rollout_waves: {waves[shares.index(None)]!r} is neither a number of nodes nor a share such as 20%")
    while left > 0:
        m = shares[min(i, len(shares) - 1)]
        n = int(m.group(1)) * total // 100 if m.group(2) else int(m.group(1))
        n = min(left, max(1, n))
        out.append(n)
        left, i = left - n, i + 1
    return out


def make(fleet, looks, facts, loads, wish):
    """The plan: batches, done, left_out, refused (why nothing may begin) and told."""
    nodes = {n: Node(n, looks.get(n), facts.get(n)) for n in sorted(looks)}
    out = {"batches": [], "done": [], "left_out": {}, "refused": [], "told": [], "targets": {}, "soak_only": [], "load": None}
    _unknown(fleet, nodes, wish, out)
    todo = [n for n in nodes.values() if _sort(n, wish, out)]
    view = rollout_rules.Fleet(fleet, {n: v.look for n, v in nodes.items() if v.reached}, loads,
                               set(out["left_out"]) | _absent(fleet, nodes), coming=[n.name for n in todo if n.orders(wish.owner)[0]])
    for n in nodes.values():
        view.add_site_of(n.name, n.look.get("site"))
    out["load"] = view.demand()
    if out["load"] is None or not view.capacities_known():
        out["told"].append("head-room is not judged: " + ("a site has no capacity in fleet.yaml" if out["load"] is not None else "a node does not tell how many requests it serves"))
    _batches(view, todo, wish, out)
    return out


def _unknown(fleet, nodes, wish, out):
    known = {n for s in fleet.get("sites") or [] for n in s.get("nodes") or []} | set(nodes)
    for what, names in (("rollout_leave_out", wish.leave_out), ("rollout_canary", {wish.canary} - {""})):
        for n in sorted(names - known):
            out["refused"].append(f"{what} names {n}, which is no node of the fleet")


def _absent(fleet, nodes):
    """Nodes beyond --limit that those who are asked do not hear of."""
    deaf = set()
    for n in nodes.values():
        deaf |= {m.get("node") for m in (n.look.get("guard") or {}).get("members") or [] if not m.get("heard")}
    return {m for s in fleet.get("sites") or [] for m in s.get("nodes") or [] if m not in nodes and m in deaf}


def _sort(node, wish, out):
    """Whether a node is to be taken; else it is noted why not."""
    if node.name in wish.leave_out:
        out["left_out"][node.name] = "rollout_leave_out names it"
        return False
    why = _not_well(node, wish)
    if not node.reached:
        _or_left_out(node, why, wish, out)
        return False
    ours, others = node.orders(wish.owner)
    if _is_done(node, wish) and not ours:
        if why:
            _or_left_out(node, why, wish, out)
        elif node.name in wish.unproven:
            out["soak_only"].append(node.name)
            out["targets"][node.name] = node.running
        else:
            out["done"].append(node.name)
        return False
    if others:
        _or_left_out(node, why, wish, out)
        return False
    if why and not wish.allow_unhealthy:
        out["refused"].append(f"{node.name}: {why}")
    return _target(node, wish, out)


def _target(node, wish, out):
    target = wish.version
    if wish.back:
        target = node.running if node.running not in (None, wish.version) else node.facts.get("previous")
        if not target:
            out["refused"].append(f"{node.name}: there is no version to go back to on it: take an older one there with the playbook rollout")
            return False
    elif node.running is None and not node.orders(wish.owner)[0] and not wish.allow_unhealthy:
        out["refused"].append(f"{node.name}: it is not known which version it runs: {'; '.join(node.facts.get('why_not_good') or []) or 'edge_upgrade has not told'}")
        return False
    refused = (node.facts.get("refused") or {}).get(target)
    if refused:
        out["refused"].append(f"{node.name}: it refuses version {target}: {refused}; mend that, then edgectl upgrade --forgive {target} there")
        return False
    out["targets"][node.name] = target
    return True


def _is_done(node, wish):
    if wish.back or node.running is None:
        return node.running is not None and node.running != wish.version
    return node.running == wish.version and node.good


def _not_well(node, wish):
    """Why a node is not as it should be when others are drained; None if it is."""
    if not node.reached:
        return f"it is not reached: {node.not_reached()}"
    ours, others = node.orders(wish.owner)
    if others:
        return f"it is drained by another: {others[0] or 'no reason given'}"
    if ours:
        return None  # half done: its turn is the first
    if not node.ready:
        return "it is not ready: " + ("; ".join(node.look.get("why_not") or []) or "no reason is known")
    return None


def _or_left_out(node, why, wish, out):
    if wish.allow_unhealthy:
        out["left_out"][node.name] = why
    else:
        out["refused"].append(f"{node.name}: {why}")


def _batches(view, todo, wish, out):
    names = {n.name for n in todo}
    half = [n.name for n in todo if n.orders(wish.owner)[0]]
    sick = [n.name for n in todo if n.name not in half and not n.ready]
    if out["soak_only"]:  # it stays on the air
        out["batches"].append(_batch("soak again", list(out["soak_only"]), "canary" if not out["done"] else "wave"))
    for n in half + sick:
        out["batches"].append(_batch("resume" if n in half else "repair", [n], "canary" if not out["done"] else "wave"))
    rest = names - set(half) - set(sick)
    order = _order(view, rest)
    if wish.back:
        order = [n for n in wish.newest if n in rest] + [n for n in order if n not in wish.newest]
        _pack(view, "back", order, out)
    else:
        _forward(view, order, wish, out, begun=bool(out["done"] or half or out["soak_only"]))
    for b in out["batches"]:
        for n in b["nodes"] if len(b["nodes"]) == 1 and b["name"] != "soak again" else []:
            out["told"] += [t for t in rollout_rules.thin(view, n) if t not in out["told"]]


def _forward(view, order, wish, out, begun):
    if wish.canary in order or (order and not begun):
        canary = wish.canary if wish.canary in order else order[0]
        order.remove(canary)
        _pack(view, "canary", [canary], out)
    seen = {view.site_of[n] for n in out["done"] if n in view.site_of} | {view.site_of[n] for b in out["batches"] for n in b["nodes"]}
    first = []
    for n in order:
        if view.site_of[n] not in seen:
            seen.add(view.site_of[n])
            first.append(n)
    _pack(view, "one of each site", first, out)
    rest = [n for n in order if n not in first]
    at = 0
    for i, size in enumerate(sizes(wish.waves, len(rest))):
        _pack(view, f"wave {i + 1}", rest[at:at + size], out)
        at += size


def _order(view, names):
    """The least loaded node of the least loaded site first, then one of each site in turn."""
    by_site = {}
    for n in sorted(names, key=lambda n: (view.loads.get(n) is None, view.loads.get(n) or 0.0, n)):
        by_site.setdefault(view.site_of[n], []).append(n)
    sites = sorted(by_site, key=lambda s: (view.load(s) is None, view.load(s) or 0.0, s))
    out = []
    while any(by_site.values()):
        out += [by_site[s].pop(0) for s in sites if by_site[s]]
    return out


def _batch(name, nodes, soak):
    return {"name": name, "nodes": nodes, "soak": soak}


def _pack(view, name, nodes, out):
    """Split nodes into batches that may be off the air together, as few as come of it."""
    left = list(nodes)
    while left:
        alone = rollout_rules.objections(view, left[:1])
        if alone:
            out["refused"].append(f"{left[0]} cannot be taken off the air: {'; '.join(alone)}")
        batch = left[:1]
        for n in left[1:] if not alone else []:
            if not rollout_rules.objections(view, batch + [n]):
                batch.append(n)
        left = [n for n in left if n not in batch]
        out["batches"].append(_batch(name, batch, "canary" if name == "canary" else "wave"))


def gate(fleet, looks, loads, batch, failed, left_out, budget, owner, allow_unhealthy=False):
    """Why this batch may not begin, in a line; None if it may. failed has the reasons
    of those nodes that have failed, looks how all others stand now."""
    if len(failed) > budget:
        return f"{len(failed)} nodes have failed, and rollout_budget is {budget}"
    wish = Wish("", owner)
    mine = [n for n in batch if n not in failed]
    if not allow_unhealthy:
        bad = [(n, _not_well(Node(n, look, None), wish)) for n, look in sorted(looks.items()) if n not in failed and n not in left_out]
        bad = [f"{n}: {why}" for n, why in bad if why]
        if bad:
            return "the fleet is not well, and nobody else is drained: " + "; ".join(bad)
    out = set(failed) | set(left_out) | {n for n, look in looks.items() if "healthy" not in look}
    view = rollout_rules.Fleet(fleet, {n: v for n, v in looks.items() if "healthy" in v and n not in out}, loads, out)
    for n, look in looks.items():
        view.add_site_of(n, look.get("site"))
    on_air = [n for n in mine if any(d.get("on_air") for d in looks.get(n, {}).get("decisions") or [])]
    why = rollout_rules.objections(view, on_air) if on_air else []
    return "; ".join(why) or None
