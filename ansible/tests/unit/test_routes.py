# SPDX-License-Identifier: Apache-2.0
"""Which routes are out, and how they are marked."""

import unittest

import collection_path  # noqa: F401

from a_status import P4, P6, drain, drained, peer, status
from ansible_collections.catchment.edge.plugins.module_utils import routes

NODE = {"prefix": "", "service": ""}


def draining(*unmarked):
    """a1 while its routers move away; those named were not sent the mark yet."""
    out = status(drains=[drain()])
    for d in out["decisions"]:
        d.update(rung="draining", reason="drained: rollout one: x")
    for p in out["speaker"]["peers"]:
        for h in p["held"]:
            h.update(prepend=3, med=1000, communities=["64512:1"] + ([] if p["id"] in unmarked else ["65535:0"]))
    return out


class RoutesTest(unittest.TestCase):
    def test_table(self):
        lines = routes.table(draining("r2"), NODE)
        self.assertEqual(len(lines), 4)
        self.assertEqual(lines[0], {"prefix": P4, "peer": "r1", "rung": "draining", "sent": True, "why": None, "communities": ["64512:1", "65535:0"],
                                    "prepend": 3, "med": 1000, "marked": True})
        self.assertEqual([(one["prefix"], one["peer"], one["marked"]) for one in lines[1:]], [(P4, "r2", False), (P6, "r1", True), (P6, "r2", False)])
        self.assertEqual({one["prefix"] for one in routes.table(draining(), {"prefix": P6, "service": ""})}, {P6})
        self.assertEqual({one["prefix"] for one in routes.table(draining(), {"prefix": "", "service": "web"})}, {P4})

    def test_why_one_is_not_sent(self):
        s = status()
        s["speaker"]["peers"][0].update(session="active", last_error="no route to host")
        s["speaker"]["peers"][1].update(held=[], not_sent=[{"prefix": P4, "reason": "an export filter"}])
        why = {(one["peer"], one["prefix"]): one["why"] for one in routes.table(s, NODE)}
        self.assertEqual(why["r1", P4], "the session is active: no route to host")
        self.assertEqual(why["r2", P4], "an export filter")
        self.assertIn("not served any more", routes.table(drained(), NODE)[0]["why"])

    def test_until(self):
        for name, s, full, leaving, gone in (
            ("at its best", status(), True, False, False), ("moving away", draining(), False, True, False),
            ("one without the mark", draining("r2"), False, False, False), ("withdrawn", drained(), False, True, True),
            ("nothing decided", status(decisions=[]), False, False, False),
        ):
            with self.subTest(name):
                got = [not routes.lacks(s, NODE, u) for u in routes.UNTIL]
                self.assertEqual(got, [full, leaving, gone])
        self.assertEqual(routes.lacks(draining("r2"), NODE, "leaving"), [f"r2 holds {P4} without 65535:0", f"r2 holds {P6} without 65535:0"])

    def test_full_needs_the_old_marks_gone(self):
        s = status()
        s["speaker"]["peers"][1]["held"][0]["communities"] = ["65535:0"]
        self.assertEqual(routes.lacks(s, NODE, "full"), [f"r2 holds {P4} with 65535:0 still"])
        s["speaker"]["speaker"]["peers"][1]["announce"] = {"communities": ["65535:0"]}
        self.assertEqual(routes.lacks(s, NODE, "full"), [])
        s = status()
        for p in s["speaker"]["peers"]:
            p.update(session="idle")
        self.assertEqual(routes.lacks(s, NODE, "full"), [f"no router holds {P4}", f"no router holds {P6}"])

    def test_marks(self):
        marks = routes.Marks(NODE)
        for s in (status(), draining("r2"), drained()):
            marks.look(s)
        self.assertEqual(marks.by_peer(), {"r1": True, "r2": False})
        marks.look(draining())
        self.assertEqual(marks.by_peer(), {"r1": True, "r2": True})
        # One prefix that went without is enough.
        s = draining()
        s["speaker"]["peers"].append(peer("r3"))
        s["speaker"]["peers"][2]["held"][0]["communities"] = ["65535:0"]
        marks.look(s)
        self.assertEqual(marks.by_peer()["r3"], False)
        marks = routes.Marks(NODE)
        marks.look(drained())
        self.assertEqual(marks.by_peer(), {})


if __name__ == "__main__":
    unittest.main()
