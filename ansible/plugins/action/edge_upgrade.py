# SPDX-License-Identifier: Apache-2.0
"""The controller's half of edge_upgrade: it lives on while the box reboots."""

from __future__ import annotations

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.catchment.edge.plugins.module_utils import durations
from ansible_collections.catchment.edge.plugins.module_utils.upgradewatch import Drive

MODULE = "catchment.edge.edge_upgrade"

display = Display()


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        self.vars = task_vars or {}
        args = {key: value for key, value in self._task.args.items() if value is not None}
        args.setdefault("kind", self.vars.get("edge_kind"))
        if args["kind"] not in ("image", "deb"):
            return dict(result, failed=True, msg="nobody says whether this box is made from the image or is a Debian with the package: set edge_kind, or kind")
        try:
            wait = durations.seconds(args.get("wait", "15m"), "wait")
        except ValueError as err:
            return dict(result, failed=True, msg=str(err))
        if args.get("state", "looked") in ("applied", "back") and not self._task.check_mode:
            answer = Drive(self._seen, self._reset, self._tell).run(args, wait)
        else:
            answer = self._seen(args)
        return dict(result, **_lost(answer))

    def _call(self, args):
        answer = dict(self._execute_module(module_name=MODULE, module_args=args, task_vars=self.vars))
        answer.pop("invocation", None)
        return answer

    def _seen(self, args):
        try:
            return self._call(args)
        except AnsibleConnectionFailure as err:
            return {"unreachable": True, "msg": str(err)}

    def _tell(self, text):
        display.display(f"{self.vars.get('inventory_hostname')}: {text}")

    def _reset(self):
        try:
            self._connection.reset()
        except (AttributeError, NotImplementedError, AnsibleError) as err:
            display.vv(f"edge_upgrade: no new connection, the old one is used: {err}")


def _lost(answer):
    """A node that Ansible takes for unreachable leaves the play, and no rescue hears why:
    so it is one that has failed, and is told like any other."""
    if not answer.get("unreachable"):
        return answer
    why = " ".join(str(answer.get("msg") or "the connection was lost").split())
    return {"failed": True, "msg": f"it was not reached any more: {why}"}
