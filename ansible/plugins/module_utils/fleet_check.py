# SPDX-License-Identifier: Apache-2.0
"""What only the whole fleet shows: names, references and floors. Pure."""

from __future__ import annotations

import json
import re

# As in edge.yaml.
_NAME = re.compile(r"[a-z0-9-]{1,32}")
# Groups of the inventory: a host of that name would be taken for one.
_TAKEN = ("all", "edge", "ungrouped", "localhost")
# What fleet: cannot have, since it is made of the list of sites.
_MADE = ("sites", "nodes")


def bad_name(name):
    """Why a name is none, or None."""
    if not isinstance(name, (str, int)) or isinstance(name, bool) or not _NAME.fullmatch(str(name)):
        return f'{json.dumps(name, ensure_ascii=False)} is not a name: 1 to 32 of a-z, 0-9 and "-"'
    return None


def mappings(value):
    """The mappings of a list; what is none of that is for edgectl to refuse."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def check(reader, fleet):
    _unique(reader, fleet.sites, "site")
    _unique(reader, fleet.nodes + fleet.routers, "box")
    _keys(reader, fleet.nodes)
    names = [site.name for site in fleet.sites]
    for node in fleet.nodes + fleet.routers:
        if node.name in _TAKEN:
            reader.fail(node.path + ".name", f'"{node.name}" is a group of the inventory: take another name')
    for router in fleet.routers:
        if router.site is not None and router.site not in names:
            reader.fail(router.path + ".site", f'there is no site "{router.site}"; {_list(names)}')
    for key in _MADE:
        if key in fleet.fleet:
            reader.fail("fleet." + key, "it is made of the list of sites at the top: take this key out")
    if fleet.sites and not fleet.nodes:
        reader.fail("sites", "no site has a node")
    _floors(reader, fleet, names)


def _list(names):
    return "there are " + ", ".join(names) if names else "there are none"


def _unique(reader, all_of, what):
    first = {}
    for one in all_of:
        if one.name and one.name in first:
            line = reader.place(first[one.name])[0]
            reader.fail(one.path + ".name", f'there is another {what} "{one.name}", in line {line}')
        first.setdefault(one.name, one.path + ".name")


def _keys(reader, nodes):
    """Who has the key of another can speak for it."""
    first = {}
    for node in nodes:
        key = node.roster.get("public_key")
        if key is None:
            continue
        if key in first:
            reader.fail(node.path, f"it has the public key of {first[key]}: each node has its own")
        first.setdefault(key, node.name)


def _floors(reader, fleet, names):
    serving = [site.name for site in fleet.sites if site.nodes]
    prefixes = fleet.fleet.get("prefixes")
    for i, prefix in enumerate(prefixes if isinstance(prefixes, list) else ()):
        if not isinstance(prefix, dict):
            continue
        path, least, fixed = f"fleet.prefixes[{i}]", prefix.get("min_sites"), prefix.get("unconditional")
        fixed = fixed if isinstance(fixed, list) else []
        for j, name in enumerate(fixed):
            if name not in names:
                reader.fail(f"{path}.unconditional[{j}]", f'there is no site "{name}"; {_list(names)}')
        count = len([name for name in fixed if name in serving]) if fixed else len(serving)
        if isinstance(least, int) and not isinstance(least, bool) and count and least > count - 1:
            reader.fail(f"{path}.min_sites", f"{least} other sites must stay, and {count - 1} there are: none could ever leave")
