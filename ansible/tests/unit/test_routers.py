# SPDX-License-Identifier: Apache-2.0
"""Which sessions a router of fleet.yaml has with the boxes."""

import unittest

from ansible_collections.catchment.edge.plugins.module_utils import fleet, routers

TEXT = """\
plugin: catchment.edge.fleet
node: {bgp: {asn: 64512}}
fleet:
  prefixes: [{prefix: 198.51.100.0/24}, {prefix: "2001:db8:100::/48"}]
sites:
  - name: a
    node:
      bgp:
        peers:
          - {name: r-a, address: 10.1.0.1, asn: 65001, hold: 30s, bfd: {}, password_file: /etc/edge/secrets/tls/bgp.key}
          - {name: r-b, address: "fe80::1%eth1", asn: 65002, families: [ipv6], multihop: 2, password_file: /srv/key, watch: true}
    nodes:
      - {name: a1, host: 192.0.2.1, address4: 10.1.0.2, gossip: "10.1.0.2:7946"}
      - name: a2
        host: 192.0.2.2
        address4: 10.1.0.3
        gossip: 10.1.0.3:7946
        node: {bgp: {asn: 64513, peers: [{name: r-a, address: "fd00:1::1", asn: 65001, local_address: "fd00:1::3", ttl_security: 1, hold: 2m}]}}
  - name: b
    nodes:
      - {name: b1, host: 192.0.2.3, address4: 10.2.0.2, gossip: "10.2.0.2:7946"}
routers:
  - {name: r-a, host: 192.0.2.9, daemon: bird, asn: 65001}
  - {name: r-b, host: 192.0.2.8, daemon: frr, asn: 65002}
  - {name: r-c, host: 192.0.2.7, daemon: frr, asn: 65003}
"""


class Sessions(unittest.TestCase):
    def setUp(self):
        self.fleet = fleet.load(TEXT, "f.yaml")

    def of(self, index):
        return routers.sessions(self.fleet, self.fleet.routers[index])

    def test_those_whose_peer_has_the_name(self):
        got = self.of(0)
        self.assertEqual([(s["node"], s["address"], s["local"], s["asn"]) for s in got],
                         [("a1", "10.1.0.2", "10.1.0.1", 64512), ("a2", "fd00:1::3", "fd00:1::1", 64513)])
        self.assertEqual(self.of(2), [])

    def test_what_both_ends_must_agree_on(self):
        one, two = self.of(0)
        self.assertEqual((one["hold"], one["keepalive"], one["bfd"], one["ttl_security"], one["password"]), (30, 10, True, 0, "tls/bgp.key"))
        self.assertEqual((two["hold"], two["keepalive"], two["bfd"], two["ttl_security"], two["password"]), (120, 40, False, 1, None))

    def test_a_link_local_one_has_its_interface(self):
        (one,) = self.of(1)
        self.assertEqual((one["local"], one["interface"], one["families"], one["multihop"], one["watch"]), ("fe80::1", "eth1", ["ipv6"], 2, True))
        self.assertEqual(one["password"], "/srv/key")  # which is in no folder: the template says so

    def test_prefixes_by_family(self):
        self.assertEqual(routers.prefixes(self.fleet), {"ipv4": ["198.51.100.0/24"], "ipv6": ["2001:db8:100::/48"]})


class Seconds(unittest.TestCase):
    def test_whole_ones(self):
        for text, want in (("9s", 9), ("3m", 180), ("1h", 3600), (None, 7), ("1.5s", 7), ("x", 7), ("s", 7)):
            self.assertEqual(routers.seconds(text, 7), want, text)


if __name__ == "__main__":
    unittest.main()
