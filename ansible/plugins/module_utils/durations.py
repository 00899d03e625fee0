# SPDX-License-Identifier: Apache-2.0
"""Lengths of time as edge.yaml and edgectl write them (90s, 30m, 1h30m), or a
bare number of seconds; and the times of edged, which are RFC 3339."""

from __future__ import annotations

import datetime
import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MOST = 3660 * 86400.0  # ten years: more is a slip, and no time of a calendar or of a clock

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(\.\d+)?(Z|z|[+-]\d\d:\d\d)")


def seconds(text, name="it"):
    """Seconds of a length, as a float. ValueError says what is wrong with NAME."""
    value = str(text).strip()
    parts = _PART.findall(value)
    if _NUMBER.fullmatch(value):
        length = float(value)
    elif parts and "".join(n + u for n, u in parts) == value:
        length = sum(float(n) * _UNITS[u] for n, u in parts)
    else:
        raise ValueError(f"{name}: {value[:64]!r} is not a length of time such as 90s, 30m or 1h30m")
    if length > MOST:
        raise ValueError(f"{name}: {value[:64]!r} is longer than ten years")
    return length


def words(length):
    """A length in its two largest units, as edgectl shows it."""
    n = max(0.0, float(length))
    for big, small, size in (("d", "h", 86400), ("h", "m", 3600), ("m", "s", 60)):
        if n >= size:
            rest = int(n % size) // {"h": 3600, "m": 60, "s": 1}[small]
            return f"{int(n // size)}{big}{rest}{small}"
    return f"{n:.0f}s" if n >= 10 else f"{n:.1f}s"


def moment(text):
    """Seconds since the epoch of an RFC 3339 time; None for none, and for Go's zero."""
    m = _TIME.fullmatch(text or "")
    if not m or m.group(1) == "0001-01-01":
        return None
    zone = "+00:00" if m.group(4) in "Zz" else m.group(4)
    try:
        whole = datetime.datetime.fromisoformat(f"{m.group(1)}T{m.group(2)}{zone}").timestamp()
    except ValueError:
        return None
    return whole + float(m.group(3) or 0)


def stamp(at):
    """RFC 3339 in UTC, to the millisecond."""
    t = datetime.datetime.fromtimestamp(at, datetime.timezone.utc)
    return t.strftime("%Y-%m-%dT%H:%M:%S.") + f"{t.microsecond // 1000:03d}Z"


def clock(at):
    """A time for people, in UTC; "?" for None."""
    if at is None:
        return "?"
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
