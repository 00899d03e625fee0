# SPDX-License-Identifier: Apache-2.0
"""Whether the times that a rollout goes by are lengths of time, and fit together. Pure."""

from __future__ import annotations

from ansible_collections.catchment.edge.plugins.module_utils import durations

# rollout_ and this is the variable of an operator.
NAMES = ("soak", "canary_soak", "permit_wait", "drain_wait", "drain_for", "return_wait", "upgrade_wait", "well_wait", "healthy_interval", "lock_for")


def judge(times):
    """(refused, told) of lengths as an operator writes them, by the names of NAMES. What
    is not given is not judged."""
    refused, have = [], {}
    for name in NAMES:
        if times.get(name) is None:
            continue
        try:
            have[name] = durations.seconds(times[name], f"rollout_{name}")
        except ValueError as err:
            refused.append(str(err))
    for name in ("healthy_interval", "lock_for"):
        if have.get(name) == 0:
            refused.append(f"rollout_{name}: it is to be above 0")
    return refused, [] if refused else _told(have)


def _told(have):
    out = []
    away = sum(have.get(n, 0) for n in ("drain_wait", "return_wait")) + 2 * have.get("upgrade_wait", 0)
    if 0 < have.get("drain_for", 0) < away:
        out.append(f"rollout_drain_for is {durations.words(have['drain_for'])}, and a node may take {durations.words(away)} from its drain to its return: "
                   "one that is late announces itself what it finds healthy")
    batch = away + have.get("permit_wait", 0) + have.get("return_wait", 0) + max(have.get("soak", 0), have.get("canary_soak", 0)) + have.get("well_wait", 0)
    if 0 < have.get("lock_for", 0) < batch:
        out.append(f"rollout_lock_for is {durations.words(have['lock_for'])}, and a batch may take {durations.words(batch)}: "
                   "the lock, which each batch renews, may end within one")
    return out
