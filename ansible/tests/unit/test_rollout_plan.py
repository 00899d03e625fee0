# SPDX-License-Identifier: Apache-2.0
"""The plan of a rollout: what must never be in it, on fleets made by chance, and what it says."""

import random
import unittest

import collection_path  # noqa: F401
from ansible_collections.catchment.edge.plugins.module_utils import rollout_plan, rollout_rules, rollout_text

P4 = "198.51.100.0/24"
OWNER = "one"


def fleet(sites, floor=1, max_planned=1):
    """sites: {name: (capacity, [nodes])}."""
    return {"sites": [{"name": s, "capacity": c, "nodes": n} for s, (c, n) in sites.items()],
            "prefixes": [{"prefix": P4, "min_sites": floor}], "guard": {"max_planned": max_planned}}


def look(site, ready=True, drain=None, on_air=None, **more):
    on_air = drain is None if on_air is None else on_air
    return dict({"healthy": True, "ready": ready and drain is None, "why_not": [] if ready else ["a probe fails"], "site": site,
                 "drains": [{"reason": drain}] if drain else [], "decisions": [{"prefix": P4, "on_air": on_air, "elsewhere": False}],
                 "guard": {"prefixes": [], "members": []}}, **more)


def facts(running="1.0.0", previous=None, **more):
    return dict({"running": running, "previous": previous, "good": True, "why_not_good": [], "refused": {}}, **more)


def make(f, looks=None, known=None, loads=None, version="2.0.0", **wish):
    names = [n for s in f["sites"] for n in s["nodes"]]
    site = {n: s["name"] for s in f["sites"] for n in s["nodes"]}
    looks = dict({n: look(site[n]) for n in names}, **(looks or {}))
    known = dict({n: facts() for n in names}, **(known or {}))
    return rollout_plan.make(f, looks, known, loads if loads is not None else dict.fromkeys(names, 10.0), rollout_plan.Wish(version, OWNER, **wish))


def by_chance(r):
    """A fleet with its looks, versions and loads."""
    sites, n = {}, 0
    for s in range(r.randint(1, 8)):
        size = r.randint(1, 6)
        sites[f"s{s}"] = (r.choice((0, 100, 300, 1000)) if r.random() < 0.2 else 1000, [f"n{n + i}" for i in range(size)])
        n += size
    f = fleet(sites, r.randint(0, 3), r.randint(1, 4))
    site = {x: s for s, (_, nodes) in sites.items() for x in nodes}
    looks, known, loads = {}, {}, {}
    for x, s in site.items():
        looks[x] = look(s, drain=f"rollout {OWNER}: upgrade" if r.random() < 0.05 else None)
        known[x] = facts("2.0.0" if r.random() < 0.2 else "1.0.0")
        loads[x] = r.choice((0.0, 5.0, 50.0, 150.0, 400.0))
    return f, looks, known, loads


class Chance(unittest.TestCase):
    def test_no_batch_breaks_a_rule_and_each_node_comes_once(self):
        planned = refused = together = 0
        for seed in range(1000):
            f, looks, known, loads = by_chance(random.Random(seed))
            out = make(f, looks, known, loads)
            named = [n for b in out["batches"] for n in b["nodes"]]
            want = {n for n, v in known.items() if v["running"] == "1.0.0" or looks[n]["drains"]}
            self.assertEqual(sorted(named), sorted(want), seed)
            self.assertEqual(sorted(named + out["done"]), sorted(looks), seed)
            if out["refused"]:
                refused += 1
                continue
            planned += 1
            for b in out["batches"]:
                if b["name"] != "resume":
                    together += len(b["nodes"]) > 1
                    self.keeps(f, looks, loads, b["nodes"], seed)
        # Else this shows nothing.
        self.assertGreater(min(planned, refused, together), 100)

    def keeps(self, f, looks, loads, batch, seed):
        """The rules, told in another way than the code has them."""
        site = {n: s for s in f["sites"] for n in s["nodes"]}
        touched = {site[n]["name"] for n in batch}
        self.assertLessEqual(len(touched), f["guard"]["max_planned"], seed)
        lost = [s for s in f["sites"] if set(s["nodes"]) <= set(batch)]
        for s in lost:
            self.assertEqual(len(s["nodes"]), 1, seed)
        on_air = {site[n]["name"] for n, v in looks.items() if n not in batch}  # half-done ones are back before
        if lost:
            self.assertGreaterEqual(len(on_air), f["prefixes"][0]["min_sites"], seed)
        if all(s["capacity"] for s in f["sites"]):
            left = [s["capacity"] * sum(1 for n in s["nodes"] if n not in batch) / len(s["nodes"]) for s in f["sites"]]
            demand = sum(loads.values())
            self.assertGreaterEqual(sum(left), demand, seed)
            if len(touched) > 1:
                self.assertGreaterEqual(sum(left) - max(left), demand, seed)

    def test_the_gate_lets_what_was_planned_begin(self):
        for seed in range(500):
            f, looks, known, loads = by_chance(random.Random(seed))
            for v in looks.values():
                v.update(drains=[], ready=True, decisions=look("")["decisions"])
            out = make(f, looks, known, loads)
            for b in out["batches"] if not out["refused"] else []:
                self.assertIsNone(rollout_plan.gate(f, looks, loads, b["nodes"], {}, {}, 0, OWNER), (seed, b))


NINE = {"a": (1000, ["a1", "a2"]), "b": (1000, ["b1", "b2"]), "c": (1000, ["c1", "c2"]), "d": (1000, ["d1", "d2"]), "e": (1000, ["e1"])}


class Order(unittest.TestCase):
    def batches(self, out):
        self.assertEqual(out["refused"], [])
        return [(b["name"], " ".join(b["nodes"])) for b in out["batches"]]

    def test_canary_one_per_site_and_waves(self):
        loads = dict.fromkeys(("a1", "a2", "b1", "b2", "c1", "c2", "d1"), 10.0)
        out = make(fleet(NINE), loads=dict(loads, d2=2.0, e1=15.0))
        got = self.batches(out)
        self.assertEqual(got[0], ("canary", "d2"))
        self.assertEqual(sorted(n[0] for _, n in got[:5]), ["a", "b", "c", "d", "e"])
        self.assertEqual([b for b, _ in got], ["canary"] + ["one of each site"] * 4 + ["wave 1", "wave 2", "wave 2", "wave 3"])
        self.assertEqual([b["soak"] for b in out["batches"]], ["canary"] + ["wave"] * 8)
        self.assertEqual(self.batches(make(fleet(NINE), canary="c2"))[0], ("canary", "c2"))

    def test_more_sites_at_once_where_the_guard_has_it(self):
        got = self.batches(make(fleet(NINE, max_planned=2)))
        self.assertEqual([len(n.split()) for _, n in got], [1, 2, 2, 1, 2, 1])

    def test_it_goes_on_where_it_was(self):
        looks = {"b2": look("b", drain=f"rollout {OWNER}: upgrade to 2.0.0")}
        out = make(fleet(NINE), looks, {"a1": facts("2.0.0"), "b2": facts("2.0.0")})
        got = self.batches(out)
        self.assertEqual(got[0], ("resume", "b2"))
        self.assertEqual(out["done"], ["a1"])
        self.assertEqual([n for b, n in got if b == "one of each site"], ["e1", "c1", "d1"])

    def test_a_soak_that_was_cut_comes_first_and_takes_nobody_off_the_air(self):
        f = fleet(NINE)
        known = {"a1": facts("2.0.0"), "b1": facts("2.0.0"), "c1": facts("2.0.0")}
        plan = make(f, known=known, unproven=["a1", "b1", "d1"])  # d1 has gone back since
        self.assertEqual(plan["batches"][0], {"name": "soak again", "nodes": ["a1", "b1"], "soak": "wave"})
        self.assertEqual((plan["soak_only"], plan["done"], plan["targets"]["a1"]), (["a1", "b1"], ["c1"], "2.0.0"))
        self.assertIn("d1", [n for b in plan["batches"][1:] for n in b["nodes"]])
        self.assertNotIn("canary", [b["name"] for b in plan["batches"]])
        drained = {"a1": look("a", drain=f"rollout {OWNER}: x")}
        self.assertEqual(make(f, drained, known, unproven=["a1"])["batches"][0]["name"], "resume")
        alone = make(f, known={"a1": facts("2.0.0")}, unproven=["a1"])
        self.assertEqual(alone["batches"][0], {"name": "soak again", "nodes": ["a1"], "soak": "canary"})

    def test_half_done_nodes_are_back_before_the_next(self):
        two = fleet({"a": (0, ["a1"]), "b": (0, ["b1"])})
        out = make(two, {"a1": look("a", drain=f"rollout {OWNER}: upgrade to 2.0.0")})
        self.assertEqual(self.batches(out), [("resume", "a1"), ("one of each site", "b1")])

    def test_a_version_that_is_not_good_is_not_done(self):
        out = make(fleet(NINE), {}, {n: facts("2.0.0") for n in ("a1", "b1")} | {"b1": facts("2.0.0", good=False)})
        self.assertEqual(out["done"], ["a1"])
        self.assertEqual(out["targets"]["b1"], "2.0.0")

    def test_waves_are_those_of_serial(self):
        self.assertEqual(rollout_plan.sizes(["20%", "50%", "100%"], 10), [2, 5, 3])
        self.assertEqual(rollout_plan.sizes([1, 5, "20%"], 20), [1, 5, 4, 4, 4, 2])
        self.assertEqual(rollout_plan.sizes(["20%"], 3), [1, 1, 1])
        for bad in ([], ["0"], ["x%"], ["-1"], ["100%", "3x"]):
            with self.assertRaises(ValueError):
                rollout_plan.sizes(bad, 3)

    def test_back_takes_the_last_first(self):
        known = {n: facts("2.0.0", "1.0.0") for n in ("a1", "b1", "c1")}
        out = make(fleet(NINE), {}, known, back=True, newest=["c1", "a1"])
        self.assertEqual(self.batches(out), [("back", "c1"), ("back", "a1"), ("back", "b1")])
        self.assertEqual(out["targets"]["c1"], "1.0.0")
        self.assertIn("a2", out["done"])

    def test_the_text_has_it_all(self):
        f = fleet(NINE)
        text = "\n".join(rollout_text.plan(make(f, leave_out=["e1"]), "2.0.0", False))
        self.assertIn("to version 2.0.0: 8 nodes in 8 batches, 0 are done; the fleet serves 90 requests/s\n1. canary: a1", text)
        self.assertIn("left out: e1: rollout_leave_out names it", text)


class Refused(unittest.TestCase):
    def refused(self, words, **args):
        out = make(args.pop("f", fleet(NINE)), **args)
        self.assertTrue(any(words in r for r in out["refused"]), out["refused"])
        return out

    def test_a_fleet_that_is_not_well(self):
        sick, lost = look("b", ready=False), {"unreachable": True, "msg": "no route"}
        self.refused("b1: it is not ready: a probe fails", looks={"b1": sick})
        self.refused("b1: it is not reached: no route", looks={"b1": lost})
        self.refused("b1: it is drained by another: new fan", looks={"b1": look("b", drain="new fan")})
        self.refused("b1: it is drained by another: rollout two: x", looks={"b1": look("b", drain="rollout two: x")})
        # Of a node that is done too.
        self.refused("b1: it is not ready", looks={"b1": sick}, known={"b1": facts("2.0.0")})
        for n in (sick, lost):
            self.assertEqual(make(fleet(NINE), {"b1": n}, leave_out=["b1"])["refused"], [])
        out = make(fleet(NINE), {"b1": sick, "c1": lost}, allow_unhealthy=True)
        self.assertEqual((out["refused"], out["batches"][0]["nodes"], out["left_out"]), ([], ["b1"], {"c1": "it is not reached: no route"}))

    def test_versions(self):
        self.refused("b1: it refuses version 2.0.0: check bgp", known={"b1": facts(refused={"2.0.0": "check bgp"})})
        self.refused("b1: it is not known which version it runs: dpkg is broken", known={"b1": facts(None, why_not_good=["dpkg is broken"])})
        self.refused("b1: there is no version to go back to", known={"b1": facts("2.0.0")}, back=True)

    def test_names(self):
        self.refused("rollout_canary names x9", canary="x9")
        self.refused("rollout_leave_out names x9", leave_out=["x9"])

    def test_floor_and_room(self):
        two = {"a": (1000, ["a1"]), "b": (1000, ["b1"])}
        self.assertEqual(make(fleet(two))["refused"], [])
        self.refused("198.51.100.0/24 would stay announced at 1 sites, and its floor is 2", f=fleet(two, 2))
        self.refused("capacity for 1000 requests/s would stay, and the fleet is asked for 1200", f=fleet(two), loads={"a1": 600.0, "b1": 600.0})
        # A node that is left out counts as gone.
        three = dict(two, c=(1000, ["c1"]))
        self.refused("its floor is 2", f=fleet(three, 2), leave_out=["c1"])
        # One that tells no load: what is not known is said.
        out = make(fleet(three), loads={})
        self.assertEqual((out["refused"], len(out["told"])), ([], 1))

    def test_what_others_do_not_hear(self):
        deaf = look("a", guard={"prefixes": [], "members": [{"node": "b1", "heard": False}]})
        f = fleet({"a": (0, ["a1"]), "b": (0, ["b1"]), "c": (0, ["c1"])}, 1)
        out = rollout_plan.make(f, {"a1": deaf}, {"a1": facts()}, {}, rollout_plan.Wish("2.0.0"))
        self.assertEqual(out["refused"], [])
        f["prefixes"][0]["min_sites"] = 2
        out = rollout_plan.make(f, {"a1": deaf}, {"a1": facts()}, {}, rollout_plan.Wish("2.0.0"))
        self.assertIn("its floor is 2", out["refused"][0])


class Gate(unittest.TestCase):
    def gate(self, batch, failed=(), budget=0, f=None, **looks):
        f = f or fleet(NINE)
        all_looks = {n: look(s["name"]) for s in f["sites"] for n in s["nodes"]}
        all_looks.update(looks)
        return rollout_plan.gate(f, all_looks, {}, batch, dict.fromkeys(failed, "x"), {}, budget, OWNER)

    def test_budget_spans_batches(self):
        self.assertIsNone(self.gate(["a1"]))
        self.assertIn("1 nodes have failed, and rollout_budget is 0", self.gate(["a1"], ["b1"]))
        self.assertIsNone(self.gate(["a1"], ["b1"], 1, b1=look("b", ready=False)))
        self.assertIn("2 nodes have failed", self.gate(["a1"], ["b1", "c1"], 1))

    def test_the_fleet_has_to_be_well(self):
        self.assertIn("nobody else is drained: b1: it is not ready", self.gate(["a1"], b1=look("b", ready=False)))
        self.assertIn("b1: it is not reached: gone", self.gate(["a1"], b1={"unreachable": True, "msg": "gone"}))
        self.assertIsNone(self.gate(["b1"], b1=look("b", drain=f"rollout {OWNER}: x")))

    def test_a_failed_node_counts_as_gone(self):
        two, lost = fleet({"a": (0, ["a1"]), "b": (0, ["b1"])}), {"unreachable": True, "msg": "gone"}
        all_looks = {"a1": look("a"), "b1": lost}
        self.assertIn("its floor is 1", rollout_plan.gate(two, all_looks, {}, ["a1"], {}, {}, 0, OWNER, True))
        self.assertIn("its floor is 1", self.gate(["a1"], ["b1"], 1, two, b1=look("b", drain=f"rollout {OWNER}: x")))

    def test_what_a_failed_node_has_served_comes_to_the_others(self):
        f = fleet({"a": (1000, ["a1", "a2", "a3", "a4"])})
        names = f["sites"][0]["nodes"]
        all_looks = dict({n: look("a") for n in names}, a2=look("a", drain=f"rollout {OWNER}: x"))
        for each, want in ((130.0, "capacity for 500 requests/s would stay, and the fleet is asked for 520"), (120.0, None)):
            got = rollout_plan.gate(f, all_looks, dict.fromkeys(names, each), ["a3"], {"a2": "x"}, {}, 1, OWNER)
            self.assertEqual(got, want)

    def test_what_a_lost_node_had_is_asked_of_the_others(self):
        f = fleet({"a": (1000, ["a1", "a2", "a3", "a4"])}, 0)
        names = [f"a{i}" for i in range(1, 5)]
        why = rollout_plan.gate(f, {n: look("a") for n in names}, dict.fromkeys(names, 150.0), ["a2"], {"a1": "x"}, {}, 1, OWNER)
        self.assertIn("capacity for 500 requests/s would stay, and the fleet is asked for 600", why)
        # Of one that was not reached from the start nothing is known.
        why = rollout_plan.gate(f, {n: look("a") for n in names}, dict.fromkeys(names[1:], 150.0), ["a2"], {}, {"a1": "x"}, 0, OWNER)
        self.assertIsNone(why)


class Rules(unittest.TestCase):
    def test_the_highest_floor_counts(self):
        f = fleet({"a": (0, ["a1"]), "b": (0, ["b1"])}, 0)
        said = {"prefixes": [{"prefix": P4, "floor": 2}], "members": []}
        looks = {"a1": look("a", guard=said), "b1": look("b")}
        self.assertIn("its floor is 2", rollout_rules.objections(rollout_rules.Fleet(f, looks), ["a1"])[0])
        f["prefixes"][0]["unconditional"] = ["a"]
        self.assertEqual(rollout_rules.objections(rollout_rules.Fleet(f, looks), ["a1"]), [])

    def test_a_site_is_not_taken_at_once(self):
        f = fleet({"a": (900, ["a1", "a2", "a3"]), "b": (1000, ["b1"]), "c": (1000, ["c1"])}, max_planned=3)
        names = ["a1", "a2", "a3", "b1", "c1"]
        view = rollout_rules.Fleet(f, {n: look(n[0]) for n in names}, dict.fromkeys(names, 200.0))
        self.assertEqual(rollout_rules.objections(view, ["a1"]), [])
        self.assertIn("all 3 nodes of site a", rollout_rules.objections(view, ["a1", "a2", "a3"]))
        self.assertIn("more than half of the nodes of site a", rollout_rules.objections(view, ["a1", "a2"]))
        self.assertTrue(any("the loss of one more site" in o for o in rollout_rules.objections(view, ["b1", "a1"])))
        self.assertIn("while a1 is away, the rest of site a has less capacity (600 requests/s) than it serves (900)",
                      rollout_rules.thin(rollout_rules.Fleet(f, {n: look(n[0]) for n in names}, dict.fromkeys(names, 300.0) | {"b1": 0.0, "c1": 0.0}), "a1"))


if __name__ == "__main__":
    unittest.main()
