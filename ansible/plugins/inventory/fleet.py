# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: fleet
short_description: The boxes of a Catchment fleet, from its fleet.yaml
description:
  - Reads C(fleet.yaml), which describes the sites and nodes of a fleet, its prefixes and services once. The name of the
    file ends in C(fleet.yaml) or C(fleet.yml).
  - Each node is a host with the variables C(ansible_host), C(ansible_user), C(ansible_port), C(edge_node), C(edge_site),
    C(edge_kind) and C(edge_config), the whole edge.yaml of that box.
  - Groups are C(edge) (all nodes), C(edge_site_NAME), C(edge_region_NAME), C(edge_kind_image), C(edge_kind_deb) and
    C(edge_routers). A C(-) in a name is a C(_) there.
  - All hosts have C(edge_fleet) (sites, prefixes, guard, and the nodes whose public key is missing), C(edge_fleet_file),
    C(edge_fleet_dir) and C(edge_secrets_dir).
  - Everything that is wrong with the file is said at once, with line and column. Values are taken as they stand;
    Jinja is not looked at.
options:
  plugin:
    description: Says that the file is for this plugin.
    type: str
    required: true
    choices: [catchment.edge.fleet]
  connection:
    description: How Ansible reaches the boxes, C(user) and C(port). Also of a site, a node and a router.
    type: dict
  vars:
    description: Ansible variables of all nodes.
    type: dict
  secrets:
    description:
      - A folder beside the file, with C(fleet/), C(sites/NAME/) and C(nodes/NAME/). Files may be vaulted.
    type: str
    default: secrets
  public_keys:
    description: A folder beside the file, with NAME.pub for each node that has no C(public_key) in its entry.
    type: str
    default: public_keys
  kind:
    description: Whether boxes are made from the image or are a Debian with the package. Also of a site and a node.
    type: str
    choices: [image, deb]
    default: image
  node:
    description:
      - The section C(node) of edge.yaml, for every box. That of its site and that of its node come over it; mappings
        are merged, lists replaced, and a key that is null is taken away.
    type: dict
  fleet:
    description: The section C(fleet) of edge.yaml without C(sites) and C(nodes), which are made of the list below.
    type: dict
  sites:
    description:
      - The sites, each with C(name), C(region), C(capacity) and C(nodes); a node has C(name), C(host), C(address4),
        C(address6), C(gossip), C(health_port) and C(public_key).
    type: list
    elements: dict
    required: true
  routers:
    description:
      - Routers of the group edge_routers, with C(name), C(host), C(daemon), C(asn) and C(site). They have the variables
        C(edge_router_daemon), C(edge_router_asn), C(edge_router_prefixes), and as C(edge_router_sessions) the boxes that
        have a peer of the router's name.
    type: list
    elements: dict
author: Catchment developers (@catchment-dev)
"""

EXAMPLES = r"""
# fleet.yaml; the collection has a whole one: fleet.example.yaml
plugin: catchment.edge.fleet
connection: {user: root}
node:
  key_file: /etc/edge/secrets/node.key
  forwarder: {interfaces: [eth0]}
  bgp: {asn: 64512}
fleet:
  ring_seed_file: /etc/edge/secrets/ring.seed
  prefixes: [{prefix: 198.51.100.0/24}]
  guard: {key_file: /etc/edge/secrets/gossip.key}
sites:
  - name: a
    region: eu
    nodes:
      - {name: a1, host: 192.0.2.1, address4: 10.1.0.2, gossip: "10.1.0.2:7946"}
# ansible-inventory -i fleet.yaml --graph
"""

import os

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin
from ansible.utils.display import Display
from ansible.utils.unsafe_proxy import wrap_var
from ansible_collections.catchment.edge.plugins.module_utils import fleet as core
from ansible_collections.catchment.edge.plugins.module_utils import routers

MAX_KEY = 4096  # bytes of a public key's file

display = Display()


class InventoryModule(BaseInventoryPlugin):
    NAME = "catchment.edge.fleet"

    def verify_file(self, path):
        return path.endswith(("fleet.yaml", "fleet.yml")) and super().verify_file(path)

    def parse(self, inventory, loader, path, cache=True):
        super().parse(inventory, loader, path, cache)
        try:
            fleet = read(os.path.abspath(path))
        except core.FleetErrors as err:
            # Ansible would make one paragraph of all mistakes.
            display.error(str(err), wrap_text=False)
            raise AnsibleParserError(f"nothing was read of {path}: it has {len(err.problems)} mistakes, each with its place above") from None
        except (OSError, UnicodeDecodeError) as err:
            raise AnsibleParserError(f"cannot read {path}: {err}") from None
        self._hosts(fleet)
        self._shared(fleet, os.path.abspath(path))

    def _shared(self, fleet, path):
        folder = os.path.dirname(path)
        values = dict(fleet.vars)
        values.update(
            edge_fleet=fleet.summary(), edge_fleet_file=path, edge_fleet_dir=folder, edge_secrets_dir=os.path.join(folder, fleet.secrets),
            edge_public_keys_dir=os.path.join(folder, fleet.public_keys),
        )
        for key, value in values.items():
            self.inventory.set_variable("all", key, wrap_var(value))

    def _hosts(self, fleet):
        # One object for all hosts: with 200 of them 200 copies would be slow to make.
        shared = wrap_var(fleet.shared())
        self.inventory.add_group("edge")
        for site in fleet.sites:
            for node in site.nodes:
                self.inventory.add_host(node.name, group="edge")
                self._connect(node)
                self._set(node.name, edge_node=node.name, edge_site=site.name, edge_kind=node.kind)
                own = wrap_var(fleet.config(node)["node"])
                self.inventory.set_variable(node.name, "edge_config", {"node": own, "fleet": shared})
                self._group(node.name, "edge_site_" + site.name)
                self._group(node.name, "edge_kind_" + node.kind)
                if site.region is not None:
                    self._group(node.name, f"edge_region_{site.region}")
        for router in fleet.routers:
            self._group(router.name, "edge_routers")
            self._connect(router)
            self._set(
                router.name, edge_router_daemon=router.daemon, edge_router_asn=router.asn, edge_site=router.site,
                edge_router_sessions=routers.sessions(fleet, router), edge_router_prefixes=routers.prefixes(fleet),
            )

    def _group(self, host, name):
        self.inventory.add_host(host, group=self.inventory.add_group(name.replace("-", "_")))

    def _connect(self, box):
        self._set(box.name, ansible_host=box.host, ansible_user=box.connection.get("user"), ansible_port=box.connection.get("port"))

    def _set(self, host, **values):
        for key, value in values.items():
            if value is not None:
                self.inventory.set_variable(host, key, wrap_var(value))


def read(path):
    """The fleet of a file, with the public keys that lie beside it."""
    with open(path, encoding="utf-8") as f:
        text = f.read(core.MAX_SIZE + 1)
    name = os.path.basename(path)
    folder = os.path.join(os.path.dirname(path), core.folders(text, name)["public_keys"])
    keys = {}
    for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if file.endswith(".pub"):
            with open(os.path.join(folder, file), encoding="utf-8") as f:
                keys[file[: -len(".pub")]] = f.read(MAX_KEY)
    return core.load(text, name, keys)
