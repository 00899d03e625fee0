# SPDX-License-Identifier: Apache-2.0
"""What edge_keyfile does on a box. It runs there, with the standard library alone."""

from __future__ import annotations

import hashlib
import os
import stat
import time

from ansible_collections.catchment.edge.plugins.module_utils import boxconfig, keyring
from ansible_collections.catchment.edge.plugins.module_utils.boxconfig import Refused
from ansible_collections.catchment.edge.plugins.module_utils.edgectl import Failed

_EVERY = 0.3  # seconds between two looks
_OWNER = {"gossip": "edged", "ticket": "edgeproxy"}
# What edged says in its first seconds.
_SOON = ("try again in a moment", "has not yet said what it announces")


def told(kind, names):
    return "".join(f"{kind} key {name} {'encrypts' if i == 0 else 'is accepted'}\n" for i, name in enumerate(names or []))


def loaded(kind, status):
    """The names of the keys in use by a status, and why they are not known."""
    if kind == "gossip":
        keys = (status.get("guard") or {}).get("keys")
        return (keys, "") if keys else (None, "edged does not say which gossip keys it has: is it older than this collection?")
    proxy = status.get("proxy") or {}
    if not proxy.get("pid"):
        return None, "edgeproxy does not answer: systemctl status edgeproxy"
    if proxy.get("ticket_error"):
        return [], f"edgeproxy makes its own ticket keys: {proxy['ticket_error']}"
    return proxy.get("ticket_keys") or [], ""


class KeyBox:
    def __init__(self, ctl, kind, path):
        self.ctl, self.kind = ctl, kind
        self.path = os.path.realpath(path) if path and not boxconfig.is_image() else path

    def look(self):
        out = {"file": None, "noted": None, "loaded": None, "why": ""}
        try:
            status = self.ctl.call("status")
            out["loaded"], out["why"] = loaded(self.kind, status if isinstance(status, dict) else {})
        except Failed as err:
            out["why"] = str(err)
        content = boxconfig.read(self.path)
        try:
            if content is not None:
                ring = keyring.parse(content, self.path)
                out["file"], out["noted"] = ring.names, ring.step
        except keyring.Refused as err:
            out["why"] = out["why"] or str(err)
        return out

    def same(self, content):
        return boxconfig.read(self.path) == content

    def write(self, content, names, wait, within):
        """Makes the box go by other keys, or leaves all as it was. Returns whether it
        waits to be confirmed."""
        if boxconfig.is_image():
            waits = self._generation(content, within)
        else:
            waits = self._replace(content, wait)
        self._await(names, wait)
        return waits

    def _replace(self, content, wait):
        self._refuse_unapplied()
        old = boxconfig.read(self.path)
        uid, gid, mode = self._access()
        boxconfig.write(self.path, content, uid, gid, mode)
        try:
            self._reload(wait)
        except BaseException:
            if old is None:
                os.unlink(self.path)
            else:
                boxconfig.write(self.path, old, uid, gid, mode)
            raise
        return False

    def _access(self):
        try:
            st = os.stat(self.path)
            return st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode) & 0o770
        except FileNotFoundError:
            who = _OWNER[self.kind]
            return (*boxconfig.ids({"owner": who, "group": who}), 0o600)

    def _refuse_unapplied(self):
        """A reload takes all files over, also an edge.yaml that somebody is writing."""
        path = os.path.join(boxconfig.ROOT, "edge.yaml")
        if not self.path.startswith(boxconfig.ROOT + "/"):
            return
        text, want = boxconfig.read(path), (self.ctl.call("status") or {}).get("config_hash")
        if text is not None and want and hashlib.sha256(text).hexdigest() != want:
            raise Refused(f"{path} is not what edged goes by, and a reload would apply it: edgectl config apply {path}, or put the one in force back")

    def _reload(self, wait):
        deadline = time.monotonic() + wait
        while True:
            try:
                return self.ctl.call("reload")
            except Failed as err:
                if not any(word in str(err) for word in _SOON) or time.monotonic() > deadline:
                    raise
            time.sleep(_EVERY)

    def _generation(self, content, within):
        name = self.path[len(boxconfig.ROOT) + 1:]
        if not self.path.startswith(boxconfig.ROOT + "/secrets/"):
            raise Refused(f"{self.path} is no secret of the configuration of an appliance: those are below {boxconfig.ROOT}/secrets")
        boxconfig.refuse_pending(self.ctl)
        now = boxconfig.tree(boxconfig.ROOT)
        files = {n: c for n, c in now.items() if n == "edge.yaml" or n.startswith("secrets/")}
        files[name] = content
        with boxconfig.staged(files) as folder:
            answer = self.ctl.call("config", "apply", folder, "--confirm-within", f"{within}s") or {}
        return "confirm_by" in answer

    def _await(self, names, wait):
        deadline = time.monotonic() + wait
        while True:
            here = self.look()
            if here["loaded"] == names:
                return
            if time.monotonic() > deadline:
                has = ", ".join(here["loaded"] or []) or "none of the fleet"
                raise Refused(f"{self.path} was written, and after {wait} s the keys in use are {has}, not {', '.join(names)}: {here['why'] or 'edgectl status on the box says more'}")
            time.sleep(_EVERY)

    def confirm(self, check=False):
        if check:
            return {"changed": False}
        self.ctl.call("config", "confirm")
        return {"changed": True}
