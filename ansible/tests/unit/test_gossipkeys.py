# SPDX-License-Identifier: Apache-2.0
"""A converge with an old or a foreign file of gossip keys."""
import base64
import unittest

import collection_path  # noqa: F401
from ansible_collections.catchment.edge.plugins.module_utils import gossipkeys, keyring

OLD, NEW, OTHER = (bytes([n]) * 32 for n in (1, 2, 3))


def text(*keys):
    return b"".join(base64.b64encode(k) + b"\n" for k in keys)


def status(keys, heard=3, silent=0):
    members = [{"node": "a1", "age_ns": 0}]
    members += [{"node": f"b{n}", "age_ns": 5} for n in range(heard)] + [{"node": f"c{n}", "age_ns": age} for n, age in zip(range(silent), (-1, 99, -1, 99))]
    return {"node": "a1", "guard": {"keys": [keyring.name_of(k) for k in keys], "fresh_ns": 10, "members": members}}


class Deaf(unittest.TestCase):
    def test_deaf(self):
        for have, file, deaf in (
            # Each step of a rotation, forth and back: that of a converge in the middle of one.
            ([OLD], [OLD, NEW], False), ([OLD, NEW], [NEW, OLD], False), ([NEW, OLD], [NEW], False),
            ([NEW], [NEW, OLD], False), ([NEW, OLD], [OLD, NEW], False), ([OLD, NEW], [OLD], False),
            # An old file, after and before the last step; one that only others can read, or only this one.
            ([NEW], [OLD], True), ([NEW, OLD], [OLD], True), ([OLD], [NEW], True), ([OLD, NEW], [NEW], True), ([OLD], [OTHER, OLD], True),
        ):
            why = gossipkeys.why_deaf(status(have), text(*file))
            self.assertEqual(bool(why), deaf, (have, file, why))
            if deaf:
                self.assertIn("hears 3 of 3 others", why)
                self.assertNotIn(base64.b64encode(file[0]).decode(), why)

    def test_nothing_to_lose(self):
        for name, st in {
            "left out of a rotation": status([OLD], heard=0, silent=4), "one of two left out": status([OLD], heard=1, silent=3),
            "alone": status([OLD], heard=0), "edged does not run": None, "an older edged": {"guard": {}}, "no guard": {},
        }.items():
            self.assertIsNone(gossipkeys.why_deaf(st, text(NEW)), name)
        self.assertIsNone(gossipkeys.why_deaf(status([OLD]), b"edged refuses this\n"))


if __name__ == "__main__":
    unittest.main()
