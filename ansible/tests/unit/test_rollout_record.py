# SPDX-License-Identifier: Apache-2.0
"""The record of a rollout on the disk, and what releases a run that was cut."""

import json
import os
import sys
import tempfile
import types
import unittest
from unittest import mock

import collection_path  # noqa: F401
from ansible_collections.catchment.edge.plugins.plugin_utils import cut

# That of Ansible would have all later imports of the collection look where it is installed.
with mock.patch.dict(sys.modules, {"ansible.plugins.action": types.SimpleNamespace(ActionBase=object)}):
    from ansible_collections.catchment.edge.plugins.action import edge_rollout_record

BATCHES = [{"name": "canary", "nodes": ["a1"], "soak": "canary"}]


class Record(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = os.path.join(place.name, ".rollout")
        self.path = os.path.join(self.folder, "run.json")

    def do(self, state, check=False, **args):
        action = edge_rollout_record.ActionModule.__new__(edge_rollout_record.ActionModule)
        action._task = types.SimpleNamespace(check_mode=check)
        return action.decide(dict(args, state=state, folder=self.folder))

    def begun(self, **args):
        self.do("begun", **dict({"version": "2.0.0", "owner": "one"}, **args))
        return self.do("noted", batches=BATCHES)

    def refused(self, words, state, **args):
        with self.assertRaises(edge_rollout_record.Refused) as got:
            self.do(state, **args)
        self.assertIn(words, str(got.exception))

    def written(self, text):
        os.makedirs(self.folder, exist_ok=True)
        with open(self.path, "w", encoding="utf-8") as f:
            f.write(text)

    def test_what_is_no_record_is_refused(self):
        self.begun()
        with open(self.path, encoding="utf-8") as f:
            good = json.load(f)
        self.assertEqual(self.do("shown")["run"], good)
        broken = [dict(good, **wrong) for wrong in (
            {"nodes": []}, {"nodes": {"a1": 5}}, {"nodes": {"a1": {}}}, {"before": 5}, {"got": None}, {"got": {"2.0.0": {"a1": 5}}}, {"process": "me"}, {"back": 1},
            {"version": 2.0}, {"batches": [{"name": "x"}]}, {"left_out": ["a1"]}, {"told": "x"}, {"before": dict(good, nodes=[])})]
        for text in ["", "{", "[" * 100000, "5", "null", "{}", json.dumps(good)[:-9], *map(json.dumps, broken)]:
            self.written(text)
            for state in ("begun", "noted", "shown", "ended"):
                self.refused("is no record of a rollout", state, version="2.0.0")

    def test_names_that_break_something_are_refused(self):
        for version in ("", "../2.0.0", "2.0.0 ", "{{ 7 * 7 }}", "2\n0", "1" * 65):
            self.refused("is no version", "begun", version=version)
        for owner in ("one: two", "{{ 7 * 7 }}", "a/b", "x" * 101):
            self.refused("rollout_owner", "begun", version="2.0.0", owner=owner)
        self.assertFalse(os.path.exists(self.path))
        for owner in ("alice", "a  lice\n@desk", "ä" * 100):
            self.begun(owner=owner, version="1.2.0~rc1-3.g0abc+x")
        with mock.patch.object(edge_rollout_record.getpass, "getuser", return_value="DOMAIN\\al/ice {{ x }}"):
            os.unlink(self.path)
            self.assertRegex(self.do("begun", version="2.0.0")["owner"], r"^DOMAIN-al-ice----x---@")

    def test_the_end_is_told_though_there_is_no_report(self):
        self.begun()
        self.do("noted", nodes={"a1": {"phase": "failed", "reason": "a probe fails"}})
        got = self.do("ended", report=self.path)
        self.assertEqual((got["good"], got["files"]), (False, []))
        for words in ("a1: a probe fails", f"The report could not be written: {self.path}: "):
            self.assertIn(words, got["text"])

    def test_nodes_without_which_it_was_cut_have_failed(self):
        with mock.patch.dict(os.environ, {"CATCHMENT_ROLLOUT_LOST": '{"a1": "read the file: no route"}'}):
            self.begun()
            self.assertTrue(self.do("ended")["good"])
            self.begun()
            self.do("noted", nodes={"a1": {"phase": "upgrading"}})
            got = self.do("ended", cut=True, stop="it was cut")
        self.assertIn("a1: read the file: no route. To do: unless somebody has undrained it", got["text"])
        for nonsense in ("[", "[]", "null"):
            with mock.patch.dict(os.environ, {"CATCHMENT_ROLLOUT_LOST": nonsense}):
                self.begun()
                self.assertEqual(self.do("ended", cut=True)["failures"], {})


class Release(unittest.TestCase):
    def by(self, line, *books):
        return " ".join(cut.released_by(line.split(), books))

    def test_its_command_line(self):
        for line, books, want in (
            ("ap catchment.edge.rollout -e x=1", ["catchment.edge.rollout"], "ap -e x=1 catchment.edge.rollout_release"),
            ("ap -i f.yaml books/rollback.yml -l a1", ["books/rollback.yml"], "ap -i f.yaml -l a1 books/rollout_release.yml"),
            # No other playbook runs a second time.
            ("ap site.yml rollout.yaml verify.yml", ["site.yml", "rollout.yaml", "verify.yml"], "ap rollout_release.yaml"),
            # One that imports ours.
            ("ap -v tuesday.yml", ["tuesday.yml"], "ap -v catchment.edge.rollout_release"),
            # What chooses among the tasks of another playbook.
            ("ap --step -t a --tags=b --start-at-task x --skip-tags c -e y rollout.yml", ["rollout.yml"], "ap -e y rollout_release.yml"),
        ):
            self.assertEqual(self.by(line, *books), want)

    def test_a_pipe_that_nobody_reads_is_gone(self):
        reads, writes = os.pipe()
        self.addCleanup(os.close, writes)
        self.assertFalse(cut.is_gone(writes))
        os.close(reads)
        self.assertTrue(cut.is_gone(writes))


if __name__ == "__main__":
    unittest.main()
