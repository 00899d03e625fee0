# SPDX-License-Identifier: Apache-2.0
"""The status of edged, cut down to what a playbook uses: of a fleet of hundreds of
boxes nobody wants what each has heard of each. Pure."""

from __future__ import annotations

from ansible_collections.catchment.edge.plugins.module_utils import durations, readiness

MAX_PROBES = 50


def of(status, now):
    """The part of edge_status's answer that comes from edged."""
    return {
        "node": status.get("node"), "site": status.get("site"), "version": status.get("version"),
        "generation": status.get("generation"), "config_hash": status.get("config_hash"),
        "config_error": status.get("config_error") or None,
        "started": status.get("started"), "time": status.get("time"),
        "alarms": status.get("alarms") or [],
        "decisions": [_decision(status, d) for d in status.get("decisions") or []],
        "drains": [_drain(d, now) for d in status.get("drains") or []],
        "peers": [_peer(status, p) for p in (status.get("speaker") or {}).get("peers") or []],
        "probes": _probes(status),
        "services": [{k: s.get(k) for k in ("id", "vip", "protocol", "prefix")} for s in status.get("services") or []],
        "prefers": status.get("prefers") or [],
        "guard": _guard(status),
        "edgeproxy": _proxy(status),
    }


def _decision(status, d):
    health = readiness.health_of(status).get(d.get("prefix")) or {}
    return {
        "prefix": d.get("prefix"), "rung": d.get("rung"), "since": d.get("since"), "reason": d.get("reason") or None,
        "on_air": readiness.on_air(d), "elsewhere": readiness.elsewhere(d), "unserved": bool(d.get("unserved")),
        "health": health.get("health", "unknown"), "health_reason": health.get("reason") or None,
        "min_sites": health.get("min_sites"),
        "holders": [p.get("id") for p in readiness.peers(status) if readiness.holds(p, d.get("prefix"))],
        "not_sent": readiness.unsent(status, d.get("prefix")) if readiness.on_air(d) else {},
    }


def _drain(d, now):
    end = durations.moment(d.get("until"))
    return {
        "scope": readiness.scope(d), "prefix": d.get("prefix"), "service": d.get("service"), "reason": d.get("reason"),
        "since": d.get("since"), "until": d.get("until") if end is not None else None,
        "seconds_left": None if end is None else round(end - now),
        "by_file": bool(d.get("by_file")), "stop": bool(d.get("stop")),
    }


def _peer(status, p):
    return {
        "name": p.get("id"), "address": p.get("address"), "asn": p.get("asn"), "session": p.get("session"),
        "since": p.get("since"), "flaps": p.get("flaps", 0), "last_error": p.get("last_error") or None,
        "watch": p.get("id") in readiness.watched(status), "held": len(p.get("held") or []),
        "bfd": (p.get("bfd") or {}).get("state"),
    }


def _probes(status):
    """Those that are not up, and how many are."""
    all_probes = status.get("probes") or []
    bad = [p for p in all_probes if p.get("state") != "up"]
    return {
        "up": len(all_probes) - len(bad),
        "not_up": [{"name": p.get("probe"), "state": p.get("state"), "since": p.get("since"), "last_error": p.get("last_error") or None}
                   for p in bad[:MAX_PROBES]],
    }


def _guard(status):
    g = status.get("guard") or {}
    return {
        "isolated": bool(g.get("isolated")), "keys": g.get("keys") or [], "node_keys": g.get("node_keys") or {},
        "prefixes": [{k: p.get(k) for k in ("prefix", "floor", "needed", "sites", "silent", "may_leave", "lacks")} for p in g.get("prefixes") or []],
        "members": [{"node": m.get("node"), "site": m.get("site"), "heard": 0 <= m.get("age_ns", -1) <= (g.get("fresh_ns") or 0),
                     "seconds": None if m.get("age_ns", -1) < 0 else round(m["age_ns"] / 1e9, 1)}
                    for m in g.get("members") or [] if m.get("node") != status.get("node")],
        "asking": {p: a.get("reason") or a.get("lacks") or "" for p, a in (g.get("asking") or {}).items() if not a.get("ok")},
        "suspects": [s.get("cause") for s in g.get("suspects") or [] if not s.get("trusted")],
        "trusts": [t.get("check") for t in g.get("trust") or []],
    }


def _proxy(status):
    p = status.get("proxy") or {}
    return {"pid": p.get("pid") or None, "started": p.get("started"), "same_config": p.get("config_hash") == status.get("config_hash")}
