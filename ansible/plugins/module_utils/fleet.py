# SPDX-License-Identifier: Apache-2.0
"""fleet.yaml, the source of truth: what is in it, and the edge.yaml of each box.

load reads the whole and raises all mistakes at once, each with its place. It looks
at what only the fleet sees; the judge of an edge.yaml is `edgectl check`, on the
box. Pure; for the controller. The words are those of docs/ansible.md."""

from __future__ import annotations

import base64
import binascii

from ansible_collections.catchment.edge.plugins.module_utils import fleet_check
from ansible_collections.catchment.edge.plugins.module_utils.places import MAX_SIZE, Problems, Reader, describe, join

PLUGIN = "catchment.edge.fleet"
KINDS = ("image", "deb")
DAEMONS = ("bird", "frr")

TOP = ("plugin", "connection", "vars", "secrets", "public_keys", "kind", "node", "fleet", "sites", "routers")
CONNECTION = ("user", "port")
SITE = ("name", "region", "capacity", "connection", "kind", "node", "nodes")
# What an entry has of fleet.nodes in edge.yaml.
ROSTER = ("address4", "address6", "gossip", "health_port", "public_key")
NODE = ("name", "host", "kind", "connection", "node") + ROSTER
ROUTER = ("name", "host", "daemon", "asn", "site", "connection")

# Raised by load.
FleetErrors = Problems


class Node:
    """A box: its entry, with what it has from its site and from the fleet."""

    def __init__(self, name, site):
        self.name, self.site = name, site
        self.host, self.kind, self.roster = None, "image", {}
        self.connection, self.node = {}, {}
        self.places = {}  # path below node in edge.yaml -> place in fleet.yaml


class Site:
    def __init__(self, name):
        self.name, self.region, self.capacity = name, None, None
        self.nodes = []


class Router:
    def __init__(self, name):
        self.name, self.connection = name, {}
        self.host = self.daemon = self.asn = self.site = None


class Fleet:
    def __init__(self):
        self.vars, self.fleet, self.places = {}, {}, {}
        self.secrets, self.public_keys = "secrets", "public_keys"
        self.sites, self.routers = [], []

    @property
    def nodes(self):
        return [node for site in self.sites for node in site.nodes]

    def node(self, name):
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    @property
    def missing_keys(self):
        """The nodes whose public key nobody has yet: role edge_keys fetches it."""
        return [node.name for node in self.nodes if "public_key" not in node.roster]

    def config(self, node):
        """The whole edge.yaml of a node (a Node, or its name)."""
        if not isinstance(node, Node):
            node = self.node(node)
        return {"node": dict({"name": node.name}, **node.node), "fleet": self.shared()}

    def shared(self):
        """The section fleet, the same on every box."""
        first = {key: self.fleet[key] for key in ("ring_seed_file",) if key in self.fleet}
        first["sites"] = [
            dict({"name": s.name}, **_given({"region": s.region, "capacity": s.capacity})) for s in self.sites
        ]
        first["nodes"] = [dict({"name": n.name, "site": n.site}, **n.roster) for n in self.nodes]
        return dict(first, **{key: value for key, value in self.fleet.items() if key not in first})

    def summary(self):
        """What playbooks decide by: the group variable edge_fleet. Defaults are filled in."""
        floor = 1 if len([s for s in self.sites if s.nodes]) > 1 else 0
        prefixes = [
            dict({"prefix": p.get("prefix"), "min_sites": p.get("min_sites", floor)}, **_given({"unconditional": p.get("unconditional")}))
            for p in fleet_check.mappings(self.fleet.get("prefixes"))
        ]
        guard = self.fleet.get("guard")
        guard = {key: _number(value) for key, value in guard.items()} if isinstance(guard, dict) else {}
        return {
            "sites": [{"name": s.name, "region": s.region, "capacity": s.capacity, "nodes": [n.name for n in s.nodes]} for s in self.sites],
            "prefixes": prefixes,
            "guard": dict({"max_planned": 1}, **guard),
            "missing_keys": self.missing_keys,
        }

    def place(self, node, path):
        """Where in fleet.yaml a path of the node's edge.yaml comes from, or None."""
        places = self.node(node).places if path.startswith("node") else self.places
        while path:
            if path in places:
                return places[path]
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return None


def load(text, name="fleet.yaml", keys=None):
    """Reads a fleet.yaml. keys has the public keys that lie beside it: node -> text."""
    reader = Reader(name)
    root = reader.document(text)
    reading = _Reading(reader, keys or {})
    fleet = reading.read(root)
    fleet_check.check(reader, fleet)
    reader.done()
    return fleet


def folders(text, name="fleet.yaml"):
    """The folders of secrets and of public keys that text names, as far as it can be read."""
    reader, out = Reader(name), {"secrets": "secrets", "public_keys": "public_keys"}
    data = reader.value(reader.document(text), "")
    for key, default in out.items():
        value = data.get(key) if isinstance(data, dict) else None
        out[key] = value if isinstance(value, str) and value else default
    return out


def merge(low, high, at_low=None, at_high=None, path=""):
    """low with high over it: maps deep, lists whole. A key that is null in high is taken
    away. at_low and at_high are the places of both; at_low becomes that of the outcome."""
    out = dict(low)
    for key, value in high.items():
        at = join(path, key)
        if value is None and key in low:
            del out[key]
            _forget(at_low, at)
        elif isinstance(value, dict) and isinstance(low.get(key), dict):
            out[key] = merge(low[key], value, at_low, at_high, at)
        else:
            out[key] = value
            _forget(at_low, at)
            _note(at_low, at_high, at)
    return out


def _forget(places, path):
    for p in [p for p in places or () if p == path or p.startswith((path + ".", path + "["))]:
        del places[p]


def _note(places, new, path):
    for p, place in (new or {}).items():
        if places is not None and (p == path or p.startswith((path + ".", path + "["))):
            places[p] = place


def _number(value):
    """What stands as 0.30 is kept as it stands; who counts with it wants the number."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _given(values):
    return {key: value for key, value in values.items() if value is not None}


class _Reading:
    """One reading of one file."""

    def __init__(self, reader, keys):
        self.r, self.keys = reader, keys

    def read(self, root):
        r, fleet = self.r, Fleet()
        top = r.section(root, "", "fleet.yaml", TOP)
        if not top:
            return fleet
        if self.scalar(top, "plugin", "") != PLUGIN:
            r.fail("plugin", f"expected plugin: {PLUGIN}")
        fleet.vars = self.mapping(top, "vars", "")
        fleet.secrets = self.scalar(top, "secrets", "") or "secrets"
        fleet.public_keys = self.scalar(top, "public_keys", "") or "public_keys"
        fleet.fleet = self.mapping(top, "fleet", "")
        fleet.places = self.below("fleet", "fleet")
        own = self.own(top, "", None)
        if "sites" not in top:
            r.fail("", "sites is missing: a list of sites, each with its nodes")
        for item, path in r.items(top["sites"], "sites") if "sites" in top else ():
            fleet.sites.append(self.site(item, path, own))
        for item, path in r.items(top["routers"], "routers") if "routers" in top else ():
            fleet.routers.append(self.router(item, path, own))
        return fleet

    def own(self, entry, path, above):
        """What fleet, site and node have alike: connection, kind and node, merged."""
        above = above or {"connection": {}, "kind": "image", "node": {}, "places": {}}
        out = dict(above, places=dict(above["places"]))
        kind = self.scalar(entry, "kind", path)
        if kind is not None:
            out["kind"] = kind
            if kind not in KINDS:
                self.r.fail(join(path, "kind"), f'kind "{kind}" is neither image nor deb')
        out["connection"] = self.connection(entry, path, above["connection"])
        here = join(path, "node")
        node = self.mapping(entry, "node", path)
        if "name" in node:
            self.r.fail(join(here, "name"), "the name of a box is that of its entry under nodes: take this key out")
            node = {key: value for key, value in node.items() if key != "name"}
        out["node"] = merge(above["node"], node, out["places"], self.below(here, "node"), "node")
        return out

    def below(self, path, name):
        """The places of all that is at path, with name in place of path."""
        return {name + p[len(path):]: at for p, at in self.r.at.items() if p == path or p.startswith((path + ".", path + "["))}

    def connection(self, entry, path, above):
        if "connection" not in entry:
            return above
        here = join(path, "connection")
        keys = self.r.section(entry["connection"], here, "connection", CONNECTION)
        out = dict(above, **_given({key: self.scalar(keys, key, here) for key in keys}))
        port = out.get("port")
        if "port" in keys and (isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536):
            self.r.fail(join(here, "port"), f"{port} is not a TCP port (1 to 65535)")
        return out

    def site(self, item, path, above):
        entry = self.r.section(item, path, "a site", SITE)
        site = Site(self.name(entry, path))
        site.region, site.capacity = (self.scalar(entry, key, path) for key in ("region", "capacity"))
        why = fleet_check.bad_name(site.region) if site.region is not None else None
        if why:  # it becomes the name of a group, in which Ansible would look for Jinja
            self.r.fail(join(path, "region"), why)
        own = self.own(entry, path, above)
        nodes = self.r.items(entry["nodes"], join(path, "nodes")) if "nodes" in entry else ()
        site.nodes = [self.box(node, at, own, site.name) for node, at in nodes]
        site.path = path
        return site

    def box(self, item, path, above, site):
        entry = self.r.section(item, path, "a node", NODE)
        node = Node(self.name(entry, path), site)
        own = self.own(entry, path, above)
        node.kind, node.connection, node.node, node.places = (own[key] for key in ("kind", "connection", "node", "places"))
        node.host, node.path = self.need(entry, "host", path), path
        node.roster = _given({key: self.scalar(entry, key, path) for key in ROSTER})
        if "gossip" not in node.roster:
            self.r.fail(path, "gossip is missing: ADDRESS:PORT where the others reach its gossip")
        self.public_key(node, path)
        return node

    def public_key(self, node, path):
        text, found = self.keys.get(node.name), "public_key" in node.roster
        if text is not None and found and node.roster["public_key"] != text.strip():
            self.r.fail(join(path, "public_key"), f"it is another one than that in the folder of public keys: keep one of the two")
        if not found and text is not None:
            node.roster["public_key"] = text.strip()
        key = node.roster.get("public_key")
        if key is not None and not is_key(key):
            at = join(path, "public_key") if found else path
            what = "" if found else f"{node.name}.pub: "
            self.r.fail(at, what + "it is not an Ed25519 public key in base64: edgectl guard key prints it")

    def router(self, item, path, above):
        entry = self.r.section(item, path, "a router", ROUTER)
        router = Router(self.name(entry, path))
        router.connection = self.connection(entry, path, above["connection"])
        router.host, router.daemon = self.need(entry, "host", path), self.need(entry, "daemon", path)
        router.asn, router.site = self.scalar(entry, "asn", path), self.scalar(entry, "site", path)
        if router.daemon is not None and router.daemon not in DAEMONS:
            self.r.fail(join(path, "daemon"), f'daemon "{router.daemon}" is neither bird nor frr')
        router.path = path
        return router

    def name(self, entry, path):
        name = self.need(entry, "name", path)
        why = fleet_check.bad_name(name)
        if name is not None and why:
            self.r.fail(join(path, "name"), why)
        return str(name) if name is not None else ""

    def need(self, entry, key, path):
        value = self.scalar(entry, key, path)
        if value is None and (key not in entry or describe(entry[key]) == "nothing"):
            self.r.fail(path, f"{key} is missing")
        return value

    def scalar(self, entry, key, path):
        if key not in entry:
            return None
        value = self.r.value(entry[key], join(path, key))
        if isinstance(value, (dict, list)):
            self.r.fail(join(path, key), f"expected one value, found {describe(entry[key])}")
            return None
        return value

    def mapping(self, entry, key, path):
        if key not in entry:
            return {}
        value = self.r.value(entry[key], join(path, key))
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.r.fail(join(path, key), f"expected a mapping (key: value), found {describe(entry[key])}")
            return {}
        return value


def is_key(text):
    try:
        return isinstance(text, str) and len(base64.b64decode(text, validate=True)) == 32
    except (binascii.Error, ValueError):
        return False
