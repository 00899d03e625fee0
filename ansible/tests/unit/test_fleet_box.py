# SPDX-License-Identifier: Apache-2.0
"""What edge_config does on a box, apart from edgectl."""

import hashlib
import os
import stat
import tempfile
import unittest

from ansible_collections.catchment.edge.plugins.module_utils import boxapply, boxconfig, edgectl, hostfacts


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


class Judge:
    """edgectl as a Job uses it."""

    def __init__(self, pending=None, config_hash=None, errors=None, takes=None):
        self.pending, self.hash, self.errors, self.takes, self.calls = pending, config_hash, errors, takes, []

    def call(self, *args):
        self.calls.append(args[:2])
        if args[0] == "check" and self.errors:
            raise edgectl.Failed("no", self.errors)
        if args[0] == "diff":
            if self.takes is None:
                raise edgectl.Failed('unknown command "diff"')
            return {"changes": ["node.x: y -> z"], "takes": self.takes}
        return {"pending": self.pending} if args[:2] == ("config", "show") else {"generation": 2, "notes": []}

    def status(self):
        return {"config_hash": self.hash} if self.hash else None


class Module:
    """A box on which systemctl says something."""

    def __init__(self, said):
        self.said = said

    def run_command(self, command):
        return self.said


class Jobs(unittest.TestCase):
    """A Job on a folder of its own in place of /etc/edge."""

    SEED = {"owner": "root", "group": "root", "mode": 0o600}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.join(folder.name, "etc")
        os.mkdir(self.root)
        for name, value in (("ROOT", self.root), ("LOCAL", os.path.join(folder.name, "keys")), ("UNAPPLIED", os.path.join(folder.name, "unapplied"))):
            self.addCleanup(setattr, boxconfig, name, getattr(boxconfig, name))
            setattr(boxconfig, name, value)
        self.wanted = {os.path.join(self.root, "secrets/ring.seed"): "fleet.ring_seed_file", os.path.join(self.root, "secrets/node.key"): "node.key_file"}
        self.put("edge.yaml", b"node:\n  name: a1\n")
        self.put("secrets/node.key", b"k")
        self.put("secrets/old.key", b"o")
        self.put("health.d/probe", b"#!")

    def put(self, name, content):
        os.makedirs(os.path.dirname(os.path.join(self.root, name)), exist_ok=True)
        boxconfig.write(os.path.join(self.root, name), content, os.getuid(), os.getgid(), 0o600)

    def job(self, ctl, contents=None, image=False, said=(0, "81277\n", ""), **more):
        contents = contents or {"edge.yaml": b"node:\n  name: a1\n  x: y\n", "secrets/ring.seed": b"s"}
        order = boxapply.Order(contents, {"secrets/ring.seed": self.SEED}, self.wanted)
        job = boxapply.Job(Module(said), ctl, order, **more)
        job.image = image
        return job

    def test_deb(self):
        got = self.job(Judge()).look()
        self.assertEqual((got["differs"], got["first"], got["checked"]), (["edge.yaml", "secrets/ring.seed"], False, True))
        self.assertIn("x: y", got["diff"][0]["after"])
        self.assertNotIn("'s'", str(got["diff"]))

    def test_image_is_one_generation(self):
        self.wanted[os.path.join(self.root, "health.d/probe")] = "fleet.health.probes[0].command"
        job = self.job(Judge(), image=True)
        self.assertEqual(job.look()["differs"], ["edge.yaml", "secrets/ring.seed", "secrets/old.key"])
        self.assertEqual(sorted(job.to_be), ["edge.yaml", "secrets/node.key", "secrets/ring.seed"])

    def test_image_takes_the_key_made_on_the_box(self):
        os.remove(os.path.join(self.root, "secrets/node.key"))
        os.mkdir(boxconfig.LOCAL)
        with open(os.path.join(boxconfig.LOCAL, "node.key"), "wb") as f:
            f.write(b"made here")
        job = self.job(Judge(), image=True)
        job.look()
        self.assertEqual(job.to_be["secrets/node.key"], b"made here")

    def test_daemons_that_were_never_started(self):
        """Whoever made the first configuration was cut before he started them."""
        self.put("secrets/ring.seed", b"s")
        with open(os.path.join(self.root, "edge.yaml"), "rb") as f:
            same = {"edge.yaml": f.read(), "secrets/ring.seed": b"s"}

        for said, config_hash, want in (((0, "0\n", ""), None, True), ((0, "81277\n", ""), None, False), ((1, "", "no systemd"), None, False),
                                        ((0, "0\n", ""), hashlib.sha256(same["edge.yaml"]).hexdigest(), False)):
            got = self.job(Judge(config_hash=config_hash), same, said=said).look()
            self.assertEqual((got["first"], got["differs"]), (want, ["edge.yaml"] if want else []), said)
            self.assertEqual("the daemons have not run since the boot" in str(got["diff"]), want)

    def test_nothing_to_do(self):
        self.put("secrets/ring.seed", b"s")
        text = b"node:\n  name: a1\n"
        same = {"edge.yaml": text, "secrets/ring.seed": b"s"}
        self.assertEqual(self.job(Judge(), same).look()["differs"], [])
        self.assertEqual(self.job(Judge(config_hash=hashlib.sha256(text).hexdigest()), same).look()["differs"], [])
        # The file is right, and edged goes by another one.
        self.assertEqual(self.job(Judge(config_hash="0" * 64), same).look()["differs"], ["edge.yaml"])
        self.assertEqual(self.job(None, same).look()["checked"], False)

    def test_refused(self):
        errors = [{"line": 1, "message": "no"}]
        with self.assertRaises(edgectl.Failed) as caught:
            self.job(Judge(errors=errors)).look()
        self.assertEqual(caught.exception.errors, errors)
        for want, job in (
            ("generation 7 of this box waits to be confirmed", self.job(Judge(pending={"to": 7}))),
            ("fleet.yaml says kind: image, and this box is not made from the image", self.job(Judge(), kind="image")),
            ("fleet.yaml says kind: deb, and this box is made from the image", self.job(Judge(), kind="deb", image=True)),
            ("node.run_dir changes, which needs a restart of edgeproxy", self.job(Judge(takes={"proxy": "node.run_dir"}))),
            ("node.forwarder.flows changes, which needs the data plane loaded anew: drain this box", self.job(Judge(takes={"data_plane": "node.forwarder.flows"}))),
            # An edgectl of before cannot say so.
            ("node.proxy_user changes, which needs a restart of edgeproxy", self.job(Judge(), {"edge.yaml": b"node:\n  proxy_user: x\n", "secrets/ring.seed": b"s"})),
            ("fleet.ring_seed_file: .*ring.seed is neither", self.job(Judge(), {"edge.yaml": b"x"})),
        ):
            with self.assertRaisesRegex(boxconfig.Refused, want):
                job.look()

    def test_what_changes_is_said(self):
        got = self.job(Judge(takes={"edged": "node.management"})).look()
        self.assertEqual((got["changes"], got["takes"]), (["node.x: y -> z"], {"edged": "node.management"}))
        self.assertEqual(got["diff"][0]["prepared"], "node.x: y -> z\n")
        self.assertEqual(self.job(Judge()).look()["changes"], [])
        self.job(Judge(takes={"proxy": "node.run_dir"}), restart_proxy=True).look()

    def test_other_gossip_keys(self):
        """A file of gossip keys that cuts the box off is refused before anything is done."""
        class Hears(Judge):
            def status(self):
                return {"node": "a1", "guard": {"keys": ["0a1b2c3d"], "fresh_ns": 9, "members": [{"node": "b1", "age_ns": 1}]}}

        path = os.path.join(self.root, "secrets/gossip.key")
        self.wanted[path] = "fleet.guard.key_file"
        self.put("secrets/gossip.key", b"old\n")
        contents = {"edge.yaml": b"node:\n  name: a1\n", "secrets/gossip.key": b"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n", "secrets/ring.seed": b"s"}
        with self.assertRaisesRegex(boxconfig.Refused, "secrets/gossip.key is not changed, and nothing else: .* hears 1 of 1 others"):
            self.job(Hears(), contents).look()
        self.assertIn("secrets/gossip.key", self.job(Hears(), contents, other_gossip_keys=True).look()["differs"])
        self.assertIn("secrets/gossip.key", self.job(Judge(), contents).look()["differs"])  # edged does not run

    def test_killed_before_the_reload(self):
        """A secret that is written and that no daemon has read is not done."""
        class Killed(Judge):
            def call(self, *args):
                if args[:2] == ("config", "apply"):
                    os._exit(9)
                return super().call(*args)

        text = b"node:\n  name: a1\n"
        contents, self.wanted = {"edge.yaml": text, "secrets/tls.key": b"new"}, {}
        self.SEED = dict(self.SEED, mode=0o640)

        def job(ctl):
            job = boxapply.Job(None, ctl, boxapply.Order(contents, {"secrets/tls.key": self.SEED}, self.wanted))
            return job, job.look()["differs"]

        self.put("secrets/tls.key", b"old")
        pid = os.fork()
        if pid == 0:
            job(Killed())[0].apply(120)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 9)
        self.assertEqual(boxconfig.read(os.path.join(self.root, "secrets/tls.key")), b"new")
        ctl = Judge(config_hash=hashlib.sha256(text).hexdigest())
        again, differs = job(ctl)
        self.assertEqual(differs, ["secrets/tls.key"])
        self.assertIn("secrets/tls.key is written, and perhaps not in force", str(again.look()["diff"]))
        again.apply(120)
        self.assertIn(("config", "apply"), ctl.calls)
        self.assertEqual(job(ctl)[1], [])

    def test_a_refused_change_leaves_the_secrets(self):
        class Refuses(Judge):
            def call(self, *args):
                if args[:2] == ("config", "apply"):
                    raise edgectl.Failed("edged refuses the configuration")
                return super().call(*args)

        self.put("secrets/ring.seed", b"before")
        ctl = Refuses()
        job = self.job(ctl)
        job.look()
        with self.assertRaisesRegex(edgectl.Failed, "edged refuses"):
            job.apply(120)
        self.assertEqual(boxconfig.read(os.path.join(self.root, "secrets/ring.seed")), b"before")
        self.assertEqual(ctl.calls[-1], ("reload",))
        self.assertFalse(os.path.exists(boxconfig.UNAPPLIED))


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

    def test_a_strict_umask(self):
        """The daemons are other users than root, and have to reach their files."""
        before = os.umask(0o077)
        self.addCleanup(os.umask, before)
        path = os.path.join(self.root, "etc/secrets/tls/web.key")
        boxconfig.write(path, b"1", os.getuid(), os.getgid(), 0o640)
        modes = [stat.S_IMODE(os.stat(os.path.join(self.root, p)).st_mode) for p in ("etc", "etc/secrets", "etc/secrets/tls", "etc/secrets/tls/web.key")]
        self.assertEqual(modes, [0o755, 0o755, 0o755, 0o640])
        boxconfig.make_folder(os.path.join(self.root, "keys"), 0o700)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.join(self.root, "keys")).st_mode), 0o700)

    def test_what_a_killed_run_has_left(self):
        old, new = (os.path.join(self.root, name) for name in (".edge-abc", ".edge-def"))
        for path in (old, new):
            boxconfig.write(path, b"half", os.getuid(), os.getgid(), 0o600)
        os.utime(old, (1, 1))
        boxconfig.write(os.path.join(self.root, "x"), b"1", os.getuid(), os.getgid(), 0o600)
        self.assertEqual(sorted(os.listdir(self.root)), [".edge-def", "x"])  # the other may be written right now

    def test_a_user_that_is_not_there(self):
        with self.assertRaisesRegex(boxconfig.Refused, "no user or group no-such-user: install the package first"):
            boxconfig.ids({"owner": "no-such-user", "group": "root"})

    def test_read(self):
        pipe, device = os.path.join(self.root, "pipe"), os.path.join(self.root, "device")
        os.mkfifo(pipe)
        os.symlink("/dev/zero", device)
        for path, want in ((pipe, "it is not a regular file"), (device, "it is not a regular file"), (self.root, "Is a directory")):
            with self.assertRaisesRegex(boxconfig.Refused, want):
                boxconfig.read(path)
        self.assertIn("not a regular file", hostfacts.certificate_end(pipe)["error"])
        self.assertIn("not a regular file", hostfacts.short_hash(pipe)["error"])
        self.assertIsNone(boxconfig.read(os.path.join(self.root, "none")))

    def test_staged(self):
        with boxconfig.staged({"edge.yaml": b"x", "secrets/tls/k": b"y"}, run=self.root) as folder:
            self.assertEqual(boxconfig.tree(folder), {"edge.yaml": b"x", "secrets/tls/k": b"y"})
            self.assertEqual(stat.S_IMODE(os.stat(folder).st_mode), 0o700)
            self.assertEqual(stat.S_IMODE(os.stat(os.path.join(folder, "secrets/tls/k")).st_mode), 0o600)
        self.assertFalse(os.path.exists(folder))

    def test_is_image(self):
        for to, want in ((boxconfig.STORE, True), ("/srv/edge", False)):
            link = os.path.join(self.root, "edge-" + str(want))
            os.symlink(to, link)
            self.assertEqual(boxconfig.is_image(link), want)
        self.assertFalse(boxconfig.is_image(self.root))


if __name__ == "__main__":
    unittest.main()
