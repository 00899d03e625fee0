# SPDX-License-Identifier: Apache-2.0
"""The controller's half of edge_config: renders edge.yaml, gathers and decrypts the
secrets, and hands all of it over in one call. A change is confirmed from a new
connection, which is the proof that the box can still be reached."""

from __future__ import annotations

import base64
import os
import time

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.catchment.edge.plugins.module_utils import edgeyaml, files, keyring, keysource, nodekey
from ansible_collections.catchment.edge.plugins.module_utils import fleet as core

MODULE = "catchment.edge.edge_config"
# What is for the box as it stands.
PASSED = ("state", "kind", "confirm_within", "settle", "restart_proxy", "other_gossip_keys", "edgectl")
OWN = ("config", "secrets", "files", "socket", "confirm", "skip_unreachable")
MARGIN = 10  # seconds before the box takes the change back
RETRY = 2  # seconds between two tries to reach it
MAX_FILES = 512  # as a box takes them
MAX_FILE = 8 << 20  # bytes
MAX_TOTAL = 32 << 20  # bytes

display = Display()


class Refused(Exception):
    """Why nothing was asked of the box."""


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        self.vars, self.stand_ins = task_vars or {}, {}
        try:
            answer = self._asked(dict(self._task.args))
        except Refused as err:
            answer = {"failed": True, "msg": str(err)}
        result.update(answer)
        if result.get("failed"):
            result["msg"] = self._explained(result)
        return result

    def _asked(self, args):
        unknown = sorted(set(args) - set(PASSED) - set(OWN))
        if unknown:
            raise Refused(f"edge_config has no option {', '.join(unknown)}; it has {', '.join(sorted(PASSED + OWN))}")
        call = {key: args[key] for key in PASSED if key in args}
        call.setdefault("kind", self.vars.get("edge_kind"))
        if args.get("state", "applied") != "confirmed":
            call.update(self._order(args, call["kind"]))
        call = {key: value for key, value in call.items() if value is not None}
        try:
            answer = dict(self._call(call), reached=True)
        except AnsibleConnectionFailure as err:
            if not _true(args.get("skip_unreachable", False)):
                raise
            # With any_errors_fatal Ansible itself cannot go on without a box.
            return {"changed": False, "reached": False, "msg": str(err)}
        if self._waits(answer, args):
            self._confirm(call, answer)
        return answer

    def _call(self, call):
        answer = self._execute_module(module_name=MODULE, module_args=call, task_vars=self.vars)
        # It has the whole configuration once more.
        answer.pop("invocation", None)
        for part in answer.get("diff") or []:
            for stand_in in self.stand_ins.values():
                part.update({key: text.replace(stand_in, nodekey.NOT_YET) for key, text in part.items() if key == "after"})
        return answer

    def _waits(self, answer, args):
        done = answer.get("changed") and not answer.get("failed") and answer.get("confirmed") is False
        return done and _true(args.get("confirm", True))

    def _confirm(self, call, answer):
        """Confirms from a new connection, for as long as the box waits for it."""
        deadline = time.monotonic() + int(call.get("confirm_within", 120)) - MARGIN
        order = {key: call[key] for key in ("settle", "edgectl", "socket") if key in call}
        order.update(state="confirmed", peers=answer.get("peers") or [])
        while True:
            self._reset()
            try:
                said = self._call(order)
            except AnsibleConnectionFailure as err:
                said = {"unreachable": True, "msg": str(err)}
            if not said.get("unreachable"):
                break
            if time.monotonic() > deadline:
                answer.update(
                    failed=True, msg="the box cannot be reached any more, and takes the change back by itself: "
                    f"edgectl config show says so when it answers again. Last error: {said.get('msg')}",
                )
                return
            time.sleep(RETRY)
        if said.get("failed"):
            answer.update(failed=True, msg=said.get("msg"))
            return
        answer["confirmed"] = True

    def _reset(self):
        try:
            self._connection.reset()
        except (AttributeError, NotImplementedError, AnsibleError) as err:
            display.vv(f"edge_config: no new connection, the old one is used: {err}")

    def _order(self, args, kind):
        config = args.get("config") or self.vars.get("edge_config")
        if not isinstance(config, dict):
            raise Refused("there is no configuration: the inventory is to be a fleet.yaml, or config be given")
        config = edgeyaml.plain(config)
        keyless = self._stand_in(config)
        twice = files.shared(config)
        if twice:
            path, one, other = twice[0]
            raise Refused(f"{path} is named by {one} and by {other}, which different daemons open: give each a file of its own")
        contents = self._contents(args, kind)
        return {
            "access": {name: files.access_of(config, name) for name in contents},
            "contents": {name: base64.b64encode(content).decode() for name, content in dict(contents, **{"edge.yaml": edgeyaml.render(config).encode()}).items()},
            "wanted": {path: key for path, key in files.wanted(config).items() if key != "node.key_file" or self.vars.get("edge_node") not in keyless},
            "socket": args.get("socket") or os.path.join(config.get("node", {}).get("run_dir") or "/run/edge", "edged.sock"),
        }

    def _stand_in(self, config):
        """The nodes whose public key nobody has yet. A check, which makes none, goes on
        with something in its place; else there have to be keys."""
        nodes = [n for n in config.get("fleet", {}).get("nodes", []) if not n.get("public_key")]
        names = [str(n.get("name")) for n in nodes]
        if names and not self._task.check_mode:
            raise Refused(
                "there is no public key of " + ", ".join(names) + ": role edge_keys fetches it from the box (playbook site), "
                "or put what edgectl guard key prints there into public_keys/NAME.pub beside fleet.yaml"
            )
        for node, name in zip(nodes, names):
            node["public_key"] = self.stand_ins[name] = nodekey.stand_in(name)
        return names

    def _contents(self, args, kind):
        """Name below /etc/edge -> bytes, decrypted."""
        found = self._layers(args.get("secrets") or self.vars.get("edge_secrets_dir"), "secrets/", files.bad_secret)
        if args.get("files"):
            if kind == "deb":
                raise Refused("files is for appliances: on a plain Debian network, keys and units are not ours")
            found.update(self._layers(args["files"], "", files.bad_part))
        if len(found) > MAX_FILES:
            raise Refused(f"{len(found)} files are more than the {MAX_FILES} that a box takes")
        out, total = {}, 0
        for name, path in found.items():
            out[name] = self._read(path)
            total += len(out[name])
        if total > MAX_TOTAL:
            raise Refused(f"{total} bytes of files are more than the {MAX_TOTAL} that a box takes")
        return out

    def _layers(self, folder, prefix, bad):
        if not folder:
            return {}
        site, node = self.vars.get("edge_site"), self.vars.get("edge_node")
        layers = []
        for below in ("fleet", f"sites/{site}", f"nodes/{node}"):
            layers.append(os.path.join(str(folder), below))
        try:
            return files.layered([keysource.walk(layer, prefix, bad) for layer in layers])
        except keyring.Refused as err:
            raise Refused(str(err)) from None

    def _read(self, path):
        """The content of a file. The loader has the passwords of Vault."""
        try:
            return keysource.Source(self._loader, path, MAX_FILE).read()
        except keyring.Refused as err:
            raise Refused(str(err)) from None

    def _explained(self, result):
        """Adds where in fleet.yaml the values come from that edgectl refuses."""
        errors = result.get("errors") or []
        if not errors:
            return result.get("msg")
        fleet = self._fleet()
        lines = ["edgectl check refuses the configuration of this box; nothing was changed"]
        for e in errors:
            line = f"edge.yaml:{e.get('line')}:{e.get('column')}: "
            line += (f"{e['path']}: " if e.get("path") else "") + str(e.get("message"))
            place = fleet.place(self.vars.get("edge_node"), e.get("path") or "") if fleet else None
            lines.append(line + (f" (from fleet.yaml:{place[0]}:{place[1]})" if place else ""))
        return "\n".join(lines)

    def _fleet(self):
        try:
            with open(self.vars["edge_fleet_file"], encoding="utf-8") as f:
                return core.load(f.read())
        except (KeyError, OSError, UnicodeDecodeError, core.FleetErrors):
            return None  # the errors are shown without it


def _true(value):
    return value if isinstance(value, bool) else str(value).lower() in ("yes", "true", "1", "on")
