# SPDX-License-Identifier: Apache-2.0
"""Puts a version of the package on a box, and has its daemons run it. The node is
drained: by whom is not its business, but it looks."""

from __future__ import annotations

import os
import shutil
import time

from ansible_collections.catchment.edge.plugins.module_utils import debcheck, edged, orders, readiness, upgrade
from ansible_collections.catchment.edge.plugins.module_utils.debbox import Refused

# edged first: an older one does not know that edgebgp is to stop. edgebgp last: it
# asks edged for leave.
ORDER = ("edged", "edgeproxy", "edgebgp")
EVERY = 0.5  # seconds between two looks
LEAST = 60  # seconds that dpkg has, however late another dpkg has let it begin


def _remove(path):
    """What was brought and is refused. A folder there would have all that comes later put into it."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


class Change:
    def __init__(self, box, version, wait, sleep=time.sleep, clock=time.monotonic):
        self.box, self.version, self.wait, self.sleep, self.clock = box, version, wait, sleep, clock
        self.end = clock() + wait

    # In store.

    def stage(self, brought, most, check):
        """True if it changes anything, or with check would."""
        box, path = self.box, self.box.path(self.version)
        if brought and os.path.exists(brought):
            try:
                debcheck.package(box, brought, self.version)
            except Refused:
                if not check:
                    _remove(brought)
                raise
            if check:
                return True
            os.replace(brought, path)
            changed = True
        elif os.path.exists(path):
            debcheck.package(box, path, self.version)
            changed = False
        elif check:
            return True
        else:
            raise Refused(f"the package of {self.version} is not on this box: give edge_upgrade_package")
        return self._note("staged", self.version, check) | self.prune(most, check) | changed

    def prune(self, most, check):
        kept, notes = self.box.kept(), self.box.notes()
        needed = {self.version, self.box.installed()["version"], *notes.values()}
        gone = upgrade.to_prune(kept, needed, most)
        for version in [] if check else gone:
            os.unlink(self.box.path(version))
        return bool(gone)

    def _note(self, name, text, check=False):
        if self.box.notes().get(name) == text:
            return False
        if not check:
            path = os.path.join(self.box.keep, name)
            with open(path + ".new", "w", encoding="ascii") as f:
                f.write(text + "\n")
            os.replace(path + ".new", path)
        return True

    # In force.

    def apply(self, check, back=False):
        """True if it changes anything, or with check would. Refused says what stands.
        What is left by going back is nothing to go back to."""
        before = self.box.facts()
        if before["running"] == self.version and before["good"]:
            return False
        path = self.box.path(self.version)
        new = self.box.installed() != {"want": "install", "status": "installed", "version": self.version}
        if new and not os.path.exists(path):
            raise Refused(f"the package of {self.version} is not on this box ({path}): stage it first. Nothing was changed")
        if new:
            debcheck.package(self.box, path, self.version)
        self._drained("Nothing was changed")
        if check:
            return True
        if new:
            self._note_before(before, back)
            self._install(path)
        if self.box.configured():
            for unit in ORDER:
                self._restart(unit)
        self._settle()
        self._note("ran", self.version)
        if self.box.notes().get("staged") == self.version:
            os.unlink(os.path.join(self.box.keep, "staged"))
        return True

    def _note_before(self, before, back):
        """A version that never came to be in force is nothing to go back to: that is then
        the last that was."""
        if before["good"]:
            self._note("ran", before["installed"])
        ran = self.box.notes().get("ran")
        was = ran if ran in before["kept"] else before["installed"]
        if was not in (None, self.version) and not back:
            self._note("before", was)

    def _drained(self, stands):
        """Refuse to touch a node that is on the air. One whose edged is silent is asked
        again when the new one runs."""
        if not self.box.configured():
            return
        try:
            left = orders.left(self.box.client.status(), {})
        except edged.EdgedError:
            return
        if left:
            raise Refused(f"this node is not drained: {'; '.join(left)}. Drain it first. {stands}")

    def _install(self, path):
        args = ["dpkg", *debcheck.FORCE, "--install", path]
        while True:
            rc, out, err = self.box.bounded(max(LEAST, self.end - self.clock()), args, environ_update={"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"})
            # Another dpkg is at it, such as unattended-upgrades: it ends.
            if rc == 0 or "locked by another process" not in err or not self._time():
                break
        if rc != 0:
            last = " ".join((err or out).split())[-600:]
            raise Refused(f"dpkg --install {path} ended with {rc}: {last}. {self.stands()}; mend that (dpkg --configure -a), and run this again")

    def _time(self):
        if self.clock() >= self.end:
            return False
        self.sleep(EVERY)
        return True

    def _restart(self, name):
        unit = self.box.units()[name]
        if not (unit["active"] or unit["wanted"]):
            return  # an operator has switched it off
        if unit["version"] != self.version:
            if name != "edged":
                self._off_the_air(name)
            rc, out, err = self.box.run(["systemctl", "restart", f"{name}.service"])
            if rc != 0:
                raise Refused(f"{name} of {self.version} does not start: {self._journal(name) or ' '.join((err or out).split())}. {self.stands()}; "
                              f"mend that and run this again, or go back")
        if name == "edged":
            self._answers()

    def _journal(self, name):
        out = self.box.ask("journalctl", "--unit", f"{name}.service", "--lines", "3", "--output", "cat", "--no-pager", "--quiet")
        return " / ".join((out or "").strip().splitlines())[-600:]

    def _answers(self):
        """edged decides, and reaches edgebgp: only then it can give that leave to stop."""
        why = self.box.silent()
        while why and self._time():
            why = self.box.silent()
        if why:
            raise Refused(f"edged of {self.version} runs, but not as it should: {'; '.join(why)}; {self._journal('edged')}. {self.stands()}; mend that and run this again, or go back")

    def _off_the_air(self, name):
        """A restarted edged knows its orders, but has to look at the world first."""
        while True:
            try:
                status = self.box.client.status()
                left = orders.left(status, {})
                air = [d.get("prefix") for d in status.get("decisions") or [] if readiness.on_air(d) and d.get("rung") == "announced"]
            except edged.EdgedError as err:
                left, air = [str(err)], []
            if not left:
                return
            if air or not self._time():
                raise Refused(f"{name} is not restarted, since this node is not drained (any more): {'; '.join(left)}. {self.stands()}; drain it, and run this again")

    def _settle(self):
        now = self.box.facts()
        while not (now["running"] == self.version and now["good"]) and self.box.configured() and self._time():
            now = self.box.facts()
        if self.box.configured() and not (now["running"] == self.version and now["good"]):
            raise Refused(f"{self.version} is installed, but not in force within {self.wait:g}s: {'; '.join(now['why_not_good']) or 'another version runs'}. "
                          f"{self.stands()}; mend that and run this again, or go back")

    def stands(self):
        """What is so now, for who comes to mend it."""
        package = self.box.installed()
        status = "" if package["status"] == "installed" else f" ({package['status'] or 'not installed'})"
        return f"Installed is {package['version'] or 'nothing'}{status}, {upgrade.stands(self.box.units())}; the node stays as it is, drained"
