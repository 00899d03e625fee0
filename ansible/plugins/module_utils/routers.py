# SPDX-License-Identifier: Apache-2.0
"""A router's side of the sessions that the boxes open: which they are. Pure; for the
controller. A peer of a box is a router of fleet.yaml if both have the same name."""

from __future__ import annotations

import ipaddress
import re

from ansible_collections.catchment.edge.plugins.module_utils import files
from ansible_collections.catchment.edge.plugins.module_utils.fleet_check import mappings

SECRETS = files.ROOT + "secrets/"
HOLD, KEEPALIVE = 9, 3  # seconds, the defaults of edge.yaml


def sessions(fleet, router):
    """The sessions of a router with the boxes, in the order of the boxes."""
    return [_session(node, peer) for node in fleet.nodes for peer in _peers(node) if peer.get("name") == router.name]


def prefixes(fleet):
    """What the boxes may announce: {"ipv4": [...], "ipv6": [...]}."""
    out = {"ipv4": [], "ipv6": []}
    for entry in mappings(fleet.fleet.get("prefixes")):
        prefix = _canonical(ipaddress.ip_network, entry.get("prefix"))
        out["ipv6" if ":" in prefix else "ipv4"].append(prefix)
    return out


# What of a session vtysh has to be told to forget, and the key of a session that wants it.
_OPTIONS = {"password": "password", "bfd": "bfd", "ebgp-multihop": "multihop", "ttl-security": "ttl_security"}
_PERMIT = re.compile(r"^ip(?:v6)? prefix-list (EDGE[46]) seq \d+ permit (.+)$")
_NEIGHBOR = re.compile(r"^ neighbor (\S+) (password|bfd|ebgp-multihop|ttl-security|passive)( .*)?$")


def frr_stale(running, sessions, prefixes, specifics=False, passive=True):
    """The commands that take from an FRR what it has of our sessions and is not meant any
    more. running is its configuration; what stands there of others is left alone."""
    permits = {
        name: {f"{prefix} le {length}" if specifics else prefix for prefix in prefixes.get(family) or []}
        for family, name, length in (("ipv4", "EDGE4", 32), ("ipv6", "EDGE6", 128))
    }
    ours, out = {str(s["address"]): _options(s) for s in sessions}, []
    for line in running.splitlines():
        permit, neighbor = _PERMIT.match(line), _NEIGHBOR.match(line)
        if permit and permit.group(2).strip() not in permits[permit.group(1)]:
            out.append("no " + line.strip())
        elif neighbor and _is_stale(neighbor, ours, passive):
            # The password is what the line goes on with: nobody is to see it.
            out.append("no " + (line.split(" password", 1)[0] + " password" if neighbor.group(2) == "password" else line).strip())
    return out


def _options(session):
    """What frr.conf.j2 sets of a session: one of the two ways to count hops alone."""
    both = session.get("multihop") and session.get("ttl_security")
    return {name for name, key in _OPTIONS.items() if session.get(key) and not (both and name == "ttl-security")}


def _is_stale(neighbor, ours, passive):
    address, option = neighbor.group(1), neighbor.group(2)
    if option == "passive":
        return address == "EDGE" and not passive
    return address in ours and option not in ours[address]


def _peers(node):
    bgp = node.node.get("bgp")
    return mappings(bgp.get("peers")) if isinstance(bgp, dict) else []


def _session(node, peer):
    local, zone = _address(peer.get("address"))
    six = ":" in local
    family = "address6" if six else "address4"
    out = {
        "node": node.name,
        "site": node.site,
        "address": _canonical(ipaddress.ip_address, peer.get("local_address") or node.roster.get(family) or ""),
        "asn": node.node["bgp"].get("asn"),
        "local": local,
        "interface": zone or peer.get("interface"),
        "families": peer.get("families") or ["ipv4", "ipv6"],
        "hold": seconds(peer.get("hold"), HOLD),
        "multihop": peer.get("multihop") or 0,
        "ttl_security": peer.get("ttl_security") or 0,
        "bfd": isinstance(peer.get("bfd"), dict),
        "password": _below(peer.get("password_file")),
        # A name that the operator's folder cannot have: it is looked for nowhere.
        "unfit": _unfit(peer.get("password_file")),
        # Who sends it nothing but listens to it (watch) is sent what it knows of ours.
        "watch": peer.get("watch") is True,
    }
    out["keepalive"] = max(1, out["hold"] // 3)
    return out


def _address(address):
    base, _, zone = str(address or "").partition("%")
    return base, zone or None


def _canonical(kind, text):
    """An address or a prefix as routers show it, so that both can be compared; what is
    none stays as it is, for edgectl to refuse."""
    try:
        return str(kind(str(text)))
    except ValueError:
        return str(text)


def _below(path):
    """The name of a secret below the operator's folder, or what stands there if it is
    somewhere else on the box, which nobody here can read."""
    if not isinstance(path, str) or not path:
        return None
    return path[len(SECRETS):] if path.startswith(SECRETS) else path


def _unfit(path):
    """Whether a secret that a box has there cannot lie in the operator's folder."""
    return isinstance(path, str) and bool(path) and (not path.startswith(SECRETS) or files.bad_secret(path[len(SECRETS):]) is not None)


def seconds(text, default):
    """Whole seconds of a duration as edge.yaml has it; what is none is for edgectl to refuse."""
    units = {"s": 1, "m": 60, "h": 3600}
    text = str(text or "")
    if text[-1:] in units and text[:-1].isdigit():
        return int(text[:-1]) * units[text[-1]]
    return default
