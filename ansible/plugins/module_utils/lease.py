# SPDX-License-Identifier: Apache-2.0
"""The lock of a rollout on a box: who may take, renew and release it. Pure.

It ends by CLOCK_BOOTTIME, which nobody sets and which goes on in a suspend; the
boot id makes the lock of another boot void, since that clock began anew. since and
until are for people.
"""

from __future__ import annotations

import json

from ansible_collections.catchment.edge.plugins.module_utils import durations

MAX_TEXT = 500


class Clock:
    """The clocks of the box at one moment."""

    def __init__(self, wall, boot, boot_id):
        self.wall, self.boot, self.boot_id = wall, boot, boot_id


def parse(raw):
    """The lock in a file; None for none. ValueError if it is not one of ours."""
    if raw is None:
        return None
    try:
        lock = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(lock, dict) or not isinstance(lock.get("owner"), str) \
            or not _number(lock.get("until_boot")) or not isinstance(lock.get("boot_id"), str):
        raise ValueError("it has no owner, no end or no boot id")
    return lock


def _number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def holds(lock, clock):
    """Whether a lock is in force."""
    return lock is not None and lock["boot_id"] == clock.boot_id and lock["until_boot"] > clock.boot


def take(lock, owner, what, length, clock, force=False):
    """(new lock, why not): one of them is None. What is refused names owner and end."""
    if holds(lock, clock) and lock["owner"] != owner and not force:
        return None, refusal(lock, clock)
    since = lock["since"] if holds(lock, clock) and lock["owner"] == owner else durations.stamp(clock.wall)
    return {
        "owner": owner, "what": what, "since": since, "until": durations.stamp(clock.wall + length),
        "until_boot": round(clock.boot + length, 3), "boot_id": clock.boot_id,
    }, None


def release(lock, owner, clock, force=False):
    """(release it?, why not): one that has ended is released by anybody."""
    if lock is None:
        return False, None
    if holds(lock, clock) and lock["owner"] != owner and not force:
        return False, refusal(lock, clock)
    return True, None


def refusal(lock, clock):
    """Who holds it, for what, and until when."""
    left = durations.words(lock["until_boot"] - clock.boot)
    what = f" for {lock['what']}" if lock.get("what") else ""
    return (f"{lock['owner']} holds the lock{what} since {lock.get('since')}, and until {lock.get('until')} ({left} more) unless it is renewed; "
            "wait for that, or, if that rollout is dead, take it with force: true")


def shown(lock, clock):
    """The lock as a module returns it; None if none is in force."""
    if not holds(lock, clock):
        return None
    out = {k: lock.get(k) for k in ("owner", "what", "since", "until")}
    out["seconds_left"] = round(lock["until_boot"] - clock.boot, 1)
    return out
