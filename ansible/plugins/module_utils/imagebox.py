# SPDX-License-Identifier: Apache-2.0
"""An appliance and its slots, by edgectl, which does the work and knows the rules. run
is AnsibleModule.run_command, or a test's."""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.parse
import urllib.request

from ansible_collections.catchment.edge.plugins.module_utils import appliance, edged, orders, upgrade
from ansible_collections.catchment.edge.plugins.module_utils.debbox import Refused, boot_id

STATE = "/var/lib/edge-image"
MANIFEST = "manifest.json"
_MAX_MANIFEST = 64 << 10  # bytes, as edgectl takes it
_FETCH_TIME = 30.0  # seconds


class Box:
    def __init__(self, run, client, image_dir=appliance.IMAGE_DIR, state=STATE, proc="/proc"):
        self.run, self.client, self.image_dir, self.state, self.proc = run, client, image_dir, state, proc

    def edgectl(self, *args):
        """The answer of a command in JSON. Refused has what it says."""
        rc, out, err = self.run(["edgectl", "-o", "json", *args])
        if rc != 0:
            raise Refused(f"edgectl {args[0]}: {' '.join((err or out).split())[-900:] or f'it ended with {rc}'}")
        try:
            return json.loads(out)
        except ValueError:
            return {}

    def facts(self):
        try:
            metrics = appliance.read(self.image_dir)
        except OSError as err:
            raise Refused(f"{self.image_dir}: {err.strerror}: log in as root, or set become: true") from None
        if metrics is None:
            raise Refused(f"this box is no appliance, since there is no {self.image_dir}: correct its kind in fleet.yaml")
        slots, error = appliance.parse_slots(*self.run(["edgectl", "slots", "-o", "json"]))
        boot = appliance.facts(metrics, slots, error)
        return upgrade.of_image(boot, slots, boot_id=boot_id(self.proc), room=room(self.state))

    # In store.

    def stage(self, version, source, options, check):
        """True if it changes anything, or with check would."""
        now = self.facts()
        if version in (now["running"], now["staged"]):
            return False
        if version in now["refused"] and "--force" not in options:
            raise Refused(f"version {version} is refused by this box: {now['refused'][version]}. Mend the cause and edgectl upgrade --forgive {version}, "
                          f"or take a newer version. Nothing was changed")
        if not source:
            raise Refused(f"version {version} is not staged on this box: give edge_upgrade_image")
        said = manifest_version(source, options)
        if said not in (None, version):
            raise Refused(f"{shown(source)} is version {said}, and {version} is wanted. Nothing was changed")
        if check:
            return True
        answer = self.edgectl("upgrade", "--stage-only", *options, source)
        if answer.get("version") != version:
            self.edgectl("upgrade", "--cancel")
            raise Refused(f"{shown(source)} was version {answer.get('version')}, and {version} is wanted: it is not staged any more. "
                          f"{now['running']} runs, and there is no other version to boot")
        return True

    # In force.

    def leave(self, args, check):
        """Order the reboot into the other slot, of a node that is drained. When this
        returns the box goes down."""
        self._drained()
        if not check:
            self.edgectl(*args)

    def may_apply(self, version):
        """Whether there is anything to be done."""
        now = self.facts()
        if now["running"] == version:
            return False  # it is judged, or will be
        if now["staged"] != version:
            other = f"{now['staged']} is" if now["staged"] else "nothing is"
            raise Refused(f"version {version} is not staged on this box ({other}): stage it first. Nothing was changed")
        return True

    def may_go_back(self, version):
        now = self.facts()
        if now["running"] == version:
            return False
        if now["previous"] != version:
            raise Refused(f"there is no {version} to go back to: {now['previous'] or 'nothing'} is in the other slot"
                          f"{', and ' + now['staged'] + ' is staged there' if now['staged'] else ''} (edgectl slots). Nothing was changed")
        return True

    def _drained(self):
        try:
            left = orders.left(self.client.status(), {})
        except edged.EdgedError as err:
            raise Refused(f"nobody can tell whether this node is drained: {err}. Nothing was changed") from None
        if left:
            raise Refused(f"this node is not drained: {'; '.join(left)}. Drain it first. Nothing was changed")


def room(at):
    """Free bytes where a payload is brought."""
    while not os.path.isdir(at):
        at = os.path.dirname(at)
    s = os.statvfs(at)
    return s.f_bavail * s.f_frsize


def shown(source):
    """A source as people may read it: without the password of a URL."""
    parts = urllib.parse.urlsplit(source)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if parts.scheme and parts.netloc else source


def manifest_version(source, options, opener=urllib.request.urlopen):
    """The version that a payload says it is; None where it cannot be read: edgectl, which
    checks the signature too, then says why."""
    try:
        raw = _manifest(source, options, opener)
        said = json.loads(raw)
    except (OSError, ValueError, urllib.error.URLError):
        return None
    return said.get("version") if isinstance(said, dict) else None


def _manifest(source, options, opener):
    parts = urllib.parse.urlsplit(source)
    if parts.scheme not in ("http", "https"):
        with open(os.path.join(parts.path if parts.scheme == "file" else source, MANIFEST), "rb") as f:
            return f.read(_MAX_MANIFEST)
    if "--ca" in options or parts.scheme == "http" and "--insecure-http" not in options:
        return b""
    request = urllib.request.Request(shown(source).rstrip("/") + "/" + MANIFEST)
    if parts.username:
        user = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
    with opener(request, timeout=_FETCH_TIME) as answer:
        return answer.read(_MAX_MANIFEST)
