# SPDX-License-Identifier: Apache-2.0
"""edge.yaml as it is written, and the files that it names."""

import unittest

from ansible_collections.catchment.edge.plugins.module_utils import edgeyaml, files, fleet, places

CONFIG = {
    "node": {
        "name": "a1", "key_file": "/etc/edge/secrets/node.key",
        "bgp": {"asn": 64512, "peers": [{"name": "r", "password_file": "/etc/edge/secrets/bgp.key"}], "rpki": {"file": "/var/lib/rpki.json"}},
        "forwarder": {"interfaces": ["eth0"], "blocklist_file": "/etc/edge/secrets/block"},
    },
    "fleet": {
        "ring_seed_file": "/etc/edge/secrets/ring.seed", "guard": {"key_file": "/etc/edge/secrets/gossip.key", "min_fraction": "0.30"},
        "proxy": {"ticket_key_file": "/etc/edge/secrets/tickets.key", "certificates": [{"cert_file": "/etc/edge/secrets/tls/w.crt", "key_file": "/srv/w.key"}]},
        "health": {"probes": [{"name": "x", "ca_file": "/etc/edge/secrets/tls/w.crt"}, {"name": "y", "command": ["/etc/edge/secrets/x", "-v"]}]},
    },
}


def loaded(text):
    return places.Reader("x").value(places.Reader("x").document(text), "")


class Render(unittest.TestCase):
    def test_values_stand_as_they_stood(self):
        for text in ("5", "0.30", "1.10", "0012", "1e3", "true", "on", "off", "00d1", "eth0", "198.51.100.0/24", "0.25", "no-export", "65001"):
            for quoted in (text, f"'{text}'"):
                got = edgeyaml.render({"node": {"k": loaded("k: " + quoted)["k"]}, "fleet": {}})
                # Numbers in quotes are refused by edge.yaml; what is text there takes them without.
                self.assertIn(f"  k: {text}\n", got)
        for text, want in (("''", "''"), ("'null'", "'null'"), ("'~'", "'~'"), ("'65001:100'", "65001:100"), ('"a: b"', "'a: b'"), ('"# x"', "'# x'"), ('"a\\nb"', '"')):
            got = edgeyaml.render({"node": {"k": loaded("k: " + text)["k"]}, "fleet": {}})
            self.assertIn(f"  k: {want}", got)
            self.assertEqual(loaded(got)["node"], loaded("k: " + text))

    def test_reads_well_and_is_stable(self):
        got = edgeyaml.render(CONFIG)
        self.assertEqual(got, edgeyaml.render(edgeyaml.plain(CONFIG)))
        self.assertEqual(loaded(got), CONFIG)
        self.assertLess(got.index("\nnode:\n  name: a1\n"), got.index("\nfleet:\n"))
        self.assertIn("    peers:\n      - {name: r, password_file: /etc/edge/secrets/bgp.key}\n", got)
        self.assertIn("    interfaces: [eth0]\n", got)
        self.assertNotIn("!!", got)

    def test_what_is_shared_is_written_twice(self):
        one = {"kind": "tcp"}
        self.assertNotIn("*", edgeyaml.render({"node": {"a": one, "b": one}, "fleet": {"c": one}}))

    def test_empty_lists_and_long_ones(self):
        got = edgeyaml.render({"node": {"a": [], "b": {}}, "fleet": {"c": [f"10.0.{i}.0/24" for i in range(40)]}})
        self.assertIn("  a: []\n  b: {}\n", got)
        self.assertIn("\n    - 10.0.39.0/24\n", got)


class Files(unittest.TestCase):
    def test_owners(self):
        for name, want in (
            ("secrets/node.key", files.EDGED), ("secrets/ring.seed", files.EDGED), ("secrets/gossip.key", files.EDGED),
            ("secrets/bgp.key", files.EDGEBGP), ("secrets/tls/w.crt", files.EDGEPROXY), ("secrets/tickets.key", files.EDGEPROXY), ("secrets/block", files.READABLE),
            ("secrets/x", files.PROGRAM), ("secrets/nobody", files.NOBODY),
        ):
            self.assertEqual(files.access_of(CONFIG, name), want, name)

    def test_wanted(self):
        self.assertEqual(files.wanted(CONFIG), {
            "/etc/edge/secrets/node.key": "node.key_file", "/etc/edge/secrets/ring.seed": "fleet.ring_seed_file",
            "/etc/edge/secrets/gossip.key": "fleet.guard.key_file", "/etc/edge/secrets/block": "node.forwarder.blocklist_file",
            "/etc/edge/secrets/bgp.key": "node.bgp.peers[0].password_file",
            "/etc/edge/secrets/tickets.key": "fleet.proxy.ticket_key_file",
            "/etc/edge/secrets/tls/w.crt": "fleet.proxy.certificates[0].cert_file", "/srv/w.key": "fleet.proxy.certificates[0].key_file",
            "/etc/edge/secrets/x": "fleet.health.probes[1].command",
        })
        for odd in ({}, {"node": 5}, {"node": {"bgp": []}, "fleet": {"health": {"probes": [5]}, "proxy": {"certificates": None}}}):
            self.assertEqual(files.wanted(odd), {})

    def test_shared(self):
        self.assertEqual(files.shared(CONFIG), [])
        odd = edgeyaml.plain(CONFIG)
        odd["node"]["bgp"]["peers"][0]["password_file"] = "/etc/edge/secrets/node.key"
        self.assertEqual(files.shared(odd), [("/etc/edge/secrets/node.key", "node.key_file", "node.bgp.peers[0].password_file")])

    def test_names(self):
        for name, ok in (("x.key", True), ("tls/web/x.key", True), ("a/b/c/x", False), ("a b", False), (".x", False), ("-x", False), ("ü", False), ("x\n", False), ("x\n/y", False)):
            self.assertEqual(files.bad_secret(name) is None, ok, name)
        for name, ok in (
            ("authorized_keys", True), ("network/10-up.network", True), ("units/edged.service.d/x.conf", True), ("health.d/x", True),
            ("secrets/x", False), ("edge.yaml", False), ("network/x.conf", False), ("units/x.conf", False), ("network/a/x.network", False),
        ):
            self.assertEqual(files.bad_part(name) is None, ok, name)
        for name, skipped in ((".git/x", True), ("README.md", True), ("readme", True), ("x/.y", True), ("x.key", False)):
            self.assertEqual(files.ignored(name), skipped, name)

    def test_layers(self):
        self.assertEqual(files.layered([{"b": 1, "a": 1}, {}, {"b": 3, "c": 3}]), {"a": 1, "b": 3, "c": 3})


class Merge(unittest.TestCase):
    def test_merge(self):
        for low, high, want in (
            ({}, {"a": 1}, {"a": 1}), ({"a": 1}, {}, {"a": 1}), ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
            ({"a": {"b": 1, "c": 2}}, {"a": {"b": 9}}, {"a": {"b": 9, "c": 2}}), ({"a": {"b": 1}}, {"a": [5]}, {"a": [5]}),
            ({"a": {"b": 1}}, {"a": None}, {}), ({}, {"a": None}, {"a": None}), ({"a": 5}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ):
            before = edgeyaml.plain(low)
            self.assertEqual(fleet.merge(low, high), want)
            self.assertEqual(low, before)


if __name__ == "__main__":
    unittest.main()
