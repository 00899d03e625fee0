# SPDX-License-Identifier: Apache-2.0
"""Judges on the controller whether nodes serve as the rest of the fleet does."""

from __future__ import annotations

from ansible_collections.catchment.edge.plugins.module_utils import rollout_soak
from ansible_collections.catchment.edge.plugins.plugin_utils.controller import ControllerAction, names


class ActionModule(ControllerAction):
    OPTIONS = ("batch", "before", "after", "watched", "limits")

    def decide(self, args):
        samples = [{n: s for n, s in (args.get(k) or {}).items() if isinstance(s, dict)} for k in ("before", "after", "watched")]
        failed, told = rollout_soak.judge(names(args.get("batch")), *samples, rollout_soak.limits_of(args.get("limits")))
        return {"changed": False, "bad": failed, "told": told}
