# SPDX-License-Identifier: Apache-2.0
"""Healthy and ready: each "no" with its reason, and what is no reason."""

import unittest

import collection_path  # noqa: F401

from a_status import NOW, P4, P6, at, drain, drained, peer, status
from ansible_collections.catchment.edge.plugins.module_utils import appliance, readiness, summary


def with_speaker(**more):
    out = status()
    out["speaker"].update(more)
    return out


def with_peers(*peers, settings=None):
    out = with_speaker(peers=list(peers))
    if settings:
        out["speaker"]["speaker"]["peers"] = settings
    return out


def with_rung(rung, reason="", health="healthy", why="", **more):
    out = status(**more)
    out["decisions"][0].update(rung=rung, reason=reason)
    out["conditions"][0].update(health=health, reason=why)
    return out


GOOD = appliance.facts('edge_boot_version{version="1",slot="a"} 1\nedge_boot_good 1\n')

# name, status, boot, expected parts of what makes it unhealthy, and of what keeps it from being ready besides
TABLE = (
    ("ready", status(), None, [], []),
    ("ready, an appliance", status(), GOOD, [], []),
    ("old", status(time=at(11)), None, ["11s old"], []),
    ("of the future", status(time=at(-60)), None, ["1m0s old"], []),
    ("never decided", status(time="0001-01-01T00:00:00Z"), None, ["decided nothing"], []),
    ("no prefix yet", status(decisions=[]), None, ["decided on no prefix"], []),
    ("boot not judged", status(), appliance.facts(""), ["still run"], []),
    ("boot not good", status(), appliance.facts('edge_boot_good 0\nedge_boot_check_failed{check="bgp"} 1\n'), ["not good: bgp"], []),
    ("slots not known", status(), appliance.facts("edge_boot_good 1\n", error="no disk"), ["not known: no disk"], []),
    ("edgebgp silent", status(speaker_error="refused"), None, ["edgebgp does not answer: refused"], []),
    ("edgebgp not heard", with_speaker(started="0001-01-01T00:00:00Z"), None, ["has not answered yet"], []),
    ("edgebgp stops", with_speaker(stopping=at(3)), None, ["is to stop"], []),
    ("lease over", with_speaker(expired=True), None, ["lease of edgebgp has run out"], []),
    ("a peer is down", with_peers(peer("r1"), peer("r2", session="active", last_error="no route", held=[])), None, ["BGP peer r2 (10.1.0.1) is active: no route"], []),
    ("a watched peer is down", with_peers(peer("r1"), peer("glass", session="idle", held=[]), settings=[{"id": "r1"}, {"id": "glass", "watch": True}]), None, [], []),
    ("no peers", with_peers(), None, [], []),
    ("BFD down", with_peers(peer("r1", bfd={"state": "down", "last_error": "control detection time expired"})), None, ["BFD with r1 is down"], []),
    ("not held by one", with_peers(peer("r1"), peer("r2", held=[{"prefix": P6}], not_sent=[{"prefix": P4, "reason": "longer than /24"}])), None, [],
     [f"{P4} is announced, and r2 does not hold it: longer than /24"]),
    ("still to be sent", with_peers(peer("r1", pending=2, held=[{"prefix": P6}]), peer("r2")), None, [], ["still to be sent"]),
    ("not meant for it", with_peers(peer("r1"), peer("r2", held=[{"prefix": P6}]), settings=[{"id": "r1"}, {"id": "r2", "prefixes": [P6]}]), None, [], []),
    ("not of its family", with_peers(peer("r1"), peer("r2", held=[{"prefix": P4}], families=["ipv4"])), None, [], []),
    ("held by nobody", with_peers(peer("r1", held=[{"prefix": P4}], families=["ipv4"])), None, [], [f"{P6} is announced, and no router holds it"]),
    ("sick", with_rung("last-resort", "web-vip is down; may not withdraw: floor", "sick", "web-vip is down"), None, [f"{P4} is sick: web-vip is down"], ["is last-resort"]),
    ("soft need fails", with_rung("degraded", "region west", "degraded", "region west"), None, ["is degraded: region west"], ["is degraded"]),
    ("full", with_rung("announced", "full", "full"), None, [], []),
    ("unknown", with_rung("withheld", "not known", "unknown", "web-vip is unknown"), None, ["of unknown health: web-vip is unknown"], ["is withheld"]),
    ("in its hold", with_rung("withdrawn", "can serve again since 10:00:00; comes back after 1m0s"), None, [], ["is withdrawn: can serve again"]),
    ("of other sites only", with_rung("withheld", "announced at b, c only", "unknown"), None, [], []),
    ("drained", drained(), None, [], ["the node is drained until", "rollout one: x"]),
    ("an unknown alarm", status(alarms=["something new is wrong"]), None, ["alarm: something new is wrong"], []),
    ("the peer's alarm", status(alarms=["BGP peer glass is idle: x", "BFD with r1 is down: y"]), None, [], []),
)

HARMLESS = (
    "common cause: web-vip at 3 of 6 sites: it takes no prefix away; if it is right, edgectl guard trust web-vip",
    "198.51.100.0/24 was forced off the air at b1 without a permit, at 10:00:00 UTC",
    "198.51.100.0/24 is announced as a last resort, blocked since 10:00:00 UTC: drained: x; may not withdraw: y",
    "198.51.100.0/24 is announced by no site that this node knows of",
    "198.51.100.0/24 was withdrawn 3 times within an hour already: degraded instead, until 11:00:00 UTC",
    "RPKI data of 10.1.0.50:8282: connection refused",
    "198.51.100.0/24 is RPKI invalid-origin: AS 64513",
    "198.51.100.0/24: missing, seen since 2026-01-01 00:00:00: nobody sees it",
    "BGP peer r1 sends more prefixes than its import_limit; none is used, but it is perhaps a leak",
    "a drain orders nothing: web is not a service of the configuration",
    "version 1.3.0 has failed, and the box went back to 1.2.0: check bgp",
    "version 1.3.0 was staged and has not been booted",
)

SERIOUS = (
    "common cause: web-vip at 5 of 6 sites, here too: it fails here too, and the site is degraded and stays; if it is right, edgectl guard trust web-vip",
    "the forwarder is not attached: eth0", "the last reload was refused: edge.yaml:3:1: unknown key",
    "isolated: no other site has been heard by gossip for ten seconds: nothing is withdrawn and nothing let go",
    "this box is too busy to judge: what its probes fail does not count: x", "the host is not prepared: x",
    "198.51.100.0/24 is announced, but no peer holds it: edgectl bgp says why",
    "198.51.100.0/24 became worse 9 times within an hour: kept degraded until 11:00",
    "version 1.3.0 of slot b is not good: check bgp",
    "no watchdog runs: if this box hangs, it stays so until somebody resets it",
)


class ReadinessTest(unittest.TestCase):
    def test_table(self):
        for name, st, boot, sick, more in TABLE:
            with self.subTest(name):
                unhealthy, unready = readiness.judge(st, NOW, boot)
                self.assertEqual(len(unhealthy), len(sick), unhealthy)
                for want, got in zip(sick, unhealthy):
                    self.assertIn(want, got)
                self.assertEqual(unready[:len(unhealthy)], unhealthy)
                rest = " | ".join(unready[len(unhealthy):])
                self.assertEqual(bool(rest), bool(more), rest)
                for want in more:
                    self.assertIn(want, rest)

    def test_alarms(self):
        for a in HARMLESS:
            self.assertEqual(readiness.judge(status(alarms=[a]), NOW)[0], [], a)
        for a in SERIOUS:
            self.assertEqual(readiness.judge(status(alarms=[a]), NOW)[0], [f"alarm: {a}"])
            self.assertEqual(readiness.judge(status(alarms=[a]), NOW, ignore=[a[:12]])[0], [])
        with self.assertRaisesRegex(ValueError, "is no regular expression"):
            readiness.patterns(["("])

    def test_asleep(self):
        """The probes of VIPs that a drained node does not serve are unknown for good."""
        def unknown(text):
            out = drained()
            out["probes"].append({"probe": "web6-vip", "state": "unknown", "last_error": text})
            for c in out["conditions"]:
                c.update(health="unknown", reason="web6-vip is unknown")
            return out
        asleep = "probe could not run: service web is drained"
        self.assertEqual(readiness.judge(unknown(asleep), NOW)[0], [])
        self.assertIn("of unknown health", readiness.judge(unknown("probe could not run: no socket"), NOW)[0][0])
        awake = unknown(asleep)
        awake["drains"] = []
        self.assertIn("of unknown health", readiness.judge(awake, NOW)[0][0])

    def test_asleep_after_it_failed(self):
        """One that failed while the daemons of a drained node started stays down."""
        def sick(text, more=()):
            out = drained()
            out["probes"] += [{"probe": "web6-vip", "state": "down", "last_error": text}, *more]
            for c in out["conditions"]:
                c.update(health="sick", reason=f"web6-vip is down: {text}")
            return out
        asleep = "tls handshake with x: no answer within 4s; last round unknown: probe could not run: service web6 is drained"
        self.assertEqual(readiness.judge(sick(asleep), NOW)[0], [])
        self.assertIn(" is sick: web6-vip is down", readiness.judge(sick("tls handshake with x: no answer within 4s"), NOW)[0][0])
        other = [{"probe": "proxy", "state": "down", "last_error": "no such process"}]
        self.assertIn(" is sick: ", readiness.judge(sick(asleep, other), NOW)[0][0])
        awake = sick(asleep)
        awake["drains"] = []
        self.assertIn(" is sick: ", readiness.judge(awake, NOW)[0][0])

    def test_drain_text(self):
        for d, want in (
            (drain(), f"the node is drained until 2027-01-15 08:10:00 UTC (10m0s more): rollout one: x"),
            (drain(ends_in=None, prefix=P4), f"{P4} is drained until it is undrained: rollout one: x"),
            (drain(by_file=True, service="web"), "service web is drained by the drain file: rollout one: x"),
            (drain(stop=True), "the node is drained until edgebgp runs again: rollout one: x"),
        ):
            self.assertEqual(readiness.drain_text(d, NOW), want)

    def test_summary_of_anything(self):
        """An older or newer edged leaves things out: no key of it may be missed."""
        got = summary.of(status(), NOW)
        self.assertEqual(got["decisions"][0]["holders"], ["r1", "r2"])
        self.assertEqual([m["node"] for m in got["guard"]["members"]], ["b1", "c1"])
        self.assertEqual(summary.of(status(drains=[drain()]), NOW)["drains"][0]["seconds_left"], 600)
        for key in list(status()):
            for value in (None, [] if isinstance(status()[key], list) else {}):
                broken = status(**{key: value})
                summary.of(broken, NOW)
                readiness.judge(broken, NOW)
        summary.of({}, NOW)
        readiness.judge({}, NOW)


if __name__ == "__main__":
    unittest.main()
