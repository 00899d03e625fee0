# SPDX-License-Identifier: Apache-2.0
"""Whether a box that gets another file of gossip keys still hears the others. Pure."""

from __future__ import annotations

from ansible_collections.catchment.edge.plugins.module_utils import keyring


def why_deaf(status, content):
    """Why a box that goes by the keys of content would not hear those that it hears now,
    or not be heard by them; None if it would, or if nothing tells. Of the others it is
    known only that they hear this one: they have its first key. A box that most do not
    hear anyway, such as one that was left out of a rotation, has nothing to lose."""
    guard = (status or {}).get("guard") or {}
    used, others = guard.get("keys") or [], _others(status)
    heard = [m for m in others if _heard(guard, m)]
    try:
        new = keyring.parse(content, "the file of gossip keys").names
    except keyring.Refused:
        return None  # edged says what is wrong with it
    if not used or not heard or 2 * len(heard) < len(others):
        return None
    if new[0] in used and used[0] in new:
        return None
    return (
        f"this box encrypts its gossip with the key {used[0]} and hears {len(heard)} of {len(others)} others by it; the file in the folder of secrets "
        f"has {', '.join(new)}, by which they would not hear each other any more. If that file is an old one, put the last one back (it is committed after "
        "each rotation); to change the key, use the playbook rotate_keys"
    )


def _others(status):
    members = ((status or {}).get("guard") or {}).get("members") or []
    return [m for m in members if m.get("node") != status.get("node")]


def _heard(guard, member):
    return 0 <= member.get("age_ns", -1) <= (guard.get("fresh_ns") or 0)
