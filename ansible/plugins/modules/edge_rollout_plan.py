#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: edge_rollout_plan
short_description: Decide in which order nodes are taken, and whether a batch may begin
description:
  - Runs on the controller alone and asks no box. With C(state=made) it makes the batches of a rollout - half-done nodes of this owner,
    a canary, one node of each site, waves - and says why it may not begin. With C(state=gate) it says whether a batch of them may begin now.
  - Nodes of a batch are off the air together. No batch has nodes of more sites than C(max_planned) of the guard, more than half of a site,
    takes a prefix below its floor, or leaves sites with less capacity than the fleet is asked for; one with several sites has to leave
    enough even if one more site is lost.
options:
  state:
    description: Make the plan, or judge whether a batch of it may begin.
    type: str
    choices: [made, gate]
    default: made
  fleet:
    description: C(edge_fleet) of the inventory.
    type: dict
    default: {}
  looks:
    description: The answer of M(catchment.edge.edge_status) by node; of one that was not reached what Ansible has registered.
    type: dict
    default: {}
  facts:
    description: C(edge_upgrade_facts) of role edge_upgrade by node. For C(made).
    type: dict
    default: {}
  samples:
    description: The answer of M(catchment.edge.edge_rollout_sample) by node, for how many requests a second it serves.
    type: dict
    default: {}
  version:
    description: The version that nodes are to run; of a way back the one that they are to leave. Needed for C(made).
    type: str
  owner:
    description: Who rolls. Nodes that its orders drain are half done, those that others drain are not touched.
    type: str
    default: ""
  back:
    description: Take nodes back from the version.
    type: bool
    default: false
  canary:
    description: The first node; without it the least loaded one of the least loaded site.
    type: str
    default: ""
  waves:
    description: How many nodes each wave has, as Ansible's C(serial).
    type: list
    elements: str
    default: ["20%", "50%", "100%"]
  leave_out:
    description: Nodes that are not touched, and count as off the air.
    type: list
    elements: str
    default: []
  allow_unhealthy:
    description: Begin and go on though other nodes are not ready. Those that are reached are taken first.
    type: bool
    default: false
  newest:
    description: The nodes that got the version, the last first. For a way back.
    type: list
    elements: str
    default: []
  unproven:
    description: Nodes whose soak was cut or has failed. Those that have the version and are on the air are soaked again.
    type: list
    elements: str
    default: []
  times:
    description: The lengths of time of the run, by the names of its variables without C(rollout_). What is none is refused. For C(made).
    type: dict
    default: {}
  limits:
    description: The limits of the soak. What is none of them is refused. For C(made).
    type: dict
    default: {}
  batch:
    description: The nodes of the batch. For C(gate).
    type: list
    elements: str
    default: []
  failed:
    description: The nodes that have failed, and why. For C(gate).
    type: dict
    default: {}
  left_out:
    description: The nodes that the plan has left out, and why. For C(gate).
    type: dict
    default: {}
  budget:
    description: How many nodes may fail before no batch begins any more. For C(gate).
    type: int
    default: 0
extends_documentation_fragment: [catchment.edge.edged.reads]
author: Catchment developers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Make the plan
  catchment.edge.edge_rollout_plan:
    fleet: "{{ edge_fleet }}"
    looks: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'look'))) }}"
    facts: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'edge_upgrade_facts'))) }}"
    version: 1.3.0
  run_once: true
  register: plan
"""

RETURN = r"""
batches:
  description: The batches in their order, each with C(name), C(nodes) and C(soak) (C(canary) or C(wave)).
  type: list
  elements: dict
  returned: with state made
done:
  description: Nodes with nothing left to do.
  type: list
  elements: str
  returned: with state made
left_out:
  description: Nodes that are not touched, and why.
  type: dict
  returned: with state made
soak_only:
  description: Nodes that are only soaked again, and stay on the air.
  type: list
  elements: str
  returned: with state made
targets:
  description: The version that each node is to run.
  type: dict
  returned: with state made
refused:
  description: Why it may not begin; empty if it may.
  type: list
  elements: str
  returned: with state made
told:
  description: What is to be known, and is no reason against it.
  type: list
  elements: str
  returned: with state made
load:
  description: How many requests a second the fleet serves; null if it is not known.
  type: float
  returned: with state made
text:
  description: The plan for people.
  type: list
  elements: str
  returned: with state made
why_not:
  description: Why the batch may not begin; empty if it may.
  type: str
  returned: with state gate
"""
