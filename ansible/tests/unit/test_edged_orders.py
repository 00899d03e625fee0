# SPDX-License-Identifier: Apache-2.0
"""Whose an order is, what is done, what is left of it, who is in the way, whose turn."""

import unittest

import collection_path  # noqa: F401

from a_status import NOW, P4, P6, drain, drained, member, status
from ansible_collections.catchment.edge.plugins.module_utils import orders, turn

NODE = {"prefix": "", "service": ""}


class OrdersTest(unittest.TestCase):
    def test_reason(self):
        self.assertEqual(orders.full_reason("one", " to \n 2.0 "), "rollout one: to 2.0")
        self.assertEqual(orders.full_reason("", "new fan"), "new fan")
        for owner, reason, want in (("", "  ", "empty"), ("one", None, "empty"), ("one", "x" * 490, "shorten"), ("", "ü" * 260, "520 bytes")):
            with self.assertRaisesRegex(ValueError, want):
                orders.full_reason(owner, reason)

    def test_whose(self):
        for name, d, owner, reason, ours in (
            ("ours", drain(), "one", "rollout one: other words", True),
            ("of another rollout", drain(), "two", "rollout two: x", False),
            ("of one whose name begins like ours", drain("rollout one-two: x"), "one", "rollout one: x", False),
            ("of an operator", drain("new fan"), "one", "rollout one: x", False),
            ("of an operator, by its reason", drain("new fan"), "", "new fan", True),
            ("of another operator", drain("new fan"), "", "new fans", False),
            ("by file", drain(by_file=True), "one", "rollout one: x", False),
            ("edgebgp's", drain("edgebgp is to stop", stop=True), "", "edgebgp is to stop", False),
        ):
            with self.subTest(name):
                got = orders.split(status(drains=[d]), NODE, owner, reason)
                self.assertEqual(got, (d, []) if ours else (None, [d]))
        other = drain("x", prefix=P4)
        self.assertEqual(orders.split(status(drains=[other]), NODE, "one", "y"), (None, []))
        self.assertEqual(orders.split(status(drains=[other]), {"prefix": P4, "service": ""}, "one", "y"), (None, [other]))

    def test_again(self):
        for name, ours, length, want in (
            ("none", None, 0, True), ("fresh", drain(ends_in=590), 600, False), ("half over", drain(ends_in=290), 600, True),
            ("for ever, as wanted", drain(ends_in=None), 0, False), ("for ever, and an end is wanted", drain(ends_in=None), 600, True),
            ("an end, and none is wanted", drain(), 0, True),
        ):
            with self.subTest(name):
                self.assertEqual(orders.must_order(ours, length, NOW), want)

    def test_order(self):
        self.assertEqual(orders.order(NODE, "x", 0, NOW), {"reason": "x"})
        got = orders.order({"prefix": P4, "service": ""}, "x", 60, NOW)
        self.assertEqual(got, {"prefix": P4, "reason": "x", "until": "2027-01-15T08:01:00.000Z"})

    def test_left(self):
        self.assertEqual(orders.left(drained(), NODE), [])
        self.assertEqual(len(orders.left(drained(unserved=False), NODE)), 2)
        self.assertEqual(len(orders.left(status(), {"prefix": "", "service": "web"})), 1)
        self.assertEqual(len(orders.left(status(), {"prefix": P6, "service": ""})), 1)
        self.assertIn("no prefix yet", orders.left(status(decisions=[]), NODE)[0])

    def test_in_the_way(self):
        st = status(drains=[drain()])
        for d in st["decisions"]:
            d.update(rung="last-resort", reason="drained: rollout one: x; may not withdraw: y")
        st["guard"].update(
            asking={P4: {"ok": False, "reason": "0 of 1 other sites promised to stay", "refused": True}, P6: {"ok": True}},
            past=[{"prefix": P4, "nacked": {"b1": "it is draining"}, "silent": ["c1"], "left": False},
                  {"prefix": P4, "nacked": {"zz": "forced"}, "forced": True, "left": True}])
        st["guard"]["prefixes"][0]["round"] = {"n": 2, "nacked": {"b1": "it has withdrawn"}, "waiting": ["d1"]}
        self.assertEqual([orders.way_text(w) for w in orders.in_the_way(st, NODE)], [
            f"{P4}: 0 of 1 other sites promised to stay", f"{P4}: b1 refuses: it has withdrawn", f"{P4}: c1 does not answer", f"{P4}: d1 does not answer"])
        self.assertEqual(orders.in_the_way(status(), NODE), [])

    def test_not_back(self):
        self.assertEqual(orders.not_back(status(), NODE), [])
        self.assertEqual(len(orders.not_back(drained(), NODE)), 2)
        st = status()
        st["speaker"]["peers"][1]["held"] = []
        self.assertEqual(orders.not_back(st, {"prefix": P4, "service": ""}), [f"{P4} is announced: r2 does not hold it: no reason is known"])


def no(why, site="a"):
    return {"prefixes": [{"prefix": P4, "site": site, "ok": False, "reason": why}, {"prefix": P6, "site": site, "ok": True, "reason": "b, c stay, 1 must"}]}


YES = {"prefixes": [{"prefix": p, "site": "a", "ok": True, "reason": "b, c stay, 1 must"} for p in (P4, P6)]}


def heard(*members, **guard):
    st = status()
    st["guard"]["members"] = list(members)
    st["guard"].update(guard)
    return st


class TurnTest(unittest.TestCase):
    def test_table(self):
        few = "1 other sites would stay, and 2 must"
        for name, st, what_if, planned, want in (
            ("its turn", status(), YES, 1, []),
            ("off the air", drained(), no(few), 1, []),
            ("cut off", heard(isolated=True), YES, 1, ["all prefixes: no other site has been heard"]),
            ("too few", status(), no(few), 1, [f"{P4}: {few}"]),
            ("too few, since c is withdrawn",
             heard(member("b1", "b"), member("c1", "c", "withdrawn", reason="drained: new fan", drained=True),
                   prefixes=[{"prefix": P4, "floor": 2, "sites": ["a", "b"]}]), no(few), 1,
             [f"{P4}: {few}", f"{P4}, c1 of site c: it is withdrawn: drained: new fan"]),
            ("too few, since c is silent",
             heard(member("b1", "b"), member("c1", "c", age=90), prefixes=[{"prefix": P4, "floor": 2, "sites": ["a", "b"], "silent": ["c"]}]), no(few), 1,
             [f"{P4}: {few}", f"{P4}, c1 of site c: it is not heard of"]),
            ("the last, and another box of the site stays",
             heard(member("a2", "a"), member("b1", "b"), prefixes=[{"prefix": P4, "floor": 2, "sites": ["a", "b"]}]), no(few), 1, []),
            ("the other box is drained too",
             heard(member("a2", "a", "withdrawn", drained=True), prefixes=[{"prefix": P4, "floor": 2, "sites": ["a", "b"]}]), no(few), 1, [f"{P4}: {few}"]),
            ("bound, whoever stays", heard(member("a2", "a")), no("bound by a promise to b1 to stay, until 10:00 at the latest"), 1, [f"{P4}: bound by a promise to b1"]),
            ("just started", status(), no("promises given before the start at 1 are forgotten, so no leave until 2"), 1, ["forgotten"]),
            ("another leaves by an order", heard(member("b1", "b", "draining", reason="drained: y", drained=True, severity=1)), YES, 1, ["b1 of site b: it is leaving by an order: drained: y"]),
            ("and two may", heard(member("b1", "b", "draining", drained=True, severity=1)), YES, 2, []),
            ("two nodes of one site count once",
             heard(member("b1", "b", "draining", drained=True), member("b2", "b", "draining", drained=True)), YES, 2, []),
            ("the other box of its site leaves", heard(member("a2", "a", "draining", drained=True)), YES, 1, []),
            ("one leaves for sickness", heard(member("b1", "b", "leaving", reason="web-vip is down", severity=10)), YES, 5, ["leaves 198.51.100.0/24 for sickness", "leaves 2001"]),
            ("one that is not heard leaves", heard(member("b1", "b", "draining", drained=True, age=60)), YES, 1, []),
            ("one has left by an order", heard(member("b1", "b", "withdrawn", drained=True)), YES, 1, []),
            ("not guarded", heard(prefixes=[{"prefix": P4, "floor": 0, "sites": ["a"]}]), no(few), 1, []),
        ):
            with self.subTest(name):
                got = [turn.text(w) for w in turn.judge(st, what_if, planned)]
                self.assertEqual(len(got), len(want), got)
                for w, g in zip(want, got):
                    self.assertIn(w, g)


if __name__ == "__main__":
    unittest.main()
