# SPDX-License-Identifier: Apache-2.0
"""What verify finds, and how bad it is: one change of a fleet that is well at a time."""

import copy
import json
import unittest

import collection_path  # noqa: F401

from a_status import NOW, P4, P6, at, drain, drained, member, peer, status
from ansible_collections.catchment.edge.plugins.module_utils import appliance, hostfacts, readiness, summary, verify, verify_text

SITES = (("a1", "a"), ("b1", "b"), ("c1", "c"))
FLEET = {"sites": [{"name": s, "nodes": [n]} for n, s in SITES], "prefixes": [{"prefix": P4, "min_sites": 1}, {"prefix": P6, "min_sites": 1}]}


def answer(st, boot=None):
    """What edge_status returns of a status."""
    unhealthy, unready = readiness.judge(st, NOW, boot)
    out = summary.of(st, NOW)
    out.update(answers=True, error=None, healthy=not unhealthy, ready=not unready, unhealthy=unhealthy, why_not=unready, boot=boot, config_in_force="yes",
               box={"disks": [{"path": "/", "error": None, "device": 1, "used_percent": 40.0, "inodes_percent": 5.0, "read_only": False}],
                    "certificates": [{"path": "/t/web.crt", "error": None, "not_after": NOW + 60 * 86400}], "ring_seed": {"path": "/s", "error": None, "id": "aaaaaaaa"},
                    "replaced": [], "clock_ahead": 0.8})
    return out


def node(name, site, **more):
    others = [member(n, s) for n, s in SITES if n != name]
    st = status(node=name, site=site, **more)
    st["guard"]["members"] = others
    return st


def well():
    """Three nodes at three sites, and nothing is wrong."""
    return {n: answer(node(n, s)) for n, s in SITES}


def with_b1(change, boot=None):
    """The same, but for what change does to the status of b1."""
    out, st = well(), node("b1", "b")
    change(st)
    out["b1"] = answer(st, boot)
    return out


def altered(change):
    """The same, but for what change does to the answer of b1."""
    out = well()
    change(out["b1"])
    return out


def set_peer(st, i, **more):
    st["speaker"]["peers"][i].update(more)


def rung(which, reason="", **more):
    def change(st):
        st["decisions"][0].update(rung=which, reason=reason, **more)
    return change


def image(version, good=1, **more):
    return dict(appliance.facts(f'edge_boot_version{{version="{version}",slot="a"}} 1\nedge_boot_good {good}\n'), **more)


def disk(**more):
    return lambda a: a["box"]["disks"].append(dict({"path": "/var/lib/edge", "error": None, "device": 2, "used_percent": 10.0, "inodes_percent": 1.0, "read_only": False}, **more))


def certificate(days):
    return lambda a: a["box"]["certificates"].append({"path": "/t/api.crt", "error": None, "not_after": NOW + days * 86400})


def key(*keys):
    return with_b1(lambda st: st["guard"].update(keys=list(keys)))


def drained_b1(**more):
    st = drained(node="b1", site="b", **more)
    st["guard"]["members"] = [member("a1", "a"), member("c1", "c")]
    return dict(well(), b1=answer(st))


# name, answers, and each finding: severity, node, a part of what
TABLE = (
    ("well", well(), []),
    ("not reached", dict(well(), b1={"unreachable": True, "msg": "Failed to connect\n to the host via ssh"}), [("critical", "b1", "not reached: Failed to connect to the host via ssh")]),
    ("no word of it", dict(well(), b1=None), [("critical", "b1", "not reached")]),
    ("the module failed", dict(well(), b1={"failed": True, "msg": "no python"}), [("critical", "b1", "no python")]),
    ("edged is silent", dict(well(), b1={"answers": False, "healthy": False, "ready": False, "error": "is it running?", "boot": None, "box": {}}), [("critical", "b1", "edged does not answer: is it running?")]),
    ("edged has another version", with_b1(lambda st: st.update(version="1.3.0")), [("warning", None, "edged runs in 2 versions: 1.2.0 on a1, c1; 1.3.0 on b1")]),
    ("a peer is down", with_b1(lambda st: set_peer(st, 1, session="active", last_error="no route", held=[])), [("warning", "b1", "BGP peer r2 (10.1.0.1) is active: no route")]),
    ("all peers are down", with_b1(lambda st: [set_peer(st, i, session="idle", held=[]) for i in (0, 1)]), [("critical", "b1", "BGP peer r1"), ("critical", "b1", "BGP peer r2")]),
    ("a peer flaps", with_b1(lambda st: set_peer(st, 0, flaps=20)), [("notice", "b1", "was lost 20 times")]),
    ("BFD down", with_b1(lambda st: set_peer(st, 0, bfd={"state": "down"})), [("warning", "b1", "BFD with r1 is down")]),
    ("one peer does not hold it", with_b1(lambda st: set_peer(st, 0, held=[{"prefix": P6}], not_sent=[{"prefix": P4, "reason": "longer than /24"}])), [("warning", "b1", f"r1 does not hold {P4}: longer than /24")]),
    ("degraded", with_b1(rung("degraded", "region west")), [("warning", "b1", f"{P4} is degraded: region west")]),
    ("last resort", with_b1(rung("last-resort", "web-vip is down")), [("critical", "b1", "is last-resort")]),
    ("an alarm", with_b1(lambda st: st.update(alarms=["the forwarder is not attached: eth0"])), [("warning", "b1", "alarm: the forwarder is not attached")]),
    ("said by its own finding", with_b1(lambda st: st.update(alarms=["BGP peer r1 is idle: x"])), []),
    ("drained, with an end", drained_b1(), [("notice", "b1", "the node is drained, since 30s: rollout one: x; it ends at 2027-01-15 08:10:00 UTC")]),
    ("drained for ever", drained_b1(drains=[drain("new fan", ends_in=None)]), [("warning", "b1", "new fan, and this has no end")]),
    ("drained by file", drained_b1(drains=[drain("new fan", by_file=True)]), [("notice", "b1", "(by file)")]),
    ("drained since edgebgp stops", drained_b1(drains=[drain("edgebgp is to stop", stop=True)]), [("warning", "b1", "edgebgp is to stop")]),
    ("isolated", with_b1(lambda st: st["guard"].update(isolated=True)), [("critical", "b1", "hears no other site")]),
    ("a member is not heard", with_b1(lambda st: st["guard"]["members"][0].update(age_ns=90 * 10**9)), [("warning", "b1", "it has not for 1m30s heard a1")]),
    ("a member was never heard", with_b1(lambda st: st["guard"]["members"][0].update(age_ns=-1)), [("warning", "b1", "it has never heard a1")]),
    ("it asks", with_b1(lambda st: st["guard"].update(asking={P4: {"ok": False, "reason": "no promises"}})), [("warning", "b1", f"it wants to leave {P4} and may not: no promises")]),
    ("no head-room", with_b1(lambda st: st["guard"]["prefixes"][0].update(may_leave=0, lacks="1 other sites would stay, and 2 must")), [("warning", None, f"no site may leave {P4}, as b1 sees it: 1 other sites")]),
    ("not guarded", with_b1(lambda st: st["guard"]["prefixes"][0].update(needed=0, may_leave=0)), [("warning", None, "what must stay when a site leaves differ")]),
    ("a reload was refused", with_b1(lambda st: st.update(config_error="edge.yaml:3:1: x", alarms=["the last reload was refused: edge.yaml:3:1: x"])), [("warning", "b1", "the last reload was refused")]),
    ("edge.yaml is not in force", altered(lambda a: a.update(config_in_force="no")), [("warning", "b1", "is not the one in force")]),
    ("edgeproxy has another", with_b1(lambda st: st["proxy"].update(config_hash="x")), [("warning", "b1", "edgeproxy runs another configuration")]),
    ("a probe", with_b1(lambda st: st["probes"].append({"probe": "dns", "state": "down", "last_error": "refused"})), [("notice", "b1", "probe dns is down: refused")]),
    ("a probe of a drained service", with_b1(lambda st: st["probes"].append({"probe": "dns", "state": "unknown", "last_error": "probe could not run: service web is drained"})), []),
    ("ring seeds", altered(lambda a: a["box"]["ring_seed"].update(id="bbbbbbbb")), [("critical", None, "the ring seed is not the same everywhere: aaaaaaaa on a1, c1; bbbbbbbb on b1")]),
    ("a ring seed that cannot be read", altered(lambda a: a["box"].update(ring_seed={"path": "/s", "error": "Permission denied", "id": None})), [("notice", "b1", "Permission denied")]),
    ("another gossip key", key("22222222"),
     [("critical", "a1", "does not accept the gossip key 22222222, with which b1 encrypts"), ("critical", "b1", "does not accept the gossip key 11111111, with which a1, c1 encrypts"), ("critical", "c1", "22222222")]),
    ("a rotation under way", key("11111111", "22222222"), [("warning", None, "the gossip keys are not the same everywhere")]),
    ("a rotation to be ended", {n: answer(dict(node(n, s), guard=dict(node(n, s)["guard"], keys=["1", "2"]))) for n, s in SITES}, [("notice", None, "two or more gossip keys")]),
    ("another floor", with_b1(lambda st: st["guard"]["prefixes"][0].update(floor=2)), [("warning", None, f"the floors differ: b1 has {P4} 2 and lacks {P4} 1, against a1, c1")]),
    ("another service", with_b1(lambda st: st["services"].append({"id": "dns", "vip": "198.51.100.53:53", "protocol": "udp", "prefix": P4})), [("warning", None, "the services differ: b1 has dns")]),
    ("another node key", with_b1(lambda st: st["guard"]["node_keys"].update(c1="zz")), [("warning", None, "the public keys of the nodes differ: b1 has c1 zz")]),
    ("a node that it does not know", with_b1(lambda st: st["guard"].update(members=[member("a1", "a")])), [("warning", "b1", "it does not know the node c1")]),
    ("another box than thought", altered(lambda a: a.update(node="b2")), [("warning", "b1", "the box says that it is node b2"), ("warning", "b1", "it does not know the node b1")]),
    ("a clock ahead", altered(lambda a: a["box"].update(clock_ahead=9.0)), [("warning", "b1", "its clock is 8.2 s ahead of")]),
    ("a clock behind", altered(lambda a: a["box"].update(clock_ahead=-9.0)), [("warning", "b1", "behind")]),
    ("a slow answer", altered(lambda a: a["box"].update(clock_ahead=4.0)), []),
    ("disk 90 %", altered(disk(used_percent=90.0)), [("warning", "b1", "/var/lib/edge has used 90 % of its room")]),
    ("disk 99 %, inodes too", altered(disk(used_percent=99.0, inodes_percent=96.0)), [("critical", "b1", "99 % of its room"), ("critical", "b1", "96 % of its inodes")]),
    ("a root that is read-only", altered(disk(used_percent=100.0, read_only=True)), []),
    ("the same disk twice", altered(disk(used_percent=99.0, device=1)), []),
    ("a disk that is not there", altered(disk(error="No such file or directory")), [("warning", "b1", "is not known")]),
    ("a certificate, 20 days", altered(certificate(20)), [("warning", "b1", "/t/api.crt ends in 20.0 days")]),
    ("a certificate, 2 days", altered(certificate(2)), [("critical", "b1", "ends in 2.0 days")]),
    ("a certificate that has ended", altered(certificate(-1)), [("critical", "b1", "has ended")]),
    ("a certificate that cannot be read", altered(lambda a: a["box"]["certificates"].append({"path": "/t/x", "error": "no PEM", "not_after": None})), [("warning", "b1", "cannot be read: no PEM")]),
    ("a replaced program", altered(lambda a: a["box"].update(replaced=["edgebgp"])), [("warning", "b1", "edgebgp runs a program that has been replaced")]),
    ("boot not good", with_b1(lambda st: None, image("1", 0, failed=["bgp"])), [("critical", "b1", "not good: bgp")]),
    ("boot not judged", with_b1(lambda st: None, image("1", good=None)), [("warning", "b1", "is not judged yet")]),
    ("refused version", with_b1(lambda st: None, image("1", refused=[{"version": "2", "check": "bgp", "reason": "no peer"}])), [("notice", "b1", "refuses version 2, by check bgp: no peer")]),
    ("staged", with_b1(lambda st: None, image("1", next="2")), [("warning", "b1", "any reboot boots version 2 in place of 1")]),
    ("a failed slot", with_b1(lambda st: None, image("1", slots=[{"slot": "b", "version": "2", "state": "failed"}])), [("notice", "b1", "version 2 in slot b has failed")]),
    ("images differ", {n: answer(node(n, s), image("2" if n == "b1" else "1")) for n, s in SITES}, [("warning", None, "appliances run 2 versions: 1 on a1, c1; 2 on b1")]),
    ("an order moves traffic", with_b1(lambda st: st.update(prefers=[{"sites": ["c"], "until": at(-60), "by": "b1", "reason": "test"}])), [("notice", None, "everything is moved to c until")]),
    ("not looked at", {n: a for n, a in well().items() if n != "c1"}, [("notice", "c1", "it was not looked at")]),
)


class VerifyTest(unittest.TestCase):
    maxDiff = None

    def test_table(self):
        for name, answers, want in TABLE:
            with self.subTest(name):
                before = copy.deepcopy(answers)
                got = verify.judge(answers, FLEET, NOW)
                self.assertEqual(answers, before, "judging has changed what it judged")
                self.assertEqual([(f["severity"], f["node"]) for f in got], [w[:2] for w in want], got)
                for f, (_, _, what) in zip(got, want):
                    self.assertIn(what, f["what"])
                    self.assertTrue(f["remedy"])
                verify_text.markdown(verify_text.document(answers, got, NOW))

    def test_nothing_is_announced(self):
        nobody = [dict(p, sites=[]) for p in status()["guard"]["prefixes"]]
        got = verify.judge({"a1": answer(drained(guard=dict(status()["guard"], prefixes=nobody)))}, {"prefixes": FLEET["prefixes"]}, NOW)
        self.assertEqual([f["what"] for f in got[:2]], [f"{P4} is announced by no box that is known of", f"{P6} is announced by no box that is known of"])

    def test_below_the_floor(self):
        fleet = {"prefixes": [{"prefix": P4, "min_sites": 3}]}
        answers = dict(well(), c1={"unreachable": True, "msg": "x"})
        self.assertEqual([f["node"] for f in verify.judge(answers, fleet, NOW)], ["c1"])  # the others hear it
        for n in ("a1", "b1"):
            answers[n]["guard"]["prefixes"][0]["sites"] = ["a", "b"]
        got = verify.judge(answers, fleet, NOW)
        self.assertEqual((got[0]["severity"], got[0]["node"], got[0]["what"]), ("critical", None, f"{P4} is announced at 2 sites (a, b), and its floor is 3 (1 boxes could not be asked)"))
        self.assertEqual(verify.judge({}, fleet, NOW), [])

    def test_limits(self):
        self.assertEqual(len(verify.judge(altered(certificate(20)), FLEET, NOW, {"certificate_warning_days": 5})), 0)

    def test_a_replaced_program_is_one_of_ours(self):
        self.assertEqual([d for d in hostfacts.replaced() if d not in hostfacts.DAEMONS], [])
        self.assertEqual(hostfacts.replaced("/nowhere"), [])

    def test_hundreds_of_nodes(self):
        """A line names a few of them; the report stays one that is read."""
        answers = {f"n{i}": answer(node(f"n{i}", f"s{i}", version="2" if i % 2 else "1")) for i in range(300)}
        got = verify.judge(answers, {}, NOW)
        versions = [f for f in got if "versions" in f["what"]]
        self.assertLess(len(versions[0]["what"]), 200)
        self.assertIn("and 142 more", versions[0]["what"])


class ReportTest(unittest.TestCase):
    def test_markdown_is_not_steered(self):
        """Texts of errors come from other boxes, and from what probes were answered."""
        evil = "x | y\n## z <script> `a` [l](http://e) \x1b[31m *b*"
        answers = with_b1(lambda st: st.update(alarms=[evil]))
        doc = verify_text.document(answers, verify.judge(answers, FLEET, NOW), NOW)
        line = next(l for l in verify_text.markdown(doc).splitlines() if "alarm:" in l)
        self.assertEqual(line.count(" | "), 3)
        for bad in ("\x1b", " <script>", " `a`", " [l]", " *b*"):
            self.assertNotIn(bad, line)
        self.assertIn(evil, json.loads(json.dumps(doc))["findings"][0]["what"])

    def test_document(self):
        answers = dict(drained_b1(), c1={"unreachable": True, "msg": "x"})
        doc = verify_text.document(answers, verify.judge(answers, FLEET, NOW), NOW)
        self.assertEqual((doc["worst"], doc["counts"]["critical"]), ("critical", 1))
        self.assertEqual(doc["nodes"]["c1"], {"reached": False, "why": "x"})
        self.assertTrue(doc["nodes"]["b1"]["healthy"] and doc["nodes"]["b1"]["drained"] and not doc["nodes"]["b1"]["ready"])
        self.assertEqual(doc["prefixes"][P4], {"floor": 1, "rungs": {"announced": ["a1"], "withdrawn": ["b1"]}, "may_leave": 2})
        text = verify_text.markdown(doc)
        for want in ("found: 1 critical, 1 notice", "| critical | c1 |", "| b1 | b | 1.2.0 | drained | 2/2 |", "| c1 |  |  | not reached |", "announced: 1; withdrawn: 1"):
            self.assertIn(want, text)


if __name__ == "__main__":
    unittest.main()
