#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: edge_nodekey
short_description: Have a box have its own key, and tell the public half
description:
  - Makes the key that signs what the node says to the others, by C(edgectl guard key), if the box has none. The private half stays on the
    box; only the public half is in the answer.
  - On a plain Debian the key is made at C(path), for edged alone. On an appliance it is made in C(local), from where
    M(catchment.edge.edge_config) takes it into the configuration.
  - A box whose key is another than the one the fleet knows is refused, and so is one that has lost its key. Nothing is replaced.
options:
  path:
    description: C(node.key_file) of the box.
    type: path
    required: true
  public_key:
    description: The public half that the fleet knows of this node; empty for none.
    type: str
    default: ""
  kind:
    description: What the box is.
    type: str
    choices: [image, deb]
    required: true
  local:
    description: The folder for an appliance's new key.
    type: path
    default: /var/lib/edge-keys
  edgectl:
    description: The program.
    type: str
    default: edgectl
attributes:
  check_mode:
    description: Says whether a key would be made. Its public half is not known then.
    support: full
  diff_mode:
    description: Names the file.
    support: full
author: Catchment developers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Have the box have a key
  catchment.edge.edge_nodekey:
    path: "{{ edge_config.node.key_file }}"
    kind: "{{ edge_kind }}"
  register: node
"""

RETURN = r"""
public_key:
  description: The public half in base64; empty in check mode if a key would be made.
  type: str
  returned: always
file:
  description: Where the key is.
  type: str
  returned: always
"""

import os
import stat

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.catchment.edge.plugins.module_utils import boxconfig
from ansible_collections.catchment.edge.plugins.module_utils.boxconfig import Refused
from ansible_collections.catchment.edge.plugins.module_utils.edgectl import Edgectl, Failed
from ansible_collections.catchment.edge.plugins.module_utils.nodekey import judge, raw_public

OWNER = {"owner": "edged", "group": "edged"}


def places(params):
    """Where a key may be, the one in force first; the last is where one is made."""
    path = params["path"]
    return [path] if params["kind"] == "deb" else [path, os.path.join(params["local"], os.path.basename(path))]


def public_half(ctl, path):
    answer = ctl.call("guard", "key", "--show", path)
    return raw_public((answer or {}).get("public_key"))


def make(ctl, path, kind):
    folder = os.path.dirname(path)
    boxconfig.make_folder(folder, 0o700 if kind == "image" else 0o755)
    owner = boxconfig.ids(OWNER) if kind == "deb" else (0, 0)
    # Whole, with its owner, or not at all: half a key would be in the way next time.
    new = path + ".new"
    if os.path.lexists(new):
        os.unlink(new)
    ctl.call("guard", "key", "--out", new)
    # Not by its name: in a folder that is another's it may be a link by now.
    file = os.open(new, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fchown(file, *owner)
        os.fchmod(file, stat.S_IRUSR | stat.S_IWUSR)
    finally:
        os.close(file)
    os.link(new, path)  # never over another that has been made meanwhile
    os.unlink(new)


def main():
    module = AnsibleModule(
        argument_spec=dict(
            path=dict(type="path", required=True, no_log=False),
            public_key=dict(type="str", default="", no_log=False),
            kind=dict(type="str", choices=["image", "deb"], required=True),
            local=dict(type="path", default=boxconfig.LOCAL),
            edgectl=dict(type="str", default="edgectl"),
        ),
        supports_check_mode=True,
    )
    p = module.params
    program = module.get_bin_path(p["edgectl"], opt_dirs=["/usr/bin", "/usr/local/bin"])
    if os.geteuid() != 0:
        module.fail_json(msg="the key of a box is root's to make: log in as root, or set become: true")
    ctl = Edgectl(module, program, "/run/edge/edged.sock")
    try:
        found = next((path for path in places(p) if os.path.exists(path)), None)
        # A check of a box that gets the package first has nothing to ask.
        if program is None and (found or not module.check_mode):
            module.fail_json(msg="there is no edgectl on this box: install the package first (role edge_host)")
        here = public_half(ctl, found) if found else None
        why = judge(here, p["public_key"], found or p["path"])
        if why:
            module.fail_json(msg=why)
        path, made = found or places(p)[-1], not found
        if made and not module.check_mode:
            make(ctl, path, p["kind"])
            here = public_half(ctl, path)
        diff = {"prepared": f"{path} is made\n"} if made else {}
        module.exit_json(changed=made, public_key=here or "", file=path, diff=diff)
    except (Failed, Refused) as err:
        module.fail_json(msg=str(err))
    except OSError as err:
        module.fail_json(msg=f"{err.filename or p['path']}: {err.strerror}: no key was made; mend that and run it again")


if __name__ == "__main__":
    main()
