# SPDX-License-Identifier: Apache-2.0
"""Decides on the controller which step of a rotation may begin, and keeps the file of
secrets at what the boxes have."""

from __future__ import annotations

import glob
import os
import secrets

from ansible.plugins.action import ActionBase
from ansible_collections.catchment.edge.plugins.action.edge_keyfile import path_of, source_of
from ansible_collections.catchment.edge.plugins.module_utils import keyring
from ansible_collections.catchment.edge.plugins.module_utils.keyring import Refused
from ansible_collections.catchment.edge.plugins.module_utils.keysource import Source

OPTIONS = ("kind", "step", "looks", "leave_out", "keep", "new", "source")
RUN_AGAIN = "what was done stays, and no box is left without a key that another uses; mend it and run this again, which goes on from here"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        self.vars, args = task_vars or {}, dict(self._task.args)
        try:
            unknown = sorted(set(args) - set(OPTIONS))
            if unknown:
                raise Refused(f"edge_keyring has no option {', '.join(unknown)}; it has {', '.join(sorted(OPTIONS))}")
            result.update(self._decide(args))
        except Refused as err:
            result.update(failed=True, msg=str(err))
        return result

    def _decide(self, args):
        kind, step, keep = args.get("kind"), args.get("step"), keyring.keep_of(args.get("keep"))
        source = Source(self._loader, args.get("source") or self._source(kind))
        ring = keyring.parse(source.read(), source.path)
        boxes = self._boxes(args.get("looks") or {}, names(args.get("leave_out")))
        plan = keyring.resume(ring, keep)
        if step == "install" and plan is None:
            plan = keyring.begin(ring, self._new(args.get("new")), keep)
            if plan is None:
                return {"changed": False, "idle": True, "todo": [], "keys": ring.names, "new": ring.names[0], "waits_for": []}
        if plan is None:
            raise Refused(f"{source.path} is not in the middle of a rotation any more: did somebody else change it? Run this again")
        if step == "done":
            return self._done(source, ring, plan, boxes)
        self._same_key(args.get("new"), ring, plan, source.path)
        if ring.step == "use" and step != "remove":
            # It goes on where all boxes had the new key. One that has come back since gets it
            # too: what it encrypts with then, all accept. By an old file they would not.
            if step == "use":
                self._refuse(kind, step, plan, boxes, source.path, resumed=True)
            return dict(self._answer(plan, "use", keyring.todo(plan, "use", boxes) if step == "use" else []), changed=False)
        self._refuse(kind, step, plan, boxes, source.path)
        # The file has a key before the first box, and is at a step when all boxes are.
        reached = step if step == "install" else keyring.STEPS[keyring.STEPS.index(step) - 1]
        changed = self._keep(source, ring, plan, reached)
        left = keyring.todo(plan, step, boxes)
        answer = dict(self._answer(plan, step, left), changed=changed or (self._task.check_mode and bool(left)))
        if step == "install":
            answer["waits_for"] = [f"{b.name}: {b.why or 'it was not reached'}" for b in boxes if not b.reached]
        answer["diff"] = {"before": told(source.path, ring), "after": told(source.path, plan.rings[reached])}
        return answer

    def _source(self, kind):
        path = path_of(self.vars, kind)
        if not path:
            raise Refused(f"fleet.yaml names no file of {kind} keys: set fleet.proxy.ticket_key_file, put its first key into secrets/fleet, and run the playbook site")
        found = source_of(self.vars, path)
        folder, name = str(self.vars["edge_secrets_dir"]), keyring.source_of(str(path))
        for over in glob.glob(os.path.join(glob.escape(folder), "sites", "*", glob.escape(name))) + glob.glob(os.path.join(glob.escape(folder), "nodes", "*", glob.escape(name))):
            raise Refused(f"{over} stands over {found} on some boxes, and all boxes have to have the same keys: remove it")
        return found

    def _boxes(self, looks, leave_out):
        """All nodes of the fleet but those that are left out, also those that --limit hides."""
        sites = (self.vars.get("edge_fleet") or {}).get("sites") or []
        nodes = [node for site in sites for node in site.get("nodes") or []] or list(looks)
        unknown = sorted(set(leave_out) - set(nodes) - set(looks))
        if unknown:
            raise Refused(f"rotate_leave_out names {', '.join(unknown)}, which is no box of the fleet")
        out = []
        for node in nodes:
            look = looks.get(node)
            if node in leave_out:
                continue
            if not isinstance(look, dict):
                out.append(keyring.Box(node, reached=False, why="it is not in this run: leave --limit out"))
                continue
            out.append(keyring.Box(node, look.get("loaded"), look.get("file"), look.get("noted"), look.get("why") or look.get("msg") or "", look.get("reached", False)))
        if not out:
            raise Refused("no box is left: rotate_leave_out names them all")
        return out

    def _new(self, path):
        if not path:
            return secrets.token_bytes(keyring.SIZE)
        given = keyring.parse(Source(self._loader, path).read(), path)
        if len(given.keys) != 1:
            raise Refused(f"{path} has {len(given.keys)} keys: the new key is to stand there alone")
        return given.keys[0]

    def _same_key(self, path, ring, plan, source):
        if path and ring.step and keyring.name_of(self._new(path)) != plan.new:
            raise Refused(f"{source} is in the middle of a rotation to the key {plan.new}, and {path} has another: finish that one first, without a new key")

    def _refuse(self, kind, step, plan, boxes, path, resumed=False):
        problems = keyring.trouble(plan, step, boxes, kind == "gossip", resumed)
        if not problems:
            return
        if step == "install" or resumed:
            raise Refused(
                f"the {kind} keys are not changed: what these boxes have does not go with {path}\n" + "\n".join(problems) +
                "\nIf the file is an old one, put the last one back (it is to be committed after each rotation; a box has it at "
                "the path that edge.yaml names). If a box was away during a rotation, the playbook site with --limit brings it back"
            )
        down = [b.name for b in boxes if not b.reached]
        raise Refused(
            f"the step {step} of the {kind} keys does not begin, since the one before it is not done everywhere\n" + "\n".join(problems) + f"\n{RUN_AGAIN}" +
            (f". To go on without boxes that stay down: -e rotate_leave_out={','.join(down)}, and when they are back the playbook site with --limit" if down else "")
        )

    def _keep(self, source, ring, plan, step):
        """Has the file of secrets be at a step; whether that changes it."""
        content = plan.content(step)
        if ring.content() == content:
            return False
        if not self._task.check_mode:
            source.write(content)
        return True

    def _done(self, source, ring, plan, boxes):
        left = keyring.unfinished(plan, boxes)
        if left:
            raise Refused("the old key is not removed everywhere\n" + "\n".join(left) + f"\n{RUN_AGAIN}")
        changed = self._keep(source, ring, plan, "remove")
        return dict(self._answer(plan, "remove", []), changed=changed)

    @staticmethod
    def _answer(plan, step, left):
        return {"idle": False, "todo": left, "keys": plan.names(step), "new": plan.new, "waits_for": []}


def told(path, ring):
    lines = [f"{path}\n"] + [f"key {name} {'encrypts' if i == 0 else 'is accepted'}\n" for i, name in enumerate(ring.names)]
    return "".join(lines)


def names(value):
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    return [str(v) for v in value or []]
