# SPDX-License-Identifier: Apache-2.0
"""The report of verify as Markdown and as JSON. Pure."""

from __future__ import annotations

from ansible_collections.catchment.edge.plugins.module_utils import durations, verify


def document(answers, findings, now):
    """The JSON report: what was found, and how each node stands in a line."""
    counts = {s: sum(1 for f in findings if f["severity"] == s) for s in verify.SEVERITIES}
    return {
        "time": durations.stamp(now), "worst": verify.worst(findings), "counts": counts, "findings": findings,
        "nodes": {name: _node(answers[name] or {}) for name in sorted(answers)},
        "prefixes": _prefixes(answers),
    }


def _node(a):
    lost = verify.unreached(a)
    if lost is not None:
        return {"reached": False, "why": lost}
    boot = a.get("boot") or {}
    return {
        "reached": True, "answers": bool(a.get("answers")), "healthy": bool(a.get("healthy")), "ready": bool(a.get("ready")), "why_not": a.get("why_not") or [],
        "site": a.get("site"), "version": boot.get("version") or a.get("version"), "slot": boot.get("slot"), "good": boot.get("good"),
        "drained": bool(a.get("drains")), "config_hash": a.get("config_hash"),
        "peers": {"established": sum(1 for p in a.get("peers") or [] if p.get("session") == "established"), "of": len(a.get("peers") or [])},
    }


def _prefixes(answers):
    out = {}
    for name in sorted(answers):
        a = answers[name] or {}
        for d in a.get("decisions") or []:
            p = out.setdefault(d["prefix"], {"floor": d.get("min_sites"), "rungs": {}, "may_leave": None})
            p["rungs"].setdefault(d["rung"], []).append(name)
        for g in (a.get("guard") or {}).get("prefixes") or []:
            p = out.get(g.get("prefix"))
            if p is not None and g.get("may_leave") is not None:
                p["may_leave"] = g["may_leave"] if p["may_leave"] is None else min(p["may_leave"], g["may_leave"])
    return out


def markdown(doc):
    """The same for people."""
    counts = doc["counts"]
    told = ", ".join(f"{counts[s]} {s}" for s in verify.SEVERITIES if counts[s]) or "nothing"
    out = ["# State of the fleet", "", f"{doc['time']}: {len(doc['nodes'])} nodes, found: {told}.", ""]
    if doc["findings"]:
        out += ["## Findings", "", "| severity | node | what | remedy |", "|---|---|---|---|"]
        out += [row(f["severity"], f["node"] or "fleet", f["what"], f["remedy"]) for f in doc["findings"]]
        out.append("")
    out += ["## Nodes", "", "| node | site | version | state | peers | why not ready |", "|---|---|---|---|---|---|"]
    for name, n in doc["nodes"].items():
        if not n["reached"]:
            out.append(row(name, "", "", "not reached", "", n["why"]))
            continue
        state = "ready" if n["ready"] else "drained" if n["drained"] and n["healthy"] else "healthy" if n["healthy"] else "NOT HEALTHY"
        version = (n["version"] or "?") + (f", slot {n['slot']}" if n["slot"] else "")
        out.append(row(name, n["site"] or "", version, state, f"{n['peers']['established']}/{n['peers']['of']}", "; ".join(n["why_not"])))
    if doc["prefixes"]:
        out += ["", "## Prefixes", "", "| prefix | floor | stands | may leave |", "|---|---|---|---|"]
        for prefix, p in doc["prefixes"].items():
            stands = "; ".join(f"{r}: {len(n)}" for r, n in sorted(p["rungs"].items()))
            out.append(row(prefix, str(p["floor"]), stands, "?" if p["may_leave"] is None else str(p["may_leave"])))
    return "\n".join(out) + "\n"


def row(*cells):
    """Texts come from other boxes: none may break the table or begin markup."""
    return "| " + " | ".join(cell(c) for c in cells) + " |"


def cell(text):
    clean = "".join(c if c.isprintable() else " " for c in str(text))
    for mark in ("\\", "|", "<", "`", "*", "_", "["):
        clean = clean.replace(mark, "\\" + mark)
    return " ".join(clean.split())
