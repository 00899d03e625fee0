# SPDX-License-Identifier: Apache-2.0
"""What edge_config does on a box: look, apply, confirm. It runs there, with the
standard library alone."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time

from ansible_collections.catchment.edge.plugins.module_utils import boxconfig, gossipkeys
from ansible_collections.catchment.edge.plugins.module_utils.boxconfig import Refused
from ansible_collections.catchment.edge.plugins.module_utils.edgectl import Failed, established, lost

# What only a new edgeproxy goes by; while one is replaced, nobody takes connections.
_PROXY_KEYS = {"node.proxy_user": "", "node.run_dir": "/run/edge"}  # with their defaults
_STEADY = 3  # looks in a row at which all sessions are up
_EVERY = 1.0  # seconds between two


class Order:
    """What the box is to have: the contents of its files, edge.yaml among them, whose
    they are on a plain Debian, and the paths that edge.yaml names with the key that does."""

    def __init__(self, contents, access, wanted):
        self.contents, self.access, self.wanted = contents, access, wanted
        self.edge_yaml = contents["edge.yaml"]


class Job:
    def __init__(self, module, ctl, order, kind=None, restart_proxy=False, other_gossip_keys=False):
        self.module, self.ctl, self.order = module, ctl, order
        self.restart_proxy, self.other_gossip_keys = restart_proxy, other_gossip_keys
        self.image = boxconfig.is_image()
        self.kind = kind
        self.now, self.to_be, self.differs = {}, {}, []

    def look(self):
        """Judges the order and says what it would change. Nothing is changed."""
        self._refuse_kind()
        self._plan()
        self._refuse_missing()
        self._judge()
        if self.ctl is not None:
            boxconfig.refuse_pending(self.ctl)
        self._refuse_deaf()
        old = boxconfig.read(self._at("edge.yaml"))
        keys = self._keys(old)
        if old is not None:
            self._refuse_restart(old, keys["takes"])
        self._running()
        return {
            "differs": [name for name, _ in self.differs], "checked": self.ctl is not None, "first": old is None or ("edge.yaml", "unused") in self.differs,
            "diff": self._diff(old, keys["changes"]), "changed": False, "changes": keys["changes"], "takes": keys["takes"],
        }

    def _keys(self, old):
        """What changes, key by key, and what that takes, as edgectl diff says. One of
        before has no such command, and an edge.yaml in force that a newer one refuses is
        compared with nothing."""
        unknown = {"changes": [], "takes": None}
        if self.ctl is None or old is None:
            return unknown
        if old == self.order.edge_yaml:
            return {"changes": [], "takes": {}}
        try:
            with self._edge_yaml() as path:
                said = self.ctl.call("diff", path, self._at("edge.yaml"))
        except Failed:
            return unknown
        if not isinstance(said, dict) or "takes" not in said:
            return unknown
        return {"changes": said.get("changes") or [], "takes": said["takes"] or {}}

    @contextlib.contextmanager
    def _edge_yaml(self):
        with boxconfig.staged({"edge.yaml": self.order.edge_yaml}) as folder:
            yield os.path.join(folder, "edge.yaml")

    def _at(self, name):
        return os.path.join(boxconfig.ROOT, name)

    def _refuse_kind(self):
        there = "image" if self.image else "deb"
        if self.kind and self.kind != there:
            what = "made from the image" if self.image else "not made from the image: /etc/edge is no link to its store"
            raise Refused(f"fleet.yaml says kind: {self.kind}, and this box is {what}; correct kind, or host, of this node")

    def _plan(self):
        given = self.order.contents
        if self.image:
            named = [name_of(path) for path in self.order.wanted if name_of(path)]
            self.now = boxconfig.tree(boxconfig.ROOT)
            self.to_be = boxconfig.whole(self.now, given, named, boxconfig.tree(boxconfig.LOCAL))
            self.differs = boxconfig.differences(self.now, self.to_be)
            return
        self.now = {name: boxconfig.read(self._at(name)) for name in given}
        self.to_be = given
        self.differs = boxconfig.differences(self.now, given, replaces=False)
        known = {name for name, _ in self.differs}
        for name, access in sorted(self.order.access.items()):
            if name not in known and boxconfig.access_differs(self._at(name), access):
                self.differs.append((name, "access"))
        known = {name for name, _ in self.differs}
        self.differs += [(name, "written") for name in boxconfig.unapplied() if name in self.order.access and name not in known]

    def _refuse_missing(self):
        missing, replaced = [], {boxconfig.part(name) for name in self.to_be}
        for path, key in sorted(self.order.wanted.items(), key=lambda item: item[1]):
            name = name_of(path)
            if self.image and name:
                # What stays of the generation in force is kept part by part.
                there = name in self.to_be or name in self.now and boxconfig.part(name) not in replaced
            else:
                there = name in self.to_be or os.path.exists(path)
            if not there:
                missing.append(f"{key}: {path} is neither on the box nor in the folders of secrets")
        if missing:
            raise Refused(
                "\n".join(missing) + "\nput it into secrets/fleet, secrets/sites/SITE or secrets/nodes/NODE beside fleet.yaml; "
                "the private key of a box is made by role edge_keys"
            )

    def _judge(self):
        if self.ctl is None:
            return
        with self._edge_yaml() as path:
            self.ctl.call("check", path)

    def _refuse_deaf(self):
        """The keys of the gossip are changed on all boxes in steps, by the playbook
        rotate_keys. A file that is new to this box alone cuts it off from the others."""
        name = name_of(self._path_of("fleet.guard.key_file"))
        if self.ctl is None or self.other_gossip_keys or name not in [n for n, what in self.differs if what == "changed"]:
            return
        why = gossipkeys.why_deaf(self.ctl.status(), self.to_be[name])
        if why:
            raise Refused(f"/etc/edge/{name} is not changed, and nothing else: {why}. To cut this box off all the same: edge_config_other_gossip_keys=true")

    def _path_of(self, key):
        """The path that edge.yaml names by a key, or nothing."""
        return next((path for path, named in self.order.wanted.items() if named == key), "")

    def _refuse_restart(self, old, takes):
        """Refuses, before any box is changed, what edged would refuse of each."""
        if self.restart_proxy:
            return
        if takes is None:
            takes = {"proxy": next((key for key, default in _PROXY_KEYS.items() if changed(old, self.order.edge_yaml, key, default)), None)}
        if takes.get("proxy"):
            raise Refused(
                f"{takes['proxy']} changes, which needs a restart of edgeproxy: it takes no connections meanwhile. "
                "Drain the box, and apply it to this one with restart_proxy (edge_config_restart_proxy=true)"
            )
        if takes.get("data_plane"):
            raise Refused(
                f"{takes['data_plane']} changes, which needs the data plane loaded anew: drain this box, stop edged, remove node.bpf_dir, write the "
                "edge.yaml there and start edged (edgectl reload says the same), undrain it, and run this again"
            )

    def _running(self):
        """A file that is right is not enough: edged has to go by it."""
        if self.differs or self.ctl is None:
            return
        status = self.ctl.status()
        if status is None and self._never_started():
            self.differs.append(("edge.yaml", "unused"))
        if status and status.get("config_hash") and status["config_hash"] != hashlib.sha256(self.order.edge_yaml).hexdigest():
            self.differs.append(("edge.yaml", "changed"))

    def _never_started(self):
        """Whether the daemons of a plain Debian have not run since its boot: whoever made
        its first configuration was cut before he started them."""
        if self.image:
            return False
        code, said, _ = self.module.run_command(["systemctl", "show", "-P", "ActiveEnterTimestampMonotonic", "edged.service"])
        return code == 0 and said.strip() == "0"

    def _diff(self, old, changes):
        out = []
        if changes:
            out.append({"prepared": "\n".join(changes) + "\n"})
        if (old or b"") != self.order.edge_yaml:
            out.append({
                "before": (old or b"").decode(errors="replace"), "after": self.order.edge_yaml.decode(),
                "before_header": "/etc/edge/edge.yaml in force", "after_header": "/etc/edge/edge.yaml by fleet.yaml",
            })
        others = boxconfig.told(self.differs)
        if others:
            out.append({"prepared": "".join(f"/etc/edge/{line}\n" for line in others)})
        return out

    def apply(self, within):
        """Brings the order about, or leaves the box as it was."""
        if self.ctl is None:
            raise Refused("there is no edgectl on this box: install the package first (role edge_host)")
        before = established(self.ctl.status())
        answer = self._apply_image(within) if self.image else self._apply_deb(within)
        return {
            "generation": answer.get("generation"), "notes": answer.get("notes") or [],
            "peers": before, "confirmed": "confirm_by" not in answer,
        }

    def _config_apply(self, what, within):
        return self.ctl.call("config", "apply", what, "--confirm-within", f"{within}s") or {}

    def _apply_image(self, within):
        with boxconfig.staged(self.to_be) as folder:
            return self._config_apply(folder, within)

    def _apply_deb(self, within):
        exchange = boxconfig.Exchange(boxconfig.ROOT)
        try:
            names = [name for name, _ in self.differs if name in self.order.access]
            exchange.begin(names)
            for name in names:
                exchange.put(name, self.order.contents[name], self.order.access[name])
            with self._edge_yaml() as path:
                answer = self._config_apply(path, within)
        except BaseException:
            if exchange.before:
                exchange.back()
                self._reload()
            exchange.end()
            raise
        self._seed(answer)
        exchange.end()
        return answer

    def _reload(self):
        try:
            self.ctl.call("reload")
        except Failed:
            pass  # what edged says of the files of before is not the reason of this failure

    def _seed(self, answer):
        """edged reads the ring's seed at its start only. Its restart withdraws nothing."""
        if name_of(self._path_of("fleet.ring_seed_file")) not in [name for name, what in self.differs if what in ("changed", "written")]:
            return
        rc, _, err = self.module.run_command(["systemctl", "try-restart", "edged.service"])
        note = "edged was restarted for the new seed of the ring: every node needs the same"
        if rc != 0:
            note = f"the seed of the ring has changed, and edged could not be restarted: {err.strip()}"
        answer["notes"] = (answer.get("notes") or []) + [note]


def name_of(path):
    """The name of a file of /etc/edge; None for a path elsewhere."""
    return path[len(boxconfig.ROOT) + 1:] if path.startswith(boxconfig.ROOT + "/") else None


def changed(old, new, key, default):
    """Whether a key of node: changes, as far as that can be seen."""
    was, now = (value_of(text, key.rpartition(".")[2], default) for text in (old, new))
    return was is not None and was != now


def value_of(edge_yaml, key, default):
    """A value of node: by the look of its line; None if that does not tell. This box has
    nothing that reads YAML."""
    found = re.search(rb"^[ \t]+" + key.encode() + rb":[ \t]*([^\n#]*)", edge_yaml, re.M)
    if found:
        return found.group(1).decode(errors="replace").strip().strip("\"'")
    return None if key.encode() + b":" in edge_yaml else default


def confirm(ctl, peers, settle, check=False):
    """Confirms the change that waits, once the sessions of before are back. If they do
    not come back it is taken back at once: the box would do so later."""
    if ctl is None:
        raise Refused("there is no edgectl on this box")
    if check:
        return {"changed": False, "confirmed": False}
    deadline, steady, away = time.monotonic() + settle, 0, []
    while peers and steady < _STEADY:
        away = lost(peers, ctl.status())
        steady = 0 if away else steady + 1
        if away and time.monotonic() > deadline:
            ctl.call("config", "revert")
            raise Refused(
                "BGP sessions that were established did not come back within "
                f"{settle} s: {', '.join(away)}. The change was taken back; edgectl bgp on the box says why they are down"
            )
        time.sleep(_EVERY)
    answer = ctl.call("config", "confirm") or {}
    return {"changed": True, "confirmed": True, "generation": answer.get("generation")}
