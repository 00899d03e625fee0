#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: edge_keyfile
short_description: Look at a file of shared keys on a box, or make a step of its rotation
description:
  - Tells which keys a box goes by, and which its file has, by their short names (the first 8 hex digits of the SHA-256),
    as C(edgectl guard) and C(edgectl status) do. The keys themselves are in no answer.
  - Writes the keys of one step of a rotation, which it takes from the file of secrets on the controller, and waits until
    the daemon goes by them. On a plain Debian the file is replaced and C(edgectl reload) called; if that is refused the
    file of before is put back. On an appliance it is another generation, applied by
    C(edgectl config apply --confirm-within) and confirmed over a new connection.
  - The playbook C(catchment.edge.rotate_keys) makes the steps in the order in which nothing is lost.
options:
  state:
    description: C(looked) changes nothing, C(written) makes a step, C(confirmed) is the end of one on an appliance.
    type: str
    choices: [looked, written, confirmed]
    default: looked
  kind:
    description: The keys of the gossip, or those of TLS session tickets.
    type: str
    choices: [gossip, ticket]
    required: true
  path:
    description: The file on the box. Without it, that of C(edge_config).
    type: path
  step:
    description: Which step is written.
    type: str
    choices: [install, use, remove]
  source:
    description: The file on the controller. Without it, C(path) in the folder C(fleet) of C(edge_secrets_dir).
    type: path
  keep:
    description: How many of the older keys the last step leaves.
    type: int
    default: 0
  wait:
    description: Seconds in which the daemon has to go by the keys.
    type: int
    default: 30
  confirm_within:
    description: Seconds after which an appliance takes the step back unless it is confirmed, 20 to 3600.
    type: int
    default: 120
  edgectl:
    description: The program.
    type: str
    default: edgectl
  socket:
    description: The socket of C(edged). Without it, that of C(node.run_dir).
    type: path
  content:
    description: For the action plugin.
    type: str
  names:
    description: For the action plugin.
    type: list
    elements: str
attributes:
  check_mode:
    description: Says whether the step would change something.
    support: full
  diff_mode:
    description: Shows the short names of the keys before and after.
    support: full
author: Catchment developers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Look which keys the box goes by
  catchment.edge.edge_keyfile:
    kind: gossip
  register: here

- name: Have it accept the new key
  catchment.edge.edge_keyfile:
    state: written
    kind: gossip
    step: install
"""

RETURN = r"""
reached:
  description: Whether the box could be reached. If not, that is no failure; the playbook judges it.
  type: bool
  returned: always
file:
  description: The short names of the keys in the file, the one that encrypts first; null if it cannot be used.
  type: list
  elements: str
  returned: when reached
noted:
  description: The step of a rotation that the file notes (C(install) or C(use)); null for none.
  type: str
  returned: when reached
loaded:
  description: The same of the keys that the daemon goes by; null if it does not say.
  type: list
  elements: str
  returned: when reached
why:
  description: What is not known, and why.
  type: str
  returned: always
"""

import base64
import binascii
import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.catchment.edge.plugins.module_utils import keybox
from ansible_collections.catchment.edge.plugins.module_utils.boxconfig import Refused
from ansible_collections.catchment.edge.plugins.module_utils.edgectl import Edgectl, Failed

ARGUMENTS = dict(
    state=dict(type="str", choices=["looked", "written", "confirmed"], default="looked"),
    kind=dict(type="str", choices=["gossip", "ticket"], required=True),
    path=dict(type="path"),
    wait=dict(type="int", default=30),
    confirm_within=dict(type="int", default=120),
    edgectl=dict(type="str", default="edgectl"),
    socket=dict(type="path", default="/run/edge/edged.sock"),
    content=dict(type="str", no_log=True),
    names=dict(type="list", elements="str", default=[]),
)


def job(module):
    p = module.params
    if os.geteuid() != 0:
        raise Refused("keys of a box are root's to change: log in as root, or set become: true")
    if not 20 <= p["confirm_within"] <= 3600:
        raise Refused(f"confirm_within is {p['confirm_within']}: expected 20 to 3600 seconds")
    program = module.get_bin_path(p["edgectl"], opt_dirs=["/usr/bin", "/usr/local/bin"])
    if program is None:
        raise Refused(f"there is no {p['edgectl']} on this box: install the package first (role edge_host)")
    return keybox.KeyBox(Edgectl(module, program, p["socket"]), p["kind"], p["path"])


def written(module, box):
    p = module.params
    try:
        content = base64.b64decode(p["content"] or "", validate=True)
    except (binascii.Error, ValueError):
        content = b""
    if not content or not p["names"]:
        raise Refused("content is not given: call this module as a task, its action plugin reads the file of secrets")
    before = box.look()
    differs = before["file"] != p["names"] or before["loaded"] != p["names"] or not box.same(content)
    result = {
        "changed": differs,
        "diff": {"before": keybox.told(p["kind"], before["loaded"]), "after": keybox.told(p["kind"], p["names"])},
    }
    if differs and not module.check_mode:
        result["waits"] = box.write(content, p["names"], p["wait"], p["confirm_within"])
        before = box.look()
    return dict(before, **result)


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        box = job(module)
        if module.params["state"] == "confirmed":
            module.exit_json(**box.confirm(check=module.check_mode))
        if not module.params["path"]:
            raise Refused("path is not given: the inventory is to be a fleet.yaml, or path be given")
        answer = written(module, box) if module.params["state"] == "written" else dict(box.look(), changed=False)
        module.exit_json(**answer)
    except (Failed, Refused) as err:
        module.fail_json(msg=str(err))
    except OSError as err:
        module.fail_json(msg=f"{err.filename or 'the key file'}: {err.strerror}: look at the file and at edgectl status on this box, then run it again")


if __name__ == "__main__":
    main()
