# SPDX-License-Identifier: Apache-2.0
"""Which times a rollout refuses, and of which it warns."""

import os
import re
import unittest

import collection_path  # noqa: F401
from ansible_collections.catchment.edge.plugins.module_utils import rollout_times

DEFAULTS = os.path.join(os.path.dirname(__file__), "../../playbooks/vars/rollout.yml")


def defaults():
    """The times of vars/rollout.yml."""
    with open(DEFAULTS, encoding="utf-8") as f:
        return dict(re.findall(r"rollout_(\w+) \| default\('([0-9]+[smh])'\)", f.read()))


class Times(unittest.TestCase):
    def test_the_defaults_fit(self):
        self.assertEqual(sorted(defaults()), sorted(rollout_times.NAMES))
        self.assertEqual(rollout_times.judge(defaults()), ([], []))

    def test_what_is_none(self):
        for name in rollout_times.NAMES:
            refused, told = rollout_times.judge(dict(defaults(), **{name: "soon"}))
            self.assertEqual((len(refused), told), (1, []), name)
            self.assertIn(f"rollout_{name}: 'soon' is not a length", refused[0])
        for name in ("lock_for", "healthy_interval"):
            self.assertIn("above 0", rollout_times.judge(dict(defaults(), **{name: 0}))[0][0])

    def test_what_does_not_fit(self):
        for name, value, want in (
            ("drain_for", "30m", "rollout_drain_for is 30m0s, and a node may take 45m0s"), ("upgrade_wait", "1h", "rollout_drain_for is 2h0m, and a node may take 2h15m"),
            ("lock_for", "10m", "rollout_lock_for is 10m0s, and a batch may take 1h36m"), ("canary_soak", "24h", "rollout_lock_for is 2h0m, and a batch may take 1d1h"),
        ):
            refused, told = rollout_times.judge(dict(defaults(), **{name: value}))
            self.assertEqual(refused, [])
            self.assertIn(want, told[0])
        self.assertEqual(rollout_times.judge(dict(defaults(), drain_for="0")), ([], []), "it never ends")


if __name__ == "__main__":
    unittest.main()
