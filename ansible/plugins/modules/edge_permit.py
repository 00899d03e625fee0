#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: edge_permit
short_description: Wait until the guard would let a node leave, and say who is in the way
description:
  - Asks C(edged) whether this node could leave each prefix that it announces, by what its guard has heard, until it
    could or C(wait) is over. Then it fails, and names who is in the way and why.
  - It waits for its turn as well, as C(max_planned) of C(fleet.guard) has it.
  - It changes nothing, and nobody is asked. It is an estimate; the promises that a drain asks for decide.
options:
  wait:
    description: How long to wait, for example C(10m); C(0) looks once.
    type: str
    default: 10m
  interval:
    description: The pause between two looks.
    type: str
    default: 1s
  max_planned:
    description: So many sites may be leaving by an order at a time, as C(fleet.guard.max_planned) says.
    type: int
    default: 1
extends_documentation_fragment: [catchment.edge.edged.reads, catchment.edge.edged]
author: Catchment maintainers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Wait until this node may leave
  catchment.edge.edge_permit:
    wait: 10m
    max_planned: "{{ edge_fleet.guard.max_planned | default(1) }}"
"""

RETURN = r"""
permitted:
  description: Whether it could leave everything that it announces.
  type: bool
  returned: always
in_the_way:
  description: Who is in the way, with prefix (null for all), site, node and why.
  type: list
  elements: dict
  returned: always
waited:
  description: How many seconds were waited.
  type: float
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.catchment.edge.plugins.module_utils import durations, edged, looking, turn


def look(client, max_planned):
    """(who is in the way, the name of the node)."""
    status = client.status()
    if not status.get("decisions"):
        return [{"prefix": None, "site": None, "node": None, "why": "edged has decided on no prefix yet"}], status.get("node")
    return turn.judge(status, client.guard_what_if(status.get("site")), max_planned), status.get("node")


def main():
    module = AnsibleModule(
        argument_spec={
            **looking.EDGED,
            "wait": {"type": "str", "default": "10m"},
            "interval": {"type": "str", "default": "1s"},
            "max_planned": {"type": "int", "default": 1},
        },
        supports_check_mode=True,
    )
    p = module.params
    client, looks = looking.begin(module)
    if p["max_planned"] < 1:
        module.fail_json(msg="max_planned is to be 1 or more")
    node = None
    while True:
        try:
            way, node = look(client, p["max_planned"])
        except edged.EdgedError as err:
            way = [{"prefix": None, "site": None, "node": node, "why": str(err)}]
        waited = looks.waited()
        if not way:
            module.exit_json(changed=False, permitted=True, in_the_way=[], waited=waited)
        if not looks.pause():
            module.fail_json(
                msg=f"{node or 'the node'} may not leave, after {durations.words(waited)}: " + "; ".join(turn.text(w) for w in way)
                    + ". Nothing was changed; mend or undrain those, or wait longer (edgectl guard shows the same)",
                permitted=False, in_the_way=way, waited=waited)


if __name__ == "__main__":
    main()
