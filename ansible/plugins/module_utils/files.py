# SPDX-License-Identifier: Apache-2.0
"""The files of a configuration beside its edge.yaml: which it names, whose each is
on a plain Debian (docs/install.md), and which of an operator's folders has which.
Pure."""

from __future__ import annotations

import re

ROOT = "/etc/edge/"
# As on a box: image/setup/tree.go.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,127}")
_PARTS = ("authorized_keys", "hostname", "password")
_NETWORK = (".network", ".netdev", ".link")
MAX_DEPTH = 3

EDGED = {"owner": "edged", "group": "edged", "mode": 0o600}
EDGEBGP = {"owner": "edgebgp", "group": "edgebgp", "mode": 0o600}
EDGEPROXY = {"owner": "edgeproxy", "group": "edgeproxy", "mode": 0o600}
READABLE = {"owner": "root", "group": "root", "mode": 0o644}
PROGRAM = {"owner": "root", "group": "root", "mode": 0o755}
NOBODY = {"owner": "root", "group": "root", "mode": 0o600}


def named(config):
    """(key, path, access) of each file that an edge.yaml names."""
    node, fleet = _dict(config, "node"), _dict(config, "fleet")
    bgp, health = _dict(node, "bgp"), _dict(fleet, "health")
    out = [
        ("node.key_file", node.get("key_file"), EDGED),
        ("fleet.ring_seed_file", fleet.get("ring_seed_file"), EDGED),
        ("fleet.guard.key_file", _dict(fleet, "guard").get("key_file"), EDGED),
        ("fleet.proxy.ticket_key_file", _dict(fleet, "proxy").get("ticket_key_file"), EDGEPROXY),
        ("node.forwarder.blocklist_file", _dict(node, "forwarder").get("blocklist_file"), READABLE),
        ("node.bgp.rpki.file", _dict(bgp, "rpki").get("file"), READABLE),
        ("node.bgp.watch.file", _dict(bgp, "watch").get("file"), READABLE),
    ]
    for i, peer in enumerate(_list(bgp, "peers")):
        out.append((f"node.bgp.peers[{i}].password_file", peer.get("password_file"), EDGEBGP))
    for i, cert in enumerate(_list(_dict(fleet, "proxy"), "certificates")):
        at = f"fleet.proxy.certificates[{i}]"
        out += [(at + ".cert_file", cert.get("cert_file"), EDGEPROXY), (at + ".key_file", cert.get("key_file"), EDGEPROXY)]
    for i, probe in enumerate(_list(health, "probes")):
        at, command = f"fleet.health.probes[{i}]", probe.get("command")
        out.append((at + ".ca_file", probe.get("ca_file"), READABLE))
        out.append((at + ".command", command[0] if isinstance(command, list) and command else None, PROGRAM))
    return [(key, path, access) for key, path, access in out if isinstance(path, str) and path]


def shared(config):
    """What is wrong with files that two daemons would have to own: (path, keys)."""
    first, out = {}, []
    for key, path, access in named(config):
        before = first.setdefault(path, (key, access))
        if before[1] != access and READABLE not in (before[1], access):
            out.append((path, before[0], key))
    return out


def access_of(config, name):
    """Whose the file secrets/NAME is on a plain Debian; the strictest of those that name it."""
    found = [access for _, path, access in named(config) if path == ROOT + name]
    strict = [access for access in found if access != READABLE]
    return (strict or found or [NOBODY])[0]


def wanted(config):
    """What has to be on the box before it goes by an edge.yaml: path -> the key that
    names it. What others write there later (RPKI, a feed) is not."""
    out = {}
    for key, path, access in named(config):
        if path.startswith(ROOT) or access in (EDGED, EDGEBGP, EDGEPROXY):
            out.setdefault(path, key)
    return out


def ignored(name):
    """What editors and systems leave, and what explains a folder to people."""
    parts = name.split("/")
    return any(part.startswith(".") for part in parts) or parts[0].upper().startswith("README")


def bad_secret(name):
    """Why a file below secrets/ cannot be on a box, or None."""
    parts = name.split("/")
    if len(parts) > MAX_DEPTH:
        return "it lies more than two folders deep"
    if not all(_NAME.fullmatch(part) for part in parts):
        return "its name has characters other than a-z, A-Z, 0-9 and ._@+-, or begins with one of those"
    return None


def bad_part(name):
    """Why a file of the folder of other parts cannot be in a configuration, or None."""
    parts = name.split("/")
    if not all(_NAME.fullmatch(part) for part in parts):
        return "its name has characters other than a-z, A-Z, 0-9 and ._@+-, or begins with one of those"
    last = parts[-1]
    good = (
        (len(parts) == 1 and last in _PARTS)
        or (len(parts) == 2 and parts[0] == "network" and last.endswith(_NETWORK))
        or (len(parts) == 2 and parts[0] == "health.d")
        or (len(parts) == 3 and parts[0] == "units" and parts[1].endswith(".d") and last.endswith(".conf"))
    )
    return None if good else "expected network/*.network|netdev|link, authorized_keys, hostname, password, health.d/* or units/*.d/*.conf"


def layered(layers):
    """One set of files out of several, the later over the earlier: name -> source."""
    out = {}
    for layer in layers:
        out.update(layer)
    return dict(sorted(out.items()))


def _dict(value, key):
    value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _list(value, key):
    value = value.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
