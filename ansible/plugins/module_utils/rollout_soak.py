# SPDX-License-Identifier: Apache-2.0
"""Whether a node serves as the rest of the fleet does, by the counters of both over the
same time. Pure."""

from __future__ import annotations

import math
import re

# min_requests: with fewer nothing is judged. A node fails if the share of its errors is
# above error_factor times that of the others and error_margin_percent, with min_errors
# at least; or if its quantile of the latency is above latency_factor times theirs and
# latency_margin_ms.
LIMITS = {"min_requests": 100.0, "error_factor": 3.0, "error_margin_percent": 0.5, "min_errors": 5.0,
          "handshake_margin_percent": 5.0, "quantile_percent": 95.0, "latency_factor": 2.0, "latency_margin_ms": 50.0}

_LINE = re.compile(r'^(edge_proxy_[a-z_]+)(?:\{(?:class|le|kind)="([^"]*)"\})?\s+([0-9.eE+-]+|\+Inf)\s*$')


def _number(text):
    """What counts: neither what is no number, nor one that spoils every sum."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def counters(text):
    """What is counted, of the text of /metrics of edgeproxy."""
    out = {"requests": 0.0, "errors": 0.0, "handshakes": 0.0, "handshake_errors": 0.0, "panics": 0.0, "latency": {}}
    for line in text.splitlines():
        m = _LINE.match(line)
        value = _number(m.group(3)) if m else None
        if value is None:
            continue
        name, label = m.group(1), m.group(2)
        if name == "edge_proxy_requests_total":
            out["requests"] += value
            out["errors"] += value if label == "5xx" else 0.0
        elif name == "edge_proxy_request_duration_seconds_bucket":
            if label == "+Inf" or _number(label) is not None:
                out["latency"][label] = value
        elif name == "edge_proxy_tls_handshakes_total":
            out["handshakes"] += value
        elif name == "edge_proxy_tls_handshake_errors_total":
            out["handshake_errors"] += value
        elif name == "edge_proxy_panics_total":
            out["panics"] += value
    return out


def between(before, after):
    """What was counted from one sample to the next; of a process that was started
    meanwhile all that it has counted."""
    plain = [k for k in after if k != "latency"]
    if any(after[k] < before.get(k, 0.0) for k in plain):
        before = {"latency": {}}
    out = {k: after[k] - before.get(k, 0.0) for k in plain}
    was = before.get("latency") or {}
    out["latency"] = {le: n - was.get(le, 0.0) for le, n in (after.get("latency") or {}).items()}
    return out


def started_again(first, now):
    """Which daemons run since another time than they did at first. first learns those
    that it does not know yet."""
    for name, since in now.items():
        first.setdefault(name, since)
    return [f"{n} was started again: journalctl -u {n}" for n in sorted(now) if now[n] != first[n]]


def total(parts):
    """The sum of what several nodes have counted."""
    out = counters("")
    for p in parts:
        for k in out:
            if k != "latency":
                out[k] += p.get(k, 0.0)
        for le, n in (p.get("latency") or {}).items():
            out["latency"][le] = out["latency"].get(le, 0.0) + n
    return out


def quantile(latency, percent):
    """Seconds under which so many percent of the requests were answered; None if there
    were none. Between the bounds of two buckets it goes straight."""
    bounds = sorted((float(le.replace("+Inf", "inf")), n) for le, n in latency.items())
    if not bounds or bounds[-1][1] <= 0:
        return None
    want, low, below = bounds[-1][1] * percent / 100, 0.0, 0.0
    for bound, n in bounds:
        if n >= want and n > below:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (want - below) / (n - below)
        low, below = bound, n
    return low


def limits_of(given):
    """LIMITS with those of an operator. ValueError names what is none."""
    out = dict(LIMITS)
    for key, value in (given or {}).items():
        if key not in LIMITS:
            raise ValueError(f"rollout_limits: {key} is none of {', '.join(sorted(LIMITS))}")
        try:
            out[key] = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"rollout_limits: {key}: {value!r} is no number") from None
    return out


def judge(batch, before, after, watched, limits):
    """(failed, told): reasons by node. before and after have the sample of each node,
    watched what was seen of those of the batch meanwhile."""
    parts = {n: between(before[n]["counters"], after[n]["counters"]) for n in after
             if (before.get(n) or {}).get("counters") and (after.get(n) or {}).get("counters")}
    rest = total(p for n, p in parts.items() if n not in batch)
    failed, told = {}, {}
    for n in batch:
        seen = watched.get(n) or {}
        bad = _unseen(seen, after.get(n) or {}) or _unready(seen)
        if bad:
            failed[n] = bad
            continue
        if n not in parts:
            why = (after.get(n) or {}).get("absent") or (before.get(n) or {}).get("absent") or "it was not asked"
            told[n] = f"its requests are not judged: {why}"
            continue
        bad, note = _node(parts[n], rest, limits)
        if bad:
            failed[n] = "; ".join(bad)
        elif note:
            told[n] = note
    return failed, told


def _unseen(watched, after):
    """Why nobody knows whether a node was ready all the time: what was not seen is not good."""
    for answer in (watched, after):
        if answer.get("unreachable") or answer.get("failed") or "counters" not in answer:
            return "it was not seen to the end of the soak: " + (" ".join(str(answer.get("msg") or "").split()) or "it has not answered")
    return None


def _unready(watched):
    bad = watched.get("unready") or []
    return "it was not ready in the soak: " + "; ".join(map(str, bad)) if bad else None


def _node(mine, rest, limits):
    n = mine["requests"]
    if mine["panics"] > 0 and rest["panics"] == 0:
        return [f"edgeproxy has panicked {mine['panics']:.0f} times, and nowhere else"], None
    bad = _share(mine, rest, limits, "handshake_errors", "handshakes", limits["handshake_margin_percent"], "TLS handshakes failed")
    if n < limits["min_requests"]:
        return bad, f"too little traffic to judge: {n:.0f} requests"
    bad += _share(mine, rest, limits, "errors", "requests", limits["error_margin_percent"], "requests ended with 5xx")
    if rest["requests"] < limits["min_requests"]:
        return bad, f"its latency is not judged: the others had {rest['requests']:.0f} requests"
    here, there = (quantile(p["latency"], limits["quantile_percent"]) for p in (mine, rest))
    if here is not None and there is not None and here > there * limits["latency_factor"] + limits["latency_margin_ms"] / 1000:
        bad.append(f"{limits['quantile_percent']:g} % of its requests were answered within {here * 1000:.0f} ms, and of the others' within {there * 1000:.0f} ms")
    return bad, f"{n:.0f} requests, {mine['errors']:.0f} errors" + (f", {limits['quantile_percent']:g} % within {here * 1000:.0f} ms" if here is not None else "")


def _share(mine, rest, limits, bad, of, margin, what):
    """Whether the share of what went wrong is above that of the others."""
    # A failed handshake is not among those that succeeded.
    all_mine, all_rest = ((p[of] + p[bad] if of == "handshakes" else p[of]) for p in (mine, rest))
    if mine[bad] < limits["min_errors"] or all_mine <= 0:
        return []
    here, there = mine[bad] / all_mine, rest[bad] / all_rest if all_rest > 0 else 0.0
    if here <= there * limits["error_factor"] + margin / 100:
        return []
    return [f"{here * 100:.2f} % of its {all_mine:.0f} {what}, and {there * 100:.2f} % at the others"]
