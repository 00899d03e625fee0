# SPDX-License-Identifier: Apache-2.0
"""Judges what is seen of a box that is to come back in another version. Pure."""

from __future__ import annotations

from ansible_collections.catchment.edge.plugins.module_utils import upgrade

# How long a box that has come back in another version has to say why, in seconds: its
# checks write that down some seconds after ssh answers.
SAYS_WHY = 60


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
        return f"{self.version} is not in force in time: {self.state}. The node stays as it is, drained; look at it on the console, or by ssh: edgectl slots, journalctl -b"

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
            self.state = f"it has not rebooted yet, and {seen['running']} runs"
            return None
        # It has rebooted into another version: that is final, but for the reason.
        self.state = f"it runs {seen['running']}"
        self.other_since = now if self.other_since is None else self.other_since
        if self.version not in seen["refused"] and now - self.other_since < SAYS_WHY:
            return None
        return f"{self.version} did not stay: {upgrade.why_back(self.before['running'], seen, self.version)}. " \
               "The node stays drained; edgectl slots and journalctl -b -1 there say more"
