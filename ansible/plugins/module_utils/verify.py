# SPDX-License-Identifier: Apache-2.0
"""What a careful operator finds in a fleet, by the answers of edge_status of all its
nodes. Pure: findings come out, nothing is asked.

A finding is {severity, node, what, remedy}; node is None for what concerns the fleet.
critical: users are hurt, or the next thing that fails hurts them. warning: to be
mended. notice: to be known, such as a drain that somebody wants.
"""

from __future__ import annotations

import datetime

from ansible_collections.catchment.edge.plugins.module_utils import durations, verify_fleet

SEVERITIES = ("critical", "warning", "notice")

# What the playbook may set; the unit is in the name.
LIMITS = {
    "clock_skew_seconds": 5.0,
    "disk_warning_percent": 85.0,
    "disk_critical_percent": 95.0,
    "certificate_warning_days": 21.0,
    "certificate_critical_days": 3.0,
    "flaps": 20,
}

DAY = 86400.0


def finding(severity, node, what, remedy):
    """One of the list."""
    return {"severity": severity, "node": node, "what": what, "remedy": remedy}


def judge(answers, fleet=None, now=None, limits=None):
    """All findings, the worst first. answers is {node: the result of edge_status}, or of
    a node that was not reached {"unreachable" or "failed": true, "msg": why}; fleet is
    edge_fleet of the inventory, or None."""
    now = datetime.datetime.now(datetime.timezone.utc).timestamp() if now is None else now
    limits = dict(LIMITS, **(limits or {}))
    out, up = [], {}
    for name in sorted(answers):
        answer = answers[name] or {}
        lost = unreached(answer)
        if lost is not None:
            out.append(finding("critical", name, f"it is not reached: {lost}", "look whether it runs and sshd answers; edgectl guard on another box says when it was last heard"))
            continue
        if not answer.get("answers"):
            out.append(finding("critical", name, f"edged does not answer: {answer.get('error')}", "systemctl status edged; journalctl -u edged"))
        else:
            up[name] = answer
        out += _box(name, answer, now, limits)
    for name in sorted(up):
        out += _node(name, up[name], now, limits)
    out += verify_fleet.judge(up, answers, fleet or {}, limits, finding)
    return sorted(_once(out), key=lambda f: (SEVERITIES.index(f["severity"]), f["node"] is not None, f["node"] or ""))


def unreached(answer):
    """Why there is no answer of edge_status; None if there is one."""
    if "healthy" in answer:
        return None
    return " ".join(str(answer.get("msg") or "it has not answered").split())


def worst(findings):
    """The severity of the worst finding; None if there is none."""
    return findings[0]["severity"] if findings else None


def _once(findings):
    seen, out = set(), []
    for f in findings:
        key = (f["node"], f["what"])
        if key not in seen:
            seen.add(key)
            out.append(f)
    return out


def _node(name, a, now, limits):
    return (_rungs(name, a) + _drains(name, a, now) + _peers(name, a, limits) + _alarms(name, a)
            + _guard(name, a) + _config(name, a) + _probes(name, a))


_RUNG = {
    "last-resort": ("critical", "it serves as well as it can; edgectl guard says who refuses, edgectl health what fails"),
    "leaving": ("warning", "it asks the guard; edgectl guard says who has answered"),
    "degraded": ("warning", "edgectl health says what fails; it comes back by itself"),
    "draining": ("notice", "it is drained: see there"),
    "withdrawn": ("warning", "edgectl explain says what it waits for"),
    "withheld": ("warning", "edgectl explain says what it waits for"),
}


def _rungs(name, a):
    out = []
    heard = any(p.get("session") == "established" and not p.get("watch") for p in a.get("peers") or [])
    for d in a.get("decisions") or []:
        if d.get("elsewhere"):
            continue
        drained = str(d.get("reason") or "").startswith("drained: ")
        if d.get("rung") in _RUNG and not (drained and d["rung"] != "last-resort"):
            severity, remedy = _RUNG[d["rung"]]
            out.append(finding(severity, name, f"{d['prefix']} is {d['rung']}: {d.get('reason') or 'no reason is known'}", remedy))
        for peer, why in sorted((d.get("not_sent") or {}).items()):
            out.append(finding("warning", name, f"{peer} does not hold {d['prefix']}: {why}", f"edgectl bgp {peer}"))
        if d.get("on_air") and not d.get("holders") and heard:
            out.append(finding("critical", name, f"{d['prefix']} is {d['rung']}, and no router holds it", "edgectl bgp; the router's filter"))
        if d.get("health") == "sick" and not d.get("on_air"):
            out.append(finding("warning", name, f"{d['prefix']} could not be served: {d.get('health_reason')}", "edgectl health"))
    return out


def _drains(name, a, now):
    out = []
    for d in a.get("drains") or []:
        since = durations.moment(d.get("since"))
        age = f", since {durations.words(now - since)}" if since is not None else ""
        text = f"{d['scope']} is drained{age}: {d.get('reason') or 'no reason given'}"
        if d.get("stop"):
            out.append(finding("warning", name, text, "edgebgp is to stop; it ends when another one runs: systemctl start edgebgp"))
        elif d.get("by_file"):
            out.append(finding("notice", name, text + " (by file)", "it ends with its line in node.drain_file"))
        elif d.get("until") is None:
            out.append(finding("warning", name, text + ", and this has no end", "edgectl undrain, or give it an end: edgectl drain --for"))
        else:
            out.append(finding("notice", name, f"{text}; it ends at {durations.clock(durations.moment(d['until']))}", "nothing, or edgectl undrain"))
    return out


def _peers(name, a, limits):
    out = []
    ours = [p for p in a.get("peers") or [] if not p.get("watch")]
    none = bool(ours) and all(p.get("session") != "established" for p in ours)
    for p in a.get("peers") or []:
        if p.get("session") != "established":
            severity = "critical" if none and not p.get("watch") else "warning"
            out.append(finding(severity, name, f"BGP peer {p['name']} ({p.get('address')}) is {p.get('session') or 'unknown'}: {p.get('last_error') or 'no error yet'}",
                               f"edgectl bgp {p['name']}; then the router: address, AS, password, filters"))
        elif p.get("flaps", 0) >= limits["flaps"]:
            out.append(finding("notice", name, f"BGP peer {p['name']} was lost {p['flaps']} times since edgebgp has started", f"edgectl bgp {p['name']} has the last reason"))
        if p.get("bfd") == "down" and p.get("session") == "established":
            out.append(finding("warning", name, f"BFD with {p['name']} is down", f"edgectl bgp {p['name']}; UDP 3784 between the two"))
    return out


def _alarms(name, a):
    """What has a finding of its own is not said twice."""
    said = ("BGP peer ", "BFD with ", "the last reload was refused", "isolated: ")
    return [finding("warning", name, f"alarm: {t}", "edgectl status; docs/troubleshoot.md")
            for t in a.get("alarms") or [] if not t.startswith(said) and " is announced as a last resort" not in t and ", but no peer holds it" not in t]


def _guard(name, a):
    g = a.get("guard") or {}
    out = []
    if g.get("isolated"):
        out.append(finding("critical", name, "it hears no other site by gossip: it leaves nothing, and promises nobody", "UDP and TCP of the gossip port between the sites; the gossip key"))
    for m in g.get("members") or []:
        if not m.get("heard"):
            age = "never" if m.get("seconds") is None else f"not for {durations.words(m['seconds'])}"
            out.append(finding("warning", name, f"it has {age} heard {m['node']} by gossip", f"look at {m['node']}; the gossip port; clocks and keys (edgectl guard)"))
    for p, why in sorted((g.get("asking") or {}).items()):
        out.append(finding("warning", name, f"it wants to leave {p} and may not: {why}", "edgectl guard names who refuses"))
    return out


def _config(name, a):
    out = []
    if a.get("config_error"):
        out.append(finding("warning", name, f"the last reload was refused: {a['config_error']}", "mend edge.yaml (edgectl check), then edgectl reload"))
    if a.get("config_in_force") == "no" and not a.get("config_error"):
        out.append(finding("warning", name, "its edge.yaml is not the one in force", "edgectl check /etc/edge/edge.yaml, then edgectl reload"))
    proxy = a.get("edgeproxy") or {}
    if proxy.get("pid") and not proxy.get("same_config"):
        out.append(finding("warning", name, "edgeproxy runs another configuration than edged", "edgectl reload"))
    return out


def _probes(name, a):
    bad = [p for p in (a.get("probes") or {}).get("not_up") or [] if not str(p.get("last_error") or "").endswith(" is drained")]
    return [finding("notice", name, f"probe {p['name']} is {p['state']}: {p.get('last_error') or 'it has not run yet'}", "edgectl health") for p in bad]


def _box(name, a, now, limits):
    return _boot(name, a.get("boot")) + _disks(name, a, limits) + _certificates(name, a, now, limits) + [
        finding("warning", name, f"{d} runs a program that has been replaced since it was started",
                "it runs the older version until it is restarted: docs/upgrade.md, the binaries")
        for d in (a.get("box") or {}).get("replaced") or []]


def _boot(name, boot):
    if boot is None:
        return []
    out = []
    if boot.get("error"):
        out.append(finding("warning", name, f"the state of its slots is not known: {boot['error']}", "edgectl slots, as root"))
    if boot.get("good") is False:
        out.append(finding("critical", name, f"this boot of version {boot.get('version')} is not good: {', '.join(boot.get('failed') or [])}", "journalctl -u edge-health; edgectl rollback"))
    elif boot.get("good") is None and not boot.get("error"):
        out.append(finding("warning", name, f"this boot of version {boot.get('version')} is not judged yet", "journalctl -u edge-health"))
    for r in boot.get("refused") or []:
        out.append(finding("notice", name, f"it refuses version {r['version']}, by check {r.get('check')}" + (f": {r['reason']}" if r.get("reason") else ""), "edgectl upgrade --forgive VERSION, once it is mended"))
    if boot.get("next") and boot.get("version") and boot["next"] != boot["version"]:
        out.append(finding("warning", name, f"any reboot boots version {boot['next']} in place of {boot['version']}", "go on with the upgrade, or edgectl upgrade --cancel"))
    for s in boot.get("slots") or []:
        if s.get("state") == "failed":
            out.append(finding("notice", name, f"version {s.get('version')} in slot {s.get('slot')} has failed", "edgectl slots"))
    return out


def _disks(name, a, limits):
    out, seen = [], set()
    for d in (a.get("box") or {}).get("disks") or []:
        if d.get("error"):
            out.append(finding("warning", name, f"the file system of {d['path']} is not known: {d['error']}", "look at the box"))
            continue
        if d.get("read_only") or d.get("device") in seen:
            continue  # the root of an appliance is full by design
        seen.add(d.get("device"))
        for full, what in ((d["used_percent"], "of its room"), (d["inodes_percent"], "of its inodes")):
            severity = "critical" if full >= limits["disk_critical_percent"] else "warning" if full >= limits["disk_warning_percent"] else None
            if severity:
                out.append(finding(severity, name, f"{d['path']} has used {full:g} % {what}", "make room: a full disk keeps no order to drain"))
    return out


def _certificates(name, a, now, limits):
    out = []
    for c in (a.get("box") or {}).get("certificates") or []:
        if c.get("error"):
            out.append(finding("warning", name, f"{c['path']} cannot be read: {c['error']}", "see that the file is there, PEM, and edgeproxy's"))
            continue
        left = (c["not_after"] - now) / DAY
        severity = "critical" if left < limits["certificate_critical_days"] else "warning" if left < limits["certificate_warning_days"] else None
        if severity:
            when = durations.clock(c["not_after"])
            what = f"the certificate {c['path']} has ended at {when}" if left < 0 else f"the certificate {c['path']} ends in {left:.1f} days, at {when}"
            out.append(finding(severity, name, what, "renew it, and edgectl reload"))
    return out
