#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: edge_routes
short_description: Say which routes of a node its routers hold and how they are marked
description:
  - Asks C(edged) what C(edgebgp) has written to each router, which is read back from the sessions, and waits until that is so.
  - It changes nothing. Peers that are only listened to (C(watch)) are left out.
options:
  until:
    description:
      - C(full) is that all that the node announces is at its best, held by every router that is to hold it, and not marked with 65535:0.
      - C(leaving) is that nothing is at its best, and each route that is still held is marked with 65535:0 (RFC 8326), so that routers prefer others.
      - C(gone) is that no router holds anything.
      - Without it, it looks once.
    type: str
    choices: [full, leaving, gone]
  wait:
    description: How long to wait for that; C(0) looks once, and fails if it is not so.
    type: str
    default: "0"
  interval:
    description: The pause between two looks.
    type: str
    default: 250ms
  prefix:
    description: One prefix. Without it and C(service), all of the node.
    type: str
    default: ""
  service:
    description: The service whose prefix is looked at.
    type: str
    default: ""
extends_documentation_fragment: [catchment.edge.edged.reads, catchment.edge.edged]
author: Catchment maintainers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Look which routes are out
  catchment.edge.edge_routes:
  register: routes

- name: Wait until every router that still holds something sees it as the last resort
  catchment.edge.edge_routes:
    until: leaving
    wait: 30s

- name: Wait until the routers have all routes again
  catchment.edge.edge_routes:
    until: full
    wait: 2m
"""

RETURN = r"""
routes:
  description: >-
    One for each prefix and router, with prefix, peer, rung, sent (whether the router holds it), why (it does not), communities, prepend,
    med and marked (with 65535:0).
  type: list
  elements: dict
  returned: always
lacks:
  description: What is not as C(until) has it.
  type: list
  elements: str
  returned: always
waited:
  description: How many seconds were waited.
  type: float
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.catchment.edge.plugins.module_utils import edged, looking, routes


def look(client, scope, until):
    status = client.status()
    return {"routes": routes.table(status, scope), "lacks": routes.lacks(status, scope, until) if until else []}


def watch(module, client, scope, looks):
    until = module.params["until"]
    while True:
        try:
            out = look(client, scope, until)
        except edged.EdgedError as err:
            out = {"routes": [], "lacks": [str(err)]}
        out.update(changed=False, waited=looks.waited())
        if not out["lacks"]:
            module.exit_json(**out)
        if not looks.pause():
            what = f"the routes are not {until}" if until else "the routes are not known"
            module.fail_json(msg=f"{what}, after {module.params['wait']}: {'; '.join(out['lacks'])}. Nothing was changed; edgectl bgp shows the same", **out)


def main():
    module = AnsibleModule(
        argument_spec={
            "until": {"type": "str", "choices": list(routes.UNTIL)},
            "wait": {"type": "str", "default": "0"},
            "interval": {"type": "str", "default": "250ms"},
            "prefix": {"type": "str", "default": ""},
            "service": {"type": "str", "default": ""},
            **looking.EDGED,
        },
        supports_check_mode=True,
    )
    p = module.params
    if p["prefix"] and p["service"]:
        module.fail_json(msg="a prefix and a service are named: look at one of them")
    client, looks = looking.begin(module)
    watch(module, client, {"prefix": p["prefix"], "service": p["service"]}, looks)


if __name__ == "__main__":
    main()
