# SPDX-License-Identifier: Apache-2.0
"""What only a look at all nodes together shows: what differs and must not, floors,
head-room, clocks. Pure."""

from __future__ import annotations

import statistics


def judge(up, answers, fleet, limits, finding):
    """up are the nodes whose edged answers, answers all of them."""
    say = _Sayer(up, finding)
    _versions(say, answers)
    _secrets(say)
    _settings(say)
    _roster(say, fleet, answers)
    _floors(say, fleet, answers)
    _head_room(say)
    _orders(say)
    _clocks(say, answers, limits)
    return say.out


class _Sayer:
    def __init__(self, up, finding):
        self.up, self.out, self._finding = up, [], finding

    def say(self, severity, node, what, remedy):
        self.out.append(self._finding(severity, node, what, remedy))

    def by(self, value):
        """{value: [nodes]} of the nodes that have one, the most frequent first."""
        out = {}
        for name in sorted(self.up):
            v = value(self.up[name])
            if v is not None:
                out.setdefault(v, []).append(name)
        return dict(sorted(out.items(), key=lambda kv: (-len(kv[1]), str(kv[0]))))


MAX_NAMES = 8


def names(nodes):
    """Names in a line; a fleet can be larger than one."""
    more = f" and {len(nodes) - MAX_NAMES} more" if len(nodes) > MAX_NAMES else ""
    return ", ".join(nodes[:MAX_NAMES]) + more


def spread(groups):
    """"1.2 on a1, a2; 1.3 on b1"."""
    return "; ".join(f"{v} on {names(n)}" for v, n in groups.items())


def _versions(s, answers):
    edged = s.by(lambda a: a.get("version"))
    if len(edged) > 1:
        s.say("warning", None, f"edged runs in {len(edged)} versions: {spread(edged)}", "end the rollout, or roll it back")
    images = {}
    for name in sorted(answers):
        version = ((answers[name] or {}).get("boot") or {}).get("version")
        if version:
            images.setdefault(version, []).append(name)
    if len(images) > 1:
        s.say("warning", None, f"appliances run {len(images)} versions: {spread(images)}", "end the rollout, or roll it back")


def _secrets(s):
    seeds = s.by(lambda a: (((a.get("box") or {}).get("ring_seed")) or {}).get("id"))
    if len(seeds) > 1:
        s.say("critical", None, f"the ring seed is not the same everywhere: {spread(seeds)}",
              "boxes of a site that differ send a flow to different backends: give all the same ring_seed_file, one box after another, drained")
    for name in sorted(s.up):
        seed = (s.up[name].get("box") or {}).get("ring_seed") or {}
        if seed.get("error"):
            s.say("notice", name, f"the ring seed could not be compared: {seed['error']}", "run the playbook as root")
    first = s.by(lambda a: _keys(a)[0] if _keys(a) else None)
    everywhere = s.by(lambda a: " ".join(_keys(a)) or None)
    for name in sorted(s.up):
        missing = [k for k in first if k not in _keys(s.up[name])]
        if missing and _keys(s.up[name]):
            s.say("critical", name, f"it does not accept the gossip key {', '.join(missing)}, with which {names([n for k in missing for n in first[k]])} encrypts",
                  "it cannot hear them: install the key there (docs/security.md, change the gossip key)")
    if len(everywhere) > 1 and not any("gossip key" in f["what"] for f in s.out):
        s.say("warning", None, f"the gossip keys are not the same everywhere: {spread(everywhere)}", "a rotation is not over: go on with rotate-keys.yml")
    elif len(everywhere) == 1 and len(next(iter(everywhere)).split()) > 1:
        s.say("notice", None, f"two or more gossip keys are accepted everywhere: {next(iter(everywhere))}", "a rotation is not over: remove the old key")


def _keys(a):
    return (a.get("guard") or {}).get("keys") or []


def _settings(s):
    """What fleet has to be equal on all boxes, as far as edged shows it."""
    for what, value in (
        ("the floors", lambda a: _list(f"{p.get('prefix')} {p.get('floor')}" for p in (a.get("guard") or {}).get("prefixes") or [])),
        ("what must stay when a site leaves", lambda a: _list(f"{p.get('prefix')} {p.get('needed')}" for p in (a.get("guard") or {}).get("prefixes") or [])),
        ("the services", lambda a: _list(f"{v.get('id')} {v.get('vip')}/{v.get('protocol')}" for v in a.get("services") or []
                                         if (v.get("prefix") not in _leaving(a)))),
        ("the public keys of the nodes", lambda a: _list(f"{n} {k}" for n, k in ((a.get("guard") or {}).get("node_keys") or {}).items())),
    ):
        groups = s.by(value)
        if len(groups) > 1:
            s.say("warning", None, f"{what} differ: {_difference(groups)}", "the boxes have other fleet sections: converge them (site.yml)")


def _leaving(a):
    """Prefixes whose services a drained node does not serve any more."""
    return {d.get("prefix") for d in a.get("decisions") or [] if d.get("unserved")}


def _list(items):
    return tuple(sorted(items)) or None


def _difference(groups):
    """Where each list differs from the most frequent one."""
    most, *others = groups.items()
    out = []
    for value, nodes in others:
        more, less = set(value) - set(most[0]), set(most[0]) - set(value)
        parts = ([f"has {', '.join(sorted(more))}"] if more else []) + ([f"lacks {', '.join(sorted(less))}"] if less else [])
        out.append(f"{names(nodes)} {' and '.join(parts)}, against {names(most[1])}")
    return "; ".join(out)


def _roster(s, fleet, answers):
    known = {n.get("name") if isinstance(n, dict) else n for site in fleet.get("sites") or [] for n in site.get("nodes") or []}
    for name in sorted(known - set(answers)):
        s.say("notice", name, "it was not looked at", "run the playbook without --limit")
    for name in sorted(s.up):
        a = s.up[name]
        if a.get("node") and a["node"] != name and known:
            s.say("warning", name, f"the box says that it is node {a['node']}", "its address in fleet.yaml, or its edge.yaml, is that of another node")
        heard = {m.get("node") for m in (a.get("guard") or {}).get("members") or []} | {a.get("node")}
        for missing in sorted(known - heard) if known else []:
            s.say("warning", name, f"it does not know the node {missing}", "its fleet section is older: converge it (site.yml)")


def _announcers(s, prefix):
    """The sites at which a router holds a prefix: by their own boxes, and of those
    that could not be asked, or were not, by what the others have heard of them."""
    asked = {a.get("site") for a in s.up.values()}
    out = {site for a in s.up.values() for g in (a.get("guard") or {}).get("prefixes") or []
           if g.get("prefix") == prefix for site in g.get("sites") or [] if site not in asked}
    for a in s.up.values():
        for d in a.get("decisions") or []:
            if d.get("prefix") == prefix and d.get("on_air") and (d.get("holders") or not any(not p.get("watch") for p in a.get("peers") or [])):
                out.add(a.get("site"))
    return out


def _floors(s, fleet, answers):
    wanted = {p.get("prefix"): p.get("min_sites") for p in fleet.get("prefixes") or []}
    seen = {}
    for a in s.up.values():
        for d in a.get("decisions") or []:
            if d.get("prefix") not in seen or (d.get("min_sites") or 0) > seen[d["prefix"]]:
                seen[d.get("prefix")] = d.get("min_sites") or 0
    for prefix in sorted(set(wanted) | set(seen)) if s.up else []:
        floor = wanted.get(prefix)
        floor = seen.get(prefix, 0) if floor is None else floor
        sites = _announcers(s, prefix)
        if not sites:
            s.say("critical", None, f"{prefix} is announced by no box that is known of", "edgectl explain on its boxes; undrain one")
        elif len(sites) < floor:
            lost = "" if len(s.up) == len(answers) else f" ({len(answers) - len(s.up)} boxes could not be asked)"
            s.say("critical", None, f"{prefix} is announced at {len(sites)} sites ({names(sorted(sites))}), and its floor is {floor}{lost}", "bring a site back before anything else")
        if prefix in wanted and prefix not in seen:
            s.say("warning", None, f"no box knows the prefix {prefix} of fleet.yaml", "converge the fleet (site.yml)")


def _head_room(s):
    """The least that any node sees: it may know something that the others do not."""
    least = {}
    for name in sorted(s.up):
        for p in (s.up[name].get("guard") or {}).get("prefixes") or []:
            if p.get("needed") and (p["prefix"] not in least or p["may_leave"] < least[p["prefix"]][0]):
                least[p["prefix"]] = (p.get("may_leave", 0), name, p.get("lacks") or "no reason is known")
    for prefix, (room, name, lacks) in sorted(least.items()):
        if room <= 0:
            s.say("warning", None, f"no site may leave {prefix}, as {name} sees it: {lacks}", "nothing can be drained; a further failure is served as a last resort: bring a site back")


def _orders(s):
    seen = {}
    for name in sorted(s.up):
        for o in s.up[name].get("prefers") or []:
            text = f"{o.get('prefix') or 'everything'} is moved to {', '.join(o.get('sites') or [])} until {o.get('until')}, by {o.get('by')}: {o.get('reason')}"
            seen.setdefault(text, name)
        for c in (s.up[name].get("guard") or {}).get("trusts") or []:
            seen.setdefault(f"check {c} is trusted by an order", name)
    for text in sorted(seen):
        s.say("notice", None, text, "it ends by itself; edgectl bgp unprefer, edgectl guard untrust")


def _clocks(s, answers, limits):
    """Each is compared with the median: how long a question takes is in all of them."""
    ahead = {n: a["box"]["clock_ahead"] for n, a in answers.items() if ((a or {}).get("box") or {}).get("clock_ahead") is not None}
    if not ahead:
        return
    middle = statistics.median(ahead.values()) if len(ahead) > 2 else min(ahead.values(), key=abs)
    for name in sorted(ahead):
        off = ahead[name] - middle
        if abs(off) > limits["clock_skew_seconds"]:
            s.say("warning", name, f"its clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} those of the others", "its time server (appliance: docs/appliance.md, clock): ends of drains and certificates go by it")
    if abs(middle) > max(30.0, limits["clock_skew_seconds"]) and len(ahead) > 2:
        s.say("notice", None, f"the clock of the controller is {abs(middle):.0f} s {'behind' if middle > 0 else 'ahead of'} those of the fleet", "look which is right")
