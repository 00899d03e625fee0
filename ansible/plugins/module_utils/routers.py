# SPDX-License-Identifier: Apache-2.0
"""A router's side of the sessions that the boxes open: which they are. Pure; for the
controller. A peer of a box is a router of fleet.yaml if both have the same name."""

from __future__ import annotations

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
        prefix = str(entry.get("prefix"))
        out["ipv6" if ":" in prefix else "ipv4"].append(prefix)
    return out


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
        "address": str(peer.get("local_address") or node.roster.get(family) or ""),
        "asn": node.node["bgp"].get("asn"),
        "local": local,
        "interface": zone or peer.get("interface"),
        "families": peer.get("families") or ["ipv4", "ipv6"],
        "hold": seconds(peer.get("hold"), HOLD),
        "multihop": peer.get("multihop") or 0,
        "ttl_security": peer.get("ttl_security") or 0,
        "bfd": isinstance(peer.get("bfd"), dict),
        "password": _below(peer.get("password_file")),
        # Who sends it nothing but listens to it (watch) is sent what it knows of ours.
        "watch": peer.get("watch") is True,
    }
    out["keepalive"] = max(1, out["hold"] // 3)
    return out


def _address(address):
    base, _, zone = str(address or "").partition("%")
    return base, zone or None


def _below(path):
    """The name of a secret below the operator's folder, or what stands there if it is
    somewhere else on the box, which nobody here can read."""
    if not isinstance(path, str) or not path:
        return None
    return path[len(SECRETS):] if path.startswith(SECRETS) else path


def seconds(text, default):
    """Whole seconds of a duration as edge.yaml has it; what is none is for edgectl to refuse."""
    units = {"s": 1, "m": 60, "h": 3600}
    text = str(text or "")
    if text[-1:] in units and text[:-1].isdigit():
        return int(text[:-1]) * units[text[-1]]
    return default
