# SPDX-License-Identifier: Apache-2.0
"""The controller's half of edge_keyfile: takes the keys of a step out of the file of
secrets, hands them over as an argument that nothing prints, and confirms a change of
an appliance from a new connection."""

from __future__ import annotations

import base64
import os
import time

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.catchment.edge.plugins.module_utils import keyring
from ansible_collections.catchment.edge.plugins.module_utils.keysource import Source

MODULE = "catchment.edge.edge_keyfile"
PASSED = ("state", "kind", "path", "wait", "confirm_within", "edgectl", "socket")
OWN = ("step", "source", "keep")
MARGIN = 10  # seconds before the box takes the change back
RETRY = 2  # seconds between two tries to reach it


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        self.vars = task_vars or {}
        try:
            result.update(self._asked(dict(self._task.args)))
        except keyring.Refused as err:
            result.update(failed=True, msg=str(err))
        return result

    def _asked(self, args):
        unknown = sorted(set(args) - set(PASSED) - set(OWN))
        if unknown:
            raise keyring.Refused(f"edge_keyfile has no option {', '.join(unknown)}; it has {', '.join(sorted(PASSED + OWN))}")
        call = {key: args[key] for key in PASSED if args.get(key) is not None}
        call.setdefault("path", path_of(self.vars, call.get("kind")))
        call.setdefault("socket", socket_of(self.vars))
        call = {key: value for key, value in call.items() if value}
        if call.get("state") == "written":
            call.update(self._step(args, call))
        answer = self._call(call)
        if not answer["reached"]:
            return answer
        if answer.pop("waits", False) and not answer.get("failed"):
            self._confirm(call, answer)
        answer.setdefault("why", "")
        return answer

    def _step(self, args, call):
        step, source = args.get("step"), args.get("source") or source_of(self.vars, call.get("path"))
        if step not in keyring.STEPS:
            raise keyring.Refused(f"step is {step!r}: expected one of {', '.join(keyring.STEPS)}")
        plan = keyring.resume(keyring.parse(Source(self._loader, source).read(), source), keyring.keep_of(args.get("keep")))
        if plan is None:
            raise keyring.Refused(f"{source} is not in the middle of a rotation: start with the playbook rotate_keys")
        return {"content": base64.b64encode(plan.content(step)).decode(), "names": plan.names(step)}

    def _call(self, call):
        """A box that is down is an answer, and no end of the run: what follows from it is
        for the playbook, which sees all boxes."""
        try:
            answer = self._execute_module(module_name=MODULE, module_args=call, task_vars=self.vars)
        except AnsibleConnectionFailure as err:
            answer = {"unreachable": True, "msg": str(err)}
        answer.pop("invocation", None)
        if answer.pop("unreachable", False):
            return {"changed": False, "reached": False, "why": f"it was not reached: {one_line(answer.get('msg'))}"}
        return dict(answer, reached=True)

    def _confirm(self, call, answer):
        deadline = time.monotonic() + int(call.get("confirm_within", 120)) - MARGIN
        order = {key: call[key] for key in ("kind", "edgectl", "socket") if key in call}
        order["state"] = "confirmed"
        while True:
            try:
                self._connection.reset()
            except (AttributeError, NotImplementedError, AnsibleError):
                pass  # a connection that cannot be made anew, such as local
            said = self._call(order)
            if said["reached"] or time.monotonic() > deadline:
                break
            time.sleep(RETRY)
        if not said["reached"]:
            answer.update(failed=True, msg=f"the box cannot be reached any more, and takes the step back by itself: run this again when it answers. {said['why']}")
        elif said.get("failed"):
            answer.update(failed=True, msg=said.get("msg"))


def path_of(variables, kind):
    """Where the configuration of the box has the file; None if it names none."""
    fleet = (variables.get("edge_config") or {}).get("fleet") or {}
    if kind == "gossip":
        return (fleet.get("guard") or {}).get("key_file")
    return (fleet.get("proxy") or {}).get("ticket_key_file")


def source_of(variables, path):
    folder = variables.get("edge_secrets_dir")
    if not folder or not path:
        raise keyring.Refused("there is no folder of secrets: the inventory is to be a fleet.yaml, or source be given")
    return os.path.join(str(folder), "fleet", keyring.source_of(str(path)))


def socket_of(variables):
    node = (variables.get("edge_config") or {}).get("node") or {}
    return os.path.join(node.get("run_dir") or "/run/edge", "edged.sock")


def one_line(text):
    return " ".join(str(text or "no reason is known").split())[:300]
