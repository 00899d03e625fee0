# SPDX-License-Identifier: Apache-2.0
"""fleet.yaml: what is taken, and what is refused with its place."""

import base64
import unittest

from ansible_collections.catchment.edge.plugins.module_utils import fleet

KEY = base64.b64encode(bytes(32)).decode()
OTHER = base64.b64encode(bytes([1] * 32)).decode()

GOOD = """\
plugin: catchment.edge.fleet
connection: {user: root, port: 22}
node:
  key_file: /etc/edge/secrets/node.key
  forwarder: {interfaces: [eth0], flows: 2048}
  bgp: {asn: 64512, listen: 179}
fleet:
  ring_seed_file: /etc/edge/secrets/ring.seed
  prefixes: [{prefix: 198.51.100.0/24, min_sites: 1}]
  guard: {key_file: /etc/edge/secrets/gossip.key, min_fraction: 0.30}
sites:
  - name: a
    region: eu
    capacity: 20000
    node: {bgp: {peers: [{name: r-a, address: 10.1.0.1, asn: 65001}]}}
    nodes:
      - {name: a1, host: 192.0.2.1, address4: 10.1.0.2, gossip: "10.1.0.2:7946"}
      - name: a2
        host: 192.0.2.2
        address4: 10.1.0.3
        gossip: 10.1.0.3:7946
        kind: deb
        connection: {port: 2222}
        node:
          forwarder: {interfaces: [eth1, eth2]}
          bgp: {listen: null}
  - name: b
    nodes:
      - {name: b1, host: 192.0.2.3, address4: 10.2.0.2, gossip: "10.2.0.2:7946"}
routers:
  - {name: r-a, host: 192.0.2.9, daemon: bird, asn: 65001, site: a}
"""


def said(text, keys=None):
    """What load says of a text, line by line; [] if it takes it."""
    try:
        fleet.load(text, "f.yaml", keys)
        return []
    except fleet.FleetErrors as err:
        return str(err).splitlines()


class Taken(unittest.TestCase):
    def setUp(self):
        self.fleet = fleet.load(GOOD, "f.yaml", {"a1": KEY + "\n"})

    def test_sections_of_node_are_merged(self):
        config = self.fleet.config("a2")
        self.assertEqual(config["node"], {
            "name": "a2", "key_file": "/etc/edge/secrets/node.key",
            "forwarder": {"interfaces": ["eth1", "eth2"], "flows": 2048},  # maps deep, lists whole
            "bgp": {"asn": 64512, "peers": [{"name": "r-a", "address": "10.1.0.1", "asn": 65001}]},  # null takes away
        })
        self.assertEqual(list(config), ["node", "fleet"])
        # What comes over the one must not be in the others.
        self.assertEqual(self.fleet.config("a1")["node"]["forwarder"]["interfaces"], ["eth0"])
        self.assertEqual(self.fleet.config("b1")["node"]["bgp"], {"asn": 64512, "listen": 179})

    def test_null_as_edge_yaml_has_it(self):
        for text, there in (("~", False), ("Null", False), ("NULL", False), ("", False), ("'null'", True), ("nULL", True)):
            bgp = fleet.load(GOOD.replace("listen: null", "listen: " + text), "f.yaml").config("a2")["node"]["bgp"]
            self.assertEqual("listen" in bgp, there, text)

    def test_fleet_is_the_same_on_every_box(self):
        one = self.fleet.config("a1")["fleet"]
        self.assertEqual(one, self.fleet.config("b1")["fleet"])
        self.assertEqual(list(one), ["ring_seed_file", "sites", "nodes", "prefixes", "guard"])
        self.assertEqual(one["sites"], [{"name": "a", "region": "eu", "capacity": 20000}, {"name": "b"}])
        self.assertEqual(one["nodes"][0], {
            "name": "a1", "site": "a", "address4": "10.1.0.2", "gossip": "10.1.0.2:7946", "public_key": KEY,
        })

    def test_connection_and_kind(self):
        a1, a2 = self.fleet.node("a1"), self.fleet.node("a2")
        self.assertEqual((a1.kind, a1.connection), ("image", {"user": "root", "port": 22}))
        self.assertEqual((a2.kind, a2.connection), ("deb", {"user": "root", "port": 2222}))

    def test_missing_keys(self):
        self.assertEqual(self.fleet.missing_keys, ["a2", "b1"])

    def test_summary_has_the_defaults(self):
        got = self.fleet.summary()
        self.assertEqual(got["guard"], {"max_planned": 1, "key_file": "/etc/edge/secrets/gossip.key", "min_fraction": 0.3})
        self.assertEqual(got["sites"][0], {"name": "a", "region": "eu", "capacity": 20000, "nodes": ["a1", "a2"]})
        self.assertEqual(got["missing_keys"], ["a2", "b1"])
        for text, want in ((GOOD.replace(", min_sites: 1", ""), 1), (one_site(GOOD.replace(", min_sites: 1", "")), 0)):
            self.assertEqual(fleet.load(text).summary()["prefixes"], [{"prefix": "198.51.100.0/24", "min_sites": want}])

    def test_places_of_what_is_rendered(self):
        for node, path, want in (
            ("a1", "node.forwarder.interfaces[0]", (5, 28)),
            ("a2", "node.forwarder.interfaces[0]", (25, 36)),
            ("a2", "node.forwarder.flows", (5, 42)),
            ("a2", "node.bgp.peers[0].asn", (15, 62)),
            ("a1", "fleet.guard.min_fraction", (10, 65)),
            ("a1", "fleet.guard.nothing", (10, 10)),
            ("a1", "fleet.nodes[0].gossip", (8, 3)),
        ):
            self.assertEqual(self.fleet.place(node, path), want, (node, path))

    def test_folders(self):
        self.assertEqual(fleet.folders(GOOD), {"secrets": "secrets", "public_keys": "public_keys"})
        self.assertEqual(fleet.folders("secrets: /srv/x\n")["secrets"], "/srv/x")


def one_site(text):
    start, end = text.index("  - name: b"), text.index("routers:")
    return text[:start] + text[end:]


class Refused(unittest.TestCase):
    CASES = (
        # what, text to replace, with, what is said
        ("an unknown key", "capacity: 20000", "capcity: 20000", "f.yaml:14:5: sites[0].capcity: a site has no such key; did you mean capacity?"),
        ("an unknown key far from all", "region: eu", "zzz: eu", "f.yaml:13:5: sites[0].zzz: a site has no such key; it has name, region"),
        ("a key twice", "region: eu", "name: c", "f.yaml:13:5: sites[0].name: the key is given twice; it was given in line 12"),
        ("a key twice deep in node", "flows: 2048", "interfaces: [x]", "node.forwarder.interfaces: the key is given twice; it was given in line 5"),
        ("an anchor", "region: eu", "region: &x eu", "f.yaml:13:13: YAML anchors (&) are not taken"),
        ("an alias", "region: eu", "region: *x", "f.yaml:13:13: YAML aliases (*) are not taken"),
        ("a tag", "region: eu", "region: !!str eu", "f.yaml:13:13: YAML tags (!) are not taken"),
        ("a merge key", "region: eu", "<<: {region: eu}", "f.yaml:13:5: sites[0]: YAML merge keys (<<) are not taken"),
        ("no YAML", "region: eu", "region: [eu", "not valid YAML"),
        ("two documents", "routers:", "---\nrouters:", "not valid YAML: but found another document"),
        ("a node of that name", "name: b1", "name: a1", "f.yaml:29:16: sites[1].nodes[0].name: there is another box \"a1\", in line 17"),
        ("a router of that name", "name: r-a, host", "name: b1, host", "routers[0].name: there is another box \"b1\""),
        ("a site of that name", "- name: b\n", "- name: a\n", "sites[1].name: there is another site \"a\", in line 12"),
        ("no host", "host: 192.0.2.2\n", "kind: deb\n", "sites[0].nodes[1]: host is missing"),
        ("an empty host", "host: 192.0.2.2\n", "host:\n", "sites[0].nodes[1]: host is missing"),
        ("no name", "- name: b\n    nodes:", "- nodes:", "f.yaml:27:5: sites[1]: name is missing"),
        ("no gossip", "gossip: 10.1.0.3:7946\n", "health_port: 1\n", "sites[0].nodes[1]: gossip is missing"),
        ("a bad name", "name: b1", "name: B_1", '"B_1" is not a name'),
        ("a name with a line", "name: b1", 'name: "b1\\n"', 'is not a name'),
        ("Jinja in a region", "region: eu", 'region: "{{ 1 }}"', 'sites[0].region: "{{ 1 }}" is not a name'),
        ("a name of a group", "name: b1", "name: edge", '"edge" is a group of the inventory'),
        ("another kind", "kind: deb", "kind: rpm", 'f.yaml:22:15: sites[0].nodes[1].kind: kind "rpm" is neither image nor deb'),
        ("another daemon", "daemon: bird", "daemon: quagga", '"quagga" is neither bird nor frr'),
        ("a router of no site", "site: a}", "site: z}", 'routers[0].site: there is no site "z"; there are a, b'),
        ("a floor of all sites", "min_sites: 1", "min_sites: 2", "f.yaml:9:51: fleet.prefixes[0].min_sites: 2 other sites must stay, and 1 there are: none could ever leave"),
        ("unconditional sites", "min_sites: 1", "unconditional: [a, z]", 'fleet.prefixes[0].unconditional[1]: there is no site "z"'),
        ("a name in node", "key_file: /etc/edge/secrets/node.key", "name: a1", "f.yaml:4:9: node.name: the name of a box is that of its entry"),
        ("sites in fleet", "  guard:", "  sites: []\n  guard:", "f.yaml:10:10: fleet.sites: it is made of the list of sites"),
        ("a port", "port: 2222", "port: 70000", "70000 is not a TCP port"),
        ("a list for a mapping", "forwarder: {interfaces: [eth0], flows: 2048}\n  bgp: {asn: 64512, listen: 179}", "- x", "not valid YAML"),
        ("text for a mapping", "connection: {port: 2222}", "connection: 2222", 'expected a mapping (key: value), found the value "2222"'),
        ("a mapping for a value", "region: eu", "region: {x: y}", "sites[0].region: expected one value, found a mapping"),
        ("another plugin", "plugin: catchment.edge.fleet", "plugin: x", "f.yaml:1:9: plugin: expected plugin: catchment.edge.fleet"),
        ("a key in another form", 'gossip: "10.2.0.2:7946"', 'gossip: "10.2.0.2:7946", public_key: c2hvcnQ=', "not an Ed25519 public key"),
    )

    def test_said_with_its_place(self):
        for what, old, new, want in self.CASES:
            with self.subTest(what):
                self.assertIn(old, GOOD)
                got = said(GOOD.replace(old, new, 1))
                self.assertTrue(any(want in line for line in got), got)
                self.assertTrue(all(line.startswith("f.yaml:") for line in got), got)

    def test_all_at_once(self):
        text = GOOD.replace("region: eu", "regoin: eu").replace("kind: deb", "kind: rpm").replace("min_sites: 1", "min_sites: 7")
        self.assertEqual([line.split(":")[1] for line in said(text)], ["9", "13", "22"])

    def test_keys(self):
        for keys, want in (
            ({"a1": KEY, "b1": KEY}, "it has the public key of a1"),
            ({"a1": "no key"}, "a1.pub: it is not an Ed25519 public key"),
        ):
            self.assertIn(want, "\n".join(said(GOOD, keys)))
        given = GOOD.replace('host: 192.0.2.3', f'host: 192.0.2.3, public_key: "{KEY}"')
        self.assertEqual(said(given), [])
        self.assertIn("another one than that in the folder", "\n".join(said(given, {"b1": OTHER})))

    def test_odd_files(self):
        for text, want in (
            ("", "the file is empty"), ("# nothing\n", "the file is empty"), ("[]", "expected a mapping"), ("x", "expected a mapping"),
            ("plugin: catchment.edge.fleet\n", "sites is missing"), ("plugin: catchment.edge.fleet\nsites: []\nx\n", "not valid YAML"),
            ("plugin: catchment.edge.fleet\nsites: 5\n", "expected a list"), ("a: " + "[" * 30 + "]" * 30, "levels deep"),
            ("plugin: catchment.edge.fleet\nsites: [{name: a}]\n", "no site has a node"), ("{? [a]: b}", "a key is a word"),
            ("plugin: catchment.edge.fleet\nsites: [5, {name: a, nodes: [x]}]\n", "expected a mapping"),
            ("a: \x00", "not valid YAML"), ("x" * (fleet.MAX_SIZE + 1), "more than"),
        ):
            with self.subTest(text[:60]):
                self.assertIn(want, "\n".join(said(text)))


if __name__ == "__main__":
    unittest.main()
