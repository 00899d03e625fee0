# SPDX-License-Identifier: Apache-2.0
"""What an edged of another version, or something that is none, may say: it is told what
does not fit, or it is gone by; nothing ends in a traceback."""
import copy
import random
import unittest

import collection_path  # noqa: F401
import a_status
from ansible_collections.catchment.edge.plugins.module_utils import orders, readiness, shape, summary, turn

ODD = (None, True, False, 0, -1, 10**30, 1.5, "", "x", "\x00\n", [], [None], [1], ["x"], {}, {"x": 1}, [[]], [{}])
WHAT_IF = {"prefixes": [{"prefix": p, "ok": False, "site": "a", "reason": "only 1 stays"} for p in (a_status.P4, a_status.P6)]}


def full():
    """A status that has a bit of everything."""
    out = a_status.status(drains=[a_status.drain()], alarms=["x"], conditions=[{"prefix": a_status.P4, "health": "sick", "reason": "x", "min_sites": 1}])
    out["probes"].append({"probe": "p", "state": "down", "last_error": "x"})
    guard = out["guard"]
    guard["prefixes"][0]["round"] = {"nacked": {"b1": "no"}, "waiting": ["c1"]}
    guard["past"] = [{"prefix": a_status.P4, "nacked": {"b1": "no"}, "silent": ["c1"], "forced": False, "left": False}]
    guard["asking"] = {a_status.P4: {"reason": "x", "ok": False}}
    guard["members"].append(a_status.member("b2", "b", "leaving", drained=True, severity=2))
    peer = out["speaker"]["peers"][0]
    peer.update(not_sent=[{"prefix": a_status.P4, "reason": "x"}], held=[], bfd={"state": "down"})
    return out


def places(value, path=()):
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, path + (key,))


def changed(value, path, new):
    out = copy.deepcopy(value)
    at = out
    for key in path[:-1]:
        at = at[key]
    if new == "gone":
        del at[path[-1]]
    else:
        at[path[-1]] = new
    return out


def judged(status, what_if):
    """All that the modules ask of a status."""
    scope = {"prefix": "", "service": ""}
    readiness.judge(status, a_status.NOW)
    summary.of(status, a_status.NOW)
    turn.judge(status, what_if, 1)
    ours, others = orders.split(status, scope, "one", "x")
    for d in others + ([ours] if ours else []):
        readiness.drain_text(d, a_status.NOW)
    orders.must_order(ours, 600, a_status.NOW)
    orders.left(status, scope)
    [orders.way_text(w) for w in orders.in_the_way(status, scope)]
    orders.not_back(status, scope)


class Shape(unittest.TestCase):
    def test_good(self):
        for status in (full(), a_status.status(), a_status.drained(), {}):
            self.assertIsNone(shape.misfit(status, shape.STATUS))
        self.assertIsNone(shape.misfit(WHAT_IF, shape.WHAT_IF))
        judged(full(), WHAT_IF)

    def test_told(self):
        for path, new, want in (
            (("alarms",), "x", "alarms is str, not a list"), (("alarms",), ["x", None], "alarms[1] is null"), (("alarms",), [1], "alarms[0] is int, not a text"),
            (("guard", "members", 1, "age_ns"), "gone", "guard.members[1].age_ns is missing"), (("guard", "fresh_ns"), True, "guard.fresh_ns is bool, not a number"),
            (("decisions", 0, "unserved"), "yes", "decisions[0].unserved is str, not true or false"), (("guard", "node_keys"), {"a1": 1}, "guard.node_keys.a1 is int, not a text"),
            (("speaker",), [], "speaker is list, not an object"),
        ):
            self.assertEqual(shape.misfit(changed(full(), path, new), shape.STATUS), want)

    def test_every_place(self):
        """Each value of a status is once each of what it is not."""
        fits = 0
        for path in places(full()):
            for new in ODD + ("gone",) if path else ():
                status = changed(full(), path, new)
                if shape.misfit(status, shape.STATUS):
                    continue
                fits += 1
                with self.subTest(path=path, new=new):
                    judged(status, WHAT_IF)
        self.assertGreater(fits, 100)
        for path in places(WHAT_IF):
            for new in ODD + ("gone",) if path else ():
                what_if = changed(WHAT_IF, path, new)
                if not shape.misfit(what_if, shape.WHAT_IF):
                    judged(full(), what_if)

    def test_many_at_once(self):
        rng = random.Random(3)
        for _ in range(3000):
            status = full()
            for _ in range(rng.randrange(1, 5)):
                status = changed(status, rng.choice([p for p in places(status) if p]), rng.choice(ODD + ("gone",)))
            if not shape.misfit(status, shape.STATUS):
                judged(status, WHAT_IF)


if __name__ == "__main__":
    unittest.main()
