#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: edge_status
short_description: Say how a node stands, whether it is healthy and ready, and why not
description:
  - Reads the status of C(edged) over its unix socket, on an appliance also the state of its boot, and what an
    operator looks at beside. It changes nothing.
  - A node is B(healthy) if nothing is wrong with it but that it may be drained. That is to hold before an undrain.
  - A node is B(ready) if it is healthy, not drained, announced at its best, and its routers hold what it announces.
    That is to hold after one.
  - Without C(wait) it never fails, so that a silent C(edged) is an answer too (C(answers) is false).
options:
  wait:
    description: How long to wait until the node is what C(until) says; C(0) looks once and never fails.
    type: str
    default: "0"
  until:
    description: What is waited for.
    type: str
    choices: [healthy, ready]
    default: ready
  times:
    description: How often in a row it has to be so. One that is not begins the count anew.
    type: int
    default: 1
  interval:
    description: The pause between two looks.
    type: str
    default: 1s
  config:
    description: The configuration; C(config_in_force) says whether C(edged) has taken what is in it.
    type: path
    default: /etc/edge/edge.yaml
  disks:
    description: Paths whose file systems are looked at.
    type: list
    elements: path
    default: []
  certificates:
    description: Files with certificates, whose end is told.
    type: list
    elements: path
    default: []
  ring_seed_file:
    description: The secret of the ring. The first 8 hex digits of its SHA-256 are told, to compare boxes.
    type: path
  controller_clock:
    description: Seconds since the epoch on the controller, to compare the clocks of boxes with each other.
    type: float
extends_documentation_fragment: [catchment.edge.edged.reads, catchment.edge.edged, catchment.edge.edged.health]
author: Catchment maintainers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Look at the node
  catchment.edge.edge_status:
  register: here

- name: Wait until it is ready, three times in a row
  catchment.edge.edge_status:
    wait: 3m
    times: 3
    interval: 2s

- name: Wait until a drained node could be undrained
  catchment.edge.edge_status:
    wait: 3m
    until: healthy
"""

RETURN = r"""
answers:
  description: Whether edged has answered.
  type: bool
  returned: always
error:
  description: Why it has not; with what to do.
  type: str
  returned: always
healthy:
  description: Whether nothing is wrong with the node but that it may be drained.
  type: bool
  returned: always
ready:
  description: Whether it is healthy, not drained, announced at its best, and held by its routers.
  type: bool
  returned: always
unhealthy:
  description: Why it is not healthy.
  type: list
  elements: str
  returned: always
why_not:
  description: Why it is not ready; all of C(unhealthy), and more.
  type: list
  elements: str
  returned: always
node:
  description: Its name; C(site) is where it is.
  type: str
  returned: if edged answers
site:
  description: Its site.
  type: str
  returned: if edged answers
version:
  description: The version of edged that runs.
  type: str
  returned: if edged answers
boot:
  description: >-
    Of an appliance: version, slot, good (null while its checks run), failed (checks), refused (versions), rollbacks, staged, next (what
    the next reboot boots), slots. Null elsewhere.
  type: dict
  returned: always
decisions:
  description: Each prefix with rung, reason, health, on_air, unserved, holders (peers) and not_sent (peers, and why).
  type: list
  elements: dict
  returned: if edged answers
drains:
  description: Orders to drain, with scope, reason, since, until and seconds_left (null without an end).
  type: list
  elements: dict
  returned: if edged answers
peers:
  description: BGP peers with session, last_error, flaps, held, bfd, and watch for those that are only listened to.
  type: list
  elements: dict
  returned: if edged answers
alarms:
  description: Those of edged, worst first.
  type: list
  elements: str
  returned: if edged answers
probes:
  description: How many are up, and in not_up those that are not (at most 50).
  type: dict
  returned: if edged answers
services:
  description: The services, by id, vip, protocol and prefix.
  type: list
  elements: dict
  returned: if edged answers
prefers:
  description: Orders to move traffic that are in force.
  type: list
  elements: dict
  returned: if edged answers
guard:
  description: isolated, keys (short names of the gossip keys), prefixes (floor, needed, sites, silent, may_leave, lacks), members, asking (wishes and why not).
  type: dict
  returned: if edged answers
edgeproxy:
  description: Its pid (null if it does not answer) and whether it runs the configuration of edged.
  type: dict
  returned: if edged answers
generation:
  description: How often edged has applied a configuration since its start.
  type: int
  returned: if edged answers
config_hash:
  description: SHA-256 of the edge.yaml in force.
  type: str
  returned: if edged answers
config_in_force:
  description: Whether that is the file C(config) (C(yes) or C(no)), or why it is not known.
  type: str
  returned: if edged answers
config_error:
  description: Why the last reload was refused.
  type: str
  returned: if edged answers
started:
  description: When edged has started.
  type: str
  returned: if edged answers
time:
  description: When edged has made this status.
  type: str
  returned: if edged answers
box:
  description: disks, certificates, ring_seed, replaced (daemons whose program has been replaced since they were started), boot_id, clock_ahead (seconds).
  type: dict
  returned: always
waited:
  description: How many seconds were waited.
  type: float
  returned: always
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.catchment.edge.plugins.module_utils import boot, edged, hostfacts, looking, readiness, summary


def look(module, client):
    """One look at the node."""
    p = module.params
    here = boot.facts(module)
    out = {"boot": here, "answers": False, "error": None}
    try:
        status = client.status()
    except edged.EdgedError as err:
        out.update(error=str(err), healthy=False, ready=False, unhealthy=[str(err)], why_not=[str(err)])
        return out
    now = time.time()
    unhealthy, unready = readiness.judge(status, now, here, p["ignore_alarms"])
    out.update(summary.of(status, now))
    out.update(answers=True, healthy=not unhealthy, ready=not unready, unhealthy=unhealthy, why_not=unready,
               config_in_force=hostfacts.config_in_force(p["config"], status.get("config_hash")))
    return out


def box_facts(params):
    """What is beside edged."""
    ahead = params["controller_clock"]
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            boot_id = f.read().strip()
    except OSError:
        boot_id = None
    return {
        "disks": [hostfacts.disk(d) for d in params["disks"]],
        "certificates": [hostfacts.certificate_end(c) for c in params["certificates"]],
        "ring_seed": hostfacts.short_hash(params["ring_seed_file"]) if params["ring_seed_file"] else None,
        "replaced": hostfacts.replaced(),
        "boot_id": boot_id,
        "clock_ahead": None if ahead is None else round(time.time() - ahead, 3),
    }


def main():
    module = AnsibleModule(
        argument_spec={
            **looking.EDGED,
            **looking.HEALTH,
            "wait": {"type": "str", "default": "0"},
            "until": {"type": "str", "choices": ["healthy", "ready"], "default": "ready"},
            "times": {"type": "int", "default": 1},
            "interval": {"type": "str", "default": "1s"},
            "config": {"type": "path", "default": "/etc/edge/edge.yaml"},
            "disks": {"type": "list", "elements": "path", "default": []},
            "certificates": {"type": "list", "elements": "path", "default": []},
            "ring_seed_file": {"type": "path"},
            "controller_clock": {"type": "float"},
        },
        supports_check_mode=True,
    )
    p = module.params
    box = box_facts(p)  # first, since the clocks are compared by when this began
    client, looks = looking.begin(module)
    if p["times"] < 1:
        module.fail_json(msg="times is to be 1 or more")
    watch(module, client, looks, box)


def watch(module, client, looks, box):
    """Look until it has been so often enough, or the time is over."""
    p, streak = module.params, 0
    while True:
        out = look(module, client)
        out.update(box=box, waited=looks.waited(), changed=False)
        streak = streak + 1 if out[p["until"]] else 0
        if streak >= p["times"] or looks.length == 0:
            module.exit_json(**out)
        if not looks.pause():
            reasons = out["why_not"] if p["until"] == "ready" else out["unhealthy"]
            why = "; ".join(reasons) or f"it was so only {streak} times in a row, and {p['times']} are wanted"
            module.fail_json(msg=f"{out.get('node') or 'the node'} is not {p['until']} within {p['wait']}: {why}", **out)


if __name__ == "__main__":
    main()
