# SPDX-License-Identifier: Apache-2.0
"""The form of what edged says, as far as it is gone by here. What has another form is
of an edged that this collection does not know: nothing is decided by it. Pure.

A mapping is given by its keys, "*" for any; a list by its elements. A value may be
missing or null, but not where the key ends in "!" or is "*", nor in a list."""

from __future__ import annotations

NUMBER, ANY = (int, float), object

_PREFIX = {"prefix!": str}
_WHY = {"reason": str, "lacks": str, "ok": bool}
_NAMES = {"*": str}
_ROUND = {"nacked": _NAMES, "waiting": [str], "silent": [str]}
_CLAIM = dict(_PREFIX, rung=str, health=str, reason=str, severity=NUMBER, announcing=bool, drained=bool)

STATUS = {
    "node": str, "site": str, "version": str, "time": str, "started": str, "generation": NUMBER, "config_hash": str, "config_error": str,
    "speaker_error": str, "alarms": [str],
    "drains": [{"reason": str, "prefix": str, "service": str, "since": str, "until": str, "by_file": bool, "stop": bool}],
    "decisions": [dict(_PREFIX, rung=str, since=str, reason=str, unserved=bool)],
    "conditions": [dict(_PREFIX, health=str, reason=str, min_sites=NUMBER)],
    "probes": [{"probe": str, "state": str, "last_error": str}],
    "services": [{"id": str, "prefix": str}],
    "speaker": {
        "started": str, "stopping": str, "expired": bool,
        "speaker": {"resting": bool, "peers": [{"id!": str, "watch": bool, "prefixes": [str]}]},
        "peers": [{
            "id!": str, "address": str, "session": str, "last_error": str, "families": [str], "pending": ANY,
            "held": [_PREFIX], "not_sent": [dict(_PREFIX, reason=str)], "bfd": {"state": str, "last_error": str, "diag": str},
        }],
    },
    "guard": {
        "isolated": bool, "fresh_ns": NUMBER, "keys": [str], "node_keys": _NAMES, "asking": {"*": _WHY},
        "members": [{"node!": str, "site": str, "age_ns!": NUMBER, "report": {"claims": [_CLAIM]}}],
        "prefixes": [dict(_PREFIX, floor=NUMBER, needed=NUMBER, sites=[str], may_leave=NUMBER, lacks=str, round=_ROUND)],
        "past": [dict(_ROUND, prefix=str, forced=bool, left=ANY)],
        "suspects": [{"cause": str, "trusted": bool}], "trust": [{"check": str}],
    },
    "proxy": {"pid": NUMBER, "started": str, "config_hash": str, "ticket_keys": [str], "ticket_error": str},
}

WHAT_IF = {"prefixes": [dict(_PREFIX, ok=bool, site=str, reason=str)]}


def misfit(value, shape, path=""):
    """Where a value has another form, and which; None if it fits."""
    if value is None or shape is ANY:
        return None
    if isinstance(shape, dict):
        return _mapping(value, shape, path) if isinstance(value, dict) else _not(path, value, "an object")
    if isinstance(shape, list):
        return _each(enumerate(value), shape[0], path, "[{}]") if isinstance(value, list) else _not(path, value, "a list")
    # For Python true is a number.
    if not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        return _not(path, value, {str: "a text", bool: "true or false"}.get(shape, "a number"))
    return None


def _mapping(value, shape, path):
    if "*" in shape:
        return _each(value.items(), shape["*"], path, ".{}")
    for key, form in shape.items():
        name = key.rstrip("!")
        at, item = f"{path}.{name}" if path else name, value.get(name)
        why = f"{at} is missing" if key != name and item is None else misfit(item, form, at)
        if why:
            return why
    return None


def _each(items, form, path, step):
    for key, item in items:
        at = path + step.format(key)
        why = f"{at} is null" if item is None else misfit(item, form, at)
        if why:
            return why
    return None


def _not(path, value, wanted):
    return f"{path or 'it'} is {type(value).__name__}, not {wanted}"
