# SPDX-License-Identifier: Apache-2.0
"""A box with an edgectl that does as it is told here: what is written, put back, and
left alone. The real one is in test/ansible/keys_test.go."""
import base64
import os
import tempfile
import unittest
from unittest import mock

import collection_path  # noqa: F401
from ansible_collections.catchment.edge.plugins.module_utils import boxconfig, keybox, keyring
from ansible_collections.catchment.edge.plugins.module_utils.edgectl import Failed

A, B = b"\x01" * 32, b"\x02" * 32


def text(*keys):
    return b"".join(base64.b64encode(k) + b"\n" for k in keys)


def names(*keys):
    return [keyring.name_of(k) for k in keys]


class Ctl:
    """Goes by the file at a reload, unless it has answers to give first."""

    def __init__(self, path):
        self.path, self.calls, self.answers, self.folder = path, [], [], {}
        self.keys, self.pending, self.more = names(A), None, {}

    def call(self, *args):
        self.calls.append(args[0])
        if args[0] == "status":
            return dict({"guard": {"keys": self.keys}}, **self.more)
        if args[:2] == ("config", "show"):
            return {"pending": self.pending}
        if args[0] == "reload" and self.answers:
            raise Failed(self.answers.pop(0))
        if args[:2] == ("config", "apply"):
            self.folder = boxconfig.tree(args[2])
            self.keys = keyring.parse(self.folder["secrets/gossip.key"], "f").names
            return {"generation": 8, "confirm_by": "soon"}
        self.keys = keyring.parse(boxconfig.read(self.path), "f").names
        return {}


class Plain(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.path = os.path.join(place.name, "gossip.key")
        boxconfig.write(self.path, text(A), os.getuid(), os.getgid(), 0o644)
        self.ctl = Ctl(self.path)
        self.box = keybox.KeyBox(self.ctl, "gossip", self.path)

    def test_written(self):
        self.assertFalse(self.box.write(text(A, B), names(A, B), 5, 120))
        self.assertEqual(self.box.look(), {"file": names(A, B), "noted": None, "loaded": names(A, B), "why": ""})
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o640, "others than owner and group may read it")
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["gossip.key"])

    def test_refused_is_put_back(self):
        self.ctl.answers = ["node.name has changed, which needs a restart"]
        with self.assertRaisesRegex(Failed, "needs a restart"):
            self.box.write(text(B), names(B), 5, 120)
        self.assertEqual((boxconfig.read(self.path), self.ctl.keys), (text(A), names(A)))

    def test_edged_that_has_just_started(self):
        self.ctl.answers = ["its first round of probes is not over; try again in a moment"] * 2
        self.box.write(text(A, B), names(A, B), 30, 120)
        self.assertEqual(self.ctl.calls.count("reload"), 3)

    def test_a_daemon_that_does_not_go_by_it(self):
        with mock.patch.object(Ctl, "call", lambda ctl, *args: {"guard": {"keys": names(A)}}):
            with self.assertRaisesRegex(keybox.Refused, f"the keys in use are {names(A)[0]}, not {names(B)[0]}"):
                self.box.write(text(B), names(B), 0, 120)

    def test_a_file_that_cannot_be_used(self):
        boxconfig.write(self.path, b"hunter2\n", os.getuid(), os.getgid(), 0o600)
        look = self.box.look()
        self.assertIsNone(look["file"])
        self.assertIn("line 1 does not hold", look["why"])
        self.assertNotIn("hunter2", str(look))

    def test_tickets(self):
        for proxy, want in (
            ({}, (None, "edgeproxy does not answer: systemctl status edgeproxy")),
            ({"pid": 7}, ([], "")),
            ({"pid": 7, "ticket_keys": names(A)}, (names(A), "")),
            ({"pid": 7, "ticket_error": "no such file"}, ([], "edgeproxy makes its own ticket keys: no such file")),
        ):
            self.assertEqual(keybox.loaded("ticket", {"proxy": proxy}), want)
        self.assertIsNone(keybox.loaded("gossip", {})[0])


class OfTheFleet(unittest.TestCase):
    """/etc/edge is a folder here."""

    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.root = place.name
        for name, content in {"edge.yaml": b"node: {}\n", "secrets/gossip.key": text(A), "secrets/ring.seed": b"seed\n", "network/a.network": b"x"}.items():
            boxconfig.write(os.path.join(self.root, name), content, os.getuid(), os.getgid(), 0o600)
        self.path = os.path.join(self.root, "secrets/gossip.key")
        self.ctl = Ctl(self.path)

    def patched(self, image):
        return mock.patch.multiple(boxconfig, ROOT=self.root, is_image=lambda: image)

    def test_an_appliance(self):
        with self.patched(True):
            box = keybox.KeyBox(self.ctl, "gossip", self.path)
            self.assertTrue(box.write(text(A, B), names(A, B), 5, 120))
            self.assertEqual(self.ctl.folder, {"edge.yaml": b"node: {}\n", "secrets/gossip.key": text(A, B), "secrets/ring.seed": b"seed\n"})
            self.assertEqual(boxconfig.read(self.path), text(A), "a generation is never written to")
            box.confirm()
            self.assertEqual(self.ctl.calls[-1], "config")

    def test_a_change_that_waits(self):
        self.ctl.pending = {"to": 7, "deadline": "soon"}
        with self.patched(True), self.assertRaisesRegex(keybox.Refused, "generation 7 of this box waits to be confirmed"):
            keybox.KeyBox(self.ctl, "gossip", self.path).write(text(B), names(B), 5, 120)
        self.assertEqual(self.ctl.keys, names(A))

    def test_a_file_elsewhere(self):
        with self.patched(True), self.assertRaisesRegex(keybox.Refused, "is no secret of the configuration of an appliance"):
            keybox.KeyBox(self.ctl, "gossip", "/elsewhere/gossip.key").write(text(B), names(B), 5, 120)

    def test_an_edge_yaml_that_was_not_applied(self):
        self.ctl.more = {"config_hash": "0" * 64}
        with self.patched(False), self.assertRaisesRegex(keybox.Refused, "is not what edged goes by"):
            keybox.KeyBox(self.ctl, "gossip", self.path).write(text(B), names(B), 5, 120)
        self.assertEqual(boxconfig.read(self.path), text(A))


if __name__ == "__main__":
    unittest.main()
