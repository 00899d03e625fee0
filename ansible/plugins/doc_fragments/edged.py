# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations


class ModuleDocFragment:
    """What the modules that look at edged have in common; module_utils/looking.py has the types and defaults of their options."""

    DOCUMENTATION = r"""
options:
  socket:
    description: The socket of C(edged).
    type: path
    default: /run/edge/edged.sock
  timeout:
    description: How long C(edged) has for an answer, for example C(10s).
    type: str
    default: 10s
"""

    HEALTH = r"""
options:
  ignore_alarms:
    description: Regular expressions of alarms that are no reason against the node. Those that never are need not be named.
    type: list
    elements: str
    default: []
  image_dir:
    description: Where an appliance leaves the state of its boot. A system without this folder is no appliance.
    type: path
    default: /run/edge-image
"""

    READS = r"""
attributes:
  check_mode:
    description: It changes nothing, so it does the same in check mode.
    support: full
  diff_mode:
    description: It changes nothing.
    support: none
"""
