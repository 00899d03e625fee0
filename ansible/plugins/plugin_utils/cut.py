# SPDX-License-Identifier: Apache-2.0
"""How a rollout that was cut is released: by which command, and what that is told."""

from __future__ import annotations

import re
import select

# The nodes without which Ansible has ended it, and why: JSON, in the environment.
LOST = "CATCHMENT_ROLLOUT_LOST"
BOOK = re.compile(r"^(|.*[./])(rollout|rollback)(\.ya?ml)?$")
RELEASE = "catchment.edge.rollout_release"
# What chooses among the tasks of a playbook means another one.
CHOICE = re.compile(r"^(--step|--(?:start-at-task|tags|skip-tags)=.*|-t.+)$")
CHOICE_OF = ("--start-at-task", "--tags", "--skip-tags", "-t")


def is_gone(fd):
    """Whether nobody is at the other end of a terminal or a pipe any more."""
    look = select.poll()
    look.register(fd, 0)
    return any(said & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, said in look.poll(0))


def released_by(argv, books):
    """The command line of rollout_release for that of a run: of the playbooks that are
    named it has no other. One that imports ours is somewhere else, so it is known by name."""
    own = next((b for b in books if BOOK.match(b)), None)
    release = RELEASE if own is None else BOOK.sub(lambda m: f"{m.group(1)}rollout_release{m.group(3) or ''}", own)
    out, skip = argv[:1], False
    for arg in argv[1:]:
        if skip or arg in books or CHOICE.match(arg):
            skip = False
        elif arg in CHOICE_OF:
            skip = True
        else:
            out.append(arg)
    return out + [release]
