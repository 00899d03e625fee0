# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: rollout
type: aggregate
short_description: Has Ctrl-C, SIGTERM and any other end of a rollout release what it holds
description:
  - Once a playbook C(catchment.edge.rollout) or C(catchment.edge.rollback) has begun its record, an end of
    C(ansible-playbook) that was not its own runs C(catchment.edge.rollout_release) with the same arguments. This gives
    the lock back, and undrains the nodes whose upgrade has not begun.
  - A second Ctrl-C ends that too; what is held then ends by itself, and C(catchment.edge.rollout_release) releases it before.
  - It is to be named in C(callbacks_enabled) of ansible.cfg, as that of the collection does.
requirements:
  - C(callbacks_enabled = catchment.edge.rollout) in ansible.cfg
author: Catchment developers (@catchment-dev)
"""

import atexit
import json
import os
import re
import signal
import subprocess
import sys

from ansible import context
from ansible.plugins.callback import CallbackBase

GUARD = "CATCHMENT_ROLLOUT_GUARD"
CUT_BY = "CATCHMENT_ROLLOUT_CUT_BY"  # edge_rollout_record reads it
MAX_WRONG = 1000  # characters
BOOK = re.compile(r"^(|.*[./])(rollout|rollback)(\.ya?ml)?$")


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "catchment.edge.rollout"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pid, self.folder = os.getpid(), None
        # The last that went wrong, and whether the play went on to its end: if it did, no node
        # was left to release anything.
        self.wrong, self.to_the_end = "", False
        # The record of the run asks whether it is guarded.
        os.environ[GUARD] = str(self.pid)
        atexit.register(self._ended)

    def v2_runner_on_ok(self, result):
        answer = result._result
        if str(result._task.action).endswith("edge_rollout_record") and "guarded" in answer and self.folder is None:
            self.folder = answer.get("folder")
            signal.signal(signal.SIGTERM, self._terminated)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._went_wrong(result)

    def v2_runner_on_unreachable(self, result):
        self._went_wrong(result)

    def v2_playbook_on_stats(self, stats):
        self.to_the_end = True

    def _went_wrong(self, result):
        why = " ".join(str(result._result.get("msg") or "it has failed").split())
        self.wrong = f"{result._host.get_name()} was the last, and is lost: {why}"[:MAX_WRONG]

    def _terminated(self, number, _frame):
        if os.getpid() == self.pid:
            os.kill(self.pid, signal.SIGINT)  # what Ansible ends by in good order
            return
        # A worker of Ansible has inherited this, and is to end as ever.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _ended(self):
        if os.getpid() != self.pid or not self.folder or not self._runs():
            return
        command = released_by(sys.argv, context.CLIARGS.get("args") or ())
        if command is None:
            return
        self._display.display("The run was cut: what it holds is released. A second Ctrl-C leaves it to end by itself.")
        env = {k: v for k, v in os.environ.items() if k != GUARD}
        if self.to_the_end and self.wrong:
            env[CUT_BY] = self.wrong  # not as a variable, which would be a template
        try:
            # Named, since Ansible 2.19 has it that no child inherits them.
            code = subprocess.run([sys.executable] + command, env=env, check=False, stdin=0, stdout=1, stderr=2).returncode
        except (OSError, KeyboardInterrupt) as err:
            code = f"{type(err).__name__} {err}"
        if code != 0:
            self._display.error(f"not all was released ({code}): run the playbook catchment.edge.rollout_release, or wait until lock and drains end by themselves")

    def _runs(self):
        """Whether the record says that this run goes on."""
        try:
            with open(os.path.join(self.folder, "run.json"), encoding="utf-8") as f:
                run = json.load(f)
        except (OSError, ValueError):
            return False
        return isinstance(run, dict) and run.get("state") == "running" and (run.get("process") or {}).get("pid") == self.pid


def released_by(argv, books):
    """The command line of rollout_release for that of a run; None if it is not known."""
    out = list(argv)
    for i, arg in enumerate(out[1:], 1):
        m = BOOK.match(arg)
        if m and arg in books:
            out[i] = f"{m.group(1)}rollout_release{m.group(3) or ''}"
            return out
    return None
