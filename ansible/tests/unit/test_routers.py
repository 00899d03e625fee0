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
        self.assertEqual((one["password"], one["unfit"]), ("/srv/key", True))  # which is in no folder: the role says so

    def test_prefixes_by_family(self):
        self.assertEqual(routers.prefixes(self.fleet), {"ipv4": ["198.51.100.0/24"], "ipv6": ["2001:db8:100::/48"]})


    def test_names_of_passwords(self):
        for name, unfit in (("bgp.key", False), ("tls/bgp.key", False), ("../../x", True), ("{{ 1 }}", True), ("x\\n", True), ("", True)):
            self.fleet = fleet.load(TEXT.replace("/etc/edge/secrets/tls/bgp.key", f'"/etc/edge/secrets/{name}"'), "f.yaml")
            self.assertEqual(self.of(0)[0]["unfit"], unfit, name)

    def test_as_routers_show_them(self):
        """Else FRR would seem to have others, and each run would take sessions down."""
        text = TEXT.replace("2001:db8:100::/48", "2001:DB8:100:0::/48").replace("fd00:1::3", "FD00:1:0::3")
        self.fleet = fleet.load(text, "f.yaml")
        self.assertEqual(routers.prefixes(self.fleet)["ipv6"], ["2001:db8:100::/48"])
        self.assertEqual([s["address"] for s in self.of(0)][1], "fd00:1::3")


RUNNING = """\
ip prefix-list OTHERS seq 5 permit 192.0.2.0/24
ip prefix-list EDGE4 seq 5 permit 198.51.100.0/24
ip prefix-list EDGE4 seq 10 permit 203.0.113.0/24
ipv6 prefix-list EDGE6 seq 5 permit 2001:db8:100::/48
router bgp 65001
 neighbor EDGE peer-group
 neighbor EDGE passive
 neighbor 10.1.0.2 remote-as 64512
 neighbor 10.1.0.2 peer-group EDGE
 neighbor 10.1.0.2 bfd
 neighbor 10.1.0.2 password hunter2 and more
 neighbor 10.1.0.2 ebgp-multihop 2
 neighbor 10.9.9.9 password theirs
exit
"""


class Stale(unittest.TestCase):
    def stale(self, session, prefixes=("198.51.100.0/24", "203.0.113.0/24"), **more):
        sessions = [dict({"address": "10.1.0.2", "bfd": False, "password": None, "multihop": 0, "ttl_security": 0}, **session)]
        return routers.frr_stale(RUNNING, sessions, {"ipv4": list(prefixes), "ipv6": ["2001:db8:100::/48"]}, **more)

    def test_stale(self):
        full = {"bfd": True, "password": "bgp.key", "multihop": 2}
        self.assertEqual(self.stale(full), [])
        self.assertEqual(self.stale(dict(full, password=None)), ["no neighbor 10.1.0.2 password"])
        self.assertEqual(self.stale({"password": "bgp.key"}), ["no neighbor 10.1.0.2 bfd", "no neighbor 10.1.0.2 ebgp-multihop 2"])
        self.assertEqual(self.stale({"bfd": True, "password": "k", "ttl_security": 1}), ["no neighbor 10.1.0.2 ebgp-multihop 2"])
        self.assertEqual(self.stale(dict(full, ttl_security=1)), [])  # the template takes multihop
        self.assertEqual(self.stale(full, passive=False), ["no neighbor EDGE passive"])
        self.assertEqual(self.stale(full, ["203.0.113.0/24"]), ["no ip prefix-list EDGE4 seq 5 permit 198.51.100.0/24"])
        self.assertEqual(len(self.stale(full, specifics=True)), 3)
        self.assertEqual(routers.frr_stale("", [], {}), [])


class Seconds(unittest.TestCase):
    def test_whole_ones(self):
        for text, want in (("9s", 9), ("3m", 180), ("1h", 3600), (None, 7), ("1.5s", 7), ("x", 7), ("s", 7)):
            self.assertEqual(routers.seconds(text, 7), want, text)


if __name__ == "__main__":
    unittest.main()
