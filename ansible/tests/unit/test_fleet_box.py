# SPDX-License-Identifier: Apache-2.0
"""What edge_config does on a box, apart from edgectl."""

import os
import stat
import tempfile
import unittest

from ansible_collections.catchment.edge.plugins.module_utils import boxapply, boxconfig, edgectl


def status(**peers):
    return {"speaker": {"peers": [{"id": name, "session": session} for name, session in peers.items()]}}


class Compare(unittest.TestCase):
    def test_differences(self):
        now = {"edge.yaml": b"1", "secrets/a": b"a", "secrets/old": b"o", "network/x.network": b"n"}
        for to_be, replaces, want in (
            (dict(now), True, []),
            ({"edge.yaml": b"1"}, True, []),  # other parts stay
            ({"edge.yaml": b"2"}, True, [("edge.yaml", "changed")]),
            ({"edge.yaml": b"1", "secrets/a": b"b"}, True, [("secrets/a", "changed"), ("secrets/old", "gone")]),
            ({"edge.yaml": b"1", "secrets/a": b"b"}, False, [("secrets/a", "changed")]),
            ({"hostname": b"x"}, True, [("hostname", "new")]),
        ):
            self.assertEqual(boxconfig.differences(now, to_be, replaces), want)

    def test_whole_keeps_what_is_named(self):
        now = {"edge.yaml": b"1", "secrets/node.key": b"k", "secrets/old": b"o"}
        named, given = ["secrets/node.key", "secrets/ring.seed", "secrets/new.key", "edge.yaml"], {"edge.yaml": b"2", "secrets/ring.seed": b"s"}
        self.assertEqual(boxconfig.whole(now, given, named, {"new.key": b"n", "node.key": b"other"}), {
            "edge.yaml": b"2", "secrets/ring.seed": b"s", "secrets/node.key": b"k", "secrets/new.key": b"n",
        })

    def test_told_has_no_content(self):
        self.assertEqual(boxconfig.told([("edge.yaml", "changed"), ("secrets/a", "new"), ("secrets/b", "access")]), [
            "secrets/a is new", "secrets/b gets its owner and mode",
        ])

    def test_value_of(self):
        for text, want in (
            (b"node:\n  proxy_user: edgeproxy # x\n", "edgeproxy"), (b"node:\n  proxy_user: 'a'\n", "a"), (b'node:\n  proxy_user: ""\n', ""),
            (b"node:\n  name: a1\n", "default"), (b"node: {proxy_user: x}\n", None),
        ):
            self.assertEqual(boxapply.value_of(text, "proxy_user", "default"), want, text)


class Sessions(unittest.TestCase):
    def test_lost(self):
        for before, now, want in (
            (["a"], status(a="established"), []), (["a"], status(a="active"), ["a"]), (["a"], status(b="active"), []),
            ([], status(a="active"), []), (["a", "b"], None, ["a", "b"]), (["a"], dict(status(a="established"), speaker_error="x"), ["a"]),
        ):
            self.assertEqual(edgectl.lost(before, now), want)

    def test_established(self):
        self.assertEqual(edgectl.established(status(b="established", a="established", c="idle")), ["a", "b"])
        self.assertEqual(edgectl.established(None), [])


class Fake:
    """edgectl by its answers."""

    def __init__(self, *statuses):
        self.statuses, self.calls = list(statuses), []

    def status(self):
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def call(self, *args):
        self.calls.append(args)
        return {"generation": 7}


class Confirm(unittest.TestCase):
    def setUp(self):
        self.every, boxapply._EVERY = boxapply._EVERY, 0.001

    def tearDown(self):
        boxapply._EVERY = self.every

    def test_sessions_come_back(self):
        ctl = Fake(status(a="idle"), None, status(a="established"), status(a="idle"), status(a="established"))
        got = boxapply.confirm(ctl, ["a"], 60)
        self.assertEqual((got["confirmed"], got["generation"], ctl.calls), (True, 7, [("config", "confirm")]))

    def test_sessions_stay_away(self):
        ctl = Fake(status(a="idle", b="established"))
        with self.assertRaisesRegex(boxconfig.Refused, "did not come back within 0 s: a"):
            boxapply.confirm(ctl, ["a", "b"], 0)
        self.assertEqual(ctl.calls, [("config", "revert")])

    def test_nothing_to_wait_for(self):
        ctl = Fake(None)
        self.assertTrue(boxapply.confirm(ctl, [], 0)["confirmed"])
        ctl = Fake(None)
        self.assertFalse(boxapply.confirm(ctl, [], 0, check=True)["confirmed"])
        self.assertEqual(ctl.calls, [])


class OnDisk(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = self.folder.name
        self.own = {"owner": "root", "group": "root", "mode": 0o640}

    def test_exchange_and_back(self):
        old = os.path.join(self.root, "old")
        boxconfig.write(old, b"1", os.getuid(), os.getgid(), 0o600)
        exchange = boxconfig.Exchange(self.root)
        exchange.put("old", b"2", self.own)
        exchange.put("tls/new", b"3", self.own)
        self.assertEqual(boxconfig.tree(self.root), {"old": b"2", "tls/new": b"3"})
        self.assertEqual(stat.S_IMODE(os.stat(old).st_mode), 0o640)
        self.assertTrue(boxconfig.access_differs(old, dict(self.own, mode=0o600)))
        self.assertFalse(boxconfig.access_differs(old, self.own))
        exchange.back()
        self.assertEqual(boxconfig.tree(self.root), {"old": b"1"})
        self.assertEqual(stat.S_IMODE(os.stat(old).st_mode), 0o600)
        self.assertEqual(sorted(os.listdir(self.root)), ["old", "tls"])  # nothing half written is left

    def test_a_user_that_is_not_there(self):
        with self.assertRaisesRegex(boxconfig.Refused, "no user or group no-such-user: install the package first"):
            boxconfig.ids({"owner": "no-such-user", "group": "root"})

    def test_stage(self):
        folder = boxconfig.stage({"edge.yaml": b"x", "secrets/tls/k": b"y"}, run=self.root)
        self.assertEqual(boxconfig.tree(folder), {"edge.yaml": b"x", "secrets/tls/k": b"y"})
        self.assertEqual(stat.S_IMODE(os.stat(folder).st_mode), 0o700)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.join(folder, "secrets/tls/k")).st_mode), 0o600)

    def test_is_image(self):
        for to, want in ((boxconfig.STORE, True), ("/srv/edge", False)):
            link = os.path.join(self.root, "edge-" + str(want))
            os.symlink(to, link)
            self.assertEqual(boxconfig.is_image(link), want)
        self.assertFalse(boxconfig.is_image(self.root))


if __name__ == "__main__":
    unittest.main()
