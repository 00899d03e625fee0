# SPDX-License-Identifier: Apache-2.0
"""Orders to drain: whose they are, what is to be done, what is left of one, and who
is in its way. Pure."""

from __future__ import annotations

from ansible_collections.catchment.edge.plugins.module_utils import durations, readiness

MAX_REASON = 500  # bytes, as edged takes them


def full_reason(owner, reason):
    """The reason that edged keeps. By it the order is known again."""
    reason = " ".join((reason or "").split())
    if not reason:
        raise ValueError("reason: it is empty, and it is what others will read: say why in a few words")
    out = f"rollout {owner}: {reason}" if owner else reason
    if len(out.encode()) > MAX_REASON:
        raise ValueError(f"reason: with its owner it has {len(out.encode())} bytes, and edged takes {MAX_REASON}: shorten it")
    return out


def _same_scope(drain, scope):
    return (drain.get("prefix") or "") == (scope.get("prefix") or "") and (drain.get("service") or "") == (scope.get("service") or "")


def is_ours(drain, owner, reason):
    """With an owner its orders are ours, whatever they say; without one only that
    with this very reason."""
    if drain.get("by_file") or drain.get("stop"):
        return False
    said = drain.get("reason") or ""
    return said.startswith(f"rollout {owner}: ") if owner else said == reason


def split(status, scope, owner, reason):
    """(ours, others): the orders for this scope."""
    ours, others = None, []
    for d in status.get("drains") or []:
        if not _same_scope(d, scope):
            continue
        if is_ours(d, owner, reason):
            ours = d
        else:
            others.append(d)
    return ours, others


def must_order(ours, length, now):
    """Whether the order has to be given, or given again since less than half of its
    time is left: a second run at once changes nothing, one that goes on after a
    break has its full time."""
    if ours is None:
        return True
    end = durations.moment(ours.get("until"))
    if length <= 0:
        return end is not None
    return end is None or end - now < length / 2


def order(scope, reason, length, now):
    """The body of POST /v1/drain."""
    out = {k: v for k, v in scope.items() if v}
    out["reason"] = reason
    if length > 0:
        out["until"] = durations.stamp(now + length)
    return out


def concerned(status, scope):
    """The decisions that an order of this scope is about."""
    vip = ""
    for s in status.get("services") or []:
        if s.get("id") == scope.get("service"):
            vip = s.get("prefix") or ""
    out = []
    for d in status.get("decisions") or []:
        if scope.get("prefix") and d.get("prefix") != scope["prefix"]:
            continue
        if scope.get("service") and d.get("prefix") != vip:
            continue
        out.append(d)
    return out


def left(status, scope):
    """What is still announced or served of a scope, and why, as edgectl drain --wait
    tells. Empty: the box may be switched off."""
    if not status.get("decisions"):
        return ["edged has decided on no prefix yet"]
    return [f"{d.get('prefix')} is {d.get('rung') or 'unknown'}: {d.get('reason') or 'no reason is known'}"
            for d in concerned(status, scope) if not d.get("unserved")]


def in_the_way(status, scope):
    """Who keeps this node from leaving: [{prefix, node, why}], by the guard's last and
    open rounds. node is None for what is not the word of a single node."""
    guard = status.get("guard") or {}
    rounds = {p.get("prefix"): p.get("round") for p in guard.get("prefixes") or []}
    out = []
    for d in concerned(status, scope):
        prefix = d.get("prefix")
        asked = (guard.get("asking") or {}).get(prefix)
        if d.get("unserved") or not asked or asked.get("ok") or not readiness.on_air(d):
            continue
        out.append({"prefix": prefix, "node": None, "why": asked.get("reason") or asked.get("lacks") or "the guard has not answered yet"})
        last = _last(guard, prefix)
        no = dict(last.get("nacked") or {})
        no.update((rounds.get(prefix) or {}).get("nacked") or {})
        silent = set(last.get("silent") or []) | set((rounds.get(prefix) or {}).get("waiting") or [])
        out += [{"prefix": prefix, "node": n, "why": no[n]} for n in sorted(no)]
        out += [{"prefix": prefix, "node": n, "why": "it does not answer"} for n in sorted(silent - set(no))]
    return out


def _last(guard, prefix):
    rounds = [d for d in guard.get("past") or [] if d.get("prefix") == prefix and not d.get("forced") and not d.get("left")]
    return rounds[-1] if rounds else {}


def way_text(entry):
    """One of in_the_way, in a line."""
    who = f"{entry['node']} refuses: " if entry["node"] and entry["why"] != "it does not answer" else ""
    if entry["why"] == "it does not answer":
        return f"{entry['prefix']}: {entry['node']} does not answer"
    return f"{entry['prefix']}: {who}{entry['why']}"


def not_back(status, scope):
    """What of a scope that was undrained is not announced again, and why."""
    out = []
    for d in concerned(status, scope):
        if readiness.elsewhere(d) or d.get("rung") == "announced" and not readiness.unsent(status, d["prefix"]):
            continue
        lacks = readiness.unsent(status, d["prefix"]) if d.get("rung") == "announced" else {}
        why = "; ".join(f"{n} does not hold it: {w}" for n, w in sorted(lacks.items())) or d.get("reason") or "no reason is known"
        out.append(f"{d.get('prefix')} is {d.get('rung') or 'unknown'}: {why}")
    return out
