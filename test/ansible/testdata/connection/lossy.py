# SPDX-License-Identifier: Apache-2.0
"""The connection to this machine, which is lost when a node is to run a module for the Nth
time: its file lose has N and the name. From then on it is lost until lost is removed."""

from __future__ import annotations

DOCUMENTATION = """
name: lossy
short_description: This machine, lost on purpose
description: This machine, lost on purpose.
options:
  pipelining:
    description: As of the connection local.
    type: bool
    default: true
  dir:
    description: The folder of the node.
    vars: [{name: standin_dir}]
    default: ""
"""

import os
import re

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local

MODULE = re.compile(rb"mod_name='[\w.]*\.(\w+)'")


class Connection(Local):
    transport = "lossy"

    def exec_command(self, cmd, in_data=None, sudoable=True):
        m = MODULE.search(in_data or b"")
        if self._lost(m.group(1).decode() if m else ""):
            raise AnsibleConnectionFailure("the cable was cut")
        return super().exec_command(cmd, in_data=in_data, sudoable=sudoable)

    def _lost(self, module):
        where = self.get_option("dir")
        lost, lose = os.path.join(where, "lost"), os.path.join(where, "lose")
        if os.path.exists(lost):
            return True
        if not where or not os.path.exists(lose):
            return False
        with open(lose, encoding="utf-8") as f:
            left, name = f.read().split()
        if name != module:
            return False
        with open(lost if left == "1" else lose, "w", encoding="utf-8") as f:
            f.write(f"{int(left) - 1} {name}\n")
        return left == "1"
