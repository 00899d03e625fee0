#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: edge_config
short_description: Have a box go by the configuration that fleet.yaml gives it
description:
  - Renders the edge.yaml of the box, gathers its secrets from the operator's folders (vaulted files are decrypted),
    has C(edgectl check) judge the whole on the box, shows the difference, and applies it by
    C(edgectl config apply --confirm-within). Then a new connection is made, and from that the change is confirmed.
  - Unless it is confirmed, the box takes the change back by itself; it does so too when its BGP sessions are lost.
  - If edge.yaml and all secrets are in force already, nothing is done.
  - On an appliance all files are one generation. On a plain Debian secrets are written with their owners first, and put
    back if edge.yaml is refused; if the box is lost before the confirmation it takes back edge.yaml alone.
  - edgectl restarts edged where a change needs it, which withdraws nothing. A change that needs a restart of edgeproxy,
    which interrupts service, is refused unless I(restart_proxy) is set.
options:
  state:
    description:
      - C(checked) judges and compares, and changes nothing.
      - C(applied) brings it about and confirms it.
      - C(confirmed) confirms a change that waits; C(applied) does that by itself, over a new connection.
    type: str
    choices: [applied, checked, confirmed]
    default: applied
  config:
    description: The whole edge.yaml. Without it, the host variable C(edge_config) of the inventory plugin.
    type: dict
  secrets:
    description:
      - A folder on the controller with C(fleet/), C(sites/NAME/) and C(nodes/NAME/), the later over the earlier.
        Their files come to /etc/edge/secrets. Without it, the variable C(edge_secrets_dir).
    type: path
  files:
    description:
      - A folder of the same form with other parts of the configuration of an appliance, such as C(network/),
        C(authorized_keys) and C(units/). A part that is given is replaced as a whole, another stays as it is.
    type: path
  kind:
    description: What fleet.yaml says of the box. Without it, the variable C(edge_kind). A box of the other kind is refused.
    type: str
    choices: [image, deb]
  confirm_within:
    description: Seconds after which the box takes the change back unless it is confirmed, 20 to 3600.
    type: int
    default: 120
  confirm:
    description: Confirm the change. If not, that is left to people, by C(edgectl config confirm).
    type: bool
    default: true
  settle:
    description: How many seconds BGP sessions may take to come back before the change is taken back.
    type: int
    default: 45
  skip_unreachable:
    description: A box that cannot be reached is no failure; C(reached) is false then.
    type: bool
    default: false
  restart_proxy:
    description: Make a change that needs a restart of edgeproxy, which takes no connections meanwhile. Drain the box first.
    type: bool
    default: false
  other_gossip_keys:
    description:
      - Take a file of gossip keys with which the box and the others, which hear each other now, would not any more. Without it
        such a file is refused, since it is likely an old one; keys are changed by the playbook C(catchment.edge.rotate_keys).
    type: bool
    default: false
  edgectl:
    description: The program.
    type: str
    default: edgectl
  socket:
    description: The socket of edged. Without it, that of C(node.run_dir).
    type: path
  contents:
    description: For the action plugin; edge.yaml is among them, so that no log of the box has it each time.
    type: dict
  access:
    description: For the action plugin.
    type: dict
  wanted:
    description: For the action plugin.
    type: dict
  peers:
    description: For the action plugin.
    type: list
    elements: str
attributes:
  check_mode:
    description: Says what would be changed, after the whole check.
    support: full
  diff_mode:
    description: Shows edge.yaml in force and to be; of other files the names only.
    support: full
author: Catchment developers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Check what fleet.yaml gives this box
  catchment.edge.edge_config:
    state: checked

- name: Have the box go by it
  catchment.edge.edge_config:
    confirm_within: 120
"""

RETURN = r"""
reached:
  description: Whether the box could be reached.
  returned: always
  type: bool
differs:
  description: The files that are other than they are to be.
  returned: unless state is confirmed
  type: list
  elements: str
  sample: [edge.yaml, secrets/gossip.key]
changes:
  description: What changes in edge.yaml, key by key, as edgectl diff says; empty where edgectl has no such command.
  returned: unless state is confirmed
  type: list
  elements: str
  sample: ["fleet.health.hold: 5s -> 2s"]
takes:
  description: The first key that takes a restart of C(edged) or of edgeproxy (C(proxy)), or the data plane loaded anew (C(data_plane)).
  returned: unless state is confirmed
  type: dict
  sample: {edged: node.management}
checked:
  description: Whether edgectl has judged it; a box that has none yet cannot.
  returned: unless state is confirmed
  type: bool
first:
  description: Whether the box had no configuration before, or its daemons have not run since its boot.
  returned: unless state is confirmed
  type: bool
generation:
  description: The generation of the configuration in force.
  returned: when something was applied
  type: int
notes:
  description: What edgectl says was done, and what only a restart will do.
  returned: when something was applied
  type: list
  elements: str
peers:
  description: The BGP peers that were established before.
  returned: when something was applied
  type: list
  elements: str
confirmed:
  description: Whether the change is there to stay.
  returned: when something was applied or confirmed
  type: bool
errors:
  description: What edgectl check says is wrong, each with file, line, column, path and message.
  returned: on failure of the check
  type: list
  elements: dict
"""

import base64
import binascii
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.catchment.edge.plugins.module_utils import boxapply
from ansible_collections.catchment.edge.plugins.module_utils.boxconfig import Refused
from ansible_collections.catchment.edge.plugins.module_utils.edgectl import Edgectl, Failed

ARGUMENTS = dict(
    state=dict(type="str", choices=["applied", "checked", "confirmed"], default="applied"),
    kind=dict(type="str", choices=["image", "deb"]),
    confirm_within=dict(type="int", default=120),
    settle=dict(type="int", default=45),
    restart_proxy=dict(type="bool", default=False),
    other_gossip_keys=dict(type="bool", default=False),
    edgectl=dict(type="str", default="edgectl"),
    socket=dict(type="path", default="/run/edge/edged.sock"),
    # The contents are secrets, their names are not.
    contents=dict(type="dict", no_log=True, default={}),
    access=dict(type="dict", default={}),
    wanted=dict(type="dict", default={}),
    peers=dict(type="list", elements="str", default=[]),
)


def decoded(contents):
    try:
        return {name: base64.b64decode(text, validate=True) for name, text in contents.items()}
    except (binascii.Error, ValueError, TypeError) as err:
        raise Refused("contents is not in base64: it is made by the action plugin of this module") from err


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    p = module.params
    if os.geteuid() != 0:
        module.fail_json(msg="the configuration of a box is root's: log in as root, or set become: true")
    if not 20 <= p["confirm_within"] <= 3600:
        module.fail_json(msg=f"confirm_within is {p['confirm_within']}: expected 20 to 3600 seconds")
    if p["state"] != "confirmed" and "edge.yaml" not in p["contents"]:
        module.fail_json(msg="contents has no edge.yaml: call this module as a task, its action plugin renders it")
    program = module.get_bin_path(p["edgectl"], opt_dirs=["/usr/bin", "/usr/local/bin"])
    ctl = Edgectl(module, program, p["socket"]) if program else None
    try:
        if p["state"] == "confirmed":
            module.exit_json(**boxapply.confirm(ctl, p["peers"], p["settle"], check=module.check_mode))
        order = boxapply.Order(decoded(p["contents"]), p["access"], p["wanted"])
        job = boxapply.Job(module, ctl, order, kind=p["kind"], restart_proxy=p["restart_proxy"], other_gossip_keys=p["other_gossip_keys"])
        result = job.look()
        if p["state"] == "applied" and not module.check_mode and result["differs"]:
            result.update(job.apply(p["confirm_within"]))
        result["changed"] = p["state"] == "applied" and bool(result["differs"])
        module.exit_json(**result)
    except Failed as err:
        module.fail_json(msg=str(err), errors=err.errors)
    except Refused as err:
        module.fail_json(msg=str(err))
    except OSError as err:
        module.fail_json(msg=f"{err.filename or 'a file'}: {err.strerror}: nothing was applied")


if __name__ == "__main__":
    main()
