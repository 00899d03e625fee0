# Writes the edge.yaml of every node of a fleet.yaml: fleet-render.py FLEET FOLDER
import os
import sys

from ansible_collections.catchment.edge.plugins.module_utils import edgeyaml, fleet

path, folder = sys.argv[1:]
keys = {}
beside = os.path.join(os.path.dirname(path), "public_keys")
for name in os.listdir(beside):
    with open(os.path.join(beside, name), encoding="utf-8") as f:
        keys[name[: -len(".pub")]] = f.read()
with open(path, encoding="utf-8") as f:
    loaded = fleet.load(f.read(), path, keys)
for node in loaded.nodes:
    with open(os.path.join(folder, node.name + ".yaml"), "w", encoding="utf-8") as f:
        f.write(edgeyaml.render(loaded.config(node)))
