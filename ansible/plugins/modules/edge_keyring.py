#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: edge_keyring
short_description: Decide whether the next step of a rotation of shared keys may begin, and on which boxes
description:
  - Runs on the controller alone. Compares what all boxes have said (M(catchment.edge.edge_keyfile)) with the file of
    secrets, refuses a step that the one before it is not done for, and names the boxes that it is still to be made on.
  - The first step makes the new key, or takes it from a file, and puts it into the file of secrets before any box has it. The file
    is what the boxes have, or are about to have, at any time, so that a converge in the middle of a rotation does no harm.
  - In check mode nothing is made or written.
options:
  kind:
    description: The keys of the gossip, or those of TLS session tickets.
    type: str
    choices: [gossip, ticket]
    required: true
  step:
    description: The step that is to begin; C(done) judges the end of the last one.
    type: str
    choices: [install, use, remove, done]
    required: true
  looks:
    description: What M(catchment.edge.edge_keyfile) has said of each box, by the names of the hosts.
    type: dict
    required: true
  leave_out:
    description: Boxes that the rotation does not wait for. They come back by the playbook C(catchment.edge.site).
    type: list
    elements: str
    default: []
  keep:
    description: How many of the older keys the last step leaves.
    type: int
    default: 0
  new:
    description: A file on the controller with the new key, which may be encrypted by Vault. Without it, one is made.
    type: path
  source:
    description: The file of secrets. Without it, that of C(edge_secrets_dir).
    type: path
attributes:
  check_mode:
    description: Says which boxes would be changed.
    support: full
  diff_mode:
    description: Shows the short names of the keys of the file of secrets before and after.
    support: full
author: Catchment developers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Decide whether the new key may be used
  catchment.edge.edge_keyring:
    kind: gossip
    step: use
    looks: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'here'))) }}"
  run_once: true
  register: next
"""

RETURN = r"""
todo:
  description: The boxes that the step is still to be made on.
  type: list
  elements: str
  returned: always
keys:
  description: The short names of the keys after the step, the one that encrypts first.
  type: list
  elements: str
  returned: always
new:
  description: The short name of the new key.
  type: str
  returned: always
idle:
  description: Whether there is nothing to rotate, as the new key that was given is in use already.
  type: bool
  returned: always
waits_for:
  description: Boxes for which the rotation would stop before the next step, and why.
  type: list
  elements: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule


def main():
    module = AnsibleModule(
        argument_spec=dict(
            kind=dict(type="str", choices=["gossip", "ticket"], required=True),
            step=dict(type="str", choices=["install", "use", "remove", "done"], required=True),
            looks=dict(type="dict", required=True),
            leave_out=dict(type="list", elements="str", default=[]),
            keep=dict(type="int", default=0, no_log=False),
            new=dict(type="path"),
            source=dict(type="path"),
        ),
        supports_check_mode=True,
    )
    module.fail_json(msg="edge_keyring decides on the controller: call it as a task of a playbook")


if __name__ == "__main__":
    main()
