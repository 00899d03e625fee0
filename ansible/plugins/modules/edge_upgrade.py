#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: edge_upgrade
short_description: Say which versions a box has, put one in store, or have it run one
description:
  - The same for an appliance, which has slots (C(edgectl upgrade)), and for a plain Debian, which has the package.
  - C(looked) tells what runs, what is in store, and whether the version that runs is good. It changes nothing.
  - C(staged) puts a version in store, after everything that can be wrong with it has been asked. Nothing that runs is touched.
  - C(applied) has the box run what is in store. The node is to be drained, and stays drained; a node that is on the air is refused.
    An appliance reboots, and is waited for; of a Debian the package is installed and the daemons are restarted, C(edged) first.
  - C(back) does so with the version before, which is in the other slot, or kept in C(keep).
  - It returns when that version runs, in every daemon, and is good. A box that comes back in another version is an error that says why.
options:
  state:
    description: What is wanted.
    type: str
    choices: [looked, staged, applied, back]
    default: looked
  kind:
    description: What the box is. By default the variable C(edge_kind).
    type: str
    choices: [image, deb]
  version:
    description: >-
      The version. Of C(back) the one that is gone back to, by default C(previous) of the facts.
    type: str
    default: ""
  source:
    description:
      - Of C(staged). On a Debian the package that was brought to the box; it is moved to C(keep). Empty, it is there already.
      - On an appliance the payload, a folder of the box or a URL, as C(edgectl upgrade) takes it.
    type: str
    default: ""
  force:
    description: Take a version that an appliance refuses, or one that is older than what it runs.
    type: bool
    default: false
  ca:
    description: A file of the appliance with the certificates that sign that of the server.
    type: path
  insecure_http:
    description: Take a payload by http too. What is written is checked by its signature in any case.
    type: bool
    default: false
  reason:
    description: Why the box goes back, for others to read.
    type: str
    default: no reason given
  wait:
    description: How long the box may take until the version runs and is good.
    type: str
    default: 15m
  keep:
    description: The folder of a Debian in which packages are kept.
    type: path
    default: /var/cache/catchment-edge
  keep_versions:
    description: How many packages are kept there. Those of what runs, of what was before and of what is staged always are.
    type: int
    default: 3
  socket:
    description: The socket of C(edged).
    type: path
    default: /run/edge/edged.sock
  image_dir:
    description: Where an appliance leaves the state of its boot.
    type: path
    default: /run/edge-image
attributes:
  check_mode:
    description: It asks all that it can ask, and says whether anything would be changed.
    support: full
  diff_mode:
    description: The version before and after.
    support: full
author: Catchment developers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Look which version runs
  catchment.edge.edge_upgrade:
  register: here

- name: Put a package in store
  catchment.edge.edge_upgrade:
    state: staged
    version: 1.3.0
    source: /var/cache/catchment-edge/brought.deb

- name: Have the drained node run it
  catchment.edge.edge_upgrade:
    state: applied
    version: 1.3.0
    wait: 15m
"""

RETURN = r"""
facts:
  description:
    - kind; running (the version of all daemons, null while they differ); staged (in store, or null); previous (the version that it
      can go back to, or null); good (whether the boot is blessed, or all daemons run one version and do their work);
      why_not_good (list); refused (version to reason); installed; daemons (name to the version that runs); kept (packages);
      next (the version that a reboot boots); boot_id; room (free bytes where a version is brought).
  type: dict
  returned: always, unless nothing could be asked
version:
  description: The version that was wanted.
  type: str
  returned: always
waited:
  description: How many seconds were waited for the box.
  type: float
  returned: if it was
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.catchment.edge.plugins.module_utils import appliance, debbox, debchange, durations, edged, imagebox
from ansible_collections.catchment.edge.plugins.module_utils.debbox import Refused


def options(p):
    """Those of edgectl upgrade."""
    out = ["--force"] if p["force"] else []
    out += ["--ca", p["ca"]] if p["ca"] else []
    return out + (["--insecure-http"] if p["insecure_http"] else [])


def on_image(module, box, version):
    p, check = module.params, module.check_mode
    if p["state"] == "staged":
        return box.stage(version, p["source"], options(p), check)
    if p["state"] == "back":
        todo, args = box.may_go_back(version), ["rollback", "--no-drain", "--reason", p["reason"]]
    else:
        todo, args = box.may_apply(version), ["upgrade", "--no-drain"]
    if todo:
        box.leave(args + (["--force"] if p["force"] else []), check)
    return todo


def on_deb(module, box, version, wait):
    p, check = module.params, module.check_mode
    change = debchange.Change(box, version, wait)
    if p["state"] == "staged":
        now = box.facts()
        if now["running"] == version == now["installed"]:
            return False
        return change.stage(p["source"], p["keep_versions"], check)
    return change.apply(check, p["state"] == "back")


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["looked", "staged", "applied", "back"], "default": "looked"},
            "kind": {"type": "str", "choices": ["image", "deb"]},
            "version": {"type": "str", "default": ""},
            "source": {"type": "str", "default": ""},
            "force": {"type": "bool", "default": False},
            "ca": {"type": "path"},
            "insecure_http": {"type": "bool", "default": False},
            "reason": {"type": "str", "default": "no reason given"},
            "wait": {"type": "str", "default": "15m"},
            "keep": {"type": "path", "default": debbox.KEEP},
            "keep_versions": {"type": "int", "default": 3},
            "socket": {"type": "path", "default": edged.SOCKET},
            "image_dir": {"type": "path", "default": appliance.IMAGE_DIR},
        },
        required_if=[("state", "staged", ["version"]), ("state", "applied", ["version"])],
        supports_check_mode=True,
    )
    if os.geteuid() != 0:
        module.fail_json(msg="the versions of a box are root's to see and to change: log in as root, or set become: true")
    p, client = module.params, edged.Client(module.params["socket"])
    image = p["kind"] == "image"
    box = imagebox.Box(module.run_command, client, p["image_dir"]) if image else debbox.Box(module.run_command, client, p["keep"])
    try:
        wait = durations.seconds(p["wait"], "wait")
        before = box.facts()
    except (Refused, ValueError, OSError) as err:
        module.fail_json(msg=str(err), version=p["version"])
    if p["state"] == "looked":
        module.exit_json(changed=False, facts=before, version=p["version"])
    version = p["version"] or before["previous"]
    if not version:
        module.fail_json(msg="there is no version to go back to on this box. Nothing was changed", facts=before, version=None)
    try:
        changed = on_image(module, box, version) if image else on_deb(module, box, version, wait)
        after = box.facts()
    except (Refused, OSError) as err:
        after = look_again(box, before)
        module.fail_json(msg=str(err), facts=after, version=version, changed=moved(before, after))
    module.exit_json(changed=changed, facts=after, version=version, diff=diff(p["state"], before, after, version, changed))


def look_again(box, before):
    """What stands after a failure, as far as it can be told."""
    try:
        return box.facts()
    except (Refused, OSError):
        return before


def moved(before, after):
    """Whether an order that has failed has changed something."""
    return any(before[key] != after[key] for key in ("running", "installed", "staged", "daemons", "kept", "next"))


def diff(state, before, after, version, changed):
    what = "staged" if state == "staged" else "running"
    end = version if changed else after[what]
    return {"before": f"{what}: {before[what]}\n", "after": f"{what}: {end}\n"}


if __name__ == "__main__":
    main()
