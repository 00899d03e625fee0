#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: edge_rollout_record
short_description: Keep who runs a rollout, and how far each node is
description:
  - Runs on the controller alone. The record is C(run.json) in a folder beside fleet.yaml; a run whose process lives is not begun
    a second time, and one that was cut goes on under the same owner.
  - At the end it writes a report, C(rollout-VERSION.md) and C(rollout-VERSION.json), or C(rollback-...).
options:
  state:
    description: C(begun) makes the record, C(noted) adds to it, C(ended) closes it and writes the report, C(shown) changes nothing.
    type: str
    choices: [begun, noted, ended, shown]
    default: shown
  folder:
    description: The folder of the record.
    type: path
    required: true
  version:
    description: The version that the rollout is about. For C(begun).
    type: str
  back:
    description: Whether nodes are taken back from it. For C(begun).
    type: bool
    default: false
  owner:
    description: Who rolls. Without it that of the record, or a new one. For C(begun).
    type: str
    default: ""
  nodes:
    description: >-
      What is to be noted of nodes, each with C(phase) (C(waiting), C(draining), C(upgrading), C(returning), C(soaking), C(done) or C(failed)), and
      C(reason), C(told) and C(version). For C(noted).
    type: dict
    default: {}
  answer:
    description: What a task before has registered. If the node was not reached, this fails, since Ansible did not. For C(noted).
    type: dict
    default: {}
  lost:
    description: Nodes that have left the play, which have failed. For C(noted).
    type: list
    elements: str
    default: []
  held:
    description: >-
      Whether the locks are held now. A run that is refused before leaves the record of the last one that held them as it was. For C(noted).
    type: bool
    default: false
  finished:
    description: Nodes that were found done. For C(noted).
    type: list
    elements: str
    default: []
  batches:
    description: The batches of M(catchment.edge.edge_rollout_plan). For C(noted).
    type: list
    elements: dict
  left_out:
    description: Nodes that are not touched, and why. For C(noted).
    type: dict
  told:
    description: What is to be known. For C(noted).
    type: list
    elements: str
  stop:
    description: Why the run was stopped; empty if it was not. For C(ended).
    type: str
    default: ""
  staged:
    description: Whether it was only to stage. For C(ended).
    type: bool
    default: false
  cut:
    description: Whether the run did not end by itself. The nodes without which Ansible has ended it have failed. For C(ended).
    type: bool
    default: false
  report:
    description: The folder of the report, which is made; without it none is written. For C(ended).
    type: path
attributes:
  check_mode:
    description: It writes nothing.
    support: full
  diff_mode:
    description: A record of what is done is no change of anything.
    support: none
author: Catchment developers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Begin
  catchment.edge.edge_rollout_record:
    state: begun
    folder: "{{ edge_fleet_dir }}/.rollout"
    version: 1.3.0
  run_once: true
  register: record

- name: Note that this node is done
  catchment.edge.edge_rollout_record:
    state: noted
    folder: "{{ edge_fleet_dir }}/.rollout"
    nodes: "{{ {inventory_hostname: {'phase': 'done'}} }}"
"""

RETURN = r"""
owner:
  description: Who rolls.
  type: str
  returned: with state begun and shown
resumed:
  description: Whether an earlier run of the same aim was cut.
  type: bool
  returned: with state begun
unreleased:
  description: Whether nodes may still have the lock of an earlier run of this owner, which was cut or has lost one.
  type: bool
  returned: with state begun
unproven:
  description: Nodes whose soak was cut or has failed in an earlier run of the same aim.
  type: list
  elements: str
  returned: with state begun
newest:
  description: The nodes that got the version, the last first.
  type: list
  elements: str
  returned: with state begun
guarded:
  description: Whether the callback catchment.edge.rollout releases what is held if the run is cut.
  type: bool
  returned: with state begun
folder:
  description: The folder of the record.
  type: path
  returned: with state begun
failures:
  description: The nodes that have failed, and why.
  type: dict
  returned: with state noted and ended
good:
  description: Whether it ended well.
  type: bool
  returned: with state ended
text:
  description: How it ended, for people, with what to do.
  type: str
  returned: with state ended
files:
  description: The files of the report.
  type: list
  elements: str
  returned: with state ended
run:
  description: The record; empty if there is none.
  type: dict
  returned: with state shown
alive:
  description: Whether the process of the run lives.
  type: bool
  returned: with state shown
idle_drains:
  description: Nodes that the run drains and whose upgrade has not begun.
  type: list
  elements: str
  returned: with state shown
"""
