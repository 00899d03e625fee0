# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: frr_stale
short_description: What an FRR still has of sessions that are other now
description:
  - vtysh takes a file of lines over what is there, so that a password, BFD or a prefix that is in fleet.yaml no more stays.
    This names the commands that take those away, of the lists C(EDGE4) and C(EDGE6) and of the sessions with our boxes alone.
    No password is among them.
positional: _input
options:
  _input:
    description: What C(show running-config bgpd) says.
    type: str
    required: true
  sessions:
    description: The sessions of the router, C(edge_router_sessions).
    type: list
    elements: dict
    required: true
  prefixes:
    description: The prefixes of the fleet, C(edge_router_prefixes).
    type: dict
    required: true
  specifics:
    description: Whether more specific prefixes are taken too.
    type: bool
    default: false
  passive:
    description: Whether the router waits for the boxes to connect.
    type: bool
    default: true
author: Catchment developers (@catchment-dev)
"""

EXAMPLES = r"""
stale: "{{ running.stdout | catchment.edge.frr_stale(edge_router_sessions, edge_router_prefixes) }}"
# ["no ip prefix-list EDGE4 seq 5 permit 198.51.100.0/24", "no neighbor 10.1.0.2 password"]
"""

RETURN = r"""
_value:
  description: Commands of the router bgp, in the order in which FRR has the lines.
  type: list
  elements: str
"""

from ansible_collections.catchment.edge.plugins.module_utils import routers


class FilterModule:
    def filters(self):
        return {"frr_stale": routers.frr_stale}
