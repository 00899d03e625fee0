# SPDX-License-Identifier: Apache-2.0
"""The controller's half of edge_upgrade: it lives on while the box reboots, and judges
what has come back."""

from __future__ import annotations

import time

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.catchment.edge.plugins.module_utils import durations
from ansible_collections.catchment.edge.plugins.module_utils.upgradewatch import Watch

MODULE = "catchment.edge.edge_upgrade"
RETRY = 3  # seconds between two tries to reach the box
TELL = 60  # seconds between two lines for who waits

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
        if args.get("kind") not in ("image", "deb"):
            return dict(result, failed=True, msg="nobody says whether this box is made from the image or is a Debian with the package: set edge_kind, or kind")
        if args.get("state", "looked") in ("applied", "back") and not self._task.check_mode:
            result.update(self._changed(args))
        else:
            result.update(self._call(args))
        result.pop("asked", None)
        return result

    def _call(self, args):
        answer = dict(self._execute_module(module_name=MODULE, module_args=args, task_vars=self.vars))
        answer.pop("invocation", None)
        return answer

    def _changed(self, args):
        try:
            wait = durations.seconds(args.get("wait", "15m"), "wait")
        except ValueError as err:
            return {"failed": True, "msg": str(err)}
        look = {key: args[key] for key in ("kind", "keep", "socket", "image_dir") if key in args}
        before = self._call(look)
        if before.get("failed") or before.get("unreachable"):
            return before
        version = args.get("version") or before["facts"]["previous"]
        begun = time.monotonic()
        answer = self._order(dict(args, version=version or ""))
        if answer is not None and (answer.get("failed") or args["kind"] == "deb"):
            return answer
        watch = Watch(before["facts"], version, begun + wait)
        end = self._await(look, watch)
        return dict(end, changed=before["facts"]["running"] != version, version=version, waited=round(time.monotonic() - begun, 1),
                    diff={"before": f"running: {before['facts']['running']}\n", "after": f"running: {watch.last['running']}\n"})

    def _order(self, args):
        """The answer of the box; None if it went down before it could answer."""
        try:
            answer = self._call(args)
        except AnsibleConnectionFailure as err:
            display.vv(f"edge_upgrade: the connection is gone: {err}")
            return None
        if answer.get("asked") or "Traceback" in str(answer.get("module_stderr", "")) + str(answer.get("exception", "")):
            return answer
        return None

    def _await(self, look, watch):
        told = time.monotonic()
        while True:
            self._reset()
            why = watch.judge(self._look(look), time.monotonic())
            if why is not None:
                return dict({"facts": watch.last}, **({"failed": True, "msg": why} if why else {}))
            if time.monotonic() - told > TELL:
                told = time.monotonic()
                display.display(f"{self.vars.get('inventory_hostname')}: {watch.state}")
            time.sleep(RETRY)

    def _look(self, look):
        """The facts, or why there are none."""
        try:
            answer = self._call(look)
        except AnsibleConnectionFailure as err:
            return str(err)
        if answer.get("failed") or answer.get("unreachable") or "facts" not in answer:
            return str(answer.get("msg") or "the box does not answer")
        return answer["facts"]

    def _reset(self):
        try:
            self._connection.reset()
        except (AttributeError, NotImplementedError, AnsibleError) as err:
            display.vv(f"edge_upgrade: no new connection, the old one is used: {err}")
