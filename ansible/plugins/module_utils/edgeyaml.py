# SPDX-License-Identifier: Apache-2.0
"""Writes an edge.yaml: the same data give the same bytes, and a person can read
them. Pure; for the controller, as it needs PyYAML."""

from __future__ import annotations

import json
import re

import yaml

_WIDE = 200  # characters of JSON, more than what stands in brackets
_HEAD = "# Made from fleet.yaml by catchment.edge: change that file, this one is replaced.\n"


class _Dumper(yaml.SafeDumper):
    """Knows no type but text and nothing: edge.yaml goes by what stands there, so that
    numbers must not be quoted, and words like "on" need not be."""

    yaml_implicit_resolvers: dict = {}

    def ignore_aliases(self, data):
        return True

    def increase_indent(self, flow=False, indentless=False):
        # Lists are indented below their key, as in the reference.
        return super().increase_indent(flow, False)


_Dumper.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])


def plain(value):
    """Copies value to plain types: Ansible has its own kinds of text and of lists."""
    return json.loads(json.dumps(value))


def render(config):
    """The text of edge.yaml: node first, then fleet, each with a line between its parts."""
    config = plain(config)
    parts = [_HEAD]
    for name in ("node", "fleet"):
        parts.append("\n" + _dump({name: config.get(name)}))
    return "".join(parts)


def _dump(data):
    return yaml.serialize(_node(data, 0), Dumper=_Dumper, allow_unicode=True, width=1 << 20)


def _node(value, depth):
    if isinstance(value, dict):
        pairs = [(_text(key), _node(item, depth + 1)) for key, item in value.items()]
        return yaml.MappingNode("tag:yaml.org,2002:map", pairs, flow_style=_short(value, depth))
    if isinstance(value, list):
        items = [_node(item, depth + 1) for item in value]
        return yaml.SequenceNode("tag:yaml.org,2002:seq", items, flow_style=_short(value, depth))
    return _text(value)


def _short(value, depth):
    """In brackets goes what is flat, and what is empty; a section stays a block."""
    if not value:
        return True
    if isinstance(value, dict) and depth < 3:
        return False
    below = value.values() if isinstance(value, dict) else value
    flat = all(not isinstance(item, dict) or not item for item in below)
    flat = flat and all(not isinstance(item, list) or all(not isinstance(x, (dict, list)) for x in item) for item in below)
    return flat and len(json.dumps(value)) <= _WIDE


def _text(value):
    if value is None:
        return yaml.ScalarNode("tag:yaml.org,2002:null", "null")
    if isinstance(value, bool):
        value = "true" if value else "false"
    text = value if isinstance(value, str) else repr(value)
    # What has lines of its own stands in one, in double quotes.
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')
