# SPDX-License-Identifier: Apache-2.0
"""An appliance: what edgectl slots says of it at each step of an upgrade (slots.json has
that of edgectl, with the metrics of the boot), what is ordered, and what is seen of a
box that reboots."""

import json
import os
import shutil
import tempfile
import time
import unittest

import collection_path  # noqa: F401
import a_status

from ansible_collections.catchment.edge.plugins.module_utils import appliance, debbox, edged, imagebox, upgrade, upgradewatch

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "slots.json"), encoding="ascii") as recorded:
    STEPS = json.load(recorded)


def facts(step, **more):
    said = STEPS[step]
    return upgrade.of_image(appliance.facts(said["metrics"], said["slots"]), said["slots"], **more)


class ImageFactsTest(unittest.TestCase):
    def test_each_step(self):
        for step, running, staged, previous, why in (
            ("first, not judged", "1.1.0", None, None, "still run"),
            ("first", "1.1.0", None, None, None),
            ("staged", "1.1.0", "1.2.0", None, None),
            ("rebooting", "1.1.0", "1.2.0", None, None),
            ("under trial", "1.2.0", None, "1.1.0", "still run"),
            ("judged good, not blessed", "1.2.0", None, "1.1.0", "not blessed yet"),
            ("blessed, not resumed", "1.2.0", None, "1.1.0", "not ended yet"),
            ("good", "1.2.0", None, "1.1.0", None),
            ("rolled back", "1.1.0", None, None, None),
            ("came back, not judged", "1.1.0", None, None, "still run"),
            ("came back", "1.1.0", None, None, None),
        ):
            f = facts(step)
            self.assertEqual((f["running"], f["staged"], f["previous"], f["good"]), (running, staged, previous, why is None), step)
            self.assertEqual(len(f["why_not_good"]), 0 if why is None else 1, step)
            self.assertIn(why or "", "".join(f["why_not_good"]), step)

    def test_why_versions_are_refused(self):
        self.assertEqual(facts("rolled back")["refused"], {"1.2.0": "it was rolled back by hand: slow requests"})
        self.assertIn("it never came to be judged: it was booted 3 times", facts("came back")["refused"]["1.3.0"])
        self.assertEqual(upgrade.cause({"check": "bgp", "reason": "no\n peer"}), "check bgp: no peer")

    def test_what_is_not_good(self):
        said = STEPS["good"]
        bad = said["metrics"].replace("edge_boot_good 1", 'edge_boot_good 0\nedge_boot_check_failed{check="bgp"} 1')
        f = upgrade.of_image(appliance.facts(bad, said["slots"]), said["slots"])
        self.assertEqual(f["why_not_good"], ["this boot is not good: bgp; journalctl -u edge-health"])
        f = upgrade.of_image(appliance.facts(said["metrics"], None, "edgectl slots: be root"), None)
        self.assertEqual((f["good"], f["running"]), (False, "1.2.0"))


class Client:
    def __init__(self, answer):
        self.answer = answer

    def status(self):
        if self.answer is None:
            raise edged.EdgedError("edged does not answer")
        return dict(self.answer, time=a_status.durations.stamp(time.time()))


class ImageBoxTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        self.orders, self.answers = [], {}
        self.client = Client(a_status.drained())
        self.box = imagebox.Box(self.run_command, self.client, self.dir, os.path.join(self.dir, "none/state"))
        self.at("first")

    def at(self, step):
        self.step = step
        with open(os.path.join(self.dir, "metrics.prom"), "w", encoding="ascii") as f:
            f.write(STEPS[step]["metrics"])

    def run_command(self, args):
        if args[1] == "slots":
            return 0, json.dumps(STEPS[self.step]["slots"]), ""
        self.orders.append(args[3:])
        return self.answers.get(args[4], (0, '{"version": "1.2.0"}', ""))

    def payload(self, version):
        with open(os.path.join(self.dir, "manifest.json"), "w", encoding="ascii") as f:
            json.dump({"format": 1, "version": version}, f)
        return self.dir

    def refused(self, want, do, *args):
        with self.assertRaisesRegex(debbox.Refused, want):
            do(*args)
        self.assertEqual(self.orders, [], "it was refused, and something ordered")

    def test_stage(self):
        self.assertTrue(self.box.stage("1.2.0", self.payload("1.2.0"), [], True))
        self.assertEqual(self.orders, [])
        self.assertTrue(self.box.stage("1.2.0", self.dir, ["--force"], False))
        self.assertEqual(self.orders, [["upgrade", "--stage-only", "--force", self.dir]])
        for step in ("staged", "good"):
            self.at(step)
            self.assertFalse(self.box.stage("1.2.0", "", [], False))
        self.assertEqual(len(self.orders), 1)

    def test_what_is_not_staged(self):
        self.refused("is version 1.4.0, and 1.2.0 is wanted", self.box.stage, "1.2.0", self.payload("1.4.0"), [], False)
        self.refused("not staged on this box: give edge_upgrade_image", self.box.stage, "1.2.0", "", [], False)
        self.at("came back")
        self.refused("refused by this box: it never came to be judged.*--forgive 1.3.0", self.box.stage, "1.3.0", self.payload("1.3.0"), [], False)
        self.answers["--stage-only"] = (1, "", "edgectl: not signed by any key\n")
        with self.assertRaisesRegex(debbox.Refused, "edgectl upgrade: edgectl: not signed by any key"):
            self.box.stage("1.3.0", self.dir, ["--force"], False)

    def test_another_version_behind_a_url_is_taken_back(self):
        self.answers["--stage-only"] = (0, '{"version": "1.9.0"}', "")
        with self.assertRaisesRegex(debbox.Refused, "https://h/p was version 1.9.0.*not staged any more"):
            self.box.stage("1.2.0", "https://u:secret@h/p", ["--ca", "x"], False)
        self.assertEqual(self.orders[-1], ["upgrade", "--cancel"])

    def test_the_manifest_behind_a_url(self):
        asked = []

        class Answer:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                return None

            def read(self, _):
                return b'{"version": "1.9.0"}'

        def opener(request, timeout):
            asked.append((request.full_url, request.get_header("Authorization")))
            return Answer()

        self.assertEqual(imagebox.manifest_version("https://u:p%40@h:8443/x/", [], opener), "1.9.0")
        self.assertEqual(asked, [("https://h:8443/x/manifest.json", "Basic dTpwQA==")])
        self.assertIsNone(imagebox.manifest_version("http://h/x", [], opener))  # edgectl says what is wrong with that
        self.assertIsNone(imagebox.manifest_version(self.dir, []))
        self.assertEqual(len(asked), 1)

    def test_apply(self):
        self.refused(r"not staged on this box \(nothing is\)", self.box.may_apply, "1.2.0")
        self.at("staged")
        self.refused(r"not staged on this box \(1.2.0 is\)", self.box.may_apply, "1.3.0")
        self.assertTrue(self.box.may_apply("1.2.0"))
        self.client.answer = a_status.status()
        self.refused("this node is not drained: .* is announced", self.box.leave, ["upgrade", "--no-drain"], False)
        self.client.answer = None
        self.refused("nobody can tell whether this node is drained", self.box.leave, ["upgrade", "--no-drain"], False)
        self.client.answer = a_status.drained()
        self.box.leave(["upgrade", "--no-drain"], True)
        self.assertEqual(self.orders, [])
        self.box.leave(["upgrade", "--no-drain"], False)
        self.assertEqual(self.orders, [["upgrade", "--no-drain"]])
        self.at("under trial")
        self.assertFalse(self.box.may_apply("1.2.0"))

    def test_back(self):
        self.at("good")
        self.assertTrue(self.box.may_go_back("1.1.0"))
        self.refused("there is no 1.0.0 to go back to: 1.1.0 is in the other slot", self.box.may_go_back, "1.0.0")
        self.at("staged")
        self.refused("no 1.0.0 to go back to: nothing is in the other slot, and 1.2.0 is staged there", self.box.may_go_back, "1.0.0")


class WatchTest(unittest.TestCase):
    """A box that reboots from 1.1.0 into 1.2.0 or 1.3.0, seen from afar."""

    def watch(self, version="1.2.0"):
        return upgradewatch.Watch(facts("staged", boot_id="one"), version, 1000)

    def test_all_goes_well(self):
        watch = self.watch()
        for now, seen in enumerate((
            facts("rebooting", boot_id="one"), "Connection refused", "timed out", facts("under trial", boot_id="two"),
            facts("judged good, not blessed", boot_id="two"), facts("blessed, not resumed", boot_id="two"),
        )):
            self.assertIsNone(watch.judge(seen, now), seen)
        self.assertEqual(watch.judge(facts("good", boot_id="two"), 10), "")

    def test_it_goes_back_and_says_why(self):
        watch = self.watch("1.3.0")
        self.assertIsNone(watch.judge("no route to host", 1))
        # edgectl knows why before that boot is judged itself.
        self.assertRegex(watch.judge(facts("came back, not judged", boot_id="five"), 400),
                         "^1.3.0 did not stay: it went back to 1.1.0 by itself and refuses 1.3.0 from now on: it never came to be judged: .*stays drained")

    def test_it_goes_back_and_does_not_say_why(self):
        watch = self.watch("1.3.0")
        self.assertIsNone(watch.judge(facts("first", boot_id="five"), 400))
        self.assertIsNone(watch.judge("connection reset", 430))
        self.assertRegex(watch.judge(facts("first", boot_id="five"), 461), "it has booted 1.1.0 again, and does not say why")
        watch = self.watch("1.3.0")
        self.assertIsNone(watch.judge(facts("good", boot_id="five"), 400))
        self.assertRegex(watch.judge(facts("good", boot_id="five"), 470), "it runs 1.2.0")

    def test_the_time_is_over(self):
        for seen, want in (
            ("Connection\n refused", r"in time: the box does not answer \(Connection refused\)"),
            (facts("rebooting", boot_id="one"), "it has not rebooted yet, and 1.1.0 runs"),
            (facts("under trial", boot_id="two"), "1.2.0 runs, and is not good: the checks of this boot still run"),
        ):
            watch = self.watch()
            self.assertIsNone(watch.judge(seen, 999))
            self.assertRegex(watch.judge(seen, 1000), want)


if __name__ == "__main__":
    unittest.main()
