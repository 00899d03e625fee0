# SPDX-License-Identifier: Apache-2.0
"""The state of this boot, read on the box: what appliance judges."""

from __future__ import annotations

from ansible_collections.catchment.edge.plugins.module_utils import appliance


def facts(module):
    """appliance.facts of this box; None on a system that is no appliance."""
    folder = module.params["image_dir"]
    try:
        metrics = appliance.read(folder)
    except OSError as err:
        return appliance.facts("", error=f"{folder}: {err.strerror}")
    if metrics is None:
        return None
    if not module.get_bin_path("edgectl"):
        return appliance.facts(metrics, error="there is no edgectl on this box")
    slots, error = appliance.parse_slots(*module.run_command(["edgectl", "slots", "-o", "json"]))
    return appliance.facts(metrics, slots, error)
