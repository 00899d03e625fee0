# SPDX-License-Identifier: Apache-2.0
"""Keeps on the controller who runs a rollout and how far each node is."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import re
import secrets
import time

from ansible_collections.catchment.edge.plugins.module_utils import durations, rollout_run, rollout_text
from ansible_collections.catchment.edge.plugins.plugin_utils import cut
from ansible_collections.catchment.edge.plugins.plugin_utils.controller import ControllerAction, Refused, flag

MAX_FILE = 16 << 20  # bytes


class ActionModule(ControllerAction):
    OPTIONS = ("state", "folder", "version", "back", "owner", "nodes", "answer", "lost", "held", "finished", "batches", "left_out", "told", "stop", "staged", "report", "cut")

    def decide(self, args):
        self.folder = str(args.get("folder") or "")
        if not self.folder:
            raise Refused("folder: it is needed")
        step = {"begun": self._begin, "noted": self._note, "ended": self._end, "shown": self._show}.get(args.get("state", "shown"))
        if step is None:
            raise Refused("state is begun, noted, ended or shown")
        if self._task.check_mode or step == self._show:
            return dict(step(args, self._read()), changed=False)
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        with self._ordered():
            return dict(step(args, self._read()), changed=False)

    @property
    def path(self):
        return os.path.join(self.folder, "run.json")

    @contextlib.contextmanager
    def _ordered(self):
        """Nodes of a batch note at the same time."""
        with open(os.path.join(self.folder, "order"), "a", encoding="ascii") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            yield

    def _read(self):
        try:
            with open(self.path, encoding="utf-8") as f:
                run = json.loads(f.read(MAX_FILE))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            why = "it is not JSON"
        else:
            why = rollout_run.misfit(run)
        if why:
            raise Refused(f"{self.path} is no record of a rollout ({why}): remove it. What the boxes say is enough to go on: "
                          "if a run was cut, name its owner with -e rollout_owner= (edgectl status and the lock on a box say who it is)")
        return run

    def _write(self, run):
        if self._task.check_mode:
            return
        with open(self.path + ".new", "w", encoding="utf-8") as f:
            json.dump(run, f, indent=1, sort_keys=True)
            f.write("\n")
            f.flush()
            os.fsync(f.fileno())
        os.rename(self.path + ".new", self.path)

    def _begin(self, args, before):
        if self._goes_on(before):
            raise Refused(f"{self._what(before)} runs already, as process {before['process']['pid']} since {before.get('begun')}: wait for it, or end it with Ctrl-C there")
        before = rollout_run.standing(before)
        owner = " ".join(str(args.get("owner") or (before or {}).get("owner") or _owner()).split())
        why = rollout_run.unfit(str(args["version"]), owner)
        if why:
            raise Refused(why)
        # The worker that runs this is a child of ansible-playbook.
        who = dict(rollout_run.process(os.getppid()), host=os.uname().nodename)
        run = rollout_run.begin(before, str(args["version"]), flag(args.get("back", False)), owner, who, time.time())
        self._write(run)
        return {"folder": os.path.abspath(self.folder), "owner": owner, "resumed": run["resumed"], "unreleased": rollout_run.unreleased(before), "unproven": rollout_run.unproven(run),
                "newest": rollout_run.newest(run, run["version"]), "guarded": os.environ.get("CATCHMENT_ROLLOUT_GUARD") == str(os.getppid())}

    @staticmethod
    def _goes_on(run):
        """Whether another run is under way. One that releases what its own run holds is a
        child of that."""
        return bool(run) and run.get("state") == "running" and rollout_run.alive(run) and run["process"]["pid"] not in rollout_run.above(os.getpid())

    @staticmethod
    def _what(run):
        return f"a {'rollback from' if run.get('back') else 'rollout of'} {run.get('version')}"

    def _note(self, args, run):
        run, answer = self._running(run), args.get("answer") or {}
        if answer.get("unreachable"):
            raise Refused(f"it was not reached any more: {' '.join(str(answer.get('msg') or 'the connection was lost').split())}")
        for name, what in (args.get("nodes") or {}).items():
            rollout_run.note(run, name, time.time(), **what)
        for name in args.get("lost") or []:
            rollout_run.lose(run, name, time.time())
        if flag(args.get("held", False)):
            run.update(held=True, before=None)
        for key in ("left_out", "told"):
            if args.get(key) is not None:
                run[key] = args[key]
        if args.get("batches") is not None:
            rollout_run.plan(run, args["batches"], args.get("finished") or [], time.time())
        self._write(run)
        return {"failures": rollout_run.failed(run)}

    def _running(self, run):
        if self._task.check_mode:  # what an earlier run has noted says nothing of this one
            return rollout_run.begin(None, "", False, "", {}, time.time())
        if run is None:
            raise Refused(f"{self.path} is gone: somebody has removed it while this runs")
        # Whoever releases means the last that held anything, not one that was refused.
        return run if rollout_run.alive(run) else rollout_run.standing(run) or run

    def _end(self, args, run):
        run = self._running(run)
        for name, why in _lost().items() if flag(args.get("cut", False)) else ():
            rollout_run.note(run, name, time.time(), "failed", why)
        run.update(state="ended", ended=durations.stamp(time.time()), stop=args.get("stop") or None)
        run["outcome"] = rollout_text.outcome(run, flag(args.get("staged", False)), self._task.check_mode)
        self._write(run)
        files, why = [], None
        if args.get("report") and not self._task.check_mode:
            try:
                files = _report(str(args["report"]), run)
            except OSError as err:  # how it ended is to be told all the same
                why = f"The report could not be written: {err.filename or args['report']}: {err.strerror}"
        failed = rollout_run.failed(run)
        good = not failed and not run["stop"]
        return {"files": files, "failures": failed, "good": good, "text": "\n".join([rollout_text.told(run, files)] + ([why] if why else []))}

    def _show(self, args, run):
        alive = self._goes_on(run)
        run = (run if rollout_run.alive(run) else rollout_run.standing(run)) or {}
        return {"run": run, "alive": alive, "idle_drains": rollout_run.idle_drains(run), "owner": run.get("owner") or ""}


def _report(folder, run):
    """Write the report; its files."""
    doc = rollout_text.document(run)
    base = os.path.join(folder, f"{'rollback' if run['back'] else 'rollout'}-{run['version'].replace('/', '_')}")
    files = [base + ".md", base + ".json"]
    os.makedirs(folder, exist_ok=True)
    for path, text in zip(files, (rollout_text.markdown(doc), json.dumps(doc, indent=2, sort_keys=True) + "\n")):
        with open(path + ".new", "w", encoding="utf-8") as f:
            f.write(text)
        os.rename(path + ".new", path)
    return files


def _lost():
    """The nodes without which Ansible has ended the run, as the callback has seen them."""
    try:
        lost = json.loads(os.environ.get(cut.LOST) or "{}")
    except ValueError:
        return {}
    return {str(n): str(why) for n, why in lost.items()} if isinstance(lost, dict) else {}


def _owner():
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return re.sub(r"[^\w.@+-]", "-", f"{user[:40]}@{os.uname().nodename[:40]}-{secrets.token_hex(3)}")
