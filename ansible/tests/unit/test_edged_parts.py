# SPDX-License-Identifier: Apache-2.0
"""Lengths, certificates, the state of a boot, locks."""

import base64
import subprocess
import tempfile
import time
import unittest

import collection_path  # noqa: F401

from ansible_collections.catchment.edge.plugins.module_utils import appliance, certificate, durations, hostfacts, lease


class DurationsTest(unittest.TestCase):
    def test_seconds(self):
        for text, want in (("90s", 90), ("1h30m", 5400), ("250ms", 0.25), ("10", 10), (0, 0), ("1.5m", 90), (" 2d ", 172800)):
            self.assertEqual(durations.seconds(text), want, text)
        for text in ("", "x", "10x", "-5s", "1h-3m", "5 m", "s", "1h30", "nan", "inf", "9" * 400, "99999d", "1e9"):
            with self.assertRaisesRegex(ValueError, "^wait: "):
                durations.seconds(text, "wait")

    def test_moments(self):
        for text, want in (
            ("1970-01-01T00:01:00Z", 60), ("1970-01-01T01:00:00+01:00", 0), ("1970-01-01T00:00:00.123456789Z", 0.123456789),
            ("0001-01-01T00:00:00Z", None), ("", None), (None, None), ("yesterday", None), ("2026-99-01T00:00:00Z", None),
        ):
            self.assertEqual(durations.moment(text), want, text)
        self.assertEqual(durations.moment(durations.stamp(1e9 + 0.25)), 1e9 + 0.25)

    def test_words(self):
        for n, want in ((0.5, "0.5s"), (59, "59s"), (61, "1m1s"), (3660, "1h1m"), (90000, "1d1h"), (-5, "0.0s")):
            self.assertEqual(durations.words(n), want)


class CertificateTest(unittest.TestCase):
    def made(self, *args):
        with tempfile.NamedTemporaryFile() as key:
            return subprocess.run(["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-keyout", key.name, "-subj", "/CN=x", *args],
                                  check=True, capture_output=True, text=True).stdout

    def test_the_first_to_end_counts(self):
        near, far = self.made("-days", "3"), self.made("-days", "40000")
        end = certificate.not_after("# a comment\n" + far + near)
        self.assertAlmostEqual(end, time.time() + 3 * 86400, delta=120)
        self.assertGreater(certificate.not_after(far), time.time() + 39000 * 86400)  # after 2050: GeneralizedTime
        said = subprocess.run(["openssl", "x509", "-noout", "-checkend", str(int(end - time.time()) - 60)], input=near, text=True, check=False, capture_output=True)
        self.assertEqual(said.returncode, 0)

    def test_what_is_none(self):
        whole = base64.b64decode("".join(self.made().splitlines()[1:-1]))
        for at in range(len(whole)):  # cut anywhere: a reason, never another error, and no end that is made up
            try:
                self.assertIsNotNone(certificate.not_after(pem(whole[:at])))
                self.fail(f"a certificate of {at} bytes was taken")
            except ValueError:
                pass
        for text in ("", "hello", pem(b""), pem(b"\x30\x84\xff\xff\xff\xff"), pem(b"\x30\x89"), "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----"):
            with self.assertRaises(ValueError):
                certificate.not_after(text)

    def test_files(self):
        self.assertIn("No such file", hostfacts.certificate_end("/nowhere/x.crt")["error"])
        with tempfile.NamedTemporaryFile() as f:
            f.write(b"s3cret-s3cret-s3cret\n")
            f.flush()
            got = hostfacts.short_hash(f.name)
            self.assertRegex(got["id"], "^[0-9a-f]{8}$")
            self.assertNotIn("s3cret", str(got))
            self.assertEqual(hostfacts.config_in_force(f.name, "0"), "no")
        self.assertEqual(hostfacts.disk("/nowhere")["error"], "No such file or directory")
        self.assertIn("No such file", hostfacts.config_in_force("/nowhere", "0"))
        self.assertGreater(hostfacts.disk("/")["used_percent"], 0)


def pem(der):
    return "-----BEGIN CERTIFICATE-----\n" + base64.b64encode(der).decode() + "\n-----END CERTIFICATE-----\n"


METRICS = """# HELP edge_boot_version x
edge_boot_version{version="1.3.0",slot="b"} 1
edge_boot_good 0
edge_boot_check_failed{check="bgp"} 1
edge_boot_refused{version="1.2.9",reason="edged"} 1
edge_boot_rollback_total{from="1.2.9",reason="edged"} 2
edge_other 7
edge_boot_garbage{ 1
"""


class ApplianceTest(unittest.TestCase):
    def test_metrics(self):
        got = appliance.facts(METRICS)
        self.assertEqual((got["version"], got["slot"], got["good"], got["failed"]), ("1.3.0", "b", False, ["bgp"]))
        self.assertEqual(got["rollbacks"], [{"from": "1.2.9", "check": "edged", "times": 2}])
        self.assertEqual(got["refused"][0]["version"], "1.2.9")
        self.assertIsNone(appliance.facts("")["good"])
        self.assertTrue(appliance.facts("edge_boot_good 1\n")["good"])

    def test_slots(self):
        slots, error = appliance.parse_slots(0, '{"slots": [{"slot": "a", "version": "1.3.0", "runs": true, "state": "good"}, '
                                             '{"slot": "b", "version": "1.4.0", "runs": false, "state": "staged", "tries": 3}], "next": "1.4.0", '
                                             '"upgrade": null, "refused": [{"version": "1.2.9", "check": "edged", "reason": "silent"}]}', "")
        self.assertIsNone(error)
        got = appliance.facts(METRICS, slots)
        self.assertEqual((got["slot"], got["staged"], got["next"]), ("a", "1.4.0", "1.4.0"))
        self.assertEqual(got["refused"], [{"version": "1.2.9", "check": "edged", "reason": "silent"}])
        for code, out, err, want in ((1, "", "no disk\n", "no disk"), (1, "", "", "exit code 1"), (0, "x", "", "not JSON"), (0, "[]", "", "not an object")):
            self.assertIn(want, appliance.parse_slots(code, out, err)[1])

    def test_another_system(self):
        self.assertIsNone(appliance.read("/nowhere"))
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(appliance.read(folder), "")


class LeaseTest(unittest.TestCase):
    NOW = lease.Clock(1e9, 500.0, "boot-1")

    def held(self, **more):
        return dict(lease.take(None, "one", "work", 60, self.NOW)[0], **more)

    def test_take(self):
        later = lease.Clock(1e9 + 30, 530.0, "boot-1")
        after = lease.Clock(1e9 + 61, 561.0, "boot-1")
        for name, lock, owner, now, force, want in (
            ("nobody's", None, "two", later, False, True),
            ("another's", self.held(), "two", later, False, False),
            ("another's, by force", self.held(), "two", later, True, True),
            ("its own", self.held(), "one", later, False, True),
            ("one that has ended", self.held(), "two", after, False, True),
            ("of another boot", self.held(boot_id="boot-0"), "two", later, False, True),
            # Somebody has set the clock back a year, or on: nothing moves.
            ("a clock set back", self.held(), "two", lease.Clock(1e9 - 3e7, 561.0, "boot-1"), False, True),
            ("a clock set on", self.held(), "two", lease.Clock(1e9 + 3e7, 530.0, "boot-1"), False, False),
        ):
            with self.subTest(name):
                got, why = lease.take(lock, owner, "x", 10, now, force)
                self.assertEqual(got is not None, want)
                if not want:
                    self.assertRegex(why, r"^one holds the lock for work since 2001-.*until .* \(30s more\)")

    def test_renewal_keeps_since(self):
        got, _ = lease.take(self.held(), "one", "work", 60, lease.Clock(1e9 + 30, 530.0, "boot-1"))
        self.assertEqual((got["since"], got["until_boot"]), (self.held()["since"], 590.0))

    def test_release(self):
        after = lease.Clock(1e9, 561.0, "boot-1")
        for name, lock, owner, now, force, want in (
            ("none", None, "one", self.NOW, False, (False, None)), ("its own", self.held(), "one", self.NOW, False, (True, None)),
            ("by force", self.held(), "two", self.NOW, True, (True, None)), ("ended", self.held(), "two", after, False, (True, None)),
        ):
            with self.subTest(name):
                self.assertEqual(lease.release(lock, owner, now, force), want)
        gone, why = lease.release(self.held(), "two", self.NOW)
        self.assertFalse(gone)
        self.assertIn("one holds the lock", why)

    def test_files(self):
        self.assertIsNone(lease.parse(None))
        for raw in ("", "{", "[]", "{}", '{"owner": 1, "until_boot": 1, "boot_id": ""}', '{"owner": "x", "until_boot": "1", "boot_id": ""}', "[" * 60000, '{"owner": "x", "boot_id": "b", "until_boot": NaN}',
                    '{"owner": "x", "boot_id": "b", "until_boot": 1e999}', '{"owner": "x", "boot_id": "b", "until_boot": true}'):
            with self.assertRaises(ValueError):
                lease.parse(raw)
        self.assertIsNone(lease.shown(self.held(), lease.Clock(0, 999.0, "boot-1")))


if __name__ == "__main__":
    unittest.main()
