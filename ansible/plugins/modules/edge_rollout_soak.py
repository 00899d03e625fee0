#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: edge_rollout_soak
short_description: Judge whether nodes serve as the rest of the fleet does
description:
  - Runs on the controller alone. Compares what nodes have counted between two samples of M(catchment.edge.edge_rollout_sample) with what
    all others have counted meanwhile.
  - Too little traffic is told and fails nothing.
options:
  batch:
    description: The nodes that are judged.
    type: list
    elements: str
    required: true
  before:
    description: The first sample of all nodes.
    type: dict
    required: true
  after:
    description: The second one.
    type: dict
    required: true
  watched:
    description: What was seen of the nodes of the batch in between; a node that was not C(ready) fails.
    type: dict
    default: {}
  limits:
    description:
      - What counts as too much. C(min_requests) (100), with fewer nothing is judged. C(error_factor) (3) and C(error_margin_percent) (0.5)
        - the share of answers 5xx may be so many times that of the others, and so much more; C(min_errors) (5), with fewer it is no share.
        C(handshake_margin_percent) (5) is the same margin for TLS handshakes. C(quantile_percent) (95), C(latency_factor) (2) and
        C(latency_margin_ms) (50) - the same for the time in which so many percent of the requests are answered.
    type: dict
    default: {}
extends_documentation_fragment: [catchment.edge.edged.reads]
author: Catchment developers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Compare the node with the others
  catchment.edge.edge_rollout_soak:
    batch: [fra1]
    before: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'before'))) }}"
    after: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'after'))) }}"
    limits: {error_margin_percent: 1}
  run_once: true
"""

RETURN = r"""
bad:
  description: The nodes that do worse than the others, and how.
  type: dict
  returned: always
told:
  description: What was seen of the others of the batch, or why it was not judged.
  type: dict
  returned: always
"""
