#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: edge_drain
short_description: Have a node leave with the guard's permit, or come back
description:
  - C(drained) orders C(edged) to leave, and with C(wait) returns when all is off the air and nothing is served any
    more, as C(edgectl drain --wait) does. If that is not so in time, it fails with who refused and why, and takes its own order
    back, unless C(keep) is set.
  - C(undrained) takes the order back, if the node is healthy or becomes so within 10 s of C(wait), and with C(wait) returns when its routers hold what it announces.
  - An order of somebody else is neither replaced nor taken back. An order is known again by its C(owner), or without
    one by its C(reason).
  - It never forces anything past the guard. C(edgectl drain --force) does, by hand.
options:
  state:
    description: Whether the node is to be drained.
    type: str
    choices: [drained, undrained]
    default: drained
  reason:
    description: Why, in a few words. With C(owner) it is kept as C(rollout OWNER, then the reason), 500 bytes in all.
    type: str
    required: true
  owner:
    description: Whose order it is, such as the id of a rollout.
    type: str
    default: ""
  prefix:
    description: The prefix to leave. Without it and C(service), the whole node.
    type: str
    default: ""
  service:
    description: The service whose prefix is to be left.
    type: str
    default: ""
  for:
    description: >-
      After how long the order ends by itself, whatever becomes of who gave it; C(0) is never. One of ours with less than half of that left
      is given again.
    type: str
    default: "0"
  wait:
    description: How long to wait until it is so; C(0) returns once it is ordered.
    type: str
    default: "0"
  interval:
    description: The pause between two looks.
    type: str
    default: 250ms
  keep:
    description: Leave the order in force if the node is not off the air in time.
    type: bool
    default: false
  force:
    description: Undrain a node though it is not healthy. It overrules neither the guard nor other owners.
    type: bool
    default: false
extends_documentation_fragment: [catchment.edge.edged, catchment.edge.edged.health]
attributes:
  check_mode:
    description: It says what would be ordered, and by the guard's estimate whether the node could leave.
    support: full
  diff_mode:
    description: The orders before and after.
    support: full
author: Catchment maintainers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Drain the node for new firmware, until it may be switched off
  catchment.edge.edge_drain:
    reason: new firmware
    for: 2h
    wait: 10m

- name: Drain it as a part of a rollout
  catchment.edge.edge_drain:
    reason: upgrade to 1.3.0
    owner: "{{ rollout_id }}"
    for: 30m
    wait: 10m

- name: Take that back, once it is healthy
  catchment.edge.edge_drain:
    state: undrained
    reason: upgrade to 1.3.0
    owner: "{{ rollout_id }}"
    wait: 2m
"""

RETURN = r"""
ours:
  description: Our order, in words; null if there is none.
  type: str
  returned: always
others:
  description: Orders of others for the same, in words.
  type: list
  elements: str
  returned: always
left:
  description: What is still announced or served, and why; of an undrain what is not announced again.
  type: list
  elements: str
  returned: always
in_the_way:
  description: Who keeps it from leaving, with prefix, node (null for none in particular) and why.
  type: list
  elements: dict
  returned: if it is not off the air in time, and in check mode
taken_back:
  description: Whether our order was taken back since it did not succeed.
  type: bool
  returned: if it is not off the air in time
marked:
  description: >-
    Of a drain, for each router that held something: whether all of it was seen marked with 65535:0 before it was withdrawn. False says that
    a router may have been without a route for a moment. Routers that held nothing from the first look on are not named.
  type: dict
  returned: always
waited:
  description: How many seconds were waited.
  type: float
  returned: always
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.catchment.edge.plugins.module_utils import boot, durations, edged, looking, orders, readiness, routes, turn

SETTLE = 10  # seconds, at most, that a node has to be healthy before an undrain


class Order:
    """What is asked for."""

    def __init__(self, module):
        p = module.params
        self.module, self.owner = module, " ".join(p["owner"].split())
        self.scope = {"prefix": p["prefix"], "service": p["service"]}
        self.reason = orders.full_reason(self.owner, p["reason"])
        self.length = durations.seconds(p["for"], "for")
        self.client, self.looks = looking.begin(module)
        self.marks = routes.Marks(self.scope)

    def split(self, status):
        return orders.split(status, self.scope, self.owner, self.reason)

    def end(self, status, changed, before, **more):
        """The answer of the module, in the form of all its ends."""
        ours, others = self.split(status)
        now = time.time()
        out = {"changed": changed, "ours": readiness.drain_text(ours, now) if ours else None,
               "others": [readiness.drain_text(o, now) for o in others],
               "left": [], "marked": self.marks.by_peer(), "waited": self.looks.waited(),
               "diff": {"before": drains_text(before), "after": drains_text(status)}}
        out.update(more)
        return out


def drains_text(status):
    return "".join(readiness.drain_text(d) + "\n" for d in status.get("drains") or []) or "not drained\n"


def refuse_others(o, status, verb):
    """Whoever drains a node perhaps has his hands in it."""
    ours, others = o.split(status)
    if others:
        whose = "; ".join(readiness.drain_text(d, time.time()) for d in others)
        o.module.fail_json(msg=f"this order is not ours to {verb}: {whose}. Nothing was changed; whoever gave it takes it back: {remedy(others[0])}",
                           **o.end(status, False, status))
    return ours


def remedy(drain):
    if drain.get("by_file"):
        return "take its line out of node.drain_file"
    if drain.get("stop"):
        return "it ends by itself when edgebgp runs again"
    return "edgectl undrain " + (f"--service {drain['service']}" if drain.get("service") else drain.get("prefix") or "")


def drain(o):
    module, before = o.module, o.client.status()
    ours = refuse_others(o, before, "replace")
    now = time.time()
    give = orders.must_order(ours, o.length, now)
    if module.check_mode:
        check_drain(o, before, give, now)
    status = o.client.drain(orders.order(o.scope, o.reason, o.length, now)) if give else before
    status, left = await_left(o, status)
    if o.looks.length == 0 or not left:
        module.exit_json(**o.end(status, give, before, left=left if o.looks.length else []))
    not_drained(o, before, status, left, give)


def check_drain(o, status, give, now):
    left = orders.left(status, o.scope)
    way = turn.judge(status, o.client.guard_what_if(status.get("site")), 1) if left else []
    planned = dict(status, drains=list(status.get("drains") or []))
    if give:
        planned["drains"] = [d for d in planned["drains"] if d is not o.split(status)[0]] + [orders.order(o.scope, o.reason, o.length, now)]
    o.module.exit_json(**o.end(planned, give, status, left=left, in_the_way=way))


def await_left(o, status):
    """The last status, and what is left; of an edged that does not answer for a moment
    that of before."""
    left, silent = orders.left(status, o.scope), None
    o.marks.look(status)
    while (left or silent) and o.looks.pause():
        try:
            status, silent = o.client.status(), None
            left = orders.left(status, o.scope)
            o.marks.look(status)
            if o.split(status)[0] is None:
                return status, left + ["our order is gone: it has ended, or somebody took it back"]
        except edged.EdgedError as err:
            silent = str(err)
    return status, left + ([silent] if silent else [])


def not_drained(o, before, status, left, changed):
    way = orders.in_the_way(status, o.scope)
    back, error = False, None
    if not o.module.params["keep"]:
        try:
            status, back = take_back(o, status)
        except edged.EdgedError as err:
            error = str(err)
    what = "our order was taken back" if back else f"our order could not be taken back: {error}" if error else "our order stays in force"
    ours = o.split(status)[0]
    if ours is None and not back:
        what = "no order of ours is in force"
    reasons = [orders.way_text(w) for w in way] or left
    o.module.fail_json(
        msg=f"{status.get('node') or 'the node'} is not off the air within {o.module.params['wait']}: {'; '.join(reasons)}. {what[0].upper()}{what[1:]}",
        **o.end(status, changed and not back, before, left=left, in_the_way=way, taken_back=back))


def take_back(o, status):
    """Look first whether it is still ours: somebody may have replaced it meanwhile."""
    status = o.client.status()
    if o.split(status)[0] is None:
        return status, False
    return o.client.undrain(scope_of(o)), True


def scope_of(o):
    return {k: v for k, v in o.scope.items() if v}


def undrain(o):
    module, before = o.module, o.client.status()
    ours = o.split(before)[0]
    if ours is None:
        refuse_others(o, before, "take back")
        left = await_back(o, before)[1] if not module.check_mode else []
        finish_undrain(o, before, before, False, left)
    before, unhealthy = settled(o, before)
    if o.split(before)[0] is None:  # it has ended, or somebody has replaced it meanwhile
        undrain(o)
    if unhealthy and not module.params["force"]:
        module.fail_json(msg=f"{before.get('node')} is not healthy, and stays drained: {'; '.join(unhealthy)}. Mend it, or use force: true",
                         **o.end(before, False, before, left=unhealthy))
    if module.check_mode:
        after = dict(before, drains=[d for d in before.get("drains") or [] if d is not ours])
        module.exit_json(**o.end(after, True, before))
    status, left = await_back(o, o.client.undrain(scope_of(o)))
    finish_undrain(o, before, status, True, left)


def settled(o, status):
    """The last status, and why the node is not healthy: what passes within seconds, such as
    a box that was too busy to judge, is no reason."""
    settling = looking.Looks(min(o.looks.rest(), SETTLE), o.looks.interval)
    while True:
        unhealthy, _ = readiness.judge(status, time.time(), boot.facts(o.module), o.module.params["ignore_alarms"])
        if not unhealthy or o.module.check_mode or o.module.params["force"] or not settling.pause():
            return status, unhealthy
        status = o.client.status()


def finish_undrain(o, before, status, changed, left):
    if left and o.looks.length:
        o.module.fail_json(msg=f"{status.get('node') or 'the node'} is not announced again within {o.module.params['wait']}: {'; '.join(left)}. "
                           "It is not drained any more; edgectl explain PREFIX says more", **o.end(status, changed, before, left=left))
    o.module.exit_json(**o.end(status, changed, before))


def await_back(o, status):
    left = orders.not_back(status, o.scope)
    while left and o.looks.pause():
        try:
            status = o.client.status()
            left = orders.not_back(status, o.scope)
        except edged.EdgedError as err:
            left = [str(err)]
    return status, left


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["drained", "undrained"], "default": "drained"},
            "reason": {"type": "str", "required": True},
            "owner": {"type": "str", "default": ""},
            "prefix": {"type": "str", "default": ""},
            "service": {"type": "str", "default": ""},
            "for": {"type": "str", "default": "0"},
            "wait": {"type": "str", "default": "0"},
            "interval": {"type": "str", "default": "250ms"},
            "keep": {"type": "bool", "default": False},
            "force": {"type": "bool", "default": False},
            **looking.EDGED,
            **looking.HEALTH,
        },
        supports_check_mode=True,
    )
    if module.params["prefix"] and module.params["service"]:
        module.fail_json(msg="a prefix and a service are named: one order drains one of them")
    try:
        o = Order(module)
    except ValueError as err:
        module.fail_json(msg=str(err))
    try:
        drain(o) if module.params["state"] == "drained" else undrain(o)
    except edged.Refused as err:
        module.fail_json(msg=f"edged refused the order: {err}")
    except edged.EdgedError as err:
        module.fail_json(msg=str(err))


if __name__ == "__main__":
    main()
