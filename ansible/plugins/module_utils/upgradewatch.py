# SPDX-License-Identifier: Apache-2.0
"""Orders a box into another version, and judges what is seen of it until it is there,
or is not. All is seen from the controller: of a box that goes down in the middle of a
sentence no answer is an answer."""

from __future__ import annotations

import time

from ansible_collections.catchment.edge.plugins.module_utils import upgrade

# How long a box that has come back in another version has to say why, in seconds: its
# checks write that down some seconds after ssh answers.
SAYS_WHY = 60
RETRY = 3  # seconds between two tries to reach the box
TELL = 60  # seconds between two lines for who waits
_LOOK = ("kind", "keep", "socket", "image_dir")


class Drive:
    """call runs the module with arguments; of a box that is not reached the answer is
    that. reset has the next call use a new connection, tell says how far it is."""

    def __init__(self, call, reset, tell, sleep=time.sleep, clock=time.monotonic):
        self.call, self.reset, self.tell, self.sleep, self.clock = call, reset, tell, sleep, clock

    def run(self, args, wait):
        look = {key: args[key] for key in _LOOK if key in args}
        before = self.call(look)
        if before.get("failed") or before.get("unreachable"):
            return before
        was, begun = before["facts"]["running"], self.clock()
        version = args.get("version") or before["facts"]["previous"] or ""
        answer = self.call(dict(args, version=version))
        if _final(answer, args["kind"]):
            return answer
        watch = Watch(before["facts"], version, begun + wait)
        why = self._await(look, watch)
        out = {"changed": was != version, "facts": watch.last, "version": version, "waited": round(self.clock() - begun, 1),
               "diff": {"before": f"running: {was}\n", "after": f"running: {watch.last['running']}\n"}}
        return dict(out, failed=True, msg=why) if why else out

    def _await(self, look, watch):
        told = self.clock()
        while True:
            self.reset()
            why = watch.judge(_seen(self.call(look)), self.clock())
            if why is not None:
                return why
            if self.clock() - told > TELL:
                told = self.clock()
                self.tell(watch.state)
            self.sleep(RETRY)


def _final(answer, kind):
    """Whether the box has said how it ended. One that goes down says nothing any more, and
    Ansible makes a failed module of that, with what it has written so far."""
    if answer.get("unreachable"):
        return False
    if "module_stdout" in answer or "module_stderr" in answer:
        return "Traceback" in str(answer.get("module_stderr", "")) + str(answer.get("module_stdout", ""))
    return bool(answer.get("failed")) or kind == "deb"


def _seen(answer):
    """The facts, or why there are none."""
    if answer.get("failed") or answer.get("unreachable") or "facts" not in answer:
        return str(answer.get("msg") or "no reason is known")
    return answer["facts"]


class Watch:
    """What is seen of a box from the order on. Times are of one clock, in seconds."""

    def __init__(self, before, version, end):
        self.before, self.version, self.end = before, version, end
        self.last, self.state, self.other_since = before, "ordered", None

    def judge(self, seen, now):
        """None: wait. "": it is there. Else why it is not."""
        why = self._other(seen, now) if self._facts(seen) else None
        if why is not None:
            return why
        if now < self.end:
            return None
        return f"{self.version} is not in force in time: {self.state}. The node stays as it is, drained; look at it on the console, or by ssh: {self._where()}journalctl -b"

    def _facts(self, seen):
        if isinstance(seen, str):
            self.state = f"the box does not answer ({' '.join(seen.split())[:200]})"
            return False
        self.last = seen
        return True

    def _other(self, seen, now):
        if seen["running"] == self.version:
            self.other_since = None
            self.state = f"{self.version} runs, and is not good: {'; '.join(seen['why_not_good'])}"
            return "" if seen["good"] else None
        if seen["boot_id"] == self.before["boot_id"]:
            still = "; ".join(seen["why_not_good"]) if seen["kind"] == "deb" else f"it has not rebooted yet, and {seen['running']} runs"
            self.state = still or f"{seen['running']} still runs"
            return None
        # It has rebooted into another version: that is final, but for the reason.
        self.state = f"it runs {seen['running']}"
        self.other_since = now if self.other_since is None else self.other_since
        if self.version not in seen["refused"] and now - self.other_since < SAYS_WHY:
            return None
        return f"{self.version} did not stay: {upgrade.why_back(self.before['running'], seen, self.version)}. " \
               f"The node stays drained; there: {self._where()}journalctl -b -1"

    def _where(self):
        """What only an appliance has."""
        return "" if self.before.get("kind") == "deb" else "edgectl slots, "
