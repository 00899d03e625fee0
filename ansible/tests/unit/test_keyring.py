# SPDX-License-Identifier: Apache-2.0
import base64
import itertools
import random
import unittest

import collection_path  # noqa: F401
from ansible_collections.catchment.edge.plugins.module_utils import keyring, nodekey
from ansible_collections.catchment.edge.plugins.module_utils.keyring import Box, Plan, Refused

A, B, C, D = (bytes([n]) * 32 for n in (1, 2, 3, 4))


def line(key):
    return base64.b64encode(key).decode()


def names(*keys):
    return [keyring.name_of(k) for k in keys]


class Parse(unittest.TestCase):
    def test_good(self):
        ring = keyring.parse(f"# ours\n\n  {line(A)}\r\n# later\n{line(B)}".encode(), "f")
        self.assertEqual((ring.keys, ring.head, ring.step), ([A, B], ["# ours"], None))
        self.assertEqual(ring.content().decode(), f"# ours\n{line(A)}\n{line(B)}\n")

    def test_bad(self):
        for text, want in (
            ("", "has 0 keys, not from 1 to 8"),
            ("# a\n", "has 0 keys"),
            (f"{line(A)}\nhunter2\n", "f, line 2 does not hold 32 bytes in base64; make a key with: openssl"),
            (line(A)[:-8] + "\n", "line 1 does not hold"),
            (f"{line(A)}\n\n{line(A)}\n", "line 3: this key is given twice"),
            ("".join(line(bytes([n]) * 32) + "\n" for n in range(9)), "has 9 keys"),
            ("#\n" * 9000, "more than 16384 bytes"),
            ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "line 1 does not hold"),
        ):
            with self.assertRaises(Refused) as caught:
                keyring.parse(text.encode(), "f")
            self.assertIn(want, str(caught.exception))
            self.assertNotIn("hunter2", str(caught.exception))
            self.assertNotIn(line(A)[:12], str(caught.exception))

    def test_any_bytes(self):
        rng = random.Random(7)
        for _ in range(2000):
            src = bytes(rng.choice(b"#\n =A/+\xff\x00Zrotation:") for _ in range(rng.randrange(120)))
            try:
                keyring.parse(src, "f")
            except Refused:
                pass

    def test_notes(self):
        new = keyring.name_of(B)
        for text, step in (
            (f"# rotation: {new} is installed\n{line(A)}\n{line(B)}\n", "install"),
            (f"# rotation: {new} is in use\n{line(B)}\n{line(A)}\n", "use"),
            (f"# rotation: {new} is in use\n{line(A)}\n{line(B)}\n", None),
            (f"# rotation: {new} is in use\n{line(B)}\n", None),
            (f"# rotation: {new} is installed\n{line(A)}\n", None),
            (f"# rotation: {new} is installed\n{line(B)}\n{line(A)}\n", None),
            (f"# rotation: {new} is lost\n{line(A)}\n{line(B)}\n", None),
        ):
            self.assertEqual(keyring.parse(text.encode(), "f").step, step, text)


class Steps(unittest.TestCase):
    def test_contents(self):
        for keep, last in ((0, [C]), (1, [C, A]), (9, [C, A, B])):
            plan = keyring.begin(keyring.parse(f"# x\n{line(A)}\n{line(B)}\n".encode(), "f"), C, keep)
            self.assertEqual(plan.rings["install"].keys, [A, B, C])
            self.assertEqual(plan.rings["use"].keys, [C, A, B])
            self.assertEqual(plan.rings["remove"].keys, last)
            for step in keyring.STEPS:
                ring = keyring.parse(plan.content(step), "f")
                self.assertEqual((ring.head, ring.step), (["# x"], None if step == "remove" else step))
                again = keyring.resume(ring, keep)
                if ring.step:
                    self.assertEqual({s: again.content(s) for s in keyring.STEPS}, {s: plan.content(s) for s in keyring.STEPS})
                else:
                    self.assertIsNone(again)

    def test_the_same_key(self):
        ring = keyring.parse(f"{line(A)}\n{line(B)}\n".encode(), "f")
        self.assertIsNone(keyring.begin(ring, A))
        self.assertEqual(keyring.begin(ring, B).rings["install"].keys, [A, B])

    def test_full(self):
        keys = [bytes([n]) * 32 for n in range(10, 18)]
        plan = keyring.begin(keyring.Ring(keys), A)
        self.assertEqual(plan.rings["install"].keys, keys[:7] + [A])

    def test_source(self):
        self.assertEqual(keyring.source_of("/etc/edge/secrets/tls/t.key"), "tls/t.key")
        self.assertEqual(keyring.source_of("/etc/edge/gossip.key"), "gossip.key")


class Judge(unittest.TestCase):
    def setUp(self):
        self.plan = Plan(B, [A])

    def trouble(self, step, *boxes, strict=True):
        return keyring.trouble(self.plan, step, boxes, strict)

    def box(self, *keys, **more):
        return Box("b", names(*keys), names(*keys), **more)

    def test_trouble(self):
        down, silent = Box("b", reached=False, why="it was not reached: timeout"), Box("b", why="edged does not answer")
        behind = Box("b", names(A), names(A, B))
        for step, box, strict, want in (
            ("install", self.box(A), True, None),
            ("install", down, True, None),
            ("install", silent, True, "b: edged does not answer"),
            ("install", self.box(C), True, f"b: it encrypts with {names(C)[0]}, which is not among"),
            ("install", self.box(C), False, None),
            ("use", self.box(A, B), True, None),
            ("use", self.box(B, A), True, None),
            ("use", down, True, "b: it was not reached: timeout"),
            ("use", down, False, "b: it was not reached: timeout"),
            ("use", self.box(A), True, f"b: it has {names(A)[0]} in use"),
            ("use", behind, True, "in its file"),
            ("remove", self.box(B, A), True, None),
            ("remove", self.box(B), True, None),
            ("remove", self.box(A, B), True, f"b: it encrypts with {names(A)[0]}, which is not among {names(B)[0]}"),
            ("remove", self.box(A, B), False, "b: it has"),
            ("remove", Box("b", [], None), False, "b: it has no keys of the fleet in use"),
        ):
            got = self.trouble(step, box, strict=strict)
            if want is None:
                self.assertEqual(got, [], (step, box.loaded))
            else:
                self.assertEqual(len(got), 1)
                self.assertIn(want, got[0])

    def test_resumed(self):
        """By the file all boxes have made the first step, and the second is made again."""
        away = Box("away", reached=False)
        for boxes, want in (
            ([self.box(A, B)], None), ([self.box(B)], None), ([self.box(A)], None), ([self.box(A, B), away], None),
            ([self.box(C)], f"b: it encrypts with {names(C)[0]}, which is not among"), ([self.box(C, B)], "it encrypts with"),
            ([self.box(B, C)], None), ([self.box(B, C), away], f"b: it accepts {names(C)[0]}, which is not among .*, and away, which was not reached"),
        ):
            got = keyring.trouble(self.plan, "use", boxes, True, resumed=True)
            self.assertEqual(len(got), 0 if want is None else 1, (boxes[0].loaded, got))
            if want:
                self.assertRegex(got[0], want)
        self.assertEqual(keyring.trouble(self.plan, "use", [self.box(C), away], False, resumed=True), [])
        self.assertEqual(len(self.trouble("install", self.box(A, C), away)), 1)
        self.assertEqual(self.trouble("install", self.box(A, C)), [])

    def test_keep(self):
        for value, want in ((None, 0), (0, 0), ("1", 1), (7, 7)):
            self.assertEqual(keyring.keep_of(value), want)
        for value in (-1, "-1", 8, "x", "", 1.5, True):
            with self.assertRaisesRegex(Refused, "expected how many older keys"):
                keyring.keep_of(value)

    def test_todo(self):
        boxes = [Box(str(i), names(*k), names(*k)) for i, k in enumerate(((A,), (A, B), (B, A), (B,)))]
        self.assertEqual(keyring.todo(self.plan, "install", boxes), ["0"])
        self.assertEqual(keyring.todo(self.plan, "use", boxes), ["0", "1"])
        self.assertEqual(keyring.todo(self.plan, "remove", boxes), ["0", "1", "2"])
        self.assertEqual(len(keyring.unfinished(self.plan, boxes)), 3)
        self.assertEqual(keyring.todo(self.plan, "install", [Box("x", reached=False)]), [])
        kept = Plan(B, [A], keep=1)
        self.assertEqual(keyring.todo(kept, "remove", [Box("x", names(B, A), names(B, A), "use"), Box("y", names(B, A), names(B, A))]), ["x"])


class Order(unittest.TestCase):
    """Whatever boxes a step has reached when a run ends, and whichever of them are down,
    every box that is up accepts what every other encrypts with, in this run and the next."""

    def heard(self, boxes, what):
        """A box that the controller does not reach may be up for the others."""
        for one, other in itertools.permutations(boxes, 2):
            self.assertIn(one.loaded[0], other.loaded, f"{what}: {other.name} does not hear {one.name}")

    def run_once(self, rng, ring, boxes, new, converges=True):
        plan = keyring.resume(ring) or keyring.begin(ring, new)
        for step in keyring.STEPS:
            if ring.step == "use" and step == "install":
                continue
            resumed = ring.step == "use" and step == "use"
            if keyring.trouble(plan, step, boxes, True, resumed):
                return ring
            done = step if step == "install" else keyring.STEPS[keyring.STEPS.index(step) - 1]
            ring = keyring.parse(plan.content(done), "f")
            for name in rng.sample(keyring.todo(plan, step, boxes), len(keyring.todo(plan, step, boxes))):
                if rng.random() < 0.15:
                    return ring  # killed
                box = next(b for b in boxes if b.name == name)
                box.loaded = box.file = plan.names(step)
                box.noted = plan.rings[step].step
                self.heard(boxes, step)
                if converges and rng.random() < 0.1:  # somebody converges a box by the file of secrets
                    other = rng.choice([b for b in boxes if b.reached])
                    other.loaded = other.file = ring.names
                    other.noted = ring.step
                    self.heard(boxes, f"converged in {step}")
        return ring if keyring.unfinished(plan, boxes) else keyring.parse(plan.content("remove"), "f")

    def test_never_unheard(self):
        finished = 0
        for seed in range(500):
            rng = random.Random(seed)
            ring = keyring.Ring([A])
            boxes = [Box(f"b{i}", names(A), names(A)) for i in range(rng.randrange(2, 7))]
            for turn in range(8):
                for box in boxes:
                    box.reached = rng.random() > 0.15
                ring = self.run_once(rng, ring, boxes, bytes([20 + turn]) * 32)
                ring = keyring.parse(ring.content(), "f")
            for box in boxes:
                box.reached = True
            self.heard(boxes, "all are back")
            for turn in range(30):
                before, ring = ring, self.run_once(rng, ring, boxes, bytes([100 + turn]) * 32)
                if before.step and not ring.step:
                    finished += 1
                    break
            self.heard(boxes, "at the end")
        self.assertGreater(finished, 50)

    def test_an_old_file(self):
        """Somebody has a file of before, of any moment: he is refused, or does no harm."""
        for seed in range(300):
            rng = random.Random(seed)
            boxes, files = [Box(f"b{i}", names(A), names(A)) for i in range(rng.randrange(2, 5))], [keyring.Ring([A])]
            for turn in range(8):
                for box in boxes:
                    box.reached = rng.random() > 0.15
                ring = rng.choice(files) if rng.random() < 0.4 else files[-1]
                # A converge with an old file is refused by the box itself: gossipkeys.
                ring = self.run_once(rng, ring, boxes, bytes([20 + turn]) * 32, converges=False)
                files.append(keyring.parse(ring.content(), "f"))

    def test_skipping_is_unheard(self):
        """The rule itself can fail: without the step before, a box is not heard."""
        boxes = [Box("b0", names(A), names(A)), Box("b1", names(A), names(A))]
        boxes[0].loaded = boxes[0].file = Plan(B, [A]).names("use")
        with self.assertRaises(AssertionError):
            self.heard(boxes, "skipped")


class NodeKey(unittest.TestCase):
    def test_judge(self):
        here, other = line(A), line(B)
        spki = base64.b64encode(bytes.fromhex("302a300506032b6570032100") + A).decode()
        for have, known, want in (
            (None, "", None), (here, "", None), (here, here, None), (here, spki + "\n", None),
            (None, here, "is not there: put it back"), (here, other, f"has the public half {here}, and the fleet knows {other}"),
            (here, "x", "is not 32 bytes in base64"),
        ):
            got = nodekey.judge(have, known, "/etc/edge/secrets/node.key")
            self.assertEqual(got is None, want is None, got)
            self.assertIn(want or "", got or "")
        self.assertIsNone(nodekey.raw_public(None))

    def test_stand_in_is_a_key_of_its_own(self):
        one, other = nodekey.stand_in("a1"), nodekey.stand_in("a2")
        self.assertEqual(nodekey.raw_public(one), one)
        self.assertNotEqual(one, other)
        self.assertEqual(one, nodekey.stand_in("a1"))


if __name__ == "__main__":
    unittest.main()
