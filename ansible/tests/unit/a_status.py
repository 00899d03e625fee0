# SPDX-License-Identifier: Apache-2.0
"""A status of edged as the tests need it: of node a1, with others of sites b and c, on
the air at both of its routers. Its form is that of documents.go."""

import copy

from ansible_collections.catchment.edge.plugins.module_utils import durations

NOW = 1.8e9
P4, P6 = "198.51.100.0/24", "2001:db8:100::/48"


def at(ago):
    """The time so many seconds before NOW."""
    return durations.stamp(NOW - ago)


def member(node, site, rung="announced", age=0.5, reason="", **claim):
    """What a1 has heard of another node; age in seconds."""
    says = [dict({"prefix": p, "announcing": rung not in ("withdrawn", "withheld"), "rung": rung, "health": "healthy", "since": at(100), "reason": reason}, **claim)
            for p in (P4, P6)]
    return {"node": node, "site": site, "alive": True, "age_ns": int(age * 1e9), "said_ns": 0, "report": {"node": node, "site": site, "claims": says}}


def peer(name, **more):
    """An established peer that holds both prefixes."""
    return dict({"id": name, "address": "10.1.0.1", "asn": 65001, "session": "established", "since": at(500), "flaps": 0, "families": ["ipv4", "ipv6"],
                 "held": [{"prefix": P4, "next_hop": "10.1.0.2"}, {"prefix": P6, "next_hop": "fd00::2"}]}, **more)


def status(**more):
    """A node that is ready; more replaces what is named."""
    out = {
        "node": "a1", "site": "a", "version": "1.2.0", "time": at(0.4), "started": at(600), "generation": 1, "config_hash": "ab" * 32,
        "alarms": [], "drains": [],
        "decisions": [{"prefix": p, "rung": "announced", "since": at(500)} for p in (P4, P6)],
        "conditions": [{"prefix": p, "min_sites": 1, "health": "healthy", "since": at(500)} for p in (P4, P6)],
        "probes": [{"probe": "web-vip", "state": "up", "since": at(500)}],
        "speaker": {
            "generation": 1, "started": at(600), "expired": False, "lease_left_ns": 4 * 10**9,
            "speaker": {"asn": 64512, "peers": [{"id": "r1"}, {"id": "r2"}]}, "peers": [peer("r1"), peer("r2")],
        },
        "guard": {
            "fresh_ns": 4 * 10**9, "isolated": False, "keys": ["11111111"], "asking": {}, "node_keys": {"a1": "k1", "b1": "k2", "c1": "k3"},
            "members": [member("a1", "a"), member("b1", "b"), member("c1", "c")],
            "prefixes": [{"prefix": p, "floor": 1, "needed": 1, "sites": ["a", "b", "c"], "may_leave": 2, "lacks": ""} for p in (P4, P6)],
        },
        "proxy": {"pid": 7, "config_hash": "ab" * 32},
        "services": [{"id": "web", "vip": "198.51.100.10:443", "protocol": "tcp", "prefix": P4}],
    }
    out = copy.deepcopy(out)
    out.update(more)
    return out


def drain(reason="rollout one: x", ends_in=600, **more):
    """An order to drain the node."""
    out = {"reason": reason, "since": at(30)}
    if ends_in is not None:
        out["until"] = at(-ends_in)
    return dict(out, **more)


def drained(unserved=True, **more):
    """a1, drained by rollout one and off the air."""
    out = status(drains=[drain()])
    out["decisions"] = [{"prefix": p, "rung": "withdrawn", "since": at(20), "reason": "drained: rollout one: x; its VIPs are not served any more", "unserved": unserved}
                        for p in (P4, P6)]
    for p in out["speaker"]["peers"]:
        p["held"] = []
    out["speaker"]["speaker"]["resting"] = True
    out.update(more)
    return out
