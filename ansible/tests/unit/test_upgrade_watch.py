# SPDX-License-Identifier: Apache-2.0
"""What the controller makes of a box that goes away in the middle of a sentence."""

import unittest

import collection_path  # noqa: F401

from ansible_collections.catchment.edge.plugins.module_utils import upgrade, upgradewatch


def facts(running, boot="one", kind="image", **more):
    return upgrade.facts(kind, running=running, boot_id=boot, **more)


def looked(*args, **more):
    return {"changed": False, "facts": facts(*args, **more)}


# What Ansible makes of a module that was killed with the box.
CUT = {"failed": True, "msg": "MODULE FAILURE\nSee stdout/stderr for the exact error", "module_stdout": "", "module_stderr": "Terminated", "rc": 143}


def gone(why):
    return {"unreachable": True, "msg": why}


class DriveTest(unittest.TestCase):
    def setUp(self):
        self.asked, self.told, self.now = [], [], 0.0

    def sleep(self, seconds):
        self.now += seconds

    def run_with(self, answers, kind="image", state="applied", **args):
        """The result, if the box answers so, one after the other; the last for ever."""
        left = list(answers)

        def call(args):
            self.asked.append(args.get("state", "looked"))
            return dict(left.pop(0) if len(left) > 1 else left[0])

        drive = upgradewatch.Drive(call, lambda: None, self.told.append, self.sleep, lambda: self.now)
        return drive.run(dict({"kind": kind, "state": state, "version": "1.3.0"}, **args), 300)

    def test_the_connection_goes_with_the_box(self):
        for end in (CUT, gone("reset by peer"), dict(looked("1.2.0"), changed=True)):
            with self.subTest(end):
                self.asked.clear()
                out = self.run_with([looked("1.2.0"), end, gone("refused"), gone(None), CUT,
                                     looked("1.3.0", "two", why_not_good=["the checks still run"]), looked("1.3.0", "two")])
                self.assertEqual((out.get("failed"), out["changed"], out["facts"]["running"]), (None, True, "1.3.0"))
                self.assertEqual(self.asked, ["looked", "applied"] + 5 * ["looked"])
                self.assertEqual(out["diff"], {"before": "running: 1.2.0\n", "after": "running: 1.3.0\n"})

    def test_what_is_refused_ends_it(self):
        out = self.run_with([looked("1.2.0"), {"failed": True, "msg": "this node is not drained"}])
        self.assertEqual((out["msg"], self.asked), ("this node is not drained", ["looked", "applied"]))
        out = self.run_with([{"failed": True, "msg": "no appliance"}])
        self.assertEqual(out["msg"], "no appliance")
        crash = {"failed": True, "msg": "MODULE FAILURE", "module_stderr": "Traceback (most recent call last):"}
        self.assertIs(self.run_with([looked("1.2.0"), crash])["failed"], True)
        self.assertEqual(self.now, 0)

    def test_it_comes_back_in_the_old_version(self):
        back = looked("1.2.0", "five", refused={"1.3.0": "check bgp: no peer"})
        out = self.run_with([looked("1.2.0"), CUT, gone("refused"), looked("1.3.0", "two", why_not_good=["not good: bgp"]), CUT, back])
        self.assertTrue(out["failed"])
        self.assertIn("1.3.0 did not stay: it went back to 1.2.0 by itself and refuses 1.3.0 from now on: check bgp: no peer", out["msg"])

    def test_it_does_not_come_back(self):
        out = self.run_with([looked("1.2.0"), CUT, gone("timed out")])
        self.assertIn("1.3.0 is not in force in time: the box does not answer (timed out)", out["msg"])
        self.assertAlmostEqual(self.now, 300, delta=4)
        self.assertEqual(len(self.told), 4)

    def test_a_debian_answers_by_itself(self):
        out = self.run_with([looked("1.2.0", kind="deb"), dict(looked("1.3.0", kind="deb"), changed=True)], kind="deb")
        self.assertEqual((out["changed"], self.asked), (True, ["looked", "applied"]))
        # Or not, if the connection breaks: what it has begun goes on there.
        self.asked.clear()
        out = self.run_with([looked("1.2.0", kind="deb"), gone("broken"), looked(None, kind="deb", why_not_good=["the daemons differ"]),
                             looked("1.3.0", kind="deb")], kind="deb")
        self.assertEqual((out["changed"], self.asked), (True, ["looked", "applied", "looked", "looked"]))

    def test_back_is_to_the_version_before(self):
        out = self.run_with([looked("1.3.0", previous="1.2.0"), CUT, looked("1.2.0", "two")], state="back", version="")
        self.assertEqual((out["version"], out["changed"]), ("1.2.0", True))

    def test_a_box_that_is_there_is_only_waited_for(self):
        out = self.run_with([looked("1.3.0", why_not_good=["the checks still run"]), looked("1.3.0"), looked("1.3.0")])
        self.assertEqual((out["changed"], out["facts"]["good"]), (False, True))


if __name__ == "__main__":
    unittest.main()
