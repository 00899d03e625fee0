# SPDX-License-Identifier: Apache-2.0
"""What a box has and runs, and what is seen of one that reboots. Pure parts."""

import unittest

import collection_path  # noqa: F401

from ansible_collections.catchment.edge.plugins.module_utils import upgrade

INSTALLED = {"want": "install", "status": "installed", "version": "1.3.0"}


def units(**versions):
    """Daemons that run, by their versions; None for one that is to run and does not."""
    return {n: {"active": v is not None, "wanted": True, "version": v} for n, v in versions.items()}


def all_of(version):
    return units(edged=version, edgebgp=version, edgeproxy=version)


class DebFactsTest(unittest.TestCase):
    def facts(self, package=None, daemons=None, configured=True, silent=(), kept=("1.1.0", "1.2.0", "1.3.0"), **notes):
        return upgrade.of_deb(package or INSTALLED, daemons or all_of("1.3.0"), configured, list(silent), list(kept), notes)

    def test_one_version(self):
        f = self.facts(before="1.2.0", staged="1.3.0")
        self.assertEqual((f["running"], f["previous"], f["staged"], f["good"], f["why_not_good"]), ("1.3.0", "1.2.0", None, True, []))

    def test_what_was_not_restarted_is_not_running(self):
        f = self.facts(daemons=units(edged="1.3.0", edgebgp="1.2.0", edgeproxy="1.3.0"), before="1.2.0")
        self.assertEqual((f["running"], f["good"], f["previous"]), (None, False, "1.2.0"))
        self.assertIn("different versions: edgebgp 1.2.0, edged 1.3.0", f["why_not_good"][0])
        f = self.facts(daemons=all_of("1.2.0"))
        self.assertEqual((f["running"], f["good"]), ("1.2.0", False))
        self.assertIn("1.3.0 is installed, and 1.2.0 still runs", f["why_not_good"][0])

    def test_a_daemon_that_is_down_counts_unless_it_is_switched_off(self):
        down = units(edged="1.3.0", edgebgp="1.3.0", edgeproxy=None)
        f = self.facts(daemons=down)
        self.assertEqual((f["running"], f["why_not_good"]), (None, ["edgeproxy does not run: systemctl status edgeproxy"]))
        down["edgeproxy"]["wanted"] = False
        f = self.facts(daemons=down)
        self.assertEqual((f["running"], f["good"], sorted(f["daemons"])), ("1.3.0", True, ["edgebgp", "edged"]))

    def test_the_version_before(self):
        for want, kept, notes in (
            ("1.2.0", ("1.1.0", "1.2.0", "1.3.0"), {}),  # nothing was written: the newest that is older
            ("1.1.0", ("1.1.0", "1.2.0", "1.3.0"), {"before": "1.1.0"}),
            ("1.4.0", ("1.3.0", "1.4.0"), {"before": "1.4.0"}),  # it came from a newer one
            ("1.1.0", ("1.1.0", "1.3.0"), {"before": "1.2.0"}),  # whose package is gone
            (None, ("1.3.0", "1.4.0"), {}),
            (None, ("1.3.0", "1.4.0"), {"before": "1.3.0"}),  # it has gone back already
            (None, ("1.2.0",), {}),  # the one that runs is not kept: what is older nobody knows
        ):
            self.assertEqual(self.facts(kept=kept, **notes)["previous"], want, (kept, notes))

    def test_what_is_half_done(self):
        f = self.facts(package={"want": "install", "status": "half-configured", "version": "1.3.0"})
        self.assertEqual((f["installed"], f["good"]), (None, False))
        self.assertIn("dpkg --configure -a", f["why_not_good"][0])
        self.assertEqual(self.facts(silent=["edged does not answer"])["why_not_good"], ["edged does not answer"])
        f = self.facts(configured=False, daemons=units(edged=None, edgebgp=None, edgeproxy=None))
        self.assertEqual((f["running"], f["good"]), ("1.3.0", False))

    def test_what_is_pruned(self):
        kept = ["1.0.0", "1.1.0", "1.2.0", "1.3.0"]
        for want, needed, most in (
            (["1.0.0"], {"1.3.0", "1.2.0"}, 3), ([], {"1.3.0"}, 4), (["1.1.0", "1.2.0"], {"1.0.0", "1.3.0"}, 1), ([], set(kept), 1),
        ):
            self.assertEqual(upgrade.to_prune(kept, needed, most), want, (needed, most))


if __name__ == "__main__":
    unittest.main()
