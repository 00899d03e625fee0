# SPDX-License-Identifier: Apache-2.0
"""A Debian whose package is changed: what is asked first, in which order it is done, and
what is said when it ends in the middle. The commands of the box are a stand-in."""

import os
import shutil
import subprocess
import tempfile
import time
import unittest
from unittest import mock

import collection_path  # noqa: F401
import a_status

from ansible_collections.catchment.edge.plugins.module_utils import debbox, debchange, debcheck, edged

DAEMONS = ("edged", "edgebgp", "edgeproxy")


class Edged:
    """The client of a node that is drained."""

    def __init__(self):
        self.answer, self.error = a_status.drained(), None

    def status(self):
        if self.error:
            raise edged.EdgedError(self.error)
        out = dict(self.answer, time=a_status.durations.stamp(time.time()))
        return out


class System:
    """What dpkg, systemd and the programs of a box would answer. Orders are kept."""

    def __init__(self, version="1.2.0"):
        self.package, self.status, self.want = version, "installed", "install"
        self.runs = dict.fromkeys(DAEMONS, version)
        self.wanted = set(DAEMONS)
        self.orders, self.breaks, self.locked, self.also, self.refuses, self.noexec = [], {}, 0, "", "", False
        self.hangs = set()
        self.client = Edged()

    def run(self, args, environ_update=None):
        if args[0] == "timeout":
            args = args[3:]
            if os.path.basename(args[0]) in self.hangs:
                return 124, "", "so far"
        name = os.path.basename(args[0])
        if name == "edgectl.new":
            if self.noexec:
                return 126, "", "timeout: failed to run command: Permission denied"
            return (1, self.refuses, "") if self.refuses else (0, "", "")
        return getattr(self, "do_" + name.replace("-", "_"))(args)

    def do_dpkg_query(self, args):
        return 0, f"{self.want} {self.status} {self.package}", ""

    def do_dpkg_deb(self, args):
        if os.path.isdir(args[-1]):
            return 2, "", "Is a directory"
        with open(args[-1], encoding="ascii") as f:  # a package is a line here
            text = f.read()
        return (0, text, "") if "\n" in text else (2, "", "not a Debian format archive")

    def do_dpkg(self, args):
        if "--print-architecture" in args:
            return 0, "amd64\n", ""
        if "--compare-versions" in args:
            return (0 if args[2] < args[4] else 1), "", ""
        if "--dry-run" in args:
            return 0, "", ""
        if self.locked:
            self.locked -= 1
            return 2, "", "dpkg: error: dpkg frontend lock was locked by another process"
        self.orders.append("install")
        self.package = os.path.basename(args[-1]).split("_")[1]
        if "install" in self.breaks:
            self.status = "half-configured"
            return 1, "", self.breaks["install"]
        if self.runs["edged"]:
            self.runs["edged"] = self.package  # as postinst does
        return 0, "", ""

    def do_apt_get(self, args):
        return 0, "Inst catchment-edge [1.2.0] (1.3.0 local [amd64])\n" + self.also, ""

    def do_systemctl(self, args):
        if args[1] == "restart":
            unit = args[2].split(".")[0]
            self.orders.append(unit)
            self.runs[unit] = None if unit in self.breaks else self.package
            return (1, "", "Job failed") if unit in self.breaks else (0, "", "")
        blocks = [f"Id={n}.service\nActiveState={'active' if v else 'failed'}\nMainPID={100 + i if v else 0}\nUnitFileState={'enabled' if n in self.wanted else 'disabled'}\n"
                  for i, (n, v) in enumerate(self.runs.items())]
        return 0, "\n".join(blocks), ""

    def do_exe(self, args):
        name = DAEMONS[int(args[0].split("/")[-2]) - 100]
        return 0, f"{name} {self.runs[name]} (0123456789ab)\n", ""

    def do_journalctl(self, args):
        return 0, self.breaks.get(args[2].split(".")[0], "") + "\n", ""


class DebTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        self.system = System()
        config = os.path.join(self.dir, "edge.yaml")
        open(config, "w", encoding="ascii").close()
        self.box = debbox.Box(self.system.run, self.system.client, os.path.join(self.dir, "keep"), config, os.path.join(self.dir, "proc"))
        os.mkdir(self.box.keep)
        patch = mock.patch.object(debcheck, "extract", lambda path, to: None)
        patch.start()
        self.addCleanup(patch.stop)
        self.now = 0.0
        self.keeps("1.2.0")

    def keeps(self, version, package="catchment-edge", arch="amd64", name=None, kib=100):
        with open(name or self.box.path(version), "w", encoding="ascii") as f:
            f.write(f"{package}\n{version}\n{arch}\n{kib}\n")

    def sleep(self, seconds):
        self.now += seconds

    def change(self, version="1.3.0"):
        return debchange.Change(self.box, version, 10, self.sleep, lambda: self.now)

    def brought(self, **more):
        path = os.path.join(self.box.keep, "brought.deb")
        self.keeps(more.pop("version", "1.3.0"), name=path, **more)
        return path

    def refused(self, want, do, *args):
        with self.assertRaisesRegex(debbox.Refused, want):
            do(*args)

    def test_stage_and_again(self):
        self.assertTrue(self.change().stage(self.brought(), 3, False))
        facts = self.box.facts()
        self.assertEqual((facts["staged"], facts["kept"], facts["running"]), ("1.3.0", ["1.2.0", "1.3.0"], "1.2.0"))
        self.assertFalse(self.change().stage(os.path.join(self.box.keep, "brought.deb"), 3, False))
        self.assertEqual(self.system.orders, [])

    def test_what_is_wrong_with_a_package(self):
        for want, more in (
            ("is the package other", {"package": "other"}), ("is for arm64, and this box is amd64", {"arch": "arm64"}),
            ("is version 1.2.5, and 1.3.0 is wanted", {"version": "1.2.5"}), ("make room", {"kib": 1 << 50}),
        ):
            path = self.brought(**more)
            self.refused(want, self.change().stage, path, 3, False)
            self.assertFalse(os.path.exists(path), "a refused package is left")
        with open(self.brought(), "w", encoding="ascii") as f:
            f.write("cut")
        self.refused("damaged", self.change().stage, f.name, 3, False)
        self.system.also = "Inst libnew (1 Debian [amd64])\n"
        self.refused("other packages installed or removed: libnew", self.change().stage, self.brought(), 3, False)
        self.system.also, self.system.want = "", "hold"
        self.refused("held on this box", self.change().stage, self.brought(), 3, False)
        self.system.want, self.system.refuses = "install", "edge.yaml:3:1: no such key"
        self.refused("1.3.0 refuses .*edge.yaml:3:1: no such key", self.change().stage, self.brought(), 3, False)
        self.system.noexec = True
        self.refused("edgectl of 1.3.0 cannot be run: .*Permission denied", self.change().stage, self.brought(), 3, False)
        self.refused("is not on this box", self.change().stage, "", 3, False)
        self.assertEqual(os.listdir(self.box.keep), ["catchment-edge_1.2.0_amd64.deb"])

    def test_a_folder_in_its_place_does_not_stay(self):
        path = os.path.join(self.box.keep, "brought.deb")
        os.makedirs(os.path.join(path, "out", "deb"))
        self.refused("is no package, or is damaged", self.change().stage, path, 3, False)
        self.assertFalse(os.path.exists(path))

    def test_check_mode_leaves_what_was_brought(self):
        self.assertTrue(self.change().stage(self.brought(), 3, True))
        self.assertEqual(sorted(os.listdir(self.box.keep)), ["brought.deb", "catchment-edge_1.2.0_amd64.deb"])
        self.refused("is for arm64", self.change().stage, self.brought(arch="arm64"), 3, True)
        self.assertIn("brought.deb", os.listdir(self.box.keep))

    def test_only_so_many_are_kept(self):
        for v in ("1.0.0", "1.1.0", "1.3.0"):
            self.keeps(v)
        self.assertTrue(self.change().stage("", 2, False))
        self.assertEqual(self.box.kept(), ["1.2.0", "1.3.0"])

    def test_apply_and_back(self):
        self.keeps("1.3.0")
        self.assertTrue(self.change().apply(False))
        # dpkg has restarted edged itself.
        self.assertEqual(self.system.orders, ["install", "edgeproxy", "edgebgp"])
        facts = self.box.facts()
        self.assertEqual((facts["running"], facts["good"], facts["previous"], facts["staged"]), ("1.3.0", True, "1.2.0", None))
        self.assertFalse(self.change().apply(False))
        self.assertTrue(self.change(facts["previous"]).apply(False, back=True))
        facts = self.box.facts()
        self.assertEqual((facts["running"], facts["previous"]), ("1.2.0", None))

    def test_apply_looks_before_it_leaps(self):
        self.refused("stage it first. Nothing was changed", self.change().apply, False)
        self.keeps("1.3.0")
        self.system.client.answer = a_status.status()
        self.refused("not drained: .* is announced.*Nothing was changed", self.change().apply, False)
        self.system.client.answer, self.system.refuses = a_status.drained(), "no"
        self.refused("would not start: no", self.change().apply, False)
        self.system.refuses = ""
        self.assertTrue(self.change().apply(True))
        self.assertEqual((self.system.orders, self.box.notes()), ([], {}))

    def test_another_dpkg_is_waited_for(self):
        self.keeps("1.3.0")
        self.system.locked = 3
        self.assertTrue(self.change().apply(False))
        self.system.package, self.system.locked = "1.2.0", 1000
        self.refused("locked by another process", self.change().apply, False)

    def test_an_end_in_the_middle(self):
        self.keeps("1.3.0")
        self.system.breaks["install"] = "post-installation script failed"
        self.refused(r"ended with 1: post-inst.*Installed is 1.3.0 \(half-configured\).*dpkg --configure -a", self.change().apply, False)
        del self.system.breaks["install"]
        self.system.breaks["edgeproxy"] = "no such user"
        self.refused("edgeproxy of 1.3.0 does not start: no such user. Installed is 1.3.0 .*edgebgp 1.2.0, edged 1.3.0, edgeproxy does not run", self.change().apply, False)
        self.assertEqual(self.box.facts()["previous"], "1.2.0")
        self.system.breaks.clear()
        self.system.status = "installed"
        self.assertTrue(self.change().apply(False))
        self.assertEqual(self.box.facts()["previous"], "1.2.0")
        self.assertEqual(self.system.orders[-2:], ["edgeproxy", "edgebgp"])

    def test_what_does_not_end_is_ended(self):
        self.keeps("1.3.0")
        self.system.hangs = {"edgectl.new"}
        self.refused("refuses .*it did not end within 60s. so far", self.change().stage, "", 3, False)
        self.system.hangs = {"dpkg"}
        self.refused("dpkg --install .* ended with 124: it did not end within 60s. so far", self.change().apply, False)
        self.system.hangs = {"exe"}
        self.assertEqual(self.box.facts()["why_not_good"], [f"{d} does not tell its version" for d in sorted(DAEMONS)])

    def test_the_bound_is_kept(self):
        box = debbox.Box(run, None)
        self.assertEqual(box.bounded(5, ["sh", "-c", "echo one; exit 3"])[:2], (3, "one\n"))
        rc, _, err = box.bounded(1, ["sleep", "60"])
        self.assertEqual((rc, err), (124, "it did not end within 1s. "))

    def test_what_never_was_in_force_is_nothing_to_go_back_to(self):
        for v in ("1.3.0", "1.4.0", "1.5.0"):
            self.keeps(v)
        self.system.breaks["edgeproxy"] = "no such user"
        self.refused("edgeproxy of 1.3.0 does not start", self.change().apply, False)
        self.system.breaks.clear()
        self.assertTrue(self.change("1.4.0").apply(False))
        self.assertEqual(self.box.facts()["previous"], "1.2.0")
        # One that was, and is not well today, is.
        self.system.client.error = "edged does not answer"
        self.refused("edged of 1.5.0 runs, but not as it should", self.change("1.5.0").apply, False)
        self.assertEqual(self.box.facts()["previous"], "1.4.0")

    def test_edged_that_is_not_well_stops_it(self):
        self.keeps("1.3.0")
        self.system.client.error = "edged does not answer"
        self.refused("edged of 1.3.0 runs, but not as it should: edged does not answer", self.change().apply, False)
        self.assertEqual(self.system.orders, ["install"])
        self.system.client.error, self.system.client.answer = None, a_status.status()
        self.refused("not drained", self.change().apply, False)
        self.assertEqual(self.system.orders, ["install"])

    def test_one_that_was_switched_off_stays_off(self):
        self.keeps("1.3.0")
        self.system.runs["edgeproxy"] = None
        self.system.wanted.discard("edgeproxy")
        self.assertTrue(self.change().apply(False))
        self.assertEqual(self.system.orders, ["install", "edgebgp"])

    def test_a_box_without_a_configuration(self):
        self.keeps("1.3.0")
        os.unlink(self.box.config)
        self.system.runs = dict.fromkeys(DAEMONS)
        self.assertTrue(self.change().apply(False))
        self.assertEqual(self.system.orders, ["install"])
        self.assertEqual(self.box.facts()["running"], "1.3.0")


class ArchiveTest(unittest.TestCase):
    """With packages that dpkg-deb has built."""

    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)

    def built(self, name):
        root = os.path.join(self.dir, "root-" + name)
        for path, text in (("DEBIAN/control", "Package: catchment-edge\nVersion: 1.3.0\nArchitecture: amd64\nMaintainer: x <x@example.net>\nDescription: x\n"),
                           ("usr/bin/" + name, "#!/bin/sh\n")):
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="ascii") as f:
                f.write(text)
        with open(os.path.join(root, "usr/bin/noise"), "wb") as f:
            f.write(os.urandom(1 << 20))
        deb = os.path.join(self.dir, name + ".deb")
        subprocess.run(["dpkg-deb", "-Zgzip", "--root-owner-group", "--build", root, deb], check=True, capture_output=True)
        return deb

    def test_extract(self):
        to, deb = os.path.join(self.dir, "edgectl.new"), self.built("edgectl")
        debcheck.extract(deb, to)
        with open(to, encoding="ascii") as f:
            self.assertEqual((f.read(), os.stat(to).st_mode & 0o777), ("#!/bin/sh\n", 0o700))
        self.assertEqual(debcheck.control(debbox.Box(run, None), deb), {"package": "catchment-edge", "version": "1.3.0", "arch": "amd64", "kib": 0})

    def test_what_is_damaged(self):
        deb = self.built("edgectl")
        with open(deb, "rb") as f:
            whole = f.read()
        for size in (0, 100, len(whole) // 2, len(whole) - 1000):
            with open(deb, "wb") as f:
                f.write(whole[:size])
            with self.assertRaisesRegex(debbox.Refused, "damaged"):
                debcheck.extract(deb, os.path.join(self.dir, "edgectl.new"))
        with self.assertRaisesRegex(debbox.Refused, "none of ours"):
            debcheck.extract(self.built("other"), os.path.join(self.dir, "none"))


def run(args):
    done = subprocess.run(args, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


if __name__ == "__main__":
    unittest.main()
