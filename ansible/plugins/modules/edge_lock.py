#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: edge_lock
short_description: Take, renew or release the lock that keeps two rollouts apart, on a node
description:
  - The lock has an owner and an end. Its owner renews it by taking it again; others are refused until it has ended,
    and are told who holds it and until when.
  - The end is by the box's own clock since its boot, so nobody's setting of a clock moves it. The lock of another boot is void.
options:
  state:
    description: >-
      C(held) takes or renews it, C(released) gives it back, C(shown) changes nothing.
    type: str
    choices: [held, released, shown]
    default: held
  owner:
    description: Who holds it. Needed unless C(state=shown).
    type: str
  what:
    description: What for, in a few words, for others to read.
    type: str
    default: ""
  for:
    description: How long it holds unless it is renewed.
    type: str
    default: 10m
  path:
    description: The file. Its folder is made; beside it stands a file that orders those who come at once.
    type: path
    default: /run/edge-rollout/lock.json
  force:
    description: Take or release it whoever holds it. For a rollout that is dead.
    type: bool
    default: false
attributes:
  check_mode:
    description: It says what it would do, and whether it would be refused.
    support: full
  diff_mode:
    description: The lock before and after.
    support: full
author: Catchment maintainers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Take the lock
  catchment.edge.edge_lock:
    owner: "{{ rollout_id }}"
    what: rollout of 1.3.0
    for: 10m

- name: Release it
  catchment.edge.edge_lock:
    state: released
    owner: "{{ rollout_id }}"
"""

RETURN = r"""
lock:
  description: The lock in force after it (before it, where it is refused), with owner, what, since, until and seconds_left; null for none.
  type: dict
  returned: always
renewed:
  description: Whether it was this owner's before.
  type: bool
  returned: always
"""

import contextlib
import fcntl
import json
import os
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.catchment.edge.plugins.module_utils import durations, lease

MAX_FILE = 64 << 10  # bytes


def clock():
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        boot_id = f.read().strip()
    return lease.Clock(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), boot_id)


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read(MAX_FILE)
    except FileNotFoundError:
        return None


def write(path, lock):
    """Replace the file in one step: a reader sees the old lock or the new one."""
    new = f"{path}.new"
    with open(new, "w", encoding="utf-8") as f:
        json.dump(lock, f)
        f.write("\n")
    os.rename(new, path)


@contextlib.contextmanager
def ordered(path, looks):
    """Let one at a time look and write. The kernel ends it with the process. The file
    stays for good: one that is removed while another waits for it orders nobody. Who
    only looks needs none: the lock is replaced in one step."""
    if looks:
        yield
        return
    with open(f"{path}.order", "a", encoding="ascii") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def change(module, length, lock, now):
    """(new lock or None, changed). What is refused ends the module."""
    p = module.params
    if p["state"] == "released":
        gone, why = lease.release(lock, p["owner"], now, p["force"])
        new = None if gone else lock
    else:
        new, why = lease.take(lock, p["owner"], p["what"], length, now, p["force"])
        gone = True
    if why:
        module.fail_json(msg=f"{p['path']}: {why}", lock=lease.shown(lock, now), renewed=False)
    return new, gone


def run(module, length):
    p = module.params
    now = clock()
    try:
        lock = lease.parse(read(p["path"]))
    except ValueError as err:
        if not p["force"]:
            module.fail_json(msg=f"{p['path']} is no lock of ours: {err}; look at it, and remove it or use force: true", lock=None, renewed=False)
        lock = None
    before = lease.shown(lock, now)
    if p["state"] == "shown":
        module.exit_json(changed=False, lock=before, renewed=False)
    new, changed = change(module, length, lock, now)
    if changed and not module.check_mode:
        if new is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(p["path"])
        else:
            write(p["path"], new)
    after = lease.shown(new, now)
    module.exit_json(changed=changed, lock=after, renewed=bool(before and after and before["owner"] == after["owner"]),
                     diff={"before": text(before), "after": text(after)})


def text(lock):
    return f"{lock['owner']} until {lock['until']}: {lock['what']}\n" if lock else "nobody\n"


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["held", "released", "shown"], "default": "held"},
            "owner": {"type": "str"},
            "what": {"type": "str", "default": ""},
            "for": {"type": "str", "default": "10m"},
            "path": {"type": "path", "default": "/run/edge-rollout/lock.json"},
            "force": {"type": "bool", "default": False},
        },
        required_if=[("state", "held", ["owner"]), ("state", "released", ["owner"])],
        supports_check_mode=True,
    )
    p = module.params
    try:
        length = durations.seconds(p["for"], "for")
    except ValueError as err:
        module.fail_json(msg=str(err))
    if length <= 0:
        module.fail_json(msg="for: a lock has an end: it is to be above 0")
    for name in ("owner", "what"):
        if len(p[name] or "") > lease.MAX_TEXT or (name == "owner" and p["state"] != "shown" and not p[name].strip()):
            module.fail_json(msg=f"{name}: it is to have 1 to {lease.MAX_TEXT} characters")
    folder = os.path.dirname(p["path"])
    try:
        if not os.path.isdir(folder):
            if p["state"] != "held" or module.check_mode:
                module.exit_json(changed=p["state"] == "held", lock=None, renewed=False)
            os.makedirs(folder, mode=0o755, exist_ok=True)
        with ordered(p["path"], module.check_mode or p["state"] == "shown"):
            run(module, length)
    except OSError as err:
        module.fail_json(msg=f"{err.filename or p['path']}: {err.strerror}: be root, and see that the file system can be written")


if __name__ == "__main__":
    main()
