# SPDX-License-Identifier: Apache-2.0
"""A Debian with the package: what is installed, what runs, what is kept on it. It
only reads; debchange changes. run is AnsibleModule.run_command, or a test's."""

from __future__ import annotations

import functools
import os
import re
import time

from ansible_collections.catchment.edge.plugins.module_utils import edged, readiness, upgrade

PACKAGE = "catchment-edge"
KEEP = "/var/cache/catchment-edge"
CONFIG = "/etc/edge/edge.yaml"
# In store; what the last change has replaced; what was in force last.
NOTES = ("staged", "before", "ran")
_MAX_NOTE = 256  # bytes
SAYS = 10  # seconds that a program has to say its version


class Refused(Exception):
    """Why it is not done. The text says what stands, and what to do."""


class Box:
    def __init__(self, run, client, keep=KEEP, config=CONFIG, proc="/proc"):
        self.run, self.client, self.keep, self.config, self.proc = run, client, keep, config, proc

    def ask(self, *args):
        """What a command writes, or None if it fails."""
        rc, out, _ = self.run(list(args))
        return out if rc == 0 else None

    def bounded(self, seconds, args, **more):
        """A command that may not end, as one of a new package may not: after so long it is
        ended, and all that it has started."""
        rc, out, err = self.run(["timeout", "--kill-after=10", f"{max(1, round(seconds))}", *args], **more)
        return (rc, out, f"it did not end within {seconds:.0f}s. {err}") if rc in (124, 137) else (rc, out, err)

    def installed(self):
        """The package as dpkg knows it."""
        out = self.ask("dpkg-query", "--show", "--showformat=${db:Status-Want} ${db:Status-Status} ${Version}", PACKAGE) or ""
        words = out.split(" ")
        want, status, version = words if len(words) == 3 else ("", "", "")
        # Of one that is removed and not purged dpkg still knows the version.
        return {"want": want, "status": "" if status == "config-files" else status, "version": version}

    def arch(self):
        return (self.ask("dpkg", "--print-architecture") or "").strip()

    def units(self):
        """The daemons: whether they run, whether they are to, and what they are. A program
        that was replaced and not restarted is still what it was."""
        out = self.ask("systemctl", "show", "--property=Id,ActiveState,MainPID,UnitFileState", *[d + ".service" for d in upgrade.DAEMONS])
        if out is None:
            raise Refused("systemd does not answer, so nobody knows what runs: systemctl status")
        units = {d: {"active": False, "wanted": False, "version": None} for d in upgrade.DAEMONS}
        for block in out.strip().split("\n\n"):
            said = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
            unit = units.get(said.get("Id", "").removesuffix(".service"))
            if unit is not None:
                pid = int(said.get("MainPID") or 0)
                unit["active"] = said.get("ActiveState") in ("active", "reloading") and pid > 0
                unit["wanted"] = said.get("UnitFileState") in ("enabled", "enabled-runtime")
                unit["version"] = self._version(said["Id"], pid) if unit["active"] else None
        return units

    def _version(self, unit, pid):
        """What the very program says that runs: "1.2.0 (0123456789ab)", some with their
        name before it."""
        rc, out, _ = self.bounded(SAYS, [os.path.join(self.proc, str(pid), "exe"), "-version"])
        words = out.split() if rc == 0 else []
        return next((w for w in words if w != unit.removesuffix(".service")), None)

    def configured(self):
        return os.path.exists(self.config)

    def silent(self):
        """Why edged does not do its work; nothing if it does."""
        try:
            return readiness.silent(self.client.status(), time.time())
        except edged.EdgedError as err:
            return [str(err)]

    def path(self, version, arch=None):
        return os.path.join(self.keep, f"{PACKAGE}_{version}_{arch or self.arch()}.deb")

    def kept(self):
        """The versions whose packages are here, the oldest first."""
        pattern = re.compile(rf"{PACKAGE}_([0-9A-Za-z.+~:-]+)_{re.escape(self.arch())}\.deb")
        try:
            names = os.listdir(self.keep)
        except OSError:
            return []
        found = [m.group(1) for m in map(pattern.fullmatch, names) if m]
        return sorted(sorted(found), key=functools.cmp_to_key(self.compare))

    def compare(self, a, b):
        """As Debian compares versions."""
        if a == b:
            return 0
        return -1 if self.run(["dpkg", "--compare-versions", a, "lt", b])[0] == 0 else 1

    def notes(self):
        """What was written beside the packages."""
        out = {}
        for name in NOTES:
            try:
                with open(os.path.join(self.keep, name), encoding="ascii", errors="replace") as f:
                    out[name] = f.read(_MAX_NOTE).strip()
            except OSError:
                continue
        return out

    def room(self):
        """Free bytes where packages are kept."""
        at = self.keep
        while not os.path.isdir(at):
            at = os.path.dirname(at)
        s = os.statvfs(at)
        return s.f_bavail * s.f_frsize

    def facts(self):
        configured = self.configured()
        return upgrade.of_deb(self.installed(), self.units(), configured, self.silent() if configured else [], self.kept(), self.notes(),
                              boot_id=boot_id(self.proc), room=self.room())


def boot_id(proc="/proc"):
    try:
        with open(os.path.join(proc, "sys/kernel/random/boot_id"), encoding="ascii") as f:
            return f.read().strip()
    except OSError:
        return None
