# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: rollout
type: aggregate
short_description: Has Ctrl-C, SIGTERM, SIGHUP and any other end of a rollout release what it holds
description:
  - Once a playbook C(catchment.edge.rollout) or C(catchment.edge.rollback) has begun its record, an end of
    C(ansible-playbook) that was not its own runs C(catchment.edge.rollout_release) with the same arguments, and no other
    playbook that was named. This gives the lock back, and undrains the nodes whose upgrade has not begun.
  - When the terminal is gone, or the pipe that was written to, what is told from then on is in C(release.log) beside the record.
  - A second Ctrl-C ends that too; what is held then ends by itself, and C(catchment.edge.rollout_release) releases it before.
  - It is to be named in C(callbacks_enabled) of ansible.cfg, as that of the collection does.
requirements:
  - C(callbacks_enabled = catchment.edge.rollout) in ansible.cfg
author: Catchment developers (@catchment-dev)
"""

import atexit
import json
import os
import signal
import subprocess
import sys

from ansible import context
from ansible.plugins.callback import CallbackBase
from ansible_collections.catchment.edge.plugins.plugin_utils.cut import LOST, RELEASE, is_gone, released_by

GUARD = "CATCHMENT_ROLLOUT_GUARD"


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "catchment.edge.rollout"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pid, self.folder, self.owner, self.failed = os.getpid(), None, None, {}
        # The record of the run asks whether it is guarded.
        os.environ[GUARD] = str(self.pid)
        atexit.register(self._ended)

    def v2_runner_on_ok(self, result):
        answer = result._result
        if str(result._task.action).endswith("edge_rollout_record") and "guarded" in answer and self.folder is None:
            self.folder, self.owner = answer.get("folder"), answer.get("owner")
            signal.signal(signal.SIGTERM, self._terminated)
            if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # else it is to go on, as nohup has it
                signal.signal(signal.SIGHUP, self._terminated)

    def v2_playbook_on_start(self, playbook):
        self.failed = {}

    def v2_runner_on_failed(self, result, ignore_errors=False):
        why = " ".join(str(result._result.get("msg") or "it has failed").split())
        self.failed[result._host.get_name()] = f"{result._task.get_name().rpartition(' : ')[2].lower()}: {why}"

    def v2_runner_on_unreachable(self, result):
        self.v2_runner_on_failed(result)

    def v2_playbook_on_stats(self, stats):
        """Of those that have failed some were rescued: for Ansible the others are gone."""
        gone = sorted(set(stats.failures) | set(stats.dark))
        # The kernel takes 128 KiB for one of the environment.
        os.environ[LOST] = json.dumps({n: self.failed[n][:500] for n in gone[:30] if n in self.failed})

    def _terminated(self, number, _frame):
        if os.getpid() == self.pid:
            self._write_where_it_is_read(hung=number == signal.SIGHUP)
            os.kill(self.pid, signal.SIGINT)  # what Ansible ends by in good order
            return
        # A worker of Ansible has inherited this, and is to end as ever.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _write_where_it_is_read(self, hung=False):
        """Whoever writes to a terminal or a pipe that is gone fails, and would release
        nothing. A terminal that hangs up is about to go."""
        for fd in (0, 1, 2):
            if is_gone(fd) or hung and os.isatty(fd):
                try:
                    to = os.open(os.path.join(self.folder, "release.log") if fd else os.devnull, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
                except OSError:
                    to = os.open(os.devnull, os.O_RDWR)
                os.dup2(to, fd)

    def _ended(self):
        if os.getpid() != self.pid or not self.folder or not self._runs():
            return
        self._write_where_it_is_read()
        self._display.display("The run was cut: what it holds is released. A second Ctrl-C leaves it to end by itself.")
        env = {k: v for k, v in os.environ.items() if k != GUARD}
        try:
            # Named, since Ansible 2.19 has it that no child inherits them.
            code = subprocess.run([sys.executable] + released_by(sys.argv, context.CLIARGS.get("args") or ()), env=env, check=False, stdin=0, stdout=1, stderr=2).returncode
        except (OSError, KeyboardInterrupt) as err:
            code = f"{type(err).__name__} {err}"
        if code != 0:
            self._display.error(f"not all was released ({code}): run the playbook {RELEASE}, or wait until lock and drains end by themselves")

    def _runs(self):
        """Whether the record says that this run goes on."""
        path = os.path.join(self.folder, "run.json")
        try:
            with open(path, encoding="utf-8") as f:
                run = json.load(f)
            return run.get("state") == "running" and (run.get("process") or {}).get("pid") == self.pid
        except FileNotFoundError:
            return False  # in check mode there is none
        except (OSError, ValueError, AttributeError, RecursionError):
            self._write_where_it_is_read()
            self._display.error(f"{path} cannot be read any more: if the run had not ended, remove it and run the playbook {RELEASE} with -e rollout_owner={self.owner}, "
                                "or wait until lock and drains end by themselves")
            return False
