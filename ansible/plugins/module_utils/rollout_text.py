# SPDX-License-Identifier: Apache-2.0
"""The report of a rollout as Markdown and as JSON. Pure."""

from __future__ import annotations

from ansible_collections.catchment.edge.plugins.module_utils import rollout_run, verify_text


def document(run):
    """The JSON report."""
    nodes = run.get("nodes") or {}
    counts = {}
    for n in nodes.values():
        counts[n["phase"]] = counts.get(n["phase"], 0) + 1
    return {k: run.get(k) for k in ("version", "back", "owner", "begun", "ended", "outcome", "stop", "batches", "left_out", "told", "nodes")} | {"counts": counts}


def remedy(name, node, run):
    """What to do about a node that has failed."""
    again = f"then run {'rollback' if run.get('back') else 'rollout'} again: it goes on with {name}"
    was = node.get("was")
    if was == "done":
        return f"it runs the version and has shown that it serves; its lock ends by itself; see that it is there, {again}"
    if was in (None, "waiting"):
        return f"it was not touched; mend what is named, {again}"
    if was in rollout_run.IDLE_DRAIN:
        return f"it was not upgraded; mend what is named, {again}"
    if was == "soaking":
        return f"it runs the version; {node.get('told') or 'look whether it is on the air'}; mend it, {again}; or take it back with the playbook rollback and --limit {name}"
    return f"unless somebody has undrained it, it stays off the air until its order to drain ends (edgectl status there); mend it, {again}; or take it back with the playbook rollback and --limit {name}"


def outcome(run, staged=False, check=False):
    """How it ended, in a line."""
    nodes, bad = run.get("nodes") or {}, rollout_run.failed(run)
    done = sum(1 for n in nodes.values() if n["phase"] == "done")
    if run.get("stop") or bad:
        return f"It was stopped, with {done} of {len(nodes)} nodes done" if run.get("stop") else f"{done} of {len(nodes)} nodes are done, and {len(bad)} have failed"
    if check:
        return "Nothing was changed"
    if staged:
        return f"Version {run['version']} is staged; the same command without rollout_stage_only goes on"
    return f"All {len(nodes)} nodes are {'back from' if run.get('back') else 'at'} version {run['version']}"


def told(run, files):
    """The end for whoever looks at the screen."""
    out = [run["outcome"] + (f": {run['stop']}" if run.get("stop") else "")]
    for n, why in rollout_run.failed(run).items():
        out.append(f"{n}: {why}. To do: {remedy(n, run['nodes'][n], run)}")
    if run.get("left_out"):
        out.append("left out: " + "; ".join(f"{n}: {w}" for n, w in sorted(run["left_out"].items())))
    if files:
        out.append(f"The report: {files[0]}")
    return "\n".join(out)


def plan(made, version, back):
    """A plan for whoever looks at the screen."""
    out = [f"{'back from' if back else 'to'} version {version}: {sum(len(b['nodes']) for b in made['batches'])} nodes in {len(made['batches'])} batches, {len(made['done'])} are done"]
    if made["load"] is not None:
        out[0] += f"; the fleet serves {made['load']:.0f} requests/s"
    out += [f"{i + 1}. {b['name']}: " + ", ".join(n + (f" (to {made['targets'][n]})" if back else "") for n in b["nodes"]) for i, b in enumerate(made["batches"])]
    out += [f"left out: {n}: {w}" for n, w in sorted(made["left_out"].items())]
    out += [f"to be known: {t}" for t in made["told"]]
    out += [f"refused: {r}" for r in made["refused"]]
    return out


def markdown(doc):
    """The same for people."""
    aim = f"Rollback from {doc['version']}" if doc["back"] else f"Rollout of {doc['version']}"
    told = ", ".join(f"{n} {phase}" for phase, n in sorted(doc["counts"].items())) or "no node"
    out = [f"# {aim}", "", f"{doc['outcome'] or 'It was cut'}. Begun {doc['begun']}, ended {doc['ended'] or '-'}, by {_text(doc['owner'])}: {told}.", ""]
    if doc["stop"]:
        out += [f"**Stopped**: {_text(doc['stop'])}", ""]
    failed = {n: v for n, v in sorted((doc["nodes"] or {}).items()) if v["phase"] == "failed"}
    if failed:
        out += ["## Failed", "", "| node | in | why | what to do |", "|---|---|---|---|"]
        out += [verify_text.row(n, v.get("batch") or "", v.get("reason") or "", remedy(n, v, doc)) for n, v in failed.items()]
        out.append("")
    if doc["left_out"]:
        out += ["## Left out", "", "| node | why |", "|---|---|"] + [verify_text.row(n, w) for n, w in sorted(doc["left_out"].items())] + [""]
    out += ["## Nodes", "", "| node | batch | state | since | note |", "|---|---|---|---|---|"]
    place = {n: i for i, b in enumerate(doc["batches"]) for n in b["nodes"]}
    for n, v in sorted((doc["nodes"] or {}).items(), key=lambda x: (place.get(x[0], -1), x[0])):
        out.append(verify_text.row(n, v.get("batch") or "", v["phase"], v.get("since") or "", v.get("reason") or v.get("told") or ""))
    if doc["told"]:
        out += ["", "## To be known", ""] + [f"- {_text(t)}" for t in doc["told"]]
    return "\n".join(out) + "\n"


def _text(text):
    return verify_text.cell(text)
