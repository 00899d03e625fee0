# SPDX-License-Identifier: Apache-2.0
"""Whether a node is healthy and ready, by the status of its edged. Pure.

healthy: nothing is wrong with the node but that it may be drained. That is what
must hold before an undrain. ready: healthy, not drained, announced at its best,
and its routers hold what it announces. That is what must hold after it.
docs/ansible-operate.md has the list; each "no" has a reason.
"""

from __future__ import annotations

import re

from ansible_collections.catchment.edge.plugins.module_utils import durations

# How old a status may be, in seconds: edged makes one at least each second.
STALE = 10.0

# Alarms that are no reason to keep a node out. Each other one is, also one that
# is not known here: what a newer edged warns of must not be overlooked.
HARMLESS = tuple(re.compile(p) for p in (
    # It fails elsewhere; one that fails here too says so in another way.
    r"^common cause: .*: it takes no prefix away",
    # An operator's force is told for an hour, by every box.
    r" was forced off the air at .* without a permit",
    # The wish to leave of a drained node that the guard refuses; who is sick is
    # seen by its health.
    r"^\S+ is announced as a last resort",
    # To undrain is what helps.
    r" is announced by no site that this node knows of$",
    # Of the past hour: it only bounds what the node may do next.
    r"^\S+ was withdrawn \d+ times within an hour",
    # What the world does; no box is better for being drained.
    r"^RPKI data of ", r"^\S+ is RPKI invalid",
    r"^\S+: (unexpected-origin|more-specific|missing|leak), seen since ",
    r" sends more prefixes than its import_limit",
    r"^a drain orders nothing: ",
    # Of another version than the one that runs.
    r"^version \S+ has failed, and the box went back to ",
    r"^version \S+ was staged and has not been booted",
))

# Peers have reasons of their own, below.
_PEER_ALARM = re.compile(r"^(?:BGP peer|BFD with) (\S+) is ")


def judge(status, now, boot=None, ignore=()):
    """(unhealthy, unready): the reasons why a node is not healthy, and those why it
    is not ready, which have the others in them. boot is appliance.facts, or None
    on a system that is no appliance; ignore are patterns of alarms."""
    unhealthy = _silent(status, now)
    if unhealthy:
        return unhealthy, unhealthy
    unhealthy = (_boot(boot) + _speaker(status) + _peers(status)
                 + _health(status) + _alarms(status, ignore))
    return unhealthy, unhealthy + _drained(status) + _announced(status)


def silent(status, now):
    """Why edged, or edgebgp by its word, does not do its work, whatever state it is in."""
    return _silent(status, now) or _speaker(status)


def _silent(status, now):
    made = durations.moment(status.get("time"))
    if made is None:
        return ["edged answers, but has decided nothing since it started"]
    if abs(now - made) > STALE:
        return [f"the status of edged is {durations.words(abs(now - made))} old: it decides nothing; journalctl -u edged"]
    if not status.get("decisions"):
        return ["edged has decided on no prefix yet"]
    return []


def _boot(boot):
    if boot is None:
        return []
    if boot.get("error"):
        return [f"the state of this boot is not known: {boot['error']}"]
    if boot.get("good") is None:
        return ["the checks of this boot still run: journalctl -u edge-health"]
    if not boot["good"]:
        return [f"this boot is not good: {', '.join(boot.get('failed') or []) or 'no check is named'}; journalctl -u edge-health"]
    return []


def _speaker(status):
    speaker = status.get("speaker") or {}
    if status.get("speaker_error"):
        return [f"edgebgp does not answer: {status['speaker_error']}"]
    if durations.moment(speaker.get("started")) is None:
        return ["edgebgp has not answered yet"]
    if durations.moment(speaker.get("stopping")) is not None:
        return ["edgebgp is to stop"]
    if speaker.get("expired"):
        return ["the lease of edgebgp has run out: it has degraded everything by itself"]
    return []


def starts(status):
    """Since when each daemon runs, as far as it is known."""
    said = {"edged": status, "edgebgp": status.get("speaker") or {}, "edgeproxy": status.get("proxy") or {}}
    return {name: doc["started"] for name, doc in said.items() if durations.moment(doc.get("started")) is not None}


def watched(status):
    """Names of the peers that are only listened to."""
    settings = (status.get("speaker") or {}).get("speaker") or {}
    return {p.get("id") for p in settings.get("peers") or [] if p.get("watch")}


def peers(status):
    """The peers that our prefixes go to."""
    quiet = watched(status)
    return [p for p in (status.get("speaker") or {}).get("peers") or [] if p.get("id") not in quiet]


def _peers(status):
    out = []
    for p in peers(status):
        if p.get("session") != "established":
            out.append(f"BGP peer {p.get('id')} ({p.get('address')}) is {p.get('session') or 'unknown'}: {p.get('last_error') or 'no error yet'}")
        elif (p.get("bfd") or {}).get("state") == "down" and not resting(status):
            out.append(f"BFD with {p.get('id')} is down: {p['bfd'].get('last_error') or p['bfd'].get('diag') or 'no reason yet'}")
    return out


def resting(status):
    """Whether BFD says "admin down" since the node is drained."""
    return bool(((status.get("speaker") or {}).get("speaker") or {}).get("resting"))


def health_of(status):
    """The condition of each prefix."""
    return {c.get("prefix"): c for c in status.get("conditions") or []}


def elsewhere(decision):
    """Whether a prefix is that of other sites only (prefixes with unconditional)."""
    return decision.get("rung") == "withheld" and str(decision.get("reason", "")).startswith("announced at ")


def _asleep(status, states):
    """Whether all probes of these states are not run, since their service is drained:
    the VIPs of a drained node are not served. One that has failed while the daemons
    started, before the drain was in force, stays down for as long."""
    found = [p for p in status.get("probes") or [] if p.get("state") in states]
    return bool(found) and all(str(p.get("last_error", "")).endswith(" is drained") for p in found)


def _health(status):
    out, conditions = [], health_of(status)
    for d in status["decisions"]:
        c = conditions.get(d.get("prefix")) or {}
        health = c.get("health", "unknown")
        if elsewhere(d) or health in ("healthy", "full"):
            continue
        states = ("unknown",) if health == "unknown" else ("unknown", "down")
        if status.get("drains") and not on_air(d) and _asleep(status, states):
            continue
        out.append(f"{d.get('prefix')} is {'of unknown health' if health == 'unknown' else health}: {c.get('reason') or 'no reason is known yet'}")
    return out


def patterns(texts):
    """Regular expressions of an operator. ValueError names the one that is none."""
    out = []
    for t in texts:
        try:
            out.append(re.compile(t))
        except re.error as err:
            raise ValueError(f"ignore_alarms: {t!r} is no regular expression: {err}") from None
    return out


def _alarms(status, ignore):
    more = patterns(ignore)
    out = []
    for a in status.get("alarms") or []:
        if _PEER_ALARM.match(a) or any(p.search(a) for p in HARMLESS) or any(p.search(a) for p in more):
            continue
        if a.startswith("edgebgp does not answer: ") or a.startswith("edgebgp is to stop "):
            continue  # said already
        out.append(f"alarm: {a}")
    return out


def scope(drain):
    """What an order to drain concerns, in words."""
    if drain.get("service"):
        return f"service {drain['service']}"
    return drain.get("prefix") or "the node"


def drain_text(drain, now=None):
    """An order to drain, in one line."""
    end = durations.moment(drain.get("until"))
    until = "until it is undrained"
    if drain.get("by_file"):
        until = "by the drain file"
    elif drain.get("stop"):
        until = "until edgebgp runs again"
    elif end is not None:
        until = f"until {durations.clock(end)}"
        if now is not None:
            until += f" ({durations.words(end - now)} more)"
    return f"{scope(drain)} is drained {until}: {drain.get('reason') or 'no reason given'}"


def _drained(status):
    return [drain_text(d) for d in status.get("drains") or []]


RUNGS_ON_AIR = ("announced", "degraded", "draining", "leaving", "last-resort")


def on_air(decision):
    """Whether a prefix on this rung is announced."""
    return decision.get("rung") in RUNGS_ON_AIR


def holds(peer, prefix):
    """Whether an established peer holds a prefix of this node."""
    return peer.get("session") == "established" and any(h.get("prefix") == prefix for h in peer.get("held") or [])


def unsent(status, prefix):
    """Peers that do not hold a prefix and are meant to: {name: why}."""
    settings = {p.get("id"): p for p in ((status.get("speaker") or {}).get("speaker") or {}).get("peers") or []}
    out = {}
    for p in peers(status):
        only = (settings.get(p.get("id")) or {}).get("prefixes")
        if p.get("session") != "established" or (only and prefix not in only) or holds(p, prefix):
            continue
        why = [n.get("reason") for n in p.get("not_sent") or [] if n.get("prefix") == prefix]
        families = p.get("families")
        if not why and families and ("ipv6" if ":" in prefix else "ipv4") not in families:
            continue  # the family is not negotiated: the other peers carry it
        out[p.get("id")] = (why and why[0]) or ("it is still to be sent" if p.get("pending") else "no reason is known")
    return out


def _announced(status):
    out = []
    for d in status["decisions"]:
        if elsewhere(d):
            continue
        if d.get("rung") != "announced":
            if status.get("drains") and str(d.get("reason", "")).startswith("drained: "):
                continue  # said by the drain
            out.append(f"{d.get('prefix')} is {d.get('rung')}: {d.get('reason') or 'no reason is known'}")
            continue
        for name, why in sorted(unsent(status, d["prefix"]).items()):
            out.append(f"{d['prefix']} is announced, and {name} does not hold it: {why}")
        if peers(status) and not any(holds(p, d["prefix"]) for p in peers(status)):
            out.append(f"{d['prefix']} is announced, and no router holds it")
    return list(dict.fromkeys(out))
