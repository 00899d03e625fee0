# SPDX-License-Identifier: Apache-2.0
"""The record of a rollout: who runs it, and how far each node is. Pure, but for the
look whether a process lives.

It lies in .rollout/ beside fleet.yaml, so that the same operator at the same controller
goes on at once after a run that was cut, and a run that lives is left alone.
"""

from __future__ import annotations

import os
import re

from ansible_collections.catchment.edge.plugins.module_utils import durations, shape

# What a node goes through. One that drains, and whose upgrade has not begun, may simply
# come back.
PHASES = ("waiting", "draining", "upgrading", "returning", "soaking", "done", "failed")
IDLE_DRAIN = ("draining",)

LOST = "it could not be reached any more, or a task failed in a way that was not expected: what Ansible has printed for it says more"
MAX_REASON = 4000  # characters

# The form of a record, as shape tells it.
_NODE = {"phase!": str, "reason": str, "since": str, "was": str, "told": str, "batch": str, "version": str}
FORM = {
    "owner!": str, "version!": str, "back!": bool, "state!": str, "begun": str, "ended": str, "outcome": str, "stop": str, "held": bool, "resumed": bool,
    "process": {"pid": shape.NUMBER, "started": shape.NUMBER, "boot_id": str, "host": str}, "left_out": {"*": str}, "told": [str],
    "batches": [{"name!": str, "nodes!": [str], "soak": str}], "nodes!": {"*": _NODE}, "got!": {"*": {"*": str}},
}

# They stand in file names, in the reason of a drain, which has 500 bytes, and in what
# Ansible takes for a template.
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~^:-]{0,63}")
_OWNER = re.compile(r"[\w.@+ -]{1,100}")


def misfit(run):
    """Why something is no record of ours; None if it is one."""
    why = "it is no object" if not isinstance(run, dict) else shape.misfit(run, FORM)
    before = None if why else run.get("before")
    return why or (misfit(before) if before is not None else None)


def unfit(version, owner):
    """Why a version or an owner cannot be; None if both can."""
    if not _VERSION.fullmatch(version):
        return f"rollout_version: {version[:70]!r} is no version: up to 64 letters, digits and .+~^:-"
    if not _OWNER.fullmatch(owner):
        return f"rollout_owner: {owner[:110]!r} is none: up to 100 letters, digits, spaces and ._@+-"
    return None


def started(pid):
    """When a process was started, in ticks since the boot; None if there is none."""
    try:
        with open(f"/proc/{int(pid)}/stat", encoding="utf-8", errors="replace") as f:
            fields = f.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return int(fields[19]) if len(fields) > 19 and fields[0] not in ("Z", "X") else None


def boot_id():
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            return f.read().strip()
    except OSError:
        return ""


def process(pid):
    """What a process is known by, also after its number was given again."""
    return {"pid": pid, "started": started(pid), "boot_id": boot_id()}


def alive(run):
    """Whether the process of a run lives. On another host the number says nothing."""
    who = (run or {}).get("process") or {}
    return (who.get("host") in (None, os.uname().nodename) and who.get("boot_id") == boot_id()
            and who.get("started") is not None and started(who.get("pid")) == who["started"])


def above(pid):
    """The processes that a process comes from."""
    out = []
    while pid and pid > 1 and pid not in out:
        out.append(pid)
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
                pid = int(f.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return out


def standing(run):
    """The last run that held anything. One that was refused before, by its plan or the
    lock of another, must not have the one forgotten that was cut in the middle."""
    while run and not run.get("held"):
        run = run.get("before")
    return run or None


def unreleased(run):
    """Whether a node may still have the lock of a run: it was cut, or lost one."""
    return bool(run) and (run.get("state") != "ended" or bool(run.get("stop")) or bool(failed(run)))


def begin(before, version, back, owner, who, now):
    """The record of a new run. before is the last one that stands: what it has noted of
    the same aim stays."""
    before = before or {}
    same = before.get("version") == version and bool(before.get("back")) == back
    nodes = {n: dict(v) for n, v in (before.get("nodes") or {}).items()} if same else {}
    return {
        "owner": owner, "version": version, "back": back, "state": "running", "process": who, "begun": durations.stamp(now),
        "ended": None, "outcome": None, "stop": None, "left_out": {}, "told": [], "batches": [], "nodes": nodes, "resumed": same and before.get("state") != "ended",
        "got": dict(before.get("got") or {}), "held": False, "before": before or None,
    }


def note(run, name, now, phase=None, reason=None, **more):
    """Note how far a node is."""
    node = run["nodes"].setdefault(name, {"phase": "waiting", "reason": None, "since": None})
    if phase is not None:
        if phase not in PHASES:
            raise ValueError(f"phase {phase} is none of {', '.join(PHASES)}")
        # A node that fails keeps how far it was: by that it is known what is left to do.
        if phase == "failed" and node["phase"] != "failed":
            node["was"] = node["phase"]
        if phase == "waiting":
            node.update(told=None)
        if phase in ("waiting", "done"):
            node.update(reason=None, was=None)
        if phase == "done" and node["phase"] == "soaking":
            run["got"].setdefault(more.get("version") or run["version"], {})[name] = durations.stamp(now)
        node.update(phase=phase, since=durations.stamp(now))
    if reason:
        node["reason"] = " ".join(str(reason).split())[:MAX_REASON]
    if more.get("told"):
        more["told"] = "; ".join(t for t in (node.get("told"), more["told"]) if t)
    node.update({k: v for k, v in more.items() if v})


def lose(run, name, now):
    """Note a node that has left the play without a word, and in which step."""
    phase = (run["nodes"].get(name) or {}).get("phase", "waiting")
    if phase != "failed":
        note(run, name, now, "failed", LOST if phase == "waiting" else f"while it was {phase}: {LOST}")


def plan(run, batches, finished, now):
    """Note a plan: what an earlier run has noted of nodes that are not in it is over."""
    names = [n for b in batches for n in b["nodes"]]
    run["batches"], old = batches, run["nodes"]
    run["nodes"] = {n: old[n] for n in old if n in finished or n in names}
    for n in finished:
        if (old.get(n) or {}).get("phase") != "done":
            note(run, n, now, "done", batch="before")
    for b in batches:
        for n in b["nodes"]:
            far = _how_far(old.get(n) or {}, b["name"])
            note(run, n, now, "waiting", batch=b["name"])
            if far:
                note(run, n, now, far)


def _reached(node):
    """How far a node is, or was when it failed."""
    return node.get("was") if node.get("phase") == "failed" else node.get("phase")


def _how_far(node, batch):
    """How far an earlier run has come with a node: what is to be released of it, and what
    to do about it, goes by that until its turn comes. So a soak that is cut again before it
    begins is not forgotten."""
    if batch != "resume":
        return "soaking" if batch == "soak again" else None
    phase = _reached(node)
    return phase if phase in ("draining", "upgrading", "returning") else None


def newest(run, version):
    """The nodes that got a version, the last first."""
    got = ((run or {}).get("got") or {}).get(version) or {}
    return sorted(got, key=lambda n: got[n], reverse=True)


def unproven(run):
    """Nodes that have the version, and of which nobody has seen that they serve as the others do."""
    return sorted(n for n, v in (run.get("nodes") or {}).items() if _reached(v) == "soaking")


def idle_drains(run):
    """Nodes whose drain is ours and whose upgrade has not begun."""
    return sorted(n for n, v in (run.get("nodes") or {}).items() if _reached(v) in IDLE_DRAIN)


def failed(run):
    return {n: v.get("reason") or "no reason is known" for n, v in sorted((run.get("nodes") or {}).items()) if v.get("phase") == "failed"}
