# SPDX-License-Identifier: Apache-2.0
"""What an appliance says of its boot: /run/edge-image and edgectl slots. Reading
apart from judging: parse is pure."""

from __future__ import annotations

import json
import os
import re

IMAGE_DIR = "/run/edge-image"
_MAX = 256 << 10  # bytes of a file, as edged reads it
_LINE = re.compile(r"^(edge_boot_[a-z_]+)(?:\{(.*)\})?\s+([0-9.eE+-]+)\s*$")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def read(folder=IMAGE_DIR):
    """metrics.prom of an appliance; None on another system, "" before it is there."""
    if not os.path.isdir(folder):
        return None
    try:
        with open(os.path.join(folder, "metrics.prom"), encoding="utf-8", errors="replace") as f:
            return f.read(_MAX)
    except FileNotFoundError:
        return ""


def samples(text):
    """(name, labels, value) of each line of the text format that is ours."""
    for line in text.splitlines():
        m = _LINE.match(line)
        if m:
            labels = {k: re.sub(r"\\.", lambda e: _ESCAPE.get(e.group(), e.group()), v) for k, v in _LABEL.findall(m.group(2) or "")}
            yield m.group(1), labels, float(m.group(3))


def facts(metrics, slots=None, error=None):
    """What is known of the boot: version, slot, good (None: not judged yet), failed
    checks, refused versions, rollbacks, staged and next version. slots is the JSON
    of edgectl slots, or None; error is why that could not be had."""
    out = {"version": None, "slot": None, "good": None, "failed": [], "refused": [], "rollbacks": [],
           "next": None, "staged": None, "slots": [], "error": error}
    for name, labels, value in samples(metrics):
        if name == "edge_boot_version":
            out["version"], out["slot"] = labels.get("version"), labels.get("slot")
        elif name == "edge_boot_good":
            out["good"] = value == 1
        elif name == "edge_boot_check_failed":
            out["failed"].append(labels.get("check"))
        elif name == "edge_boot_refused":
            out["refused"].append({"version": labels.get("version"), "check": labels.get("reason"), "reason": None})
        elif name == "edge_boot_rollback_total":
            out["rollbacks"].append({"from": labels.get("from"), "check": labels.get("reason"), "times": int(value)})
    if slots is not None:
        _add_slots(out, slots)
    return out


def _add_slots(out, slots):
    out["next"] = slots.get("next") or None
    for s in slots.get("slots") or []:
        out["slots"].append({k: s.get(k) for k in ("slot", "version", "runs", "state", "tries")})
        if s.get("runs"):
            out["version"], out["slot"] = s.get("version") or out["version"], s.get("slot") or out["slot"]
        elif s.get("state") == "staged":
            out["staged"] = s.get("version")
    out["refused"] = [{"version": r.get("version"), "check": r.get("check"), "reason": r.get("reason")} for r in slots.get("refused") or []]


def parse_slots(code, stdout, stderr):
    """(slots, error) of a run of edgectl slots -o json."""
    if code != 0:
        return None, f"edgectl slots: {(stderr or stdout).strip() or f'exit code {code}'}"
    try:
        out = json.loads(stdout)
    except ValueError:
        return None, "edgectl slots: its answer is not JSON"
    return (out, None) if isinstance(out, dict) else (None, "edgectl slots: its answer is not an object")
