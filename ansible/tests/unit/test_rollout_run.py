# SPDX-License-Identifier: Apache-2.0
"""The record of a rollout and its report."""

import json
import os
import subprocess
import sys
import unittest

import collection_path  # noqa: F401
from ansible_collections.catchment.edge.plugins.module_utils import rollout_run, rollout_text

BATCHES = [{"name": "canary", "nodes": ["a1"], "soak": "canary"}, {"name": "wave 1", "nodes": ["b1"], "soak": "wave"}]


def begun(before=None, version="2.0.0", back=False):
    run = rollout_run.begin(before or {}, version, back, "one", {}, 1000.0)
    rollout_run.plan(run, BATCHES, [], 1000.0)
    run.update(held=True, before=None)
    return run


class Record(unittest.TestCase):
    def test_who_lives(self):
        me = {"process": rollout_run.process(os.getpid())}
        self.assertTrue(rollout_run.alive(me))
        # Another process has its number now, or it was another boot, or another host.
        for wrong in ({"started": 1}, {"boot_id": "x"}, {"host": "elsewhere"}, {"started": None}):
            self.assertFalse(rollout_run.alive({"process": dict(me["process"], **wrong)}))
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        gone = {"process": rollout_run.process(child.pid)}
        self.assertTrue(rollout_run.alive(gone))
        self.assertEqual(rollout_run.above(child.pid)[:2], [child.pid, os.getpid()])
        child.kill()
        child.communicate()
        self.assertFalse(rollout_run.alive(gone))
        for none in ({}, None, {"process": {}}):
            self.assertFalse(rollout_run.alive(none))

    def test_one_that_is_lost_is_told_with_its_step(self):
        run = begun()
        rollout_run.note(run, "a1", 1001.0, "upgrading")
        for _ in range(2):
            rollout_run.lose(run, "a1", 1002.0)
            rollout_run.lose(run, "b1", 1002.0)
        self.assertEqual(rollout_run.failed(run), {"a1": "while it was upgrading: " + rollout_run.LOST, "b1": rollout_run.LOST})
        self.assertEqual((run["nodes"]["a1"]["was"], run["nodes"]["b1"]["was"]), ("upgrading", "waiting"))

    def test_what_is_released(self):
        run = begun()
        self.assertEqual(rollout_run.idle_drains(run), [])
        rollout_run.note(run, "a1", 1001.0, "draining")
        rollout_run.note(run, "b1", 1001.0, "draining")
        rollout_run.note(run, "b1", 1002.0, "failed", "the guard refuses")
        self.assertEqual(rollout_run.idle_drains(run), ["a1", "b1"])
        for further in ("upgrading", "returning", "soaking"):
            rollout_run.note(run, "a1", 1003.0, further)
            self.assertEqual(rollout_run.idle_drains(run), ["b1"])
        with self.assertRaises(ValueError):
            rollout_run.note(run, "a1", 1003.0, "upgraded")

    def test_a_second_run_begins_anew_with_what_failed(self):
        run = begun()
        rollout_run.note(run, "b1", 1001.0, "upgrading", told="withdrawn before 65535:0 was seen at r1")
        rollout_run.note(run, "b1", 1002.0, "failed", "it came back in the old version")
        self.assertEqual(rollout_run.failed(run), {"b1": "it came back in the old version"})
        again = rollout_run.begin(run, "2.0.0", False, "one", {}, 2000.0)
        self.assertTrue(again["resumed"])
        rollout_run.plan(again, BATCHES[1:], ["a1"], 2000.0)
        self.assertEqual((rollout_run.failed(again), again["nodes"]["a1"]["phase"], again["nodes"]["b1"]["phase"]), ({}, "done", "waiting"))
        self.assertFalse(again["nodes"]["b1"].get("was") or again["nodes"]["b1"].get("told"))
        # Of another aim nothing is carried over but who got what.
        self.assertEqual(rollout_run.begin(run, "3.0.0", False, "one", {}, 2000.0)["nodes"], {})

    def test_a_half_done_node_stays_as_far_as_it_was_until_its_turn(self):
        resume = [dict(BATCHES[1], name="resume")]
        for phases, want, idle in ((["draining"], "draining", ["b1"]), (["draining", "upgrading"], "upgrading", []), (["upgrading", "failed"], "upgrading", []),
                                   (["failed"], "waiting", []), (["soaking", "failed"], "waiting", [])):
            run = begun()
            for p in phases:
                rollout_run.note(run, "b1", 1001.0, p, "x" if p == "failed" else None)
            again = rollout_run.begin(run, "2.0.0", False, "one", {}, 2000.0)
            rollout_run.plan(again, resume, ["a1"], 2000.0)
            self.assertEqual((again["nodes"]["b1"]["phase"], rollout_run.idle_drains(again), rollout_run.failed(again)), (want, idle, {}), phases)

    def test_one_that_is_refused_has_nothing_forgotten(self):
        run = begun()
        for who in ("two", "three"):
            last = rollout_run.begin(rollout_run.standing(run), "9.9.9", False, who, {}, 2000.0)
            self.assertIs(rollout_run.standing(last), run)
        self.assertIsNone(rollout_run.standing(rollout_run.begin(None, "9.9.9", False, "two", {}, 2000.0)))
        self.assertIsNone(rollout_run.standing(None))

    def test_who_is_to_be_soaked_again(self):
        run = begun()
        rollout_run.note(run, "a1", 1001.0, "soaking")
        rollout_run.note(run, "b1", 1001.0, "soaking")
        rollout_run.note(run, "b1", 1002.0, "failed", "soak: it was not ready")
        self.assertEqual(rollout_run.unproven(run), ["a1", "b1"])
        again = rollout_run.begin(run, "2.0.0", False, "one", {}, 2000.0)
        self.assertEqual(rollout_run.unproven(again), ["a1", "b1"])
        # Cut before the soak begins, it is still to be done.
        rollout_run.plan(again, [{"name": "soak again", "nodes": ["a1", "b1"], "soak": "wave"}], [], 2000.0)
        self.assertEqual((rollout_run.unproven(again), rollout_run.failed(again)), (["a1", "b1"], {}))
        rollout_run.note(again, "a1", 2001.0, "done")
        self.assertEqual(rollout_run.unproven(again), ["b1"])
        self.assertEqual(rollout_run.unproven(rollout_run.begin(run, "3.0.0", False, "one", {}, 2000.0)), [])

    def test_whether_locks_may_be_left(self):
        run = begun()
        self.assertTrue(rollout_run.unreleased(run), "it was cut")
        run.update(state="ended")
        self.assertFalse(rollout_run.unreleased(run) or rollout_run.unreleased(None))
        self.assertTrue(rollout_run.unreleased(dict(run, stop="the fleet is not well")))
        rollout_run.note(run, "b1", 1001.0, "failed", "the connection was lost")
        self.assertTrue(rollout_run.unreleased(run))

    def test_what_is_no_record(self):
        whole = begun()
        rollout_run.note(whole, "b1", 1001.0, "failed", "x")
        chain = rollout_run.begin(whole, "3.0.0", False, "one", rollout_run.process(os.getpid()), 2000.0)
        for run in (whole, chain, json.loads(json.dumps(chain))):
            self.assertIsNone(rollout_run.misfit(run))
        for bad in (None, [], 5, {}, dict(whole, nodes=[]), dict(whole, nodes={"a1": "done"}), dict(whole, batches={}), dict(whole, got={"2.0.0": 5}), dict(whole, state=1),
                    dict(whole, process={"pid": "1"}), dict(whole, before=5), dict(chain, before={"nodes": []}), dict(whole, nodes={"a1": {"phase": None}})):
            self.assertTrue(rollout_run.misfit(bad), bad)

    def test_newest(self):
        run = begun()
        for at, n in ((1001.0, "a1"), (1002.0, "b1")):
            rollout_run.note(run, n, at, "soaking")
            rollout_run.note(run, n, at, "done")
        self.assertEqual(rollout_run.newest(run, "2.0.0"), ["b1", "a1"])
        self.assertEqual(rollout_run.newest(begun(run, back=True), "2.0.0"), ["b1", "a1"])
        # One that was found done got it at another time.
        found = begun()
        rollout_run.plan(found, [], ["a1"], 1000.0)
        self.assertEqual(rollout_run.newest(found, "2.0.0"), [])


class Report(unittest.TestCase):
    def told(self, phases, reason="it has failed", **more):
        run = begun()
        for p in phases:
            rollout_run.note(run, "b1", 1001.0, p, reason if p == "failed" else None)
        run.update(more, outcome=None)
        run["outcome"] = rollout_text.outcome(run)
        return run, rollout_text.told(run, ["r.md"]), rollout_text.markdown(rollout_text.document(run))

    def test_what_to_do(self):
        for phases, words in (
            (["failed"], "it was not touched"),
            (["draining", "failed"], "it was not upgraded"),
            (["draining", "upgrading", "failed"], "it stays off the air until its order to drain ends"),
            (["soaking", "failed"], "it runs the version"), (["soaking", "done", "failed"], "its lock ends by itself"),
        ):
            _, text, md = self.told(phases)
            self.assertIn(words, text)
            self.assertIn(words, md)
            self.assertIn("The report: r.md", text)

    def test_texts_of_boxes_break_no_table(self):
        _, _, md = self.told(["failed"], "a | b\n<script>")
        self.assertIn("a \\| b \\<script>", md)

    def test_outcome(self):
        run, text, md = self.told(["failed"], stop="1 nodes have failed, and rollout_budget is 0")
        self.assertTrue(text.startswith("It was stopped, with 0 of 2 nodes done: 1 nodes have failed"))
        self.assertIn("**Stopped**: 1 nodes have failed", md)
        run = begun()
        for n in ("a1", "b1"):
            rollout_run.note(run, n, 1001.0, "done")
        self.assertEqual(rollout_text.outcome(run), "All 2 nodes are at version 2.0.0")
        self.assertEqual(rollout_text.outcome(run, check=True), "Nothing was changed")
        self.assertIn("is staged", rollout_text.outcome(run, staged=True))
        run["left_out"] = {"c1": "rollout_leave_out names it"}
        self.assertIn("| c1 | rollout\\_leave\\_out names it |", rollout_text.markdown(rollout_text.document(run)))


if __name__ == "__main__":
    unittest.main()
